//! A provider, and peers that use its protocol without being one.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::sys::stat::fstat;
use nvmeof_memory::Shared;
use nvmeof_rdma::{Address, Event, Limits, PrivateData, Provider, QpConfig, QpId};
use nvmeof_rdma_shm::{Shm, ShmConfig};
use socket2::{Domain, SockAddr, Socket, Type};
use tempfile::TempDir;

pub(crate) const RING: usize = 64 << 10;
pub(crate) const TOTAL: usize = 4096 + 2 * RING;
pub(crate) const CONFIG: QpConfig = QpConfig {
    recvs: 16,
    sends: 16,
    reads_out: 4,
    reads_in: 4,
    exposes: 64,
    trusts_peer: false,
};

/// Tests count descriptors, so that one runs at a time.
pub(crate) static ALONE: Mutex<()> = Mutex::new(());

pub(crate) struct Host {
    _alone: MutexGuard<'static, ()>,
    pub(crate) folder: TempDir,
    pub(crate) provider: Shm,
    /// Time-out of the test.
    start: Instant,
    /// The time for the providers: it advances with their polls, however fast these are.
    now: Duration,
}

/// How long anything may take on a machine that is busy with other things.
const TIMEOUT: Duration = Duration::from_secs(600);

pub(crate) fn addr() -> Address {
    "127.0.0.1:4420".parse().unwrap()
}

impl Host {
    pub(crate) fn new() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = TempDir::new().unwrap();
        let mut provider = Shm::new(config(&folder)).unwrap();
        provider.listen(addr()).unwrap();
        Self {
            _alone: alone,
            folder,
            provider,
            start: Instant::now(),
            now: Duration::ZERO,
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("127.0.0.1-4420.sock")
    }

    /// A stranger's socket.
    pub(crate) fn stranger(&self) -> Socket {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        socket
            .connect(&SockAddr::unix(self.path()).unwrap())
            .unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket
    }

    pub(crate) fn poll(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.now += Duration::from_micros(100);
        self.provider.poll(self.now, &mut events);
        assert!(self.start.elapsed() < TIMEOUT);
        events
    }

    /// Polls until something happens.
    pub(crate) fn event(&mut self) -> Event {
        loop {
            let mut events = self.poll();
            events.retain(|event| !matches!(event, Event::Ending { .. }));
            assert!(events.len() < 2, "{events:?}");
            if let Some(event) = events.pop() {
                return event;
            }
        }
    }

    /// An honest peer gets in.
    pub(crate) fn assert_open(&mut self) {
        let mut honest = Shm::new(config(&self.folder)).unwrap();
        let data = PrivateData::empty();
        let qp = honest.connect(addr(), &CONFIG, &data, self.now).unwrap();
        let mut events = Vec::new();
        while events.is_empty() {
            honest.poll(self.now, &mut events);
            for event in self.poll() {
                if let Event::ConnectRequest(request) = event {
                    self.provider.prepare(request.qp, &CONFIG).unwrap();
                    self.provider.accept(request.qp, &data).unwrap();
                }
            }
        }
        assert!(
            matches!(events[0], Event::Established { qp: of, .. } if of == qp),
            "{events:?}"
        );
        drop(honest);
        while !matches!(self.event(), Event::Closed { .. }) {}
    }
}

pub(crate) fn config(folder: &TempDir) -> ShmConfig {
    let base = ShmConfig::default();
    ShmConfig {
        folder: folder.path().to_owned(),
        limits: Limits {
            max_pending: 8,
            ..base.limits.clone()
        },
        ring: RING,
        handshake: Duration::from_secs(2),
        linger: Duration::from_millis(50),
        ..base
    }
}

/// A request as from a provider: rings of that size, 4 reads each way.
pub(crate) fn request(ring: usize) -> Vec<u8> {
    request_with(ring, 0)
}

/// The same, with room for grants.
pub(crate) fn request_with(ring: usize, grants: u32) -> Vec<u8> {
    let mut bytes = b"\x01nvmshm2".to_vec();
    bytes.extend_from_slice(&(ring as u64).to_le_bytes());
    bytes.extend_from_slice(&grants.to_le_bytes());
    bytes.extend_from_slice(&std::net::Ipv6Addr::LOCALHOST.octets());
    bytes.extend_from_slice(&[4, 0, 0, 0, 4, 0, 0, 0]);
    bytes
}

/// Number of open descriptors of these files; other tests run in parallel.
pub(crate) fn open_of(files: &[&OwnedFd]) -> usize {
    let ours = files.iter().map(|fd| fstat(fd).unwrap());
    let ours: Vec<(u64, u64)> = ours.map(|file| (file.st_dev, file.st_ino)).collect();
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let all = all.filter_map(|entry| std::fs::metadata(entry.unwrap().path()).ok());
    all.filter(|file| ours.contains(&(file.dev(), file.ino())))
        .count()
}

pub(crate) fn send(socket: &Socket, bytes: &[u8], fds: &[&OwnedFd]) {
    let numbers: Vec<RawFd> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
    let control = [ControlMessage::ScmRights(&numbers)];
    let control = if fds.is_empty() { &[][..] } else { &control };
    let pieces = [IoSlice::new(bytes)];
    sendmsg::<()>(
        socket.as_raw_fd(),
        &pieces,
        control,
        MsgFlags::empty(),
        None,
    )
    .unwrap();
}

/// Everything that the provider sends to a stranger before it closes.
pub(crate) fn last_words(host: &mut Host, socket: &Socket) -> String {
    socket.set_nonblocking(true).unwrap();
    let mut message = String::new();
    loop {
        let mut bytes = [0; 512];
        match std::io::Read::read(&mut &*socket, &mut bytes) {
            Ok(0) => return message,
            Ok(len) => message += &String::from_utf8_lossy(&bytes[..len]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                assert!(host.poll().is_empty());
            }
            // It closed with something unread.
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
}

/// Connects as a stranger with its own memory, and accepts it.
pub(crate) fn intruder(host: &mut Host) -> (Socket, Shared, QpId) {
    intruder_with(host, 0)
}

/// The same, with room for grants.
pub(crate) fn intruder_with(host: &mut Host, grants: u32) -> (Socket, Shared, QpId) {
    let (memory, fd) = Shared::create(TOTAL + 16 * grants as usize).unwrap();
    let stranger = host.stranger();
    send(&stranger, &request_with(RING, grants), &[&fd]);
    let Event::ConnectRequest(asked) = host.event() else {
        panic!("a request")
    };
    host.provider.prepare(asked.qp, &CONFIG).unwrap();
    let accepted = host.provider.accept(asked.qp, &PrivateData::empty());
    accepted.unwrap();
    assert!(matches!(host.event(), Event::Established { .. }));
    (stranger, memory, asked.qp)
}

/// A record as the specification of the rings has it: kind, flags and length;
/// key and rest; address.
#[derive(Clone, Copy)]
pub(crate) struct Record {
    pub(crate) kind: u64,
    pub(crate) len: u64,
    pub(crate) key: u32,
    pub(crate) rest: u64,
    pub(crate) addr: u64,
}

/// Puts records into the ring from the active to the passive side.
pub(crate) fn put(memory: &Shared, records: &[Record]) {
    let mut at = 0;
    for record in records {
        let words = [
            record.kind | record.len << 32,
            u64::from(record.key) | record.rest << 32,
            record.addr,
        ];
        memory.store(4096 + at, words).unwrap();
        at += (32 + usize::try_from(record.len).unwrap()).next_multiple_of(64);
    }
    let head = memory.word(0).unwrap();
    head.store(at as u64, Ordering::Release);
}
