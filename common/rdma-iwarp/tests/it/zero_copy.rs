//! Sends without copies: buffers return only when the kernel has released them, and the bytes
//! that the peer receives late are those that were sent.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::sys::resource::{Resource, setrlimit};
use nvmeof_memory::{Buf, Pages, Pool, PoolLayout};
use nvmeof_rdma::{
    CloseReason, Completion, Event, Outcome, PrivateData, Provider, QpConfig, QpId, RemoteKey,
    RemoteSlice, Tag, Work,
};
use nvmeof_rdma_iwarp::{Iwarp, IwarpConfig, SocketStreams, ZeroCopy};
use nvmeof_rdma_soft::{StreamEvent, Streams as _};
use socket2::{Domain, Socket, Type};

const CONFIG: QpConfig = QpConfig {
    recvs: 4,
    sends: 64,
    reads_out: 1,
    reads_in: 1,
    exposes: 1,
    trusts_peer: false,
};
/// Bytes of a buffer.
const LEN: usize = 128 * 1024;
const BUFS: usize = 6;
/// Bytes of a frame before its payload: MPA length, DDP and RDMAP of a tagged segment.
const HEADER: usize = 16;
/// What is written into buffers that returned.
const REUSED: u8 = 0xee;
const TIMEOUT: Duration = Duration::from_secs(25);

/// A provider with one connection to a peer that receives only on request.
struct Pair {
    provider: Iwarp,
    pool: Pool,
    qp: QpId,
    peer: TcpStream,
    start: Instant,
    closed: Option<CloseReason>,
    /// Work that returned: its tag and outcome.
    returned: Vec<(u64, Outcome)>,
}

impl Pair {
    fn new(zero_copy: ZeroCopy, listen: SocketAddr) -> Self {
        let mut provider = nvmeof_rdma_iwarp::new(IwarpConfig {
            zero_copy,
            linger: Duration::from_millis(50),
            ..IwarpConfig::default()
        })
        .unwrap();
        let layout = PoolLayout {
            count: BUFS,
            stride: LEN,
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Normal).unwrap();
        provider.register(pool.region()).unwrap();
        let listener = Socket::new(Domain::for_address(listen), Type::STREAM, None).unwrap();
        // Less than is sent, and enough for long segments.
        listener.set_recv_buffer_size(64 * 1024).unwrap();
        listener.bind(&listen.into()).unwrap();
        listener.listen(1).unwrap();
        let addr = listener.local_addr().unwrap().as_socket().unwrap();
        let nothing = PrivateData::empty();
        let now = Duration::ZERO;
        let qp = provider.connect(addr.into(), &CONFIG, &nothing, now);
        let mut pair = Self {
            provider,
            pool,
            qp: qp.unwrap(),
            peer: listener.accept().unwrap().0.into(),
            start: Instant::now(),
            closed: None,
            returned: Vec::new(),
        };
        pair.poll();
        pair.peer.read_exact(&mut [0; 24]).unwrap();
        let reply = b"MPA ID Rep Frame\x10\x02\x00\x04\x00\x01\x00\x01";
        pair.peer.write_all(reply).unwrap();
        while !pair.poll() {}
        pair
    }

    fn loopback(zero_copy: ZeroCopy) -> Self {
        Self::new(zero_copy, "127.0.0.1:0".parse().unwrap())
    }

    /// Returns whether the connection was established. Buffers that return are used again.
    fn poll(&mut self) -> bool {
        assert!(
            self.start.elapsed() < TIMEOUT,
            "{:?} {:?}",
            self.returned,
            self.closed
        );
        let mut events = Vec::new();
        self.provider.submit(self.start.elapsed());
        self.provider.poll(self.start.elapsed(), &mut events);
        let mut established = false;
        for event in events {
            match event {
                Event::Established { .. } => established = true,
                Event::Completion(completion) => self.take(completion),
                Event::Closed { reason, .. } => self.closed = Some(reason),
                _ => {}
            }
        }
        established
    }

    fn take(&mut self, completion: Completion) {
        let mut buf = completion.buf.unwrap();
        buf.fill(REUSED);
        self.returned.push((completion.tag.0, completion.outcome));
    }

