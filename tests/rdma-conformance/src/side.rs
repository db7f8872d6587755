//! One of the two providers, with its memory and its outstanding work.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use nvmeof_memory::{Buf, ClassSpec, Classes, Pages};

use crate::outstanding::{Outstanding, WorkSign};
use crate::pattern;
use nvmeof_rdma::{
    Event, ExposeError, Inline, PostError, Posted, Provider, QpConfig, QpId, Refused, RemoteKey,
    RemoteSlice, Rights, SharedReceives, SrqId, Tag, Work, WriteAndSend,
};
use nvmeof_rdma_layers::{Trace, TraceLog};

/// One of the two providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// The connecting one, in most cases.
    A,
    /// The listening one, in most cases.
    B,
}

impl Endpoint {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// One provider with its memory. Everything posted through it is checked when it returns.
pub struct Side {
    provider: Option<Trace<Box<dyn Provider>>>,
    memory: Classes,
    buffers: usize,
    pub(super) outstanding: Outstanding,
    pub(super) inbox: VecDeque<Event>,
    /// Keys that were exposed and not withdrawn.
    exposed: BTreeMap<RemoteKey, QpId>,
    /// Exposed memory is accessible with a delay.
    opens_in_order: bool,
    now: Duration,
}

/// If exposed memory is accessible with a delay: the time without progress after which it is
/// accessible.
const OPENS_WITHIN: Duration = Duration::from_millis(5);
/// The maximum delay.
const OPENS_AT_LAST: Duration = Duration::from_millis(200);
/// The maximum time until a withdrawn buffer has returned.
const RETURNS_WITHIN: Duration = Duration::from_secs(30);

const SIZES: [ClassSpec; 4] = [
    ClassSpec {
        len: 8 << 10,
        count: 600,
    },
    ClassSpec {
        len: 128 << 10,
        count: 128,
    },
    ClassSpec {
        len: 1 << 20,
        count: 8,
    },
    ClassSpec {
        len: 6 << 20,
        count: 4,
    },
];

impl Side {
    pub(super) fn new(
        provider: Box<dyn Provider>,
        name: &str,
        log: TraceLog,
        opens_in_order: bool,
    ) -> Self {
        let memory = Classes::new(&SIZES, Pages::Shareable).expect("memory for the suite");
        let mut provider = Trace::new(provider, name, log);
        for region in memory.regions() {
            provider.register(region).expect("memory is registered");
        }
        Self {
            provider: Some(provider),
            buffers: memory.available(),
            memory,
            outstanding: Outstanding::default(),
            inbox: VecDeque::new(),
            exposed: BTreeMap::new(),
            opens_in_order,
            now: Duration::ZERO,
        }
    }

    /// The provider, for calls that post nothing.
    pub fn provider(&mut self) -> &mut dyn Provider {
        self.provider.as_mut().expect("the provider is still there")
    }

    pub(super) fn provider_ref(&self) -> Option<&dyn Provider> {
        let provider = self.provider.as_ref()?;
        Some(provider)
    }

    /// Prepares for sleeping. Returns the deadline, if there is one; it may have passed.
    pub(super) fn rest(&mut self) -> Option<Duration> {
        let provider = self.provider.as_mut()?;
        provider.rest();
        provider.next_deadline()
    }

    /// Drops the provider as if its process had died.
    pub fn vanish(&mut self) {
        self.provider = None;
        self.inbox.clear();
        self.exposed.clear();
    }

    /// Checks that all buffers have returned, and that there are no others.
    pub fn assert_all_back(&mut self) {
        self.inbox.clear();
        assert_eq!(self.memory.available(), self.buffers, "buffers were lost");
    }

    /// A registered buffer of `len` bytes, all 0xEE beyond and before.
    pub fn buf(&self, len: usize) -> Buf {
        self.buf_at(0, len)
    }

