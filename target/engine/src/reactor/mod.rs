//! One reactor: an event loop over providers, backing stores, timers and mail. One thread
//! owns it. The code that runs the loop is outside (`thread`), so that a simulation can
//! run it as well.

mod accept;
mod backing_stores;
mod detach;
mod drain;
mod fair;
mod locks;
mod orders;
mod peers;
mod poll_schedule;
mod queues;
mod relief;
mod resets;
mod sizes;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_backend::{BackingStores, BackingStoresError, Done};
use nvmeof_memory::{ClassSpec, Classes, Pages, Region};
use nvmeof_rdma::{
    Address, CloseReason, Completion, Event, ListenError, ListenerId, Provider, QpId, Received,
    Steering,
};
use nvmeof_target_core::{FollowUps, Target};

use crate::authentication::ComputeWorkers;
use crate::awaiting_buffers::{AwaitingBuffers, SecondBuffers};
use crate::backlog::Backlog;
use crate::counters::Counters;
use crate::data_buffers::DataBuffers;
use crate::failures::Failures;
use crate::fair_queue::FairQueue;
use crate::mailbox::{Mail, Mailbox};
use crate::peer_log::PeerLog;
use crate::queue::{
    Accounts, Io, Locked, MessageBuffers, QueuePair, Receives, Resources, SharedQueues, Waiting,
    Workers,
};
use crate::tag::{NO_SLOT, SlotId, Tag};
use accept::Requests;
use detach::Detach;
use drain::Stage;
use nvmeof_rdma::RateLimiter;
use orders::ClosingStore;
use poll_schedule::PollSchedule;
use queues::Queues;
use relief::Relief;
pub use sizes::ReactorError;
use sizes::SQE_LEN;
pub use sizes::{LONGEST_AT_ONCE, capsule_stride};

/// Sizes of one reactor.
#[derive(Clone, Debug)]
pub struct ReactorConfig {
    /// Capsule buffers: the sum of the queue depths of all its queue pairs.
    pub capsules: usize,
    /// Data buffers, by length.
    pub data: Vec<ClassSpec>,
    /// Whether to use huge pages for buffers, if there are any.
    pub pages: Pages,
    /// How long a host may take to transfer the data of one command.
    pub stall: Duration,
    /// How long commands in flight may take during a drain.
    pub drain: Duration,
    /// Maximum number of receives that the queue pairs of one device share, if the device
    /// can; 0: each queue pair has its own.
    pub shared_receives: u32,
}

/// One reactor.
pub struct Reactor<S> {
    config: ReactorConfig,
    target: Target,
    providers: Vec<Box<dyn Provider>>,
    poll_schedule: PollSchedule,
    listeners: Vec<Listening>,
    stores: S,
    mailbox: Mailbox,
    /// The mailboxes of all reactors of the target.
    peers: Arc<[Mailbox]>,
    /// The index of this one.
    number: u16,
    /// Bytes of a capsule, in-capsule data included.
    capsule_len: usize,
    queues: Queues,
    resources: Resources,
    /// Whether a lock or a barrier waits for writes of this reactor.
    locks_await_writes: bool,
    requests: Requests,
    /// Distributes connections over reactors, and the index of this member.
    steering: Option<(Steering, usize)>,
    /// Queues without a controller, possibly with some that got one lately; oldest first.
    unconnected: VecDeque<SlotId>,
    relief: Relief,
    stage: Stage,
    detach: Detach,
    /// Backing stores that will be closed.
    closing_stores: Vec<ClosingStore>,
    /// When queues were checked last.
    last_check: Duration,
    counters: Arc<Counters>,
    /// Empty between iterations: kept to reuse its memory.
    events: Vec<Event>,
    /// Operations that completed at submission, to be processed in the next iteration.
    done: Vec<Done>,
}

/// A listener.
#[derive(Clone, Copy, Debug)]
struct Listening {
    /// The number of the provider.
    provider: usize,
    listener: ListenerId,
    /// The address in use.
    address: Address,
}

