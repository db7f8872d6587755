//! The I/O half: takes calls, chooses their paths, and sends them again if they may be.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_initiator_core::multipath::{
    Path, PathAccess, PathPolicy, PathSelector, RetryPolicy, Rotation,
};
use nvmeof_memory::Region;
use nvmeof_rdma::{Address, ExposeError, PostError, Refused};

use super::keys::{KeyRequest, Pending};
use super::retries::{Calls, Origin, Tries, Verdict, Waiting, is_unusual};
use super::shared::{Incarnation, Incoming, PathView, Report, Shared, State};
use super::{PathEvent, PathStatus};
use crate::error::{Error, MachineError};
use crate::polled::call::{Call, Done, SubmitError};
use crate::polled::io::IoQueue;

/// The I/O queues of all paths to a namespace: see
/// [`connect_paths`](crate::polled::connect_paths). Takes calls and returns them like an
/// [`IoQueue`].
#[derive(Debug)]
pub struct MultipathIo {
    shared: Arc<Shared>,
    /// The version of the shared state that was seen.
    version: u64,
    policy: PathPolicy,
    /// Most calls that wait.
    capacity: usize,
    /// The connected paths, and what is known of each, in the same order.
    members: Vec<Member>,
    described: Vec<Path>,
    /// The choices until something changes, if they depend on nothing else.
    rotation: Option<Rotation>,
    selector: PathSelector,
    /// When a path that came back is preferred again, if there is one.
    settled_at: Option<Duration>,
    /// Lost controllers whose queues are not closed yet.
    closing: Vec<Member>,
    calls: Calls,
    /// Queues that are being authenticated again.
    authenticating: Vec<Pending>,
    events: VecDeque<PathEvent>,
    is_ended: bool,
}

/// The queues of one controller.
#[derive(Debug)]
struct Member {
    path: usize,
    addr: Address,
    incarnation: Incarnation,
    queues: Vec<IoQueue>,
    /// Index of the queue that took the last call.
    last: usize,
    retry: RetryPolicy,
    /// How often it was reported that it refused a command because of its ANA state.
    refusals: u64,
    /// Bytes of calls in flight, if the policy compares them.
    outstanding: u64,
    latency: Latency,
}

/// The mean latency of a path, of samples: one call at a time.
#[derive(Debug, Default)]
struct Latency {
    mean: Option<Duration>,
    measured_at: Duration,
    /// The call that is measured, and when it was submitted.
    sample: Option<(u64, Duration)>,
}

/// A latency that was measured longer ago says nothing about the present.
const LATENCY_LASTS: Duration = Duration::from_secs(5);

/// The local NUMA distance. The distance of a path is not known.
const LOCAL: u32 = 10;

/// Events that are kept for a caller that does not take them; older ones are dropped.
const MAX_EVENTS: usize = 256;

impl MultipathIo {
    pub(super) fn new(shared: Arc<Shared>, policy: PathPolicy, capacity: usize) -> Self {
        Self {
            // Different from the first one.
            version: shared.version().wrapping_sub(1),
            shared,
            policy,
            capacity,
            members: Vec::new(),
            described: Vec::new(),
            rotation: None,
            selector: PathSelector::new(policy),
            settled_at: None,
            closing: Vec::new(),
            calls: Calls::default(),
            authenticating: Vec::new(),
            events: VecDeque::new(),
            is_ended: false,
        }
    }

    /// Registers the buffers of `region` for calls, with all queues and those that are connected
    /// later.
    ///
    /// # Errors
    /// When the region cannot be registered.
    pub fn register(&mut self, region: &Region, now: Duration) -> Result<(), Error> {
        self.sync(now);
        self.shared.lock().regions.push(region.clone());
        let members = self.members.iter_mut();
        for queue in members.flat_map(|member| &mut member.queues) {
            queue.register(region)?;
        }
        Ok(())
    }

    /// Submits a call. `user` is below 2^63. [`submit_now`](Self::submit_now) or
    /// [`poll`](Self::poll) sends it. Without a path, it waits.
    ///
    /// # Errors
    /// [`SubmitError`] with the call. After [`SubmitError::Full`], poll and retry.
    #[inline]
    pub fn submit_call(
        &mut self,
        call: Call,
        now: Duration,
    ) -> Result<(), Refused<Call, SubmitError>> {
        if self.version != self.shared.version() {
            self.sync(now);
        }
        // Calls that wait are sent first.
        if !self.calls.waiting.is_empty() {
            return self.wait(call, now);
        }
        let Some(at) = self.choose(now) else {
            return self.wait(call, now);
        };
        let tries = Tries::default();
        let call = self.calls.begin(Waiting { call, tries });
        let Err(Refused { why, back }) = self.submit_to(at, call, now) else {
            return Ok(());
        };
        let back = self.calls.undo(back).call;
        match why {
            SubmitError::NotConnected(_) => {
                self.lose(at);
                self.wait(back, now)
            }
            why => Err(Refused { why, back }),
        }
    }

