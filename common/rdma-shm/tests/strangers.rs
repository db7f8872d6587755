//! Peers that are no providers: what they say first, what they pass, and one
//! that writes into the rings while we look at them.
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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;
use nvmeof_memory::{Pages, Pool, PoolLayout, Shared};
use nvmeof_rdma::layer::Dice;
use nvmeof_rdma::{
    Address, CloseReason, Event, Inline, Limits, PrivateData, Provider, QpConfig, QpId, RemoteKey,
    RemoteSlice, Rights, Tag, Work,
};
use nvmeof_rdma_shm::{Shm, ShmConfig};
use socket2::{Domain, SockAddr, Socket, Type};
use tempfile::TempDir;

const RING: usize = 64 << 10;
const TOTAL: usize = 4096 + 2 * RING;
const CONFIG: QpConfig = QpConfig {
    recvs: 16,
    sends: 16,
    reads_out: 4,
    reads_in: 4,
    exposes: 64,
};

/// Tests count descriptors, so that one runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

struct Host {
    _alone: MutexGuard<'static, ()>,
    folder: TempDir,
    provider: Shm,
    start: Instant,
}

fn addr() -> Address {
    "127.0.0.1:4420".parse().unwrap()
}

impl Host {
    fn new() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = TempDir::new().unwrap();
        let mut provider = Shm::new(config(&folder)).unwrap();
        provider.listen(addr()).unwrap();
        Self {
            _alone: alone,
            folder,
            provider,
            start: Instant::now(),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("127.0.0.1-4420.sock")
    }

    /// A stranger's socket.
    fn stranger(&self) -> Socket {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        socket
            .connect(&SockAddr::unix(self.path()).unwrap())
            .unwrap();
        let patience = Some(Duration::from_secs(30));
        socket.set_read_timeout(patience).unwrap();
        socket
    }

    fn poll(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.provider.poll(self.start.elapsed(), &mut events);
        assert!(self.start.elapsed() < Duration::from_secs(120));
        events
    }

    /// Polls until something happens.
    fn event(&mut self) -> Event {
        loop {
            let mut events = self.poll();
            assert!(events.len() < 2, "{events:?}");
            if let Some(event) = events.pop() {
                return event;
            }
        }
    }