/// The result of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollResult {
    /// Whether it did any work: run another iteration before sleeping.
    pub did_work: bool,
    /// Whether the reactor is drained and has nothing left to do.
    pub drained: bool,
}

/// How often to check a queue pair without a deadline of its own while it waits for the
/// host.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl<S: BackingStores> Reactor<S> {
    /// A reactor without listeners. `peers` has the mailboxes of all reactors that share
    /// `target`; `mailbox` is this one's.
    ///
    /// # Errors
    /// If there is not enough memory for its buffers, or if they cannot serve every
    /// command.
    pub fn new(
        config: ReactorConfig,
        target: Target,
        stores: S,
        mailbox: Mailbox,
        peers: Arc<[Mailbox]>,
    ) -> Result<Self, ReactorError> {
        sizes::check(&config, target.limits())?;
        let in_capsule = usize::try_from(target.limits().in_capsule).unwrap_or(0);
        let [capsules, admin_capsules] = sizes::capsule_pools(&config, target.limits())?;
        let messages = MessageBuffers::new(target.limits(), config.pages)?;
        let buffers = Classes::new(&config.data, config.pages)?;
        let awaiting = AwaitingBuffers::new(SecondBuffers::new(&config.data)?);
        let accounts = Accounts::new(target.clone(), &buffers, config.capsules);
        let buffers = DataBuffers::new(buffers);
        let number = peers.iter().position(|peer| peer.is(&mailbox));
        let number = u16::try_from(number.unwrap_or_default()).unwrap_or_default();
        let locked = Locked {
            member: target.locks().join(number),
            waiting: Waiting::default(),
        };
        let resources = Resources {
            buffers,
            accounts,
            capsules,
            admin_capsules,
            messages,
            workers: None,
            shared: SharedQueues::default(),
            awaiting,
            due: FairQueue::default(),
            start_budget: 0,
            backlog: Backlog::default(),
            writers: target.writers().clone(),
            locked,
            follow_ups: FollowUps::empty(),
            calls: Vec::new(),
            timer: None,
            failures: None,
            store_log: RateLimiter::default(),
            wait_log: RateLimiter::default(),
            connect_log: PeerLog::default(),
        };
        Ok(Self {
            config,
            target,
            providers: Vec::new(),
            poll_schedule: PollSchedule::default(),
            listeners: Vec::new(),
            stores,
            mailbox,
            peers,
            number,
            capsule_len: SQE_LEN + in_capsule,
            queues: Queues::default(),
            locks_await_writes: false,
            resources,
            requests: Requests::default(),
            steering: None,
            unconnected: VecDeque::new(),
            relief: Relief::default(),
            stage: Stage::Serving,
            detach: Detach::default(),
            closing_stores: Vec::new(),
            last_check: Duration::ZERO,
            counters: Arc::default(),
            events: Vec::new(),
            done: Vec::new(),
        })
    }

    /// Adds a provider. Returns its number.
    ///
    /// # Errors
    /// If its buffers cannot be registered.
    pub fn add_provider(&mut self, mut provider: Box<dyn Provider>) -> std::io::Result<usize> {
        for region in self.regions() {
            provider.register(region)?;
        }
        self.providers.push(provider);
        Ok(self.providers.len() - 1)
    }

    /// Listens on `addr` over provider number `provider`. Returns the address in use.
    ///
    /// # Errors
    /// [`ListenError`] names address, cause and remedy.
    pub fn listen(&mut self, provider: usize, addr: Address) -> Result<Address, ListenError> {
        self.listen_named(provider, addr).map(|(_, addr)| addr)
    }

    fn listen_named(
        &mut self,
        provider: usize,
        addr: Address,
    ) -> Result<(ListenerId, Address), ListenError> {
        let Some(at) = self.providers.get_mut(provider) else {
            let source = std::io::Error::other("no such provider");
            return Err(ListenError::new(addr, source));
        };
        let (listener, addr) = at.listen(addr)?;
        self.own_listener(provider, listener, addr);
        Ok((listener, addr))
    }

    /// Its providers get the connections that `steering` assigns to `member`; the reactor
    /// reports which of them carry little traffic.
    pub fn set_steering(&mut self, steering: Steering, member: usize) {
        self.steering = Some((steering, member));
    }

    /// Reports failures of backing stores to `failures`.
    pub fn report_to(&mut self, failures: Failures) {
        self.resources.failures = Some(failures);
    }

    /// Computations of authentications run on `workers`. Without any, every authentication fails.
    pub fn set_workers(&mut self, workers: Arc<dyn ComputeWorkers>) {
        let mailbox = self.mailbox.clone();
        self.resources.workers = Some(Workers { workers, mailbox });
    }

    /// Uses these counters from now on. Call it before there are connections.
    pub fn count_in(&mut self, counters: Arc<Counters>) {
        self.counters = counters;
    }

    /// The counters of this reactor.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Adopts a listener that was created before, so that it is closed when the reactor
    /// drains or its port is removed.
    pub fn own_listener(&mut self, provider: usize, listener: ListenerId, address: Address) {
        self.listeners.push(Listening {
            provider,
            listener,
            address,
        });
    }

    /// The memory regions of its buffers, the most frequently used first.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        let mut data = self.resources.buffers.classes().regions();
        // Short data are the most frequent, followed by capsules.
        let first = data.next();
        first
            .into_iter()
            .chain([self.resources.capsules.region()])
            .chain(data)
            .chain([self.resources.admin_capsules.region()])
            .chain([self.resources.messages.region()])
    }

    /// The backing stores.
    pub fn stores_mut(&mut self) -> &mut S {
        &mut self.stores
    }

    /// The number of queue pairs.
    #[must_use]
    pub fn queue_pairs(&self) -> usize {
        self.queues.len()
    }

    /// Runs one iteration of the event loop. Never blocks.
    ///
    /// # Errors
    /// If the backing stores fail for a reason that concerns no single request.
    pub fn poll_once(&mut self, now: Duration) -> Result<PollResult, BackingStoresError> {
        let mail = self.mailbox.take();
        let mut did_work = !mail.is_empty();
        if mail.contains(Mail::DRAIN) {
            self.start_drain(now);
        }
        if mail.contains(Mail::ORDERS) {
            self.take_orders(now);
        }
        // Process received messages before timeouts of hosts: this reactor may have been
        // late itself.
        self.reset_start_budget();
        did_work |= self.poll_providers(now);
        did_work |= self.respond_to_requests(now);
        did_work |= self.start_due(now);
        if mail.contains(Mail::POLL) {
            self.check_queues_on_demand(now);
        } else if self.resources.timer.is_some_and(|timer| now >= timer) {
            self.check_queues(now);
        }
        if mail.contains(Mail::CALLS) {
            let called = self.mailbox.take_calls();
            self.poll_queues_of(&called, now);
        }
        if self.poll_stores(now)? {
            did_work = true;
            self.requests.note_served(now);
        }
        did_work |= self.allocate_buffers(now);
        self.relieve(now);
        did_work |= self.process_lock_changes(now);
        self.notify_peers(now);
        did_work |= self.close_stores(now);
        did_work |= self.continue_detach(now);
        did_work |= self.continue_drain(now);
        // Some queues may have been listed meanwhile, and operations may have completed.
        did_work |= !self.resources.due.is_empty() || !self.done.is_empty();
        for provider in &mut self.providers {
            provider.submit(now);
        }
        Ok(PollResult {
            did_work,
            drained: self.stage == Stage::Drained,
        })
    }

    /// Prepares to sleep. Returns whether there is nothing to do until one of
    /// [`wait_fds`](Self::wait_fds) becomes readable or the [next
    /// deadline](Self::next_deadline) passes.
    ///
    /// # Errors
    /// As [`poll_once`](Self::poll_once).
    pub fn rest(&mut self, now: Duration) -> Result<bool, BackingStoresError> {
        // Changes of locks are delivered first: see `nvmeof_target_core::Locks`. So are requests
        // that came up after this iteration delivered others.
        let has_requests = self.resources.locked.member.has_changes()
            || !self.resources.follow_ups.is_empty()
            || !self.resources.calls.is_empty();
        if has_requests || !self.done.is_empty() || !self.stores.may_sleep()? {
            return Ok(false);
        }
        self.poll_schedule.will_sleep();
        for provider in &mut self.providers {
            provider.rest();
        }
        Ok(self.next_deadline().is_none_or(|at| at > now))
    }

    /// Whether to sleep instead of polling: see [`BackingStores::completes_in_batches`].
    pub(crate) fn completes_in_batches(&self) -> bool {
        self.stores.completes_in_batches()
    }

    /// When a sleep that begins at `now`, after [`rest`](Self::rest), ends at the latest.
    pub(crate) fn latest_wake(&self, now: Duration) -> Option<Duration> {
        let stores = self.stores.longest_sleep().map(|longest| now + longest);
        self.next_deadline().into_iter().chain(stores).min()
    }

    /// The descriptors to sleep on: of providers, backing stores, and last the mailbox.
    pub fn wait_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let providers = self.providers.iter().filter_map(|one| one.wait_fd());
        providers
            .chain(self.stores.wait_fd())
            .chain([self.mailbox.wait_fd()])
    }

    /// Its mailbox.
    #[must_use]
    pub fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// When the next iteration is due at the latest.
    pub fn next_deadline(&self) -> Option<Duration> {
        let providers = self.providers.iter().filter_map(|one| one.next_deadline());
        providers
            .chain(self.resources.timer)
            .chain(self.requests.deadline())
            .chain(self.relief.deadline())
            .chain(self.stage.deadline())
            .chain(self.detach.deadline())
            .chain(
                self.closing_stores
                    .iter()
                    .filter_map(ClosingStore::deadline),
            )
            .min()
    }

    fn poll_providers(&mut self, now: Duration) -> bool {
        let mut did_work = false;
        let mut events = std::mem::take(&mut self.events);
        self.poll_schedule.begin(self.providers.len(), now);
        for at in 0..self.providers.len() {
            if !self.poll_schedule.should_poll(at) {
                continue;
            }
            if let Some(provider) = self.providers.get_mut(at) {
                let found = provider.poll(now, &mut events);
                self.poll_schedule.polled(at, found);
                did_work |= found;
            }
            let mut events = events.drain(..);
            while let Some(event) = self.serve(at, &mut events, now) {
                self.handle(at, event, now);
            }
        }
        self.events = events;
        did_work
    }

    /// Passes a run of completions to their queues, up to the next other event.
    fn serve(
        &mut self,
        provider: usize,
        events: &mut impl Iterator<Item = Event>,
        now: Duration,
    ) -> Option<Event> {
        let (queues, mut io) = self.split(provider, now)?;
        loop {
            // Queues get what they need of an event, which is large.
            match events.next() {
                Some(Event::Completion(Completion {
                    tag,
                    kind,
                    buf,
                    outcome,
                    ..
                })) => {
                    let Tag { queue, slot } = Tag::from_bits(tag.0);
                    if let Some(queue_pair) = queues.get(queue) {
                        queue_pair.completed(slot, kind, buf, &outcome, &mut io);
                    }
                }
                Some(Event::Received(Received {
                    qp,
                    tag,
                    buf,
                    len,
                    outcome,
                    ..
                })) => {
                    let Tag { mut queue, slot } = Tag::from_bits(tag.0);
                    if queue == NO_SLOT {
                        io.resources.shared.receive_completed(slot);
                        let Some(drew) = queues.find(provider, qp) else {
                            continue;
                        };
                        queue = drew;
                    }
                    if let Some(queue_pair) = queues.get(queue) {
                        queue_pair.received(buf, len, &outcome, &mut io);
                    }
                }
                event => return event,
            }
        }
    }

    #[cold]
    fn handle(&mut self, provider: usize, event: Event, now: Duration) {
        match event {
            Event::ConnectRequest(request) => self.requests.push(provider, request),
            Event::Ending { qp } => self.end(provider, qp, now),
            Event::Closed { qp, reason } => {
                self.end(provider, qp, now);
                self.requests.forget(provider, qp);
                if let Some(queue_pair) = self.queues.remove(provider, qp) {
                    self.closed(provider, queue_pair, &reason, now);
                }
            }
            // Completions are handled by `serve`, and a target exposes no memory.
            Event::Received(_)
            | Event::Completion(_)
            | Event::Withdrawn { .. }
            | Event::Established { .. }
            | Event::Rejected { .. } => {}
        }
    }

    fn end(&mut self, provider: usize, qp: QpId, now: Duration) {
        if let Some(id) = self.queues.find(provider, qp) {
            self.with_queue(id, now, QueuePair::end);
        }
    }

    fn closed(
        &mut self,
        provider: usize,
        mut queue_pair: QueuePair,
        reason: &CloseReason,
        now: Duration,
    ) {
        let receives = std::mem::replace(&mut queue_pair.receives, Receives::Own);
        self.resources.shared.remove_queue(&receives);
        self.resources.locked.waiting.forget(&queue_pair);
        if self.counters.closed(reason) {
            queue_pair.record_connection_error();
        }
        // Its buffers are returned, and other queues may wait for them.
        let (follow_ups, calls) = queue_pair.closed(reason, now, &mut self.resources.connect_log);
        self.resources.follow_ups |= follow_ups;
        self.resources.calls.extend(calls);
        self.resources.accounts.remove_unused(now);
        if let Some(provider) = self.providers.get_mut(provider) {
            let more = || self.resources.capsules.take();
            self.resources
                .shared
                .refill(&receives, &mut **provider, more);
        }
    }

    /// The queues, and the resources for those of `provider`.
    fn split(&mut self, provider: usize, now: Duration) -> Option<(&mut Queues, Io<'_>)> {
        let io = Io {
            now,
            provider: &mut **self.providers.get_mut(provider)?,
            stores: &mut self.stores,
            resources: &mut self.resources,
        };
        Some((&mut self.queues, io))
    }

    /// Calls `act` with a queue if it still exists.
    fn with_queue<T>(
        &mut self,
        id: SlotId,
        now: Duration,
        act: impl FnOnce(&mut QueuePair, &mut Io<'_>) -> T,
    ) -> Option<T> {
        let provider = self.queues.get(id)?.link.provider;
        let (queues, mut io) = self.split(provider, now)?;
        Some(act(queues.get(id)?, &mut io))
    }

    /// The same as [`check_queues`](Self::check_queues), because of an event.
    fn check_queues_on_demand(&mut self, now: Duration) {
        self.counters.polled_queues(self.queues.len());
        self.check_queues(now);
    }

    /// Polls every queue, closes those whose host takes too long, and determines when to
    /// do so again. Commands whose write protection was stored resume first.
    fn check_queues(&mut self, now: Duration) {
        self.resources.timer = None;
        self.resources.accounts.remove_unused(now);
        self.resume_saved(now);
        let stall = self.config.stall;
        let last_check = std::mem::replace(&mut self.last_check, now);
        let mut stalled = 0;
        for id in self.queues.ids() {
            self.with_queue(id, now, |queue_pair, io| {
                queue_pair.poll(io);
                queue_pair.give_up_lone_half(io);
                queue_pair.block_writes_behind_slow(io);
                stalled += queue_pair.report_stalled(last_check, io);
                let waits = queue_pair.longest_on_wire();
                if waits.is_some_and(|since| now.saturating_sub(since) >= stall) {
                    queue_pair.abandon("the host did not transfer the data of a command", io);
                }
                io.resources.poll_by(queue_pair.next_deadline());
            });
        }
        self.counters.stalled(stalled);
        let has_resets = self.log_delayed_resets(now);
        // Transfers that are in flight, or will be by then.
        if has_resets || !self.queues.is_empty() {
            self.resources.poll_by(Some(now + CHECK_INTERVAL));
        }
    }
}