    fn poll_for(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.poll();
        }
    }

    /// Sends RDMA Writes of all buffers, filled with their number from 1, one after the other.
    fn write_all(&mut self) {
        for number in 1..=BUFS {
            let mut local: Buf = self.pool.take().unwrap();
            local.fill(u8::try_from(number).unwrap());
            let remote = RemoteSlice {
                key: RemoteKey(u32::try_from(number).unwrap()),
                addr: 0,
                len: u32::try_from(LEN).unwrap(),
            };
            let work = Work::Write { local, remote };
            self.provider
                .post(self.qp, Tag(number as u64), work)
                .unwrap();
            self.poll_for(Duration::from_millis(5));
        }
    }

    /// The peer receives everything; the frames that it got completely must be those that were
    /// sent. Returns the number of bytes of payload.
    fn receive(&mut self, expected: usize) -> usize {
        self.peer.set_nonblocking(true).unwrap();
        let (mut bytes, mut some) = (Vec::new(), vec![0; 64 * 1024]);
        loop {
            match self.peer.read(&mut some) {
                Ok(0) => break,
                Ok(count) => bytes.extend_from_slice(&some[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
            if payload(&bytes) >= expected {
                break;
            }
            self.poll();
        }
        payload(&bytes)
    }
}

/// Checks the frames in `bytes`; returns the length of their payload.
fn payload(bytes: &[u8]) -> usize {
    let (mut rest, mut total) = (bytes, 0);
    while rest.len() > HEADER {
        let mpa = usize::from(u16::from_be_bytes([rest[0], rest[1]]));
        let whole = (2 + mpa).next_multiple_of(4) + 4;
        if rest.len() < whole {
            break;
        }
        let (frame, behind) = rest.split_at(whole);
        rest = behind;
        let data = &frame[HEADER..2 + mpa];
        // An RDMA Write without payload shows only that this side is there.
        if data.is_empty() {
            continue;
        }
        let number = (total / LEN + 1).to_le_bytes()[0];
        let key = u32::from_be_bytes(frame[4..8].try_into().unwrap());
        let offset = u64::from_be_bytes(frame[8..16].try_into().unwrap());
        assert_eq!((key, offset), (number.into(), (total % LEN) as u64));
        let wrong = data.iter().find(|byte| **byte != number);
        assert_eq!(wrong, None, "in buffer {number}");
        total += data.len();
    }
    total
}

#[test]
fn buffers_return_unchanged_after_peer_acknowledged() {
    let mut pair = Pair::loopback(ZeroCopy::Always);
    pair.write_all();
    pair.poll_for(Duration::from_millis(200));
    assert!(pair.returned.len() < BUFS, "the peer received nothing");
    let all = BUFS * LEN;
    assert_eq!(pair.receive(all), all);
    while pair.returned.len() < BUFS {
        pair.poll();
    }
    let tags = (1..).map(|tag| (tag, Outcome::Success)).take(BUFS);
    assert_eq!(pair.returned, tags.collect::<Vec<_>>());
}

#[test]
fn sends_to_this_machine_are_copied() {
    let has_ip = |addr: &nix::sys::socket::SockaddrStorage| {
        let addr = addr.as_sockaddr_in()?;
        Some(SocketAddr::from((addr.ip(), 0)))
    };
    let own = getifaddrs().unwrap();
    let own: Vec<_> = own.filter_map(|one| has_ip(&one.address?)).collect();
    assert!(!own.is_empty());
    for addr in own {
        let mut pair = Pair::new(ZeroCopy::Remote, addr);
        pair.write_all();
        // They complete without an acknowledgement of the peer.
        while pair.returned.len() < BUFS {
            pair.poll();
        }
        let all = BUFS * LEN;
        assert_eq!(pair.receive(all), all, "{addr}");
    }
}

#[test]
fn disconnect_returns_buffers_that_peer_does_not_get_afterwards() {
    let mut pair = Pair::loopback(ZeroCopy::Always);
    pair.write_all();
    pair.poll_for(Duration::from_millis(50));
    pair.provider.disconnect(pair.qp);
    while pair.closed.is_none() {
        pair.poll();
    }
    assert_eq!(pair.returned.len(), BUFS);
    assert_eq!(pair.returned.last(), Some(&(BUFS as u64, Outcome::Flushed)));
    // All buffers contain other bytes by now.
    assert!(pair.receive(usize::MAX) < BUFS * LEN);
}

#[test]
fn death_of_peer_returns_buffers() {
    let mut pair = Pair::loopback(ZeroCopy::Always);
    pair.write_all();
    pair.poll_for(Duration::from_millis(50));
    // With unread bytes: a reset.
    drop(std::mem::replace(&mut pair.peer, dead()));
    while pair.closed.is_none() {
        pair.poll();
    }
    assert_eq!(pair.returned.len(), BUFS);
    assert_eq!(pair.pool.available(), BUFS);
}

/// The end of a connection cannot wait for a poll that reads it.
#[test]
fn release_that_no_poll_has_read_is_reaped() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let mut streams = SocketStreams::new(None, 0o600, ZeroCopy::Always).unwrap();
    let stream = streams.connect(addr.into()).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let (start, mut events) = (Instant::now(), Vec::new());
    while !matches!(events.last(), Some(StreamEvent::Connected(_))) {
        assert!(start.elapsed() < TIMEOUT, "{events:?}");
        streams.poll(start.elapsed(), &mut events);
    }
    let sent = [1; 4096];
    let accepted = streams.send_kept(stream, &[IoSlice::new(&sent)], sent.len());
    assert_eq!(accepted.unwrap().kept, 1);
    peer.read_exact(&mut [0; 4096]).unwrap();
    // The notification follows when the kernel has dropped the packet.
    while streams.reap_released(stream) == 0 {
        assert!(start.elapsed() < TIMEOUT);
    }
    assert_eq!(streams.released(stream), 1);
}

/// A stream without a peer.
fn dead() -> TcpStream {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    TcpStream::connect(listener.local_addr().unwrap()).unwrap()
}

/// Set in the process that this test starts.
const CHILD: &str = "NVMEOF_TEST_WITHOUT_LOCKED_MEMORY";

/// The kernel refuses sends without copies above the limit of locked memory (ENOBUFS). The
/// limit does not apply to root, so a process of another user tests it.
#[test]
fn sends_above_limit_of_locked_memory_are_copied() {
    if std::env::var_os(CHILD).is_none() {
        let mut test = Command::new("/proc/self/exe");
        test.args([
            "--exact",
            "zero_copy::sends_above_limit_of_locked_memory_are_copied",
        ]);
        test.env(CHILD, "1");
        if nix::unistd::geteuid().is_root() {
            test.uid(65534).gid(65534);
        }
        let output = test.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
        return;
    }
    setrlimit(Resource::RLIMIT_MEMLOCK, 0, 0).unwrap();
    let mut pair = Pair::loopback(ZeroCopy::Always);
    pair.write_all();
    while pair.returned.len() < BUFS {
        pair.poll();
    }
    let all = BUFS * LEN;
    assert_eq!(pair.receive(all), all);
}