    /// An honest peer gets in.
    fn assert_open(&mut self) {
        let mut honest = Shm::new(config(&self.folder)).unwrap();
        let data = PrivateData::empty();
        let now = self.start.elapsed();
        let qp = honest.connect(addr(), &CONFIG, &data, now).unwrap();
        let mut events = Vec::new();
        while events.is_empty() {
            honest.poll(self.start.elapsed(), &mut events);
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

fn config(folder: &TempDir) -> ShmConfig {
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

/// What a provider would say: rings of that size, 4 reads each way.
fn request(ring: usize) -> Vec<u8> {
    let mut bytes = b"\x01nvmshm1".to_vec();
    bytes.extend_from_slice(&(ring as u64).to_le_bytes());
    bytes.extend_from_slice(&std::net::Ipv6Addr::LOCALHOST.octets());
    bytes.extend_from_slice(&[4, 0, 0, 0, 4, 0, 0, 0]);
    bytes
}

/// How many descriptors of these files are open; other tests run beside us.
fn open_of(files: &[&OwnedFd]) -> usize {
    let ours = files.iter().map(|fd| fstat(fd).unwrap().st_ino);
    let ours: Vec<u64> = ours.collect();
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let all = all.filter_map(|entry| std::fs::metadata(entry.unwrap().path()).ok());
    all.filter(|file| ours.contains(&file.ino())).count()
}

fn send(socket: &Socket, bytes: &[u8], fds: &[&OwnedFd]) {
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

/// All that the provider says to a stranger before it closes.
fn last_words(host: &mut Host, socket: &Socket) -> String {
    socket.set_nonblocking(true).unwrap();
    let mut said = String::new();
    loop {
        let mut bytes = [0; 512];
        match std::io::Read::read(&mut &*socket, &mut bytes) {
            Ok(0) => return said,
            Ok(len) => said += &String::from_utf8_lossy(&bytes[..len]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                assert!(host.poll().is_empty());
            }
            // It closed with something unread.
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
}

#[test]
fn requests_that_make_no_sense_are_refused_with_the_reason() {
    let mut host = Host::new();
    let (_memory, good) = Shared::create(TOTAL).unwrap();
    let (_memory, small) = Shared::create(TOTAL - 4096).unwrap();
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let loose = memfd_create("loose", flags).unwrap();
    ftruncate(&loose, i64::try_from(TOTAL).unwrap()).unwrap();
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let right = request(RING);
    let mut other_version = right.clone();
    other_version[7] = b'2';
    let no_request = "not a request";
    let long = [&right[..], &[0; 300]].concat();
    let cases: [(&[u8], &[&OwnedFd], &str); 13] = [
        (b"GET / HTTP/1.1", &[], no_request),
        (&[0], &[&good], no_request),
        (&right[..right.len() - 1], &[&good], no_request),
        (&other_version, &[&good], no_request),
        (&right, &[], "no memory"),
        (&right, &[&null], "not sealed"),
        (&right, &[&loose], "not sealed"),
        (&right, &[&small], "bytes of memory"),
        (&request(2 * RING), &[&good], "bytes of memory"),
        (&request(0), &[&good], "power of two"),
        (&request(usize::MAX), &[&good], "power of two"),
        // These break the socket's own rules.
        (&right, &[&good, &good, &good], ""),
        (&long, &[&good], ""),
    ];
    let passed = [&good, &small, &loose];
    let open = open_of(&passed);
    for (bytes, fds, reason) in cases {
        let stranger = host.stranger();
        send(&stranger, bytes, fds);
        let said = last_words(&mut host, &stranger);
        assert!(said.contains(reason), "{bytes:02x?}: {said:?}");
        assert_eq!(said.is_empty(), reason.is_empty(), "{said:?}");
    }
    assert_eq!(open_of(&passed), open);
    host.assert_open();
}

#[test]
fn those_who_say_nothing_give_way() {
    let mut host = Host::new();
    let silent: Vec<Socket> = (0..20).map(|_| host.stranger()).collect();
    for _ in 0..20 {
        assert!(host.poll().is_empty());
    }
    host.assert_open();
    // And those who stay long are told to go.
    for stranger in &silent {
        last_words(&mut host, stranger);
    }
    while host.provider.next_deadline().is_some() {
        host.poll();
    }
}

/// Connects as a stranger with memory of its own, and has it accepted.
fn intruder(host: &mut Host) -> (Socket, Shared, QpId) {
    let (memory, fd) = Shared::create(TOTAL).unwrap();
    let stranger = host.stranger();
    send(&stranger, &request(RING), &[&fd]);
    let Event::ConnectRequest(asked) = host.event() else {
        panic!("a request")
    };
    host.provider.prepare(asked.qp, &CONFIG).unwrap();
    let accepted = host.provider.accept(asked.qp, &PrivateData::empty());
    accepted.unwrap();
    assert!(matches!(host.event(), Event::Established { .. }));
    (stranger, memory, asked.qp)
}

#[test]
fn messages_out_of_place_end_the_connection() {
    for message in [&[2; 9][..], &[3], &[7], &[4, 4], &[5, 0], &[0; 400]] {
        let mut host = Host::new();
        let (stranger, _memory, _) = intruder(&mut host);
        send(&stranger, message, &[]);
        let Event::Closed { reason, .. } = host.event() else {
            panic!("the end")
        };
        assert!(matches!(reason, CloseReason::PeerFault(_)), "{reason}");
        host.assert_open();
    }
}

#[test]
fn wake_ups_for_nothing_are_harmless_and_descriptors_are_not_kept() {
    let mut host = Host::new();
    let (stranger, _memory, qp) = intruder(&mut host);
    let (_other, fd) = Shared::create(4096).unwrap();
    let open = open_of(&[&fd]);
    for round in 0..1000 {
        let fds = [&fd];
        send(&stranger, &[4], fds.get(round % 2..).unwrap());
        assert!(host.poll().is_empty());
    }
    assert_eq!(open_of(&[&fd]), open);
    host.provider.disconnect(qp);
    assert!(matches!(host.event(), Event::Closed { .. }));
    host.assert_open();
}

/// A record as the specification of the rings has it: kind, flags and length;
/// key and rest; address.
#[derive(Clone, Copy)]
struct Record {
    kind: u64,
    len: u64,
    key: u32,
    rest: u64,
    addr: u64,
}

/// Puts records into the ring from the active to the passive side.
fn put(memory: &Shared, records: &[Record]) {
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

#[test]
fn records_against_the_rules_are_told_by_their_number() {
    const LEN: usize = 4096;
    const LAST: u64 = 1 << 8;
    const INVALIDATES: u64 = 1 << 10;
    // What the owner of the memory has: a receive of 64 bytes, a read of 100
    // bytes in flight, and an exposed window, whose key and start stand in.
    type Make = fn(RemoteSlice) -> Vec<Record>;
    fn record(kind: u64, len: u64, rest: u64, window: RemoteSlice) -> Record {
        let (key, addr) = (window.key.0, window.addr);
        Record {
            kind,
            len,
            key,
            rest,
            addr,
        }
    }
    let cases: [(u16, Make); 14] = [
        (0x02, |w| vec![record(0, 0, 0, w)]),
        (0x02, |w| vec![record(5, 0, 0, w)]),
        (0x02, |w| vec![record(2, 101, 100, w)]),
        (0x20, |w| vec![record(1 | LAST, 8, 0, w); 2]),
        (0x21, |w| vec![record(1 | LAST, 65, 0, w)]),
        (0x21, |w| vec![record(1, 40, 0, w); 2]),
        (0x10, |w| {
            let send = record(1 | LAST | INVALIDATES, 0, 0, w);
            vec![Record {
                key: !w.key.0,
                ..send
            }]
        }),
        (0x13, |w| vec![record(2, 8, 4097, w)]),
        (0x13, |w| vec![record(3, 0, 4097, w)]),
        (0x22, |w| vec![record(3, 0, 100, w); 5]),
        (0x23, |w| vec![record(4, 99, 99, w)]),
        (0x23, |w| vec![record(4, 101, 101, w)]),
        (0x23, |w| vec![record(4, 0, 100, w)]),
        (0x23, |w| vec![record(4, 100, 100, w); 2]),
    ];
    let mut host = Host::new();
    let layout = PoolLayout {
        count: 3,
        stride: LEN,
        lead: 0,
    };
    let pool = Pool::new(layout, Pages::Normal).unwrap();
    host.provider.register(pool.region()).unwrap();
    for (number, (code, make)) in cases.into_iter().enumerate() {
        let (stranger, memory, qp) = intruder(&mut host);
        let window = pool.take().unwrap();
        let window = host.provider.expose(qp, window, Rights::all()).unwrap();
        let mut buf = pool.take().unwrap();
        buf.set_len(64).unwrap();
        host.provider.post_recv(qp, Tag(0), buf).unwrap();
        let mut local = pool.take().unwrap();
        local.set_len(100).unwrap();
        let remote = RemoteSlice { len: 100, ..window };
        let read = Work::Read { local, remote };
        host.provider.post(qp, Tag(0), read).unwrap();
        assert!(host.poll().is_empty());
        put(&memory, &make(window));
        send(&stranger, &[4], &[]);
        let reason = loop {
            if let Some(Event::Closed { reason, .. }) = host.poll().pop() {
                break reason;
            }
        };
        let CloseReason::PeerFault(fault) = reason else {
            panic!("case {number}: {reason}")
        };
        assert_eq!(fault.code, code, "case {number}: {fault}");
        host.provider.withdraw(window.key).unwrap();
        assert_eq!(pool.available(), 3);
    }
    host.assert_open();
}

/// Writes nonsense into the memory until it is told to stop: indices that
/// could be, records that could be, and anything else.
fn scribble(memory: &Shared, seed: u64, stop: &AtomicBool, window: RemoteSlice) {
    let mut dice = Dice::new(seed);
    while !stop.load(Ordering::Relaxed) {
        let data = 4096 + dice.below(16) * 64;
        let kind = 1 + dice.roll() % 4;
        let len = dice.roll() % 9000;
        let key = u64::from(window.key.0);
        let addr = window.addr + dice.roll() % 9000;
        let words = [
            kind | (dice.roll() % 8) << 8 | len << 32,
            key | len << 32,
            addr,
        ];
        memory.store(data, words).unwrap();
        let at = [0, 128, 256, 384, 512, 640, data][dice.below(7)];
        let value = if dice.below(50) == 0 {
            dice.roll()
        } else {
            dice.roll() % (RING as u64 / 64) * 64
        };
        // What is larger than ours moves on, what is smaller is a fault at
        // once: mostly only one line further.
        let word = memory.word(at).unwrap();
        let next = word.load(Ordering::Relaxed).wrapping_add(64);
        let value = if dice.below(8) == 0 { value } else { next };
        word.store(value, Ordering::Relaxed);
    }
}

#[test]
fn one_who_writes_while_we_look_changes_nothing_of_ours() {
    const LEN: usize = 32 << 10;
    const WINDOW: std::ops::Range<usize> = 8192..16_384;
    let mut host = Host::new();
    let layout = PoolLayout {
        count: 64,
        stride: LEN,
        lead: 0,
    };
    let pool = Pool::new(layout, Pages::Normal).unwrap();
    host.provider.register(pool.region()).unwrap();
    let take = || {
        let mut buf = pool.take().unwrap();
        buf.fill(0xEE);
        buf
    };
    for seed in 0..100 {
        let (_stranger, memory, qp) = intruder(&mut host);
        let mut window = take();
        window.set_view(WINDOW).unwrap();
        let slice = host.provider.expose(qp, window, Rights::all()).unwrap();
        let mut posted = Vec::new();
        for tag in (0..8).map(Tag) {
            let mut buf = take();
            buf.set_view(WINDOW).unwrap();
            host.provider.post_recv(qp, tag, buf).unwrap();
            let mut local = take();
            local.set_view(WINDOW).unwrap();
            let remote = RemoteSlice {
                key: RemoteKey(7),
                addr: 0,
                len: 8192,
            };
            let work = match tag.0 % 3 {
                0 => Work::Read { local, remote },
                1 => Work::Write { local, remote },
                _ => Work::Send {
                    head: Inline::empty(),
                    body: Some(local),
                    invalidate: None,
                    solicited: false,
                },
            };
            host.provider.post(qp, tag, work).unwrap();
            posted.push(tag);
        }
        let stop = AtomicBool::new(false);
        let (mut recvs, mut works, mut polls) = (Vec::new(), Vec::new(), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| scribble(&memory, seed, &stop, slice));
            'open: loop {
                polls += 1;
                if polls == 20_000 {
                    host.provider.disconnect(qp);
                }
                for event in host.poll() {
                    let buf = match event {
                        Event::Received(one) => {
                            recvs.push(one.tag);
                            Some(one.buf)
                        }
                        Event::Completion(one) => {
                            works.push(one.tag);
                            one.buf
                        }
                        Event::Closed { .. } => break 'open,
                        other => panic!("{other:?}"),
                    };
                    assert_beside(buf.unwrap(), WINDOW);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!((&recvs, &works), (&posted, &posted), "seed {seed}");
        assert_beside(host.provider.withdraw(slice.key).unwrap(), WINDOW);
        assert_eq!(pool.available(), 64);
    }
    host.assert_open();
}

/// Nothing beside `window` changed.
fn assert_beside(mut buf: nvmeof_memory::Buf, window: std::ops::Range<usize>) {
    buf.reset_view();
    let mut beside = buf[..window.start].iter().chain(&buf[window.end..]);
    assert!(beside.all(|byte| *byte == 0xEE));
}
