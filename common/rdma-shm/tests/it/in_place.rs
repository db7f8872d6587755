//! Memory that the active side lends: accessed directly, marked as long as it is in use, and
//! returned when it is not in use any more.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::time::Duration;

use nvmeof_memory::{Buf, Pages, Pool, PoolLayout};
use nvmeof_rdma::{
    Address, CloseReason, Event, ExposeError, Inline, PostError, PrivateData, Provider, QpConfig,
    QpId, RemoteKey, RemoteSlice, Rights, Tag, Work,
};
use nvmeof_rdma_shm::{ShareMemory, Shm, ShmConfig};
use tempfile::TempDir;

const LEN: usize = 8192;
const BUFFERS: usize = 32;
const CONFIG: QpConfig = QpConfig {
    recvs: 8,
    sends: 8,
    reads_out: 4,
    reads_in: 4,
    exposes: 16,
    trusts_peer: false,
};

fn addr() -> Address {
    "127.0.0.1:4420".parse().unwrap()
}

fn pool() -> Pool {
    let layout = PoolLayout {
        count: BUFFERS,
        stride: LEN,
        lead: 0,
    };
    Pool::new(layout, Pages::Shareable).unwrap()
}

struct Side {
    provider: Shm,
    pool: Pool,
    qp: QpId,
    events: Vec<Event>,
}

impl Side {
    fn new(folder: &TempDir, share_memory: ShareMemory) -> Self {
        let config = ShmConfig {
            folder: folder.path().to_owned(),
            linger: Duration::from_millis(20),
            share_memory,
            ..ShmConfig::default()
        };
        let (mut provider, pool) = (Shm::new(config).unwrap(), pool());
        provider.register(pool.region()).unwrap();
        Self {
            provider,
            pool,
            qp: QpId(0),
            events: Vec::new(),
        }
    }

    /// Exposes a buffer full of `byte`.
    fn expose(&mut self, byte: u8, rights: Rights) -> RemoteSlice {
        let mut buf = self.pool.take().unwrap();
        buf.fill(byte);
        self.provider.expose(self.qp, buf, rights).unwrap()
    }

    fn works_in_place(&self) -> bool {
        let buf = self.pool.take().unwrap();
        self.provider.peer_works_in_place(self.qp, &buf)
    }

    fn map(&mut self, remote: RemoteSlice, rights: Rights) -> Option<Buf> {
        self.provider.map_remote(self.qp, remote, rights)
    }

    fn post(&mut self, work: Work) -> Result<(), PostError> {
        let posted = self.provider.post(self.qp, Tag(0), work);
        posted.map_err(|refused| refused.why)
    }

    fn is_closed(&self) -> bool {
        let closed = |event: &Event| matches!(event, Event::Closed { .. });
        self.events.iter().any(closed)
    }

    fn reason(&self) -> &CloseReason {
        let mut reasons = self.events.iter().filter_map(|event| match event {
            Event::Closed { reason, .. } => Some(reason),
            _ => None,
        });
        reasons.next().unwrap()
    }
}

/// A lends, B maps.
struct Pair {
    a: Side,
    b: Side,
    now: Duration,
    _folder: TempDir,
}

impl Pair {
    fn new(share_memory: ShareMemory) -> Self {
        let folder = TempDir::new().unwrap();
        let mut pair = Self {
            a: Side::new(&folder, share_memory),
            b: Side::new(&folder, share_memory),
            now: Duration::ZERO,
            _folder: folder,
        };
        let (a, b, data) = (&mut pair.a, &mut pair.b, PrivateData::empty());
        b.provider.listen(addr()).unwrap();
        let now = Duration::ZERO;
        a.qp = a.provider.connect(addr(), &CONFIG, &data, now).unwrap();
        while pair.a.events.is_empty() {
            pair.poll_once();
            if let Some(Event::ConnectRequest(asked)) = pair.b.events.pop() {
                pair.b.qp = asked.qp;
                pair.b.provider.prepare(asked.qp, &CONFIG).unwrap();
                pair.b.provider.accept(asked.qp, &data).unwrap();
            }
        }
        pair.settle();
        pair.a.events.clear();
        pair.b.events.clear();
        pair
    }