    /// Sends the commands submitted since the last time.
    pub fn submit_now(&mut self, now: Duration) {
        for queue in self.members.iter_mut().flat_map(|one| &mut one.queues) {
            queue.submit_now(now);
        }
    }

    /// Makes progress and appends the calls that ended. Returns whether there was progress. Never
    /// blocks.
    pub fn poll(&mut self, now: Duration, done: &mut Vec<Done>) -> bool {
        if self.version != self.shared.version() {
            self.sync(now);
        }
        if self.settled_at.is_some_and(|at| now >= at) {
            self.describe(now);
        }
        let mut progress = false;
        let mut at = 0;
        while let Some(member) = self.members.get_mut(at) {
            let begin = done.len();
            let mut is_lost = false;
            for queue in &mut member.queues {
                progress |= queue.poll(now, done);
                is_lost |= queue.error().is_some();
            }
            if done.len() > begin {
                self.account(at, begin, now, done);
            }
            if is_lost {
                self.lose(at);
            } else {
                at += 1;
            }
        }
        if !self.closing.is_empty() || !self.calls.is_empty() {
            progress |= self.recover(now, done);
        }
        if !self.authenticating.is_empty() {
            progress |= self.poll_authentications();
        }
        progress
    }

    /// The next change of a path.
    #[inline]
    pub fn take_event(&mut self) -> Option<PathEvent> {
        match self.events.is_empty() {
            true => None,
            false => self.events.pop_front(),
        }
    }

    /// The status of each path, in the order of the configuration.
    #[must_use]
    pub fn paths(&self) -> Vec<PathStatus> {
        let state = self.shared.lock();
        state.paths.iter().map(PathView::status).collect()
    }

    /// The number of calls that wait until a lost controller is fenced.
    #[must_use]
    pub fn awaiting_fence(&self) -> usize {
        self.calls.awaiting_fence()
    }

    /// Closes all queues; calls end with an error.
    pub fn close(&mut self) {
        self.is_ended = true;
        self.end_authentications();
        for member in &mut self.members {
            member.queues.iter_mut().for_each(IoQueue::close);
        }
        self.closing.append(&mut self.members);
        self.described.clear();
        self.rotation = None;
    }

