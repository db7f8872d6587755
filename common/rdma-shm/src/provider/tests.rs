//! Tests with a peer that writes anything anywhere in the memory of a connection, at any time
//! between two reads of this side. Everything is drawn from a seed.

mod floods;

use std::collections::VecDeque;
use std::time::Duration;

use nvmeof_memory::{Buf, Pages, Pool, PoolLayout};
use nvmeof_rdma::{
    Address, CloseReason, Event, Inline, Outcome, Peer, PrivateData, Provider, QpConfig, QpId,
    RemoteSlice, Rights, Tag, Work,
};
use nvmeof_rdma_layers::Dice;

use super::*;

const SEEDS: u64 = 300;
const STEPS: usize = 60;
const BUFFERS: usize = 64;
const LEN: usize = 48 << 10;
/// Range of the exposed window in its buffer.
const WINDOW: std::ops::Range<usize> = 8192..40_000;
const UNTOUCHED: u8 = 0xEE;
const CONFIG: QpConfig = QpConfig {
    recvs: 8,
    sends: 8,
    reads_out: 2,
    reads_in: 2,
    exposes: 64,
    trusts_peer: false,
};

/// One provider, and what is outstanding on the connection under attack.
struct Side {
    provider: Shm,
    pool: Pool,
    qp: QpId,
    recvs: VecDeque<Tag>,
    works: VecDeque<Tag>,
    closed: Option<CloseReason>,
    window: Option<RemoteSlice>,
    next_tag: u64,
    /// Whether its peer accesses its memory directly: a side that overwrites its own grants
    /// may find its own memory changed, and no other.
    gives: bool,
}

impl Side {
    fn new(folder: &std::path::Path, pages: Pages) -> Self {
        let config = ShmConfig {
            folder: folder.to_owned(),
            ring: 64 << 10,
            spin: Duration::from_millis(3),
            ..ShmConfig::default()
        };
        let layout = PoolLayout {
            count: BUFFERS,
            stride: LEN,
            lead: 0,
        };
        let pool = Pool::new(layout, pages).unwrap();
        let mut provider = Shm::new(config).unwrap();
        provider.register(pool.region()).unwrap();
        Self {
            provider,
            pool,
            qp: QpId(u64::MAX),
            recvs: VecDeque::new(),
            works: VecDeque::new(),
            closed: None,
            window: None,
            next_tag: 0,
            gives: pages == Pages::Shareable,
        }
    }

    fn buf(&self) -> Buf {
        let mut buf = self.pool.take().unwrap();
        buf.fill(UNTOUCHED);
        buf
    }

    fn tag(&mut self) -> Tag {
        self.next_tag += 1;
        Tag(self.next_tag)
    }

    /// A fresh connection to be attacked.
    fn begin(&mut self, qp: QpId, rights: Rights) {
        self.qp = qp;
        self.closed = None;
        let mut window = self.buf();
        window.set_view(WINDOW).unwrap();
        self.window = self.provider.expose(qp, window, rights).ok();
    }

    fn recv(&mut self) {
        let (tag, mut buf) = (self.tag(), self.buf());
        buf.set_len(20_000).unwrap();
        if self.provider.post_recv(self.qp, tag, buf).is_ok() {
            self.recvs.push_back(tag);
        }
    }

    fn post(&mut self, work: Work) {
        let tag = self.tag();
        if self.provider.post(self.qp, tag, work).is_ok() {
            self.works.push_back(tag);
        }
    }

    fn act(&mut self, dice: &mut Dice, theirs: RemoteSlice) {
        let len = 1 + dice.below(20_000);
        let mut local = self.buf();
        local.set_len(len).unwrap();
        let remote = RemoteSlice {
            addr: theirs.addr + dice.below(8000) as u64,
            len: 20_000,
            ..theirs
        };
        let work = match dice.below(4) {
            0 => return self.recv(),
            1 => Work::Write { local, remote },
            2 => Work::Read { local, remote },
            _ => Work::Send {
                head: Inline::empty(),
                body: Some(local),
                invalidate: None,
                solicited: false,
            },
        };
        self.post(work);
    }