    /// Both are in this process, so the test controls the time.
    fn poll_once(&mut self) {
        self.now += Duration::from_millis(1);
        let now = self.now;
        assert!(now < Duration::from_secs(60), "waited in vain");
        for side in [&mut self.a, &mut self.b] {
            side.provider.submit(now);
            side.provider.poll(now, &mut side.events);
        }
    }

    /// Long enough for all messages to arrive, and to linger.
    fn settle(&mut self) {
        for _ in 0..100 {
            self.poll_once();
        }
    }

    fn poll_until(&mut self, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            self.poll_once();
        }
    }
}

#[test]
fn mapped_buffer_is_memory_of_owner() {
    let mut pair = Pair::new(ShareMemory::SameUser);
    assert!(pair.a.works_in_place() && !pair.b.works_in_place());
    let slice = pair.a.expose(7, Rights::all());
    pair.settle();
    let part = RemoteSlice {
        addr: slice.addr + 100,
        len: 1000,
        ..slice
    };
    let mut mapped = pair.b.map(part, Rights::all()).unwrap();
    assert!(mapped.is_lent() && mapped.to_vec().iter().all(|byte| *byte == 7));
    assert_eq!(mapped.len(), 1000);
    mapped.fill(9);
    assert!(pair.b.map(part, Rights::all()).is_none(), "one at a time");
    let busy = pair.a.provider.withdraw(slice.key).unwrap_err();
    assert_eq!(busy, ExposeError::Busy);
    drop(mapped);
    let buf = pair.a.provider.withdraw(slice.key).unwrap().unwrap();
    assert!(buf[100..1100].iter().all(|byte| *byte == 9));
    let beside = buf[..100].iter().chain(&buf[1100..]);
    assert!(beside.into_iter().all(|byte| *byte == 7));
    assert!(pair.b.map(part, Rights::all()).is_none(), "withdrawn");
}

#[test]
fn key_limits_range_and_rights() {
    let mut pair = Pair::new(ShareMemory::SameUser);
    let read = pair.a.expose(1, Rights::REMOTE_READ);
    let write = pair.a.expose(2, Rights::REMOTE_WRITE);
    let unknown = RemoteSlice {
        key: RemoteKey(!read.key.0),
        ..read
    };
    pair.settle();
    for (slice, rights, given) in [
        (read, Rights::REMOTE_READ, true),
        (read, Rights::REMOTE_WRITE, false),
        (read, Rights::all(), false),
        (write, Rights::REMOTE_WRITE, true),
        (write, Rights::REMOTE_READ, false),
        (unknown, Rights::REMOTE_READ, false),
    ] {
        assert_eq!(pair.b.map(slice, rights).is_some(), given, "{slice:?}");
    }
    let len = u32::try_from(LEN).unwrap();
    for (addr, len, given) in [
        (read.addr, len, true),
        (read.addr + 1, len - 1, true),
        (read.addr, len + 1, false),
        (read.addr + 1, len, false),
        (read.addr - 1, 2, false),
        (read.addr + u64::from(len), 0, false),
        (u64::MAX, 1, false),
        (u64::MAX - 1, u32::MAX, false),
    ] {
        let slice = RemoteSlice { addr, len, ..read };
        let mapped = pair.b.map(slice, Rights::REMOTE_READ);
        assert_eq!(mapped.is_some(), given, "{addr:#x} {len}");
    }
}

#[test]
fn data_of_host_without_lent_memory_use_rings() {
    let mut pair = Pair::new(ShareMemory::Never);
    assert!(!pair.a.works_in_place());
    let slice = pair.a.expose(7, Rights::all());
    pair.settle();
    assert!(pair.b.map(slice, Rights::REMOTE_READ).is_none());
    let local = pair.b.pool.take().unwrap();
    let remote = slice;
    pair.b.post(Work::Read { local, remote }).unwrap();
    pair.poll_until(|pair| !pair.b.events.is_empty());
    let Some(Event::Completion(read)) = pair.b.events.pop() else {
        panic!("a completion")
    };
    assert!(read.buf.unwrap().iter().all(|byte| *byte == 7));
}