    /// A registered buffer with `len` bytes in view that start at `start` of
    /// the piece; every byte is 0xEE.
    pub fn buf_at(&self, start: usize, len: usize) -> Buf {
        let buf = self.memory.take(start + len);
        let mut buf = buf.unwrap_or_else(|| panic!("no buffer of {len} bytes is left"));
        buf.reset_view();
        // Buffers are large; only bytes near the view matter.
        let around = (start + len + 4096).min(buf.len());
        buf[..around].fill(0xEE);
        buf.set_view(start..start + len).unwrap();
        buf
    }

    /// A registered buffer of `len` bytes of pattern `seed`.
    pub fn filled(&self, len: usize, seed: u64) -> Buf {
        let mut buf = self.buf(len);
        pattern::fill(&mut buf, seed);
        buf
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The error of the provider.
    pub fn try_recv(&mut self, qp: QpId, tag: u64, buf: Buf) -> Result<(), Refused<Buf>> {
        let place = (buf.addr(), buf.len());
        let result = self.provider().post_recv(qp, Tag(tag), buf);
        match &result {
            Ok(()) => self.outstanding.posted_recv(qp, Tag(tag), place),
            Err(refused) => assert_eq!((refused.back.addr(), refused.back.len()), place),
        }
        result
    }

    /// Posts a receive of `len` bytes, which has to succeed.
    pub fn recv(&mut self, qp: QpId, tag: u64, len: usize) {
        let buf = self.buf(len);
        self.try_recv(qp, tag, buf).expect("a receive is taken");
    }

    /// Lets the queue pair of a request use a shared receive queue, if there are any. Its
    /// peer may send more messages than are received.
    pub fn share(&mut self, qp: QpId, entries: u32) -> Option<SharedReceives> {
        let shared = self.provider().share_receives(qp, 1, entries)?;
        self.outstanding.draws(qp, shared.srq);
        Some(shared)
    }

    /// Posts a shared receive.
    ///
    /// # Errors
    /// The error of the provider.
    pub fn try_shared(&mut self, srq: SrqId, tag: u64, buf: Buf) -> Result<(), Refused<Buf>> {
        let place = (buf.addr(), buf.len());
        let result = self.provider().post_shared_recv(srq, Tag(tag), buf);
        match &result {
            Ok(()) => self.outstanding.posted_shared(srq, Tag(tag), place),
            Err(refused) => assert_eq!((refused.back.addr(), refused.back.len()), place),
        }
        result
    }

    /// Posts a shared receive of `len` bytes, which has to succeed.
    pub fn shared(&mut self, srq: SrqId, tag: u64, len: usize) {
        let buf = self.buf(len);
        let posted = self.try_shared(srq, tag, buf);
        posted.expect("a shared receive is taken");
    }

    /// Outstanding shared receives.
    #[must_use]
    pub fn outstanding_shared(&self, srq: SrqId) -> usize {
        self.outstanding.shared(srq)
    }

    /// Posts work.
    ///
    /// # Errors
    /// The error of the provider.
    pub fn try_post(&mut self, qp: QpId, tag: u64, work: Work) -> Result<(), Refused<Work>> {
        let sign = WorkSign::of(&work);
        let given = (work.kind(), work.len());
        let result = self.provider().post(qp, Tag(tag), work);
        match &result {
            Ok(()) => self.outstanding.posted_work(qp, Tag(tag), &sign),
            Err(refused) => assert_eq!((refused.back.kind(), refused.back.len()), given),
        }
        result
    }

    /// Posts work, which has to succeed.
    pub fn post(&mut self, qp: QpId, tag: u64, work: Work) {
        self.try_post(qp, tag, work).expect("work is taken");
    }

    /// Posts a message without a body.
    ///
    /// # Errors
    /// The error of the provider.
    pub fn post_message(
        &mut self,
        qp: QpId,
        tag: u64,
        head: &Inline,
        invalidate: Option<RemoteKey>,
    ) -> Result<Posted, PostError> {
        let posted = (self.provider()).post_message(qp, Tag(tag), head, invalidate);
        if posted == Ok(Posted::Pending) {
            let sign = WorkSign::of(&Work::Send {
                head: *head,
                body: None,
                invalidate,
                solicited: false,
            });
            self.outstanding.posted_work(qp, Tag(tag), &sign);
        }
        posted
    }

    /// Posts a response.
    ///
    /// # Errors
    /// The error of the provider. Half of the response may return nevertheless, so
    /// `outstanding` counts it as refused: nothing of it may be outstanding.
    pub fn reply(&mut self, qp: QpId, tag: u64, reply: WriteAndSend) -> Result<(), PostError> {
        let sign = WorkSign::of_answer(&reply);
        let result = self.provider().post_response(qp, Tag(tag), reply);
        if result.is_ok() {
            self.outstanding.posted_answer(qp, Tag(tag), &sign);
        }
        result
    }

    /// Sends `len` bytes of pattern `tag`, the first of them in the head.
    pub fn send(&mut self, qp: QpId, tag: u64, len: usize) {
        let work = self.message(tag, len);
        self.post(qp, tag, work);
    }

    /// A message of `len` bytes of pattern `seed`, up to 64 of them in the
    /// head and the rest in the body.
    pub fn message(&self, seed: u64, len: usize) -> Work {
        let body = (len > 0).then(|| self.filled(len, seed));
        let mut bytes = [0; 64];
        let head = len.min(64);
        pattern::fill(&mut bytes[..head], seed);
        let body = body.filter(|_| len > head).map(|mut body| {
            body.set_view(head..len).unwrap();
            body
        });
        Work::Send {
            head: Inline::new(&bytes[..head]).unwrap(),
            body,
            invalidate: None,
            solicited: false,
        }
    }

    /// Writes `len` bytes of pattern `tag` to `remote`.
    pub fn write(&mut self, qp: QpId, tag: u64, len: usize, remote: RemoteSlice) {
        let local = self.filled(len, tag);
        self.post(qp, tag, Work::Write { local, remote });
    }

    /// Reads `len` bytes from `remote`.
    pub fn read(&mut self, qp: QpId, tag: u64, len: usize, remote: RemoteSlice) {
        let local = self.buf(len);
        self.post(qp, tag, Work::Read { local, remote });
    }

    /// Exposes `buf`, which has to succeed.
    pub fn expose(&mut self, qp: QpId, buf: Buf, rights: Rights) -> RemoteSlice {
        let slice = self.try_expose(qp, buf, rights);
        let slice = slice.expect("a buffer is exposed");
        if self.opens_in_order {
            self.await_access();
        }
        slice
    }

    /// Exposes `buf`, which may not be accessible yet.
    ///
    /// # Errors
    /// The error of the provider.
    pub fn try_expose(
        &mut self,
        qp: QpId,
        buf: Buf,
        rights: Rights,
    ) -> Result<RemoteSlice, Refused<Buf, ExposeError>> {
        let place = (buf.addr(), buf.len());
        let result = self.provider().expose(qp, buf, rights);
        match &result {
            Ok(slice) => {
                assert_eq!(
                    slice.len as usize, place.1,
                    "all that is in view is exposed"
                );
                let known = self.exposed.insert(slice.key, qp);
                assert!(known.is_none(), "{:?} twice", slice.key);
            }
            Err(refused) => assert_eq!((refused.back.addr(), refused.back.len()), place),
        }
        result
    }

    /// Polls until the device has made memory accessible: first progress, then none for a
    /// while.
    fn await_access(&mut self) {
        let start = Instant::now();
        let before = self.now;
        let mut quiet_since = None;
        while start.elapsed() < OPENS_AT_LAST {
            if self.poll_once(before + start.elapsed()) {
                quiet_since = Some(Instant::now());
            } else if quiet_since.is_some_and(|since| since.elapsed() > OPENS_WITHIN) {
                break;
            }
        }
    }

    /// Withdraws a key. `None`: its buffer returns later.
    ///
    /// # Errors
    /// The error of the provider.
    pub fn start_withdrawing(&mut self, key: RemoteKey) -> Result<Option<Buf>, ExposeError> {
        let withdrawn = self.provider().withdraw(key)?;
        let qp = self.exposed.remove(&key);
        let qp = qp.unwrap_or_else(|| panic!("{key:?} was not exposed"));
        if withdrawn.is_none() {
            self.outstanding.withdrawn(qp, key);
        }
        Ok(withdrawn)
    }

    /// Withdraws a key, and waits for its buffer.
    ///
    /// # Errors
    /// The error of the provider.
    pub fn try_withdraw(&mut self, key: RemoteKey) -> Result<Buf, ExposeError> {
        let withdrawn = self.start_withdrawing(key)?;
        Ok(withdrawn.unwrap_or_else(|| self.returned(key)))
    }

    /// Polls until the buffer of a withdrawn key has returned.
    pub fn returned(&mut self, key: RemoteKey) -> Buf {
        let start = Instant::now();
        let before = self.now;
        while start.elapsed() < RETURNS_WITHIN {
            if let Some(buf) = self.take_returned(key) {
                return buf;
            }
            self.poll_once(before + start.elapsed());
        }
        panic!("{key:?} was withdrawn, and its buffer does not return");
    }

    /// The buffer of a withdrawn key, if it returned.
    pub fn take_returned(&mut self, key: RemoteKey) -> Option<Buf> {
        let is_it = |event: &Event| matches!(event, Event::Withdrawn { key: of, .. } if *of == key);
        let at = self.inbox.iter().position(is_it)?;
        match self.inbox.remove(at) {
            Some(Event::Withdrawn { buf, .. }) => Some(buf),
            _ => None,
        }
    }

    /// Withdraws a key, which has to succeed.
    pub fn withdraw(&mut self, key: RemoteKey) -> Buf {
        self.try_withdraw(key).expect("a key is withdrawn")
    }

    /// Whether `Closed` was reported for `qp`.
    #[must_use]
    pub fn is_closed(&self, qp: QpId) -> bool {
        self.outstanding.is_closed(qp)
    }

    /// Outstanding sends, writes and reads.
    #[must_use]
    pub fn outstanding_work(&self, qp: QpId) -> usize {
        self.outstanding.work(qp)
    }

    /// Outstanding receives.
    #[must_use]
    pub fn outstanding_recvs(&self, qp: QpId) -> usize {
        self.outstanding.recvs(qp)
    }

    /// Keys that were exposed and not withdrawn.
    pub(super) fn exposed(&self) -> BTreeSet<RemoteKey> {
        self.exposed.keys().copied().collect()
    }

    pub(super) fn withdraw_all(&mut self) {
        for key in self.exposed() {
            self.withdraw(key);
        }
    }

    /// Disconnects `qp`.
    pub fn disconnect(&mut self, qp: QpId) {
        self.provider().disconnect(qp);
    }

    /// Prepares `qp`, which has to succeed.
    pub fn prepare(&mut self, qp: QpId, config: &QpConfig) {
        let result = self.provider().prepare(qp, config);
        result.expect("a request is prepared");
    }

    /// The error of a refused post of an empty message.
    pub fn refusal(&mut self, qp: QpId) -> Option<PostError> {
        let work = self.message(0, 0);
        self.try_post(qp, 0, work).err().map(|refused| refused.why)
    }

    /// Submits and polls once; returns whether there was any progress.
    pub(super) fn poll_once(&mut self, now: Duration) -> bool {
        self.now = self.now.max(now);
        self.poll_late(self.now)
    }

    /// Like a poll at `now`, which is not the time of later polls: the owner paused until then.
    pub fn poll_late(&mut self, now: Duration) -> bool {
        let Some(provider) = &mut self.provider else {
            return false;
        };
        provider.submit(now);
        let mut events = Vec::new();
        let progress = provider.poll(now, &mut events);
        assert!(progress || events.is_empty(), "poll hides what it reports");
        for event in events {
            self.outstanding.event(&event);
            self.inbox.push_back(event);
        }
        progress
    }
}
