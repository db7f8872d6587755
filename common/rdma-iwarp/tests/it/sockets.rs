//! Tests of sockets: hostile peers, back-pressure, shortage, time-outs.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_memory::{Pages, Pool, PoolLayout};
use nvmeof_rdma::{
    Address, CloseReason, Event, Inline, PrivateData, Provider, QpConfig, QpId, Rights, Tag,
    UnixPath, Work,
};
use nvmeof_rdma_iwarp::{Iwarp, IwarpConfig};

const CONFIG: QpConfig = QpConfig {
    recvs: 8,
    sends: 64,
    reads_out: 4,
    reads_in: 4,
    exposes: 16,
    trusts_peer: false,
};
const LARGE: usize = 6 << 20;
/// Time-out of the tests.
const TIMEOUT: Duration = Duration::from_secs(60);

struct Endpoint {
    provider: Iwarp,
    start: Instant,
    events: Vec<Event>,
    pool: Pool,
}

impl Endpoint {
    fn new(config: IwarpConfig) -> Self {
        let mut provider = nvmeof_rdma_iwarp::new(config).unwrap();
        let layout = PoolLayout {
            count: 4,
            stride: LARGE,
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Normal).unwrap();
        provider.register(pool.region()).unwrap();
        Self {
            provider,
            start: Instant::now(),
            events: Vec::new(),
            pool,
        }
    }

    fn listening() -> (Self, Address) {
        Self::listening_at("127.0.0.1:0".parse().unwrap())
    }

    fn listening_at(addr: Address) -> (Self, Address) {
        let mut end = Self::new(IwarpConfig::default());
        let (_, addr) = end.provider.listen(addr).unwrap();
        (end, addr)
    }

    fn poll_once(&mut self) -> bool {
        let now = self.start.elapsed();
        self.provider.submit(now);
        self.provider.poll(now, &mut self.events)
    }

    /// Sleeps like an owner: only if there is nothing to do.
    fn sleep(&mut self) {
        if !self.poll_once() {
            let fd = PollFd::new(self.provider.wait_fd().unwrap(), PollFlags::POLLIN);
            poll(&mut [fd], PollTimeout::from(5u8)).unwrap();
        }
    }

    fn until<T>(&mut self, what: &str, mut find: impl FnMut(&Event) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            self.sleep();
            if let Some(found) = self.events.iter().find_map(&mut find) {
                return found;
            }
            assert!(start.elapsed() < TIMEOUT, "no {what}");
        }
    }

    fn request(&mut self) -> QpId {
        self.until("request", |event| match event {
            Event::ConnectRequest(request) => Some(request.qp),
            _ => None,
        })
    }

    fn closed(&mut self) -> CloseReason {
        self.until("end", |event| match event {
            Event::Closed { reason, .. } => Some(reason.clone()),
            _ => None,
        })
    }
}

fn mpa_request() -> Vec<u8> {
    let mut bytes = b"MPA ID Req Frame".to_vec();
    bytes.extend_from_slice(&[0x10, 2, 0, 4, 0, 4, 0, 4]);
    bytes
}

/// Reads until the other side closes.
fn read_all(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut bytes = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

#[test]
fn connections_without_mpa_request_are_closed() {
    let (mut end, addr) = Endpoint::listening();
    let mut strangers = Vec::new();
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"MPA ID Req Frame\x80\x01\0\0",
        b"\0",
    ] {
        let mut stranger = TcpStream::connect(addr.socket_addr().unwrap()).unwrap();
        stranger.write_all(bytes).unwrap();
        strangers.push(std::thread::spawn(move || read_all(stranger)));
    }
    let start = Instant::now();
    while !strangers.iter().all(std::thread::JoinHandle::is_finished) {
        end.sleep();
        assert!(start.elapsed() < TIMEOUT);
    }
    let received: Vec<_> = strangers.into_iter().map(|s| s.join().unwrap()).collect();
    // Only the peer that requests markers gets a rejection.
    assert_eq!(&received[1][..17], b"MPA ID Rep Frame\x20");
    assert!(received[0].is_empty() && received[2].is_empty());
    assert!(end.events.is_empty());
}