    /// Polls, and checks what comes back on the connection under attack; returns the events
    /// of others.
    fn poll_once(&mut self, now: Duration) -> Vec<Event> {
        let mut events = Vec::new();
        self.provider.submit(now);
        self.provider.poll(now, &mut events);
        let mut others = Vec::new();
        for event in events {
            if event.qp() != self.qp {
                others.push(event);
                continue;
            }
            assert!(self.closed.is_none(), "after the end: {event:?}");
            match event {
                Event::Received(one) => assert_eq!(self.recvs.pop_front(), Some(one.tag)),
                Event::Completion(one) => assert_eq!(self.works.pop_front(), Some(one.tag)),
                Event::Closed { reason, .. } => {
                    assert!(self.recvs.is_empty() && self.works.is_empty());
                    self.closed = Some(reason);
                }
                // Its peer closed, and the ring may still contain records.
                Event::Ending { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        others
    }

    /// Nothing beside the window changed.
    fn end(&mut self) {
        let Some(slice) = self.window.take() else {
            return;
        };
        let mut window = self.provider.withdraw(slice.key).unwrap().unwrap();
        window.reset_view();
        let mut beside = window[..WINDOW.start].iter().chain(&window[WINDOW.end..]);
        assert!(self.gives || beside.all(|byte| *byte == UNTOUCHED));
    }

    /// Writes nonsense into the memory of the connection under attack, mostly
    /// where it is looked at next.
    fn scribble(&mut self, dice: &mut Dice) {
        let Some(conn) = self.provider.conns.get_mut(self.qp.0) else {
            return;
        };
        if let Some(channel) = &mut conn.channel {
            for _ in 0..1 + dice.below(4) {
                channel.scribble(dice);
            }
        }
    }
}

struct Host {
    sides: [Side; 2],
    now: Duration,
    addr: Address,
    _folder: tempfile::TempDir,
}

impl Host {
    fn new(active: Pages) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut sides = [active, Pages::Normal].map(|pages| Side::new(folder.path(), pages));
        let addr = "127.0.0.1:1".parse().unwrap();
        sides[1].provider.listen(addr).unwrap();
        Self {
            sides,
            now: Duration::ZERO,
            addr,
            _folder: folder,
        }
    }

    fn poll_once(&mut self) -> [Vec<Event>; 2] {
        self.now += Duration::from_millis(1);
        let now = self.now;
        let [a, b] = &mut self.sides;
        [a.poll_once(now), b.poll_once(now)]
    }

    /// Connects side 0 to side 1.
    fn link(&mut self) -> [QpId; 2] {
        let data = PrivateData::empty();
        let [active, _] = &mut self.sides;
        let a = active.provider.connect(self.addr, &CONFIG, &data, self.now);
        let (a, mut b) = (a.unwrap(), None);
        let mut standing = 0;
        while standing < 2 {
            for event in self.poll_once().into_iter().flatten() {
                match event {
                    Event::ConnectRequest(request) => {
                        let pid = i32::try_from(std::process::id()).unwrap();
                        let uid = nix::unistd::geteuid().as_raw();
                        assert_eq!(request.peer, Peer::Process { pid, uid });
                        let passive = &mut self.sides[1].provider;
                        passive.prepare(request.qp, &CONFIG).unwrap();
                        passive.accept(request.qp, &data).unwrap();
                        b = Some(request.qp);
                    }
                    Event::Established { .. } => standing += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
        [a, b.unwrap()]
    }

    /// A message goes from side 0 to side 1 of another connection, unharmed.
    fn assert_alive(&mut self, [a, b]: [QpId; 2]) {
        let buf = self.sides[1].buf();
        let [from, to] = &mut self.sides;
        to.provider.post_recv(b, Tag(0), buf).unwrap();
        let work = Work::Send {
            head: Inline::new(b"alive").unwrap(),
            body: None,
            invalidate: None,
            solicited: false,
        };
        from.provider.post(a, Tag(0), work).unwrap();
        let (mut sent, mut got) = (false, false);
        while !(sent && got) {
            for event in self.poll_once().into_iter().flatten() {
                match event {
                    Event::Received(one) => {
                        assert_eq!((&one.buf[..5], one.len), (&b"alive"[..], 5));
                        assert_eq!(one.outcome, Outcome::Success);
                        got = true;
                    }
                    Event::Completion(one) => sent = one.outcome.is_success(),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn attack(&mut self, seed: u64) -> [CloseReason; 2] {
        let mut dice = Dice::new(seed);
        let link = self.link();
        let rights = [
            Rights::all(),
            Rights::REMOTE_READ,
            Rights::REMOTE_WRITE,
            Rights::all(),
        ];
        for (side, qp) in self.sides.iter_mut().zip(link) {
            side.begin(qp, rights[dice.below(4)]);
            (0..6).for_each(|_| side.recv());
        }
        let windows = [0, 1].map(|side| self.sides[side].window.unwrap());
        for _ in 0..STEPS {
            for (side, theirs) in [(0, windows[1]), (1, windows[0])] {
                self.sides[side].act(&mut dice, theirs);
            }
            if dice.below(3) == 0 {
                self.sides[dice.below(2)].scribble(&mut dice);
            }
            assert!(self.poll_once().iter().all(Vec::is_empty));
        }
        for side in &mut self.sides {
            side.provider.disconnect(side.qp);
        }
        // Closing lingers for a second, and an iteration takes a millisecond.
        for _ in 0..3000 {
            assert!(self.poll_once().iter().all(Vec::is_empty));
        }
        let reasons = [0, 1].map(|side| self.sides[side].closed.take());
        self.sides.iter_mut().for_each(Side::end);
        reasons.map(|reason| reason.expect("both sides come to an end"))
    }
}

#[test]
fn corrupted_channel_affects_no_other_connection() {
    scribble(Pages::Normal);
}

#[test]
fn corrupted_grants_affect_no_other_connection() {
    scribble(Pages::Shareable);
}

fn scribble(active: Pages) {
    let mut host = Host::new(active);
    let bystander = host.link();
    let mut faults = 0;
    for seed in 0..SEEDS {
        println!("seed {seed}");
        let reasons = host.attack(seed);
        let of_peers = |reason: &&CloseReason| matches!(reason, CloseReason::PeerFault(_));
        faults += reasons.iter().filter(of_peers).count();
        host.assert_alive(bystander);
        for side in &host.sides {
            assert_eq!(side.pool.available(), BUFFERS, "buffers were lost");
        }
    }
    assert!(
        faults > 100,
        "only {faults} of {SEEDS} attacks were detected"
    );
}

/// A write of several records: what does not fit is refused before the first
/// of them is put in place.
#[test]
fn long_write_out_of_bounds_changes_nothing() {
    let mut host = Host::new(Pages::Normal);
    let link = host.link();
    for (side, qp) in host.sides.iter_mut().zip(link) {
        side.begin(qp, Rights::REMOTE_WRITE);
    }
    let window = host.sides[1].window.unwrap();
    let mut local = host.sides[0].buf();
    local.fill(1);
    local.set_len(WINDOW.len() + 1).unwrap();
    let len = u32::try_from(WINDOW.len() + 1).unwrap();
    let remote = RemoteSlice { len, ..window };
    host.sides[0].post(Work::Write { local, remote });
    while host.sides.iter().any(|side| side.closed.is_none()) {
        host.poll_once();
    }
    let reason = host.sides[1].closed.take();
    assert!(matches!(reason, Some(CloseReason::PeerFault(_))));
    let window = host.sides[1]
        .provider
        .withdraw(window.key)
        .unwrap()
        .unwrap();
    assert!(window.iter().all(|byte| *byte == UNTOUCHED));
    for side in &host.sides {
        assert!(side.provider.core.deadlines.is_empty());
    }
}

/// Messages posted without a submit are published when there are several; the rest with the
/// next submit.
#[test]
fn messages_are_published_in_batches() {
    let mut host = Host::new(Pages::Normal);
    let [a, b] = host.link();
    let now = host.now;
    let [from, to] = &mut host.sides;
    let post = |from: &mut Side| {
        let work = Work::Send {
            head: Inline::of(*b"shown"),
            body: None,
            invalidate: None,
            solicited: false,
        };
        from.provider.post(a, Tag(0), work).unwrap();
    };
    let arrived = |to: &mut Side| {
        let mut events = Vec::new();
        to.provider.poll(now, &mut events);
        events.len()
    };
    for _ in 0..TOGETHER {
        to.provider.post_recv(b, Tag(0), to.buf()).unwrap();
    }
    for _ in 1..TOGETHER {
        post(from);
        assert_eq!(arrived(to), 0);
    }
    post(from);
    assert_eq!(arrived(to), TOGETHER);
    from.provider.poll(now, &mut Vec::new());
    to.provider.post_recv(b, Tag(0), to.buf()).unwrap();
    post(from);
    assert_eq!(arrived(to), 0);
    from.provider.submit(now);
    assert_eq!(arrived(to), 1);
}
