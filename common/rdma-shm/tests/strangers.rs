//! Peers that are no providers: what they say first, what they pass, and one
//! that writes into the rings while we look at them.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;
use nvmeof_memory::{Pages, Pool, PoolLayout, Shared};
use nvmeof_rdma::layer::Dice;
use nvmeof_rdma::{
    CloseReason, Event, Inline, Limits, PrivateData, Provider, QpConfig, QpId, RemoteKey,
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

fn addr() -> SocketAddr {
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
    request_with(ring, 0)
}

/// The same, with room for grants.
fn request_with(ring: usize, grants: u32) -> Vec<u8> {
    let mut bytes = b"\x01nvmshm2".to_vec();
    bytes.extend_from_slice(&(ring as u64).to_le_bytes());
    bytes.extend_from_slice(&grants.to_le_bytes());
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
    other_version[7] = b'1';
    let no_request = "not a request";
    let long = [&right[..], &[0; 300]].concat();
    let cases: [(&[u8], &[&OwnedFd], &str); 15] = [
        (b"GET / HTTP/1.1", &[], no_request),
        (&[0], &[&good], no_request),
        (&right[..right.len() - 1], &[&good], no_request),
        (&other_version, &[&good], no_request),
        (&right, &[], "no memory"),
        (&right, &[&null], "not sealed"),
        (&right, &[&loose], "not sealed"),
        (&right, &[&small], "bytes of memory"),
        (&request(2 * RING), &[&good], "bytes of memory"),
        (&request_with(RING, 2048), &[&good], "bytes of memory"),
        (&request_with(RING, 7), &[&good], "must be 0 or 2048"),
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
    intruder_with(host, 0)
}

/// The same, with room for grants.
fn intruder_with(host: &mut Host, grants: u32) -> (Socket, Shared, QpId) {
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
        (0x02, |w| vec![record(6, 0, 0, w)]),
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

const GRANTS: u32 = 2048;

fn region(number: u32, len: u64) -> Vec<u8> {
    [&[8][..], &number.to_le_bytes(), &len.to_le_bytes()].concat()
}

/// A memfd with these seals.
fn memfd(len: i64, flags: MFdFlags, seals: SealFlag) -> OwnedFd {
    let flags = flags | MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create("region", flags).unwrap();
    ftruncate(&fd, len).unwrap();
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    fd
}

#[test]
fn regions_that_are_none_are_refused_with_the_reason() {
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    let none = MFdFlags::empty();
    let good = memfd(8192, none, seals);
    let loose = memfd(8192, none, SealFlag::F_SEAL_GROW);
    let fixed = memfd(8192, none, seals | SealFlag::F_SEAL_WRITE);
    let huge = memfd(2 << 20, MFdFlags::MFD_HUGETLB, seals);
    let empty = memfd(0, none, seals);
    let path = format!("/proc/self/fd/{}", good.as_raw_fd());
    let readable: OwnedFd = std::fs::File::open(path).unwrap().into();
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let most: Vec<u32> = (0..17).collect();
    let cases: [(&[u32], u64, Option<&OwnedFd>, &str); 11] = [
        (&[1], 8192, Some(&good), "where number 0 is due"),
        (&[0, 0], 8192, Some(&good), "where number 1 is due"),
        (&most, 8192, Some(&good), "16 are the most"),
        (&[0], 8192, None, "without memory"),
        (&[0], 8192, Some(&null), "not sealed"),
        (&[0], 8192, Some(&loose), "not sealed"),
        (&[0], 4096, Some(&good), "bytes of memory"),
        (&[0], u64::MAX, Some(&good), "bytes of memory"),
        (&[0], 8192, Some(&fixed), "refused a mapping"),
        (&[0], 8192, Some(&readable), "refused a mapping"),
        (&[0], 2 << 20, Some(&huge), "not an ordinary memfd"),
    ];
    let mut host = Host::new();
    for (numbers, len, fd, text) in cases {
        let (stranger, _memory, _) = intruder_with(&mut host, GRANTS);
        for number in numbers {
            send(&stranger, &region(*number, len), fd.as_slice());
        }
        let Event::Closed { reason, .. } = host.event() else {
            panic!("the end")
        };
        let CloseReason::PeerFault(fault) = reason else {
            panic!("{text}: {reason}")
        };
        assert!(fault.code == 5 && fault.text.contains(text), "{fault}");
    }
    let (stranger, _memory, _) = intruder_with(&mut host, GRANTS);
    send(&stranger, &region(0, 0), &[&empty]);
    assert!(matches!(host.event(), Event::Closed { .. }));
    // Whoever has no room for grants passes no regions.
    let (stranger, _memory, _) = intruder(&mut host);
    send(&stranger, &region(0, 8192), &[&good]);
    assert!(matches!(host.event(), Event::Closed { .. }));
    assert_eq!(open_of(&[&good]), 2, "only ours, and the one to read");
    host.assert_open();
}

/// A grant: kind, key, length, and start, region and rights in one word.
fn grant(key: u32, start: u64, len: u64, number: u64) -> Record {
    Record {
        kind: 5,
        len: 0,
        key,
        rest: len,
        addr: start | number << 48 | 3 << 56,
    }
}

#[test]
fn grants_reach_no_further_than_the_region() {
    let mut host = Host::new();
    let (stranger, memory, qp) = intruder_with(&mut host, GRANTS);
    let (theirs, fd) = Shared::create(8192).unwrap();
    theirs.copy_in(4096, &[7; 4096]).unwrap();
    send(&stranger, &region(0, 8192), &[&fd]);
    let cases = [
        (grant(0x100, 4096, 4096, 0), true),
        (grant(0x200, 4097, 4096, 0), false),
        (grant(0x300, 8192, 1, 0), false),
        (grant(0x400, (1 << 48) - 1, 1, 0), false),
        (grant(0x500, 0, u64::from(u32::MAX), 0), false),
        (grant(0x600, 4096, 4096, 1), false),
        (grant(0x700, 4096, 4096, 255), false),
    ];
    put(&memory, &cases.map(|(grant, _)| grant));
    send(&stranger, &[4], &[]);
    for _ in 0..1000 {
        assert!(host.poll().is_empty());
    }
    let mut mapped = Vec::new();
    for (grant, good) in cases {
        let slice = RemoteSlice {
            key: RemoteKey(grant.key),
            addr: 1 << 20,
            len: u32::try_from(grant.rest).unwrap(),
        };
        let buf = host.provider.map_remote(qp, slice, Rights::all());
        assert_eq!(buf.is_some(), good, "{:#x}", grant.key);
        mapped.extend(buf);
    }
    // The owner may take the bytes away, not the memory.
    assert!(mapped[0].iter().all(|byte| *byte == 7));
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&fd, hole, 0, 8192).unwrap();
    assert!(mapped[0].iter().all(|byte| *byte == 0));
    drop(stranger);
    assert!(matches!(host.event(), Event::Closed { .. }));
    mapped[0].fill(1);
    host.assert_open();
}

/// Beyond the bound nothing is mapped, and everything else works.
#[test]
fn more_memory_than_there_is_room_for_is_not_mapped() {
    let mut host = Host::new();
    host.provider = Shm::new(ShmConfig {
        mapped: 8192,
        folder: host.folder.path().join("other"),
        ..config(&host.folder)
    })
    .unwrap();
    host.provider.listen(addr()).unwrap();
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
    let path = host.folder.path().join("other/127.0.0.1-4420.sock");
    socket.connect(&SockAddr::unix(path).unwrap()).unwrap();
    let (memory, fd) = Shared::create(TOTAL + 16 * GRANTS as usize).unwrap();
    send(&socket, &request_with(RING, GRANTS), &[&fd]);
    let Event::ConnectRequest(asked) = host.event() else {
        panic!("a request")
    };
    host.provider.prepare(asked.qp, &CONFIG).unwrap();
    host.provider
        .accept(asked.qp, &PrivateData::empty())
        .unwrap();
    let regions = [(); 2].map(|()| Shared::create(8192).unwrap());
    for (number, (_, fd)) in (0..).zip(&regions) {
        send(&socket, &region(number, 8192), &[fd]);
    }
    put(&memory, &[grant(0x100, 0, 1, 0), grant(0x200, 0, 1, 1)]);
    send(&socket, &[4], &[]);
    for _ in 0..1000 {
        host.poll();
    }
    for (key, room) in [(0x100, true), (0x200, false)] {
        let slice = RemoteSlice {
            key: RemoteKey(key),
            addr: 1 << 20,
            len: 1,
        };
        let mapped = host.provider.map_remote(asked.qp, slice, Rights::all());
        assert_eq!(mapped.is_some(), room, "{key:#x}");
    }
}
