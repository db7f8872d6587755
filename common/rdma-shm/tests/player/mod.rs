//! One side of a connection that always has all kinds of work outstanding: messages, writes
//! and reads, as many as there are entries for.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_memory::{Buf, Pages, Pool, PoolLayout};
use nvmeof_rdma::{
    Address, CloseReason, Event, Inline, Outcome, PostError, PrivateData, Provider, QpConfig, QpId,
    RemoteKey, RemoteSlice, Rights, Tag, Work, WorkKind,
};
use nvmeof_rdma_shm::{Shm, ShmConfig};

/// How long anything may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
const BUFFERS: usize = 64;
const LEN: usize = 128 << 10;
/// Number of posted receives, and of each kind of work.
const RECVS: usize = 16;
const WORKS: usize = 4;
const CONFIG: QpConfig = QpConfig {
    recvs: 16,
    sends: 32,
    reads_out: 4,
    reads_in: 4,
    exposes: 64,
    trusts_peer: false,
};

pub(crate) struct Player {
    pub(crate) provider: Shm,
    pool: Pool,
    start: Instant,
    pub(crate) qp: Option<QpId>,
    pub(crate) closed: Option<CloseReason>,
    /// Receives and completions that were seen.
    pub(crate) seen: u64,
    next_tag: u64,
    /// What is outstanding, in the order it was posted.
    recvs: VecDeque<Tag>,
    works: VecDeque<Tag>,
    undone: bool,
    /// Messages to send: each responds to one, so that there are always receives.
    pending: usize,
    ours: Option<RemoteSlice>,
    theirs: Option<RemoteSlice>,
    /// Memory of the peer in use, as by a backing store; only a connecting peer lends any.
    pub(crate) lent: Vec<Buf>,
}

impl Player {
    pub(crate) fn new(folder: &Path) -> Self {
        let config = ShmConfig {
            folder: folder.to_owned(),
            ..ShmConfig::default()
        };
        let layout = PoolLayout {
            count: BUFFERS,
            stride: LEN,
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Shareable).unwrap();
        let mut provider = Shm::new(config).unwrap();
        provider.register(pool.region()).unwrap();
        Self {
            provider,
            pool,
            start: Instant::now(),
            qp: None,
            closed: None,
            seen: 0,
            next_tag: 0,
            recvs: VecDeque::new(),
            works: VecDeque::new(),
            undone: false,
            pending: 0,
            ours: None,
            theirs: None,
            lent: Vec::new(),
        }
    }

    fn tag(&mut self) -> Tag {
        self.next_tag += 1;
        Tag(self.next_tag)
    }

    pub(crate) fn call(&mut self, addr: Address) {
        let now = self.start.elapsed();
        let data = PrivateData::empty();
        let qp = self.provider.connect(addr, &CONFIG, &data, now).unwrap();
        // The other side may send as soon as it has accepted.
        self.fill_recvs(qp);
    }

    /// Retries as long as no process listens.
    #[allow(dead_code, reason = "not in every test")]
    pub(crate) fn call_until_established(&mut self, addr: Address) {
        while self.qp.is_none() {
            self.call(addr);
            while self.qp.is_none() && self.closed.is_none() {
                self.poll_once();
            }
            if self.closed.take().is_some() {
                self.forget_failure();
            }
        }
    }

    /// A connect found no listener; the peer is about to start.
    #[allow(dead_code, reason = "not in every test")]
    pub(crate) fn forget_failure(&mut self) {
        self.undone = false;
        std::thread::sleep(Duration::from_millis(1));
    }

    fn recv(&mut self, qp: QpId) {
        let tag = self.tag();
        let buf = self.pool.take().unwrap();
        match self.provider.post_recv(qp, tag, buf) {
            Ok(()) => self.recvs.push_back(tag),
            Err(refused) => assert_eq!(refused.why, PostError::Closed),
        }
    }

    fn fill_recvs(&mut self, qp: QpId) {
        while self.recvs.len() < RECVS {
            self.recv(qp);
        }
    }

    fn post(&mut self, qp: QpId, work: Work) {
        let tag = self.tag();
        match self.provider.post(qp, tag, work) {
            Ok(()) => self.works.push_back(tag),
            Err(refused) => assert_eq!(refused.why, PostError::Closed),
        }
    }

    /// A message of several segments that says where to write and to read.
    fn send(&mut self, qp: QpId) {
        let slice = self.ours.unwrap();
        let mut head = [0; 16];
        head[..4].copy_from_slice(&slice.key.0.to_le_bytes());
        head[8..].copy_from_slice(&slice.addr.to_le_bytes());
        let mut body = self.pool.take().unwrap();
        body.set_len(40_000).unwrap();
        let work = Work::Send {
            head: Inline::new(&head).unwrap(),
            body: Some(body),
            invalidate: None,
            solicited: false,
        };
        self.post(qp, work);
    }