/// The ring of A gets no record, and yet the data arrive.
#[test]
fn writes_and_reads_access_lent_memory() {
    let mut pair = Pair::new(ShareMemory::SameUser);
    let slice = pair.a.expose(7, Rights::all());
    pair.settle();
    for work in [true, false] {
        let mut local = pair.b.pool.take().unwrap();
        local.fill(5);
        let remote = slice;
        let work = match work {
            true => Work::Write { local, remote },
            false => Work::Read { local, remote },
        };
        pair.b.post(work).unwrap();
        let now = pair.now;
        pair.b.provider.submit(now);
        pair.b.provider.poll(now, &mut pair.b.events);
        let Some(Event::Completion(done)) = pair.b.events.pop() else {
            panic!("done at once")
        };
        assert!(done.outcome.is_success());
        assert!(done.buf.unwrap().iter().all(|byte| *byte == 5));
    }
    let buf = pair.a.provider.withdraw(slice.key).unwrap().unwrap();
    assert!(buf.iter().all(|byte| *byte == 5));
}

fn message(invalidate: Option<RemoteKey>) -> Work {
    Work::Send {
        head: Inline::new(b"done").unwrap(),
        body: None,
        invalidate,
        solicited: false,
    }
}

#[test]
fn key_in_use_cannot_be_invalidated() {
    let mut pair = Pair::new(ShareMemory::SameUser);
    let slice = pair.a.expose(7, Rights::all());
    let buf = pair.a.pool.take().unwrap();
    pair.a.provider.post_recv(pair.a.qp, Tag(0), buf).unwrap();
    pair.settle();
    let mapped = pair.b.map(slice, Rights::all()).unwrap();
    let refused = pair.b.post(message(Some(slice.key))).unwrap_err();
    assert!(matches!(refused, PostError::WrongState { .. }), "{refused}");
    drop(mapped);
    pair.b.post(message(Some(slice.key))).unwrap();
    pair.poll_until(|pair| !pair.a.events.is_empty());
    assert!(pair.b.map(slice, Rights::all()).is_none());
    pair.a.provider.withdraw(slice.key).unwrap().unwrap();
}

#[test]
fn buffers_return_after_peer_releases_memory() {
    for peer_closes in [false, true] {
        let mut pair = Pair::new(ShareMemory::SameUser);
        let slice = pair.a.expose(7, Rights::all());
        pair.settle();
        let mut mapped = pair.b.map(slice, Rights::all()).unwrap();
        let side = if peer_closes {
            &mut pair.b
        } else {
            &mut pair.a
        };
        side.provider.disconnect(side.qp);
        pair.poll_until(|pair| pair.b.is_closed());
        pair.settle();
        assert!(!pair.a.is_closed(), "the peer's device may still write");
        let busy = pair.a.provider.withdraw(slice.key).unwrap_err();
        assert_eq!(busy, ExposeError::Busy);
        mapped.fill(8);
        drop(mapped);
        pair.poll_until(|pair| pair.a.is_closed());
        let expected = if peer_closes {
            CloseReason::Peer
        } else {
            CloseReason::Local
        };
        assert_eq!(*pair.a.reason(), expected);
        let buf = pair.a.provider.withdraw(slice.key).unwrap().unwrap();
        assert!(buf.iter().all(|byte| *byte == 8));
        assert!(pair.a.provider.next_deadline().is_none());
    }
}

/// A caller that rests right after posting work, without a poll in between, learns that there
/// is something to do, and the next poll reports it.
#[test]
fn work_posted_before_rest_is_reported_by_next_poll() {
    let mut pair = Pair::new(ShareMemory::Never);
    let now = pair.now;
    let has_to_poll = |side: &mut Side| {
        side.provider.rest();
        side.provider.next_deadline().is_some_and(|at| at <= now)
    };
    pair.a.post(message(None)).unwrap();
    pair.a.provider.submit(now);
    assert!(has_to_poll(&mut pair.a));
    pair.a.provider.poll(now, &mut pair.a.events);
    assert!(matches!(pair.a.events[..], [Event::Completion(_)]));

    pair.a.provider.disconnect(pair.a.qp);
    assert!(has_to_poll(&mut pair.a));
    pair.a.provider.poll(now, &mut pair.a.events);
    assert!(pair.a.is_closed());
}