    /// Whether all queues are closed and all calls have ended, after [`close`](Self::close).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_ended && self.closing.is_empty() && self.calls.is_empty()
    }

    /// The descriptors to sleep on. `None`: a provider has none. Before sleeping, poll until there
    /// is no progress, and call [`rest`](Self::rest). A change of the paths does not make them
    /// readable: see [`Wakers`](super::Wakers).
    pub fn wait_fds(&self) -> impl Iterator<Item = Option<BorrowedFd<'_>>> {
        self.queues().map(IoQueue::wait_fd)
    }

    /// The time by which [`poll`](Self::poll) must be called.
    #[must_use]
    pub fn next_deadline(&self, now: Duration) -> Option<Duration> {
        let queues = self.queues().filter_map(IoQueue::next_deadline);
        let calls = match self.calls.is_empty() {
            true => None,
            false => {
                let fails_at = self.shared.lock().fails_at(now);
                self.calls.next_deadline().into_iter().chain(fails_at).min()
            }
        };
        queues.chain(calls).min()
    }

    /// Prepares for sleep on [`wait_fds`](Self::wait_fds).
    pub fn rest(&mut self) {
        let members = self.members.iter_mut().chain(&mut self.closing);
        for queue in members.flat_map(|member| &mut member.queues) {
            queue.rest();
        }
    }

    fn queues(&self) -> impl Iterator<Item = &IoQueue> {
        let members = self.members.iter().chain(&self.closing);
        members.flat_map(|member| &member.queues)
    }

    /// Whether the policy compares what paths did.
    #[inline]
    fn is_measured(&self) -> bool {
        matches!(self.policy, PathPolicy::QueueDepth | PathPolicy::Latency)
    }

    /// The index of the path for the next call.
    #[inline]
    fn choose(&mut self, now: Duration) -> Option<usize> {
        match &mut self.rotation {
            Some(rotation) => rotation.take_turn(),
            None => self.select(None, now),
        }
    }

    fn select(&mut self, avoid: Option<Incarnation>, now: Duration) -> Option<usize> {
        for (member, path) in self.members.iter().zip(&mut self.described) {
            path.outstanding = member.outstanding;
            path.latency = member.latency.at(now);
        }
        let is_avoided = |member: &Member| Some(member.incarnation) == avoid;
        if let Some(at) = self.members.iter().position(is_avoided) {
            let mut others = self.described.clone();
            if let Some(path) = others.get_mut(at) {
                path.access = PathAccess::None;
            }
            let other = self.selector.select(&others);
            if other.is_some() {
                return other;
            }
        }
        self.selector.select(&self.described)
    }

    #[inline]
    fn submit_to(
        &mut self,
        at: usize,
        call: Call,
        now: Duration,
    ) -> Result<(), Refused<Call, SubmitError>> {
        let is_measured = self.is_measured();
        let Some(member) = self.members.get_mut(at) else {
            let why = SubmitError::Full;
            return Err(Refused { why, back: call });
        };
        if !is_measured {
            return member.submit(call, now);
        }
        let (user, bytes) = (call.user, len(call.buf.as_deref()));
        member.submit(call, now)?;
        member.outstanding += bytes;
        member.latency.sample.get_or_insert((user, now));
        Ok(())
    }

    /// Accepts a call that cannot be sent now.
    #[cold]
    fn wait(&mut self, call: Call, now: Duration) -> Result<(), Refused<Call, SubmitError>> {
        let why = if !self.shared.lock().may_wait(now) || self.is_ended {
            SubmitError::NotConnected(self.shared.no_path())
        } else if self.calls.len() >= self.capacity {
            SubmitError::Full
        } else {
            let tries = Tries::default();
            self.calls.waiting.push_back(Waiting { call, tries });
            return Ok(());
        };
        Err(Refused { why, back: call })
    }

    /// Calls of the path at index `at` ended: those in `done` from `begin` on.
    #[inline]
    fn account(&mut self, at: usize, begin: usize, now: Duration, done: &mut Vec<Done>) {
        let ended = done.get(begin..).unwrap_or_default();
        let is_unusual = ended.iter().any(is_unusual);
        if self.is_measured()
            && let Some(member) = self.members.get_mut(at)
        {
            for call in ended {
                let bytes = len(call.buf.as_deref());
                member.outstanding = member.outstanding.saturating_sub(bytes);
                member.latency.ended(call.user, now);
            }
        }
        if is_unusual && let Some(member) = self.members.get(at) {
            let origin = self.origin(member);
            self.sort(&origin, begin, now, done);
        }
    }

    /// `member` as that on which calls ended.
    #[cold]
    fn origin(&self, member: &Member) -> Origin {
        let others = self.members.iter().zip(&self.described);
        let mut others = others.filter(|(other, _)| other.incarnation != member.incarnation);
        Origin {
            incarnation: member.incarnation,
            addr: member.addr,
            retry: member.retry,
            is_final: self.is_ended,
            has_other: others.any(|(_, path)| path.access != PathAccess::None),
        }
    }

    /// Keeps the calls in `done` that have ended for good.
    #[cold]
    fn sort(&mut self, origin: &Origin, begin: usize, now: Duration, done: &mut Vec<Done>) {
        for call in done.split_off(begin) {
            match self.calls.ended(call, origin, now) {
                Verdict::Over(call) => done.push(call),
                Verdict::Again => {}
                Verdict::AgainOutdated => self.refused(origin.incarnation),
            }
        }
    }

    /// A controller refused a command because of its ANA state: it is not used until the states are
    /// known.
    fn refused(&mut self, incarnation: Incarnation) {
        let is_it = |member: &Member| member.incarnation == incarnation;
        let at = self.members.iter().position(is_it);
        if let Some(path) = at.and_then(|at| self.described.get_mut(at))
            && let Some(member) = at.and_then(|at| self.members.get_mut(at))
            && path.access != PathAccess::None
        {
            path.access = PathAccess::None;
            member.refusals += 1;
            self.rotation = Rotation::of(self.policy, &self.described);
            self.shared.report(Report::Refused(incarnation));
        }
    }

    /// The path at index `at` is lost: all of its queues end, so that no command is begun there.
    #[cold]
    fn lose(&mut self, at: usize) {
        if at >= self.members.len() {
            return;
        }
        let mut member = self.members.remove(at);
        if at < self.described.len() {
            self.described.remove(at);
        }
        self.rotation = Rotation::of(self.policy, &self.described);
        let why = member.queues.iter().find_map(IoQueue::error).cloned();
        let why = why.unwrap_or_else(|| MachineError::internal("a lost path without error").into());
        // A target may close the connection after it has refused the keys, which is the reason.
        let its = |one: &mut Pending| one.of == member.incarnation;
        for mut pending in self.authenticating.extract_if(.., its) {
            let answer = pending.poll(&mut member.queues, true);
            answer.into_iter().for_each(|it| self.shared.report(it));
        }
        for queue in &mut member.queues {
            queue.close_because(why.clone());
        }
        let report = Report::Lost(member.incarnation, why);
        self.closing.push(member);
        self.shared.report(report);
    }

    /// Calls that wait, and queues that close.
    #[cold]
    fn recover(&mut self, now: Duration, done: &mut Vec<Done>) -> bool {
        let mut progress = false;
        for mut member in std::mem::take(&mut self.closing) {
            let begin = done.len();
            for queue in &mut member.queues {
                progress |= queue.poll(now, done);
            }
            let origin = self.origin(&member);
            self.sort(&origin, begin, now, done);
            if !member.queues.iter().all(IoQueue::is_closed) {
                self.closing.push(member);
            }
        }
        let all = || self.members.iter().chain(&self.closing);
        let may_return = |one| all().any(|member| member.incarnation == one);
        progress |= self.calls.release(now, may_return, done);
        progress |= self.send_waiting(now, done);
        if !self.calls.is_empty() && (self.is_ended || !self.shared.lock().may_wait(now)) {
            let no_path = self.shared.no_path();
            self.calls.end_all(&no_path, done);
            progress = true;
        }
        progress
    }

    /// Sends calls that wait, until there is no path or no room. Returns whether one was sent or
    /// ended.
    fn send_waiting(&mut self, now: Duration, done: &mut Vec<Done>) -> bool {
        let before = self.calls.waiting.len();
        while let Some(mut next) = self.calls.waiting.pop_front() {
            let avoid = next.tries.avoid;
            let Some(at) = self.select(avoid, now) else {
                self.calls.waiting.push_front(next);
                break;
            };
            next.tries.avoid = None;
            let call = self.calls.begin(next);
            let Err(refused) = self.submit_to(at, call, now) else {
                continue;
            };
            let mut next = self.calls.undo(refused.back);
            next.tries.avoid = avoid;
            match refused.why {
                SubmitError::Full => {
                    self.calls.waiting.push_front(next);
                    break;
                }
                SubmitError::NotConnected(_) => {
                    self.calls.waiting.push_front(next);
                    self.lose(at);
                }
                why => {
                    let error = MachineError::Internal(why.to_string());
                    done.push(next.end(error.into()));
                }
            }
        }
        // Also if there was no room for the last one: the others were accepted.
        self.submit_now(now);
        self.calls.waiting.len() != before
    }

    /// Begins to authenticate the queues of a controller. The loss of one that is missing has been
    /// reported.
    fn authenticate(&mut self, request: &KeyRequest) {
        self.authenticating.retain(|one| one.of != request.of);
        let members = &mut self.members;
        if let Some(member) = members.iter_mut().find(|it| it.incarnation == request.of) {
            let pending = Pending::begin(request, &mut member.queues);
            self.authenticating.push(pending);
        }
    }

    /// Answers all requests, because this half ends.
    fn end_authentications(&mut self) {
        let requests = {
            let mut state = self.shared.lock();
            state.is_io_ended = true;
            std::mem::take(&mut state.key_requests)
        };
        let pending = self.authenticating.drain(..).map(|one| one.closed());
        let all = pending.chain(requests.iter().map(KeyRequest::closed));
        all.for_each(|answer| self.shared.report(answer));
    }

    /// Answers requests whose queues have all ended them. Returns whether there was one.
    #[cold]
    fn poll_authentications(&mut self) -> bool {
        let before = self.authenticating.len();
        let (members, shared) = (&mut self.members, &self.shared);
        self.authenticating.retain_mut(|one| {
            let member = members.iter_mut().find(|it| it.incarnation == one.of);
            // The loss of a controller ends its request.
            let Some(member) = member else {
                return false;
            };
            let answer = one.poll(&mut member.queues, false);
            let is_ended = answer.is_some();
            answer.into_iter().for_each(|answer| shared.report(answer));
            !is_ended
        });
        self.authenticating.len() != before
    }

    /// Takes over what the admin half changed.
    #[cold]
    fn sync(&mut self, now: Duration) {
        self.version = self.shared.version();
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let State {
            paths,
            fenced,
            key_requests,
            events,
            regions,
            ..
        } = &mut *state;
        let mut lost = Vec::new();
        for (path, view) in paths.iter_mut().enumerate() {
            let Some(incoming) = view.incoming.take().filter(|_| !self.is_ended) else {
                continue;
            };
            let mut member = Member::new(path, view.addr, &incoming);
            if let Err(error) = member.take_over(incoming, regions) {
                lost.push(Report::Lost(member.incarnation, error));
            } else {
                self.members.push(member);
            }
        }
        // Policy `Numa` uses the first one.
        self.members.sort_by_key(|member| member.path);
        self.calls.fenced(fenced);
        self.events.append(events);
        let excess = self.events.len().saturating_sub(MAX_EVENTS);
        self.events.drain(..excess);
        let requests = std::mem::take(key_requests);
        drop(state);
        requests.iter().for_each(|one| self.authenticate(one));
        self.describe(now);
        lost.into_iter().for_each(|report| shared.report(report));
    }

    /// Describes the paths as they are at `now`.
    #[cold]
    fn describe(&mut self, now: Duration) {
        let state = self.shared.lock();
        self.described.clear();
        self.settled_at = None;
        for member in &self.members {
            let view = state.paths.get(member.path);
            let view = view.filter(|view| view.live == Some(member.incarnation));
            // A state from before the last refusal is outdated.
            let access = view.filter(|view| view.refusals >= member.refusals);
            let access = access.map_or(PathAccess::None, |view| view.access);
            let settled_at = view.map_or(Duration::MAX, |view| view.settled_at);
            let is_settled = now >= settled_at;
            if !is_settled && view.is_some() {
                self.settled_at = self.settled_at.into_iter().chain([settled_at]).min();
            }
            self.described.push(Path {
                access,
                is_settled,
                outstanding: member.outstanding,
                latency: None,
                distance: LOCAL,
            });
        }
        drop(state);
        self.rotation = Rotation::of(self.policy, &self.described);
    }
}