    fn start(&mut self, qp: QpId) {
        self.qp = Some(qp);
        let window = self.pool.take().unwrap();
        let slice = self.provider.expose(qp, window, Rights::all()).unwrap();
        self.ours = Some(slice);
        self.pending = WORKS;
        self.send_pending(qp);
    }

    /// Completions are in order, so messages wait for reads, and there may be no entries for
    /// all pending ones.
    fn send_pending(&mut self, qp: QpId) {
        while self.pending > 0 && self.works.len() < 3 * WORKS {
            self.pending -= 1;
            self.send(qp);
        }
    }

    fn on_message(&mut self, qp: QpId, buf: &Buf) {
        let key = u32::from_le_bytes(buf[..4].try_into().unwrap());
        let theirs = RemoteSlice {
            key: RemoteKey(key),
            addr: u64::from_le_bytes(buf[8..16].try_into().unwrap()),
            len: u32::try_from(LEN).unwrap(),
        };
        // Its memory may arrive after its first messages: then a read or write is used.
        if self.lent.is_empty() {
            let lent = self.provider.map_remote(qp, theirs, Rights::all());
            self.lent.extend(lent);
        }
        if self.theirs.replace(theirs).is_none() {
            for _ in 0..WORKS {
                for kind in [WorkKind::Write, WorkKind::Read] {
                    self.again(qp, kind);
                }
            }
        }
    }

    fn again(&mut self, qp: QpId, kind: WorkKind) {
        let remote = self.theirs;
        let local = || self.pool.take().unwrap();
        let work = match (kind, remote) {
            (WorkKind::Write, Some(remote)) => Work::Write {
                local: local(),
                remote,
            },
            (WorkKind::Read, Some(remote)) => Work::Read {
                local: local(),
                remote,
            },
            _ => return,
        };
        self.post(qp, work);
    }

    /// Submits, polls and handles events, or sleeps.
    pub(crate) fn poll_once(&mut self) {
        if !self.look() {
            self.sleep();
        }
    }

    /// Submits, polls and handles events. Returns whether there was any progress.
    pub(crate) fn look(&mut self) -> bool {
        let now = self.start.elapsed();
        assert!(now < TIMEOUT, "waited in vain");
        self.provider.submit(now);
        let mut events = Vec::new();
        let worked = self.provider.poll(now, &mut events);
        for event in events {
            self.handle(event);
        }
        self.work_in_place();
        worked
    }

    /// Accesses lent memory like a backing store, whether its owner lives or not.
    pub(crate) fn work_in_place(&mut self) {
        for lent in &mut self.lent {
            lent.fill(0x5a);
        }
    }

    fn sleep(&mut self) {
        let now = self.start.elapsed();
        let left = self.provider.next_deadline();
        let left = left.map(|at| at.saturating_sub(now).min(TIMEOUT));
        let ms = left.unwrap_or(TIMEOUT).as_micros().div_ceil(1000);
        let mut fds = [PollFd::new(
            self.provider.wait_fd().unwrap(),
            PollFlags::POLLIN,
        )];
        poll(&mut fds, PollTimeout::try_from(ms).unwrap()).unwrap();
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::ConnectRequest(request) => {
                self.provider.prepare(request.qp, &CONFIG).unwrap();
                self.fill_recvs(request.qp);
                let accepted = self.provider.accept(request.qp, &PrivateData::empty());
                accepted.unwrap();
            }
            Event::Established { qp, .. } => self.start(qp),
            Event::Rejected { .. } => panic!("rejected"),
            Event::Withdrawn { .. } => panic!("memory returns at once"),
            Event::Ending { .. } => {}
            Event::Received(received) => {
                assert_eq!(self.recvs.pop_front(), Some(received.tag));
                if self.done(&received.outcome) {
                    self.recv(received.qp);
                    self.on_message(received.qp, &received.buf);
                    drop(received.buf);
                    self.pending += 1;
                    self.send_pending(received.qp);
                }
            }
            Event::Completion(completion) => {
                assert_eq!(self.works.pop_front(), Some(completion.tag));
                drop(completion.buf);
                if self.done(&completion.outcome) {
                    self.again(completion.qp, completion.kind);
                    self.send_pending(completion.qp);
                }
            }
            Event::Closed { reason, .. } => {
                assert!(self.recvs.is_empty() && self.works.is_empty());
                self.closed = Some(reason);
            }
        }
    }

    /// Whether it was completed.
    fn done(&mut self, outcome: &Outcome) -> bool {
        self.seen += 1;
        let success = outcome.is_success();
        assert!(!(success && self.undone), "success after failure");
        self.undone |= !success;
        success
    }

    /// Checks that every buffer is back or can be withdrawn.
    #[allow(dead_code, reason = "not in every test")]
    pub(crate) fn assert_all_back(&mut self) {
        if let Some(slice) = self.ours.take() {
            drop(self.provider.withdraw(slice.key).unwrap().unwrap());
        }
        assert_eq!(self.pool.available(), BUFFERS, "buffers were lost");
    }
}