/// The peer may be stopped for ever.
#[test]
fn peer_that_keeps_memory_is_checked_periodically() {
    let mut pair = Pair::new(ShareMemory::SameUser);
    let slice = pair.a.expose(7, Rights::all());
    pair.settle();
    let mapped = pair.b.map(slice, Rights::all()).unwrap();
    pair.a.provider.disconnect(pair.a.qp);
    pair.poll_until(|pair| pair.b.is_closed());
    let mut now = pair.now;
    let end = now + Duration::from_secs(60);
    let mut looks = 0;
    while now < end {
        let provider = &mut pair.a.provider;
        provider.poll(now, &mut pair.a.events);
        now = provider.next_deadline().unwrap().max(now);
        looks += 1;
    }
    assert!(
        !pair.a.is_closed() && (240..300).contains(&looks),
        "{looks}"
    );
    drop(mapped);
    let Side {
        provider, events, ..
    } = &mut pair.a;
    provider.poll(now, events);
    assert!(pair.a.is_closed());
}

#[test]
fn memory_of_gone_side_stays_valid_while_in_use() {
    // The owner goes: memory in use stays until it is released.
    let mut pair = Pair::new(ShareMemory::SameUser);
    let slice = pair.a.expose(7, Rights::all());
    pair.settle();
    let mut mapped = pair.b.map(slice, Rights::all()).unwrap();
    let owners = pair.a.pool.clone();
    let folder = TempDir::new().unwrap();
    drop(std::mem::replace(
        &mut pair.a,
        Side::new(&folder, ShareMemory::Never),
    ));
    assert_eq!(owners.available(), BUFFERS - 1, "that one is not reused");
    drop(owners);
    pair.poll_until(|pair| pair.b.is_closed());
    mapped.fill(1);
    assert!(mapped.to_vec().iter().all(|byte| *byte == 1));

    // The user goes: the owner is notified.
    let mut pair = Pair::new(ShareMemory::SameUser);
    let slice = pair.a.expose(7, Rights::all());
    pair.settle();
    let mapped = pair.b.map(slice, Rights::all()).unwrap();
    drop(std::mem::replace(
        &mut pair.b,
        Side::new(&folder, ShareMemory::Never),
    ));
    pair.settle();
    assert!(!pair.a.is_closed());
    drop(mapped);
    pair.poll_until(|pair| pair.a.is_closed());
    pair.a.provider.withdraw(slice.key).unwrap().unwrap();
    assert_eq!(pair.a.pool.available(), BUFFERS);
}

/// Keys are reused: each time they refer to the right memory.
#[test]
fn grant_slots_are_reused() {
    let mut pair = Pair::new(ShareMemory::SameUser);
    for round in 0..10_000u32 {
        let byte = round.to_le_bytes()[0];
        let slice = pair.a.expose(byte, Rights::all());
        pair.poll_once();
        let mapped = pair.b.map(slice, Rights::all()).unwrap();
        let bytes = mapped.to_vec();
        assert_eq!((bytes[0], bytes[LEN - 1]), (byte, byte), "round {round}");
        drop(mapped);
        pair.a.provider.withdraw(slice.key).unwrap().unwrap();
    }
}

/// Regions that are registered after the connection is established, and more of them than a
/// peer maps.
#[test]
fn late_regions_are_passed_up_to_limit() {
    let mut pair = Pair::new(ShareMemory::SameUser);
    for number in 1..20 {
        let pool = pool();
        pair.a.provider.register(pool.region()).unwrap();
        pair.a.pool = pool;
        let slice = pair.a.expose(7, Rights::all());
        pair.settle();
        let mapped = pair.b.map(slice, Rights::all());
        assert_eq!(mapped.is_some(), number < 16, "region {number}");
        drop(mapped);
        let local = pair.b.pool.take().unwrap();
        let remote = slice;
        pair.b.post(Work::Write { local, remote }).unwrap();
        pair.settle();
        let buf = pair.a.provider.withdraw(slice.key).unwrap().unwrap();
        assert!(buf.iter().all(|byte| *byte == 0));
    }
    assert!(!pair.a.is_closed() && !pair.b.is_closed());
}