impl Drop for MultipathIo {
    fn drop(&mut self) {
        self.end_authentications();
    }
}

impl Member {
    fn new(path: usize, addr: Address, incoming: &Incoming) -> Self {
        Self {
            path,
            addr,
            incarnation: incoming.incarnation,
            queues: Vec::new(),
            last: 0,
            retry: incoming.retry,
            refusals: 0,
            outstanding: 0,
            latency: Latency::default(),
        }
    }

    /// Takes queues, and registers the regions that they lack.
    fn take_over(&mut self, incoming: Incoming, regions: &[Region]) -> Result<(), Error> {
        self.queues = incoming.queues;
        for queue in &mut self.queues {
            for region in regions.iter().skip(incoming.regions) {
                queue.register(region)?;
            }
        }
        Ok(())
    }

    /// Submits to the next queue with room.
    #[inline]
    fn submit(&mut self, mut call: Call, now: Duration) -> Result<(), Refused<Call, SubmitError>> {
        let count = self.queues.len();
        for _ in 0..count {
            self.last = match self.last + 1 {
                next if next < count => next,
                _ => 0,
            };
            let Some(queue) = self.queues.get_mut(self.last) else {
                break;
            };
            match queue.submit_call(call, now) {
                // The provider closed the queue pair, and nothing was sent: the next poll detects
                // the loss.
                Err(Refused {
                    why:
                        SubmitError::Full
                        | SubmitError::Buffer(ExposeError::Closed)
                        | SubmitError::Refused(PostError::Closed | PostError::WrongState { .. }),
                    back,
                }) => call = back,
                result => return result,
            }
        }
        let why = SubmitError::Full;
        Err(Refused { why, back: call })
    }
}

impl Latency {
    /// The mean, if it was measured lately.
    fn at(&self, now: Duration) -> Option<Duration> {
        let is_recent = now.saturating_sub(self.measured_at) < LATENCY_LASTS;
        self.mean.filter(|_| is_recent)
    }

    /// A call ended.
    fn ended(&mut self, user: u64, now: Duration) {
        let Some((_, begun)) = self.sample.take_if(|(measured, _)| *measured == user) else {
            return;
        };
        let time = now.saturating_sub(begun);
        self.mean = Some(match self.mean {
            // An eighth of it: single slow calls change little.
            Some(last) => (last * 7 + time) / 8,
            None => time,
        });
        self.measured_at = now;
    }
}

fn len(bytes: Option<&[u8]>) -> u64 {
    bytes.map_or(0, |bytes| u64::try_from(bytes.len()).unwrap_or(u64::MAX))
}