#[test]
fn peer_that_violates_protocol_gets_terminate() {
    let (mut end, addr) = Endpoint::listening();
    let mut peer = TcpStream::connect(addr.socket_addr().unwrap()).unwrap();
    peer.write_all(&mpa_request()).unwrap();
    let qp = end.request();
    end.provider.prepare(qp, &CONFIG).unwrap();
    end.provider.accept(qp, &PrivateData::empty()).unwrap();
    end.poll_once();
    // An RDMA Write to an unknown key, and more data than will be read.
    let mut bytes = vec![0, 18, 0xc1, 0x40, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend_from_slice(&[0; 40_000]);
    peer.write_all(&bytes).unwrap();
    let reader = std::thread::spawn(move || read_all(peer));
    let reason = end.closed();
    assert!(matches!(reason, CloseReason::PeerFault(_)), "{reason}");
    while !reader.is_finished() {
        end.sleep();
    }
    let received = reader.join().unwrap();
    // The reply, then a Terminate: DDP, tagged buffer, invalid steering tag.
    assert_eq!(&received[..16], b"MPA ID Rep Frame");
    assert_eq!(&received[24 + 20..24 + 22], &[0x11, 0x00]);
}

#[test]
fn connect_to_silent_listener_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut end = Endpoint::new(IwarpConfig {
        handshake: Duration::from_millis(50),
        ..IwarpConfig::default()
    });
    let addr = listener.local_addr().unwrap().into();
    let nothing = PrivateData::empty();
    let now = Duration::ZERO;
    end.provider.connect(addr, &CONFIG, &nothing, now).unwrap();
    // Its time-out continues once the request has arrived.
    listener.set_nonblocking(true).unwrap();
    let mut peer = loop {
        end.provider.submit(now);
        end.provider.poll(now, &mut end.events);
        if let Ok((peer, _)) = listener.accept() {
            break peer;
        }
    };
    peer.set_nonblocking(true).unwrap();
    let start = Instant::now();
    while peer.read(&mut [0; 64]).is_err() {
        end.provider.submit(now);
        end.provider.poll(now, &mut end.events);
        assert!(start.elapsed() < TIMEOUT);
    }
    assert!(end.events.is_empty());
    let due = end.provider.next_deadline().unwrap();
    assert_eq!(due, Duration::from_millis(50));
    end.provider.poll(due, &mut end.events);
    let Some(Event::Closed { reason, .. }) = end.events.pop() else {
        panic!("the end")
    };
    let waiting_for = "the MPA reply";
    assert_eq!(reason, CloseReason::Timeout { waiting_for });
}

#[test]
fn several_mib_go_both_ways() {
    go_both_ways("127.0.0.1:0".parse().unwrap());
}

#[test]
fn several_mib_go_both_ways_through_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = UnixPath::new(&folder.path().join("a.sock")).unwrap();
    go_both_ways(path.into());
}

fn go_both_ways(addr: Address) {
    let (mut b, addr) = Endpoint::listening_at(addr);
    let mut a = Endpoint::new(IwarpConfig {
        crc: true,
        ..IwarpConfig::default()
    });
    let now = a.start.elapsed();
    let nothing = PrivateData::empty();
    let qp_a = a.provider.connect(addr, &CONFIG, &nothing, now).unwrap();
    a.poll_once();
    let qp_b = b.request();
    b.provider.prepare(qp_b, &CONFIG).unwrap();
    b.provider.accept(qp_b, &nothing).unwrap();
    let recv = b.pool.take().unwrap();
    b.provider.post_recv(qp_b, Tag(5), recv).unwrap();
    let pattern = |buf: &mut [u8], seed: usize| {
        for (place, n) in buf.iter_mut().zip(seed..) {
            *place = (n % 251).to_le_bytes()[0];
        }
    };
    let mut source = b.pool.take().unwrap();
    pattern(&mut source, 3);
    let source = b
        .provider
        .expose(qp_b, source, Rights::REMOTE_READ)
        .unwrap();
    let sink = b.pool.take().unwrap();
    let sink = b.provider.expose(qp_b, sink, Rights::REMOTE_WRITE).unwrap();
    b.poll_once();
    a.until("connection", |event| {
        matches!(event, Event::Established { .. }).then_some(())
    });
    a.events.clear();
    let mut local = a.pool.take().unwrap();
    pattern(&mut local, 1);
    let body = a.pool.take().unwrap();
    let works = [
        Work::Write {
            local,
            remote: sink,
        },
        Work::Read {
            local: a.pool.take().unwrap(),
            remote: source,
        },
        Work::Send {
            head: Inline::new(b"done").unwrap(),
            body: Some(body).map(|mut body| {
                body.set_len(1 << 20).unwrap();
                body
            }),
            invalidate: None,
            solicited: true,
        },
    ];
    for (tag, work) in (0..).zip(works) {
        a.provider.post(qp_a, Tag(tag), work).unwrap();
    }
    let start = Instant::now();
    let arrived = |b: &Endpoint| {
        b.events
            .iter()
            .any(|event| matches!(event, Event::Received(_)))
    };
    while a.events.len() < 3 || !arrived(&b) {
        a.poll_once();
        b.poll_once();
        assert!(start.elapsed() < TIMEOUT);
    }
    let mut expected = vec![0; LARGE];
    pattern(&mut expected, 3);
    for (event, tag) in a.events.iter().zip(0..) {
        let Event::Completion(completion) = event else {
            panic!("{event:?}");
        };
        assert!(completion.outcome.is_success() && completion.tag == Tag(tag));
        if tag == 1 {
            assert!(completion.buf.as_deref() == Some(&expected[..]));
        }
    }
    pattern(&mut expected, 1);
    assert!(b.provider.withdraw(sink.key).unwrap().unwrap()[..] == expected[..]);
}
