//! One reactor: a loop over providers, disks, timers and mail. Owned and
//! turned by one thread; what turns it is outside, so that a simulation can.

mod accept;
mod detach;
mod disks;
mod drain;
mod fair;
mod locks;
mod orders;
mod peers;
mod poll_schedule;
mod queues;
mod relief;
mod sizes;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_backend::{Done, Storage, StorageError};
use nvmeof_memory::{ClassSpec, Classes, Pages, Region};
use nvmeof_rdma::{Address, CloseReason, Event, ListenError, ListenerId, Provider, QpId, Steering};
use nvmeof_target_core::{FollowUps, Target};

use crate::awaiting_buffers::{AwaitingBuffers, SecondBuffers};
use crate::backlog::Backlog;
use crate::counters::Counters;
use crate::data_buffers::DataBuffers;
use crate::failures::Failures;
use crate::fair_queue::FairQueue;
use crate::mailbox::{Mail, Mailbox};
use crate::peer_log::PeerLog;
use crate::queue::{Accounts, Io, Locked, QueuePair, Receives, Resources, SharedQueues, Waiting};
use crate::tag::{NO_SLOT, SlotId, Tag};
use accept::Requests;
use detach::Detach;
use drain::Stage;
use locks::LockChanges;
use nvmeof_rdma::RateLimiter;
use orders::Leaving;
use poll_schedule::PollSchedule;
use queues::Queues;
use relief::Relief;
pub use sizes::ReactorError;
use sizes::SQE_LEN;
pub use sizes::{LONGEST_AT_ONCE, capsule_stride};

/// Sizes of one reactor.
#[derive(Clone, Debug)]
pub struct ReactorConfig {
    /// Capsules that can be received: the queue depths of all its queue pairs
    /// together.
    pub capsules: usize,
    /// Buffers for data, of each length as many as said.
    pub data: Vec<ClassSpec>,
    /// Whether buffers should lie in hugepages, where there are any.
    pub pages: Pages,
    /// How long a host may take to take or give the data of one command.
    pub stall: Duration,
    /// How long commands in flight may take when the reactor drains.
    pub drain: Duration,
    /// Receives that the queue pairs of one device share at most, where a
    /// device lets them; 0: each has its own.
    pub shared_receives: u32,
}

/// One reactor.
pub struct Reactor<S> {
    config: ReactorConfig,
    target: Target,
    providers: Vec<Box<dyn Provider>>,
    poll_schedule: PollSchedule,
    listeners: Vec<Listening>,
    storage: S,
    mailbox: Mailbox,
    /// Every reactor that shares the target.
    peers: Arc<[Mailbox]>,
    /// Which of them this one is.
    number: u16,
    /// Bytes of a capsule, in-capsule data included.
    capsule_len: usize,
    queues: Queues,
    resources: Resources,
    lock_changes: LockChanges,
    requests: Requests,
    /// What spreads connections over reactors, and which of its members this
    /// one is.
    steering: Option<(Steering, usize)>,
    /// Queues that were never connected, or not long ago; oldest first.
    unconnected: VecDeque<SlotId>,
    relief: Relief,
    stage: Stage,
    detach: Detach,
    /// Backing stores that are to be closed.
    leaving: Vec<Leaving>,
    /// When queues were looked after last.
    looked: Duration,
    counters: Arc<Counters>,
    /// Empty between turns: kept for its memory.
    events: Vec<Event>,
    /// What backing stores did at once, to be told of in the next turn.
    done: Vec<Done>,
}

/// Where a reactor listens.
#[derive(Clone, Copy, Debug)]
struct Listening {
    /// The number of the provider.
    provider: usize,
    listener: ListenerId,
    /// In use.
    address: Address,
}

/// What came of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Whether anything happened: turn again before sleeping.
    pub did_work: bool,
    /// Whether the reactor was drained and has nothing left to do.
    pub drained: bool,
}

/// A queue pair without a deadline of its own is looked after this often while
/// it waits for the host.
const LOOK_AFTER: Duration = Duration::from_secs(1);

impl<S: Storage> Reactor<S> {
    /// A reactor that listens nowhere yet. `peers` has the mailboxes of all
    /// reactors that share `target`; `mailbox` is this one's.
    ///
    /// # Errors
    /// When there is not enough memory for its buffers, or not enough of them.
    pub fn new(
        config: ReactorConfig,
        target: Target,
        storage: S,
        mailbox: Mailbox,
        peers: Arc<[Mailbox]>,
    ) -> Result<Self, ReactorError> {
        sizes::check(&config, target.limits())?;
        let in_capsule = usize::try_from(target.limits().in_capsule).unwrap_or(0);
        let [capsules, admin_capsules] = sizes::capsule_pools(&config, target.limits())?;
        let buffers = Classes::new(&config.data, config.pages)?;
        let awaiting = AwaitingBuffers::new(SecondBuffers::new(&config.data)?);
        let accounts = Accounts::new(target.clone(), &buffers, config.capsules);
        let buffers = DataBuffers::new(buffers);
        let locked = Locked {
            member: target.locks().join(),
            waiting: Waiting::default(),
        };
        let number = peers.iter().position(|peer| peer.is(&mailbox));
        let number = number.and_then(|number| u16::try_from(number).ok());
        let resources = Resources {
            buffers,
            accounts,
            capsules,
            admin_capsules,
            shared: SharedQueues::default(),
            awaiting,
            due: FairQueue::default(),
            at_once: 0,
            backlog: Backlog::default(),
            writers: target.writers().clone(),
            locked,
            follow_ups: FollowUps::empty(),
            calls: Vec::new(),
            timer: None,
            failures: None,
            disk_log: RateLimiter::default(),
            wait_log: RateLimiter::default(),
            connect_log: PeerLog::default(),
        };
        Ok(Self {
            config,
            target,
            providers: Vec::new(),
            poll_schedule: PollSchedule::default(),
            listeners: Vec::new(),
            storage,
            mailbox,
            peers,
            number: number.unwrap_or_default(),
            capsule_len: SQE_LEN + in_capsule,
            queues: Queues::default(),
            lock_changes: LockChanges::new(&resources.locked.member),
            resources,
            requests: Requests::default(),
            steering: None,
            unconnected: VecDeque::new(),
            relief: Relief::default(),
            stage: Stage::Serving,
            detach: Detach::default(),
            leaving: Vec::new(),
            looked: Duration::ZERO,
            counters: Arc::default(),
            events: Vec::new(),
            done: Vec::new(),
        })
    }

    /// Serves over one more provider. Returns its number.
    ///
    /// # Errors
    /// When the machine does not let its buffers be registered.
    pub fn add_provider(&mut self, mut provider: Box<dyn Provider>) -> std::io::Result<usize> {
        for region in self.regions() {
            provider.register(region)?;
        }
        self.providers.push(provider);
        Ok(self.providers.len() - 1)
    }

    /// Listens on `addr` over provider number `provider`. Returns the address
    /// in use.
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

    /// Its providers get the connections that `steering` gives to `member`: it
    /// is told which of them are light.
    pub fn steer(&mut self, steering: Steering, member: usize) {
        self.steering = Some((steering, member));
    }

    /// Tells `failures` of disks that fail.
    pub fn report_to(&mut self, failures: Failures) {
        self.resources.failures = Some(failures);
    }

    /// Counts there from now on. Call it before there are connections.
    pub fn count_in(&mut self, counters: Arc<Counters>) {
        self.counters = counters;
    }

    /// Where it counts.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Has connections of a listener that was made before, so that it is
    /// closed when the reactor drains, or its port goes.
    pub fn own_listener(&mut self, provider: usize, listener: ListenerId, address: Address) {
        self.listeners.push(Listening {
            provider,
            listener,
            address,
        });
    }

    /// The memory its buffers lie in; where it matters most first.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        let mut data = self.resources.buffers.classes().regions();
        // Short data are the most frequent, then come capsules.
        let first = data.next();
        first
            .into_iter()
            .chain([self.resources.capsules.region()])
            .chain(data)
            .chain([self.resources.admin_capsules.region()])
    }

    /// The disks.
    pub fn storage_mut(&mut self) -> &mut S {
        &mut self.storage
    }

    /// Queue pairs there are.
    #[must_use]
    pub fn queue_pairs(&self) -> usize {
        self.queues.len()
    }

    /// Does what there is to do now, and never waits.
    ///
    /// # Errors
    /// When the disks fail in a way that no request is to blame for.
    pub fn turn(&mut self, now: Duration) -> Result<Turn, StorageError> {
        let mail = self.mailbox.take();
        let mut did_work = !mail.is_empty();
        if mail.contains(Mail::DRAIN) {
            self.start_drain(now);
        }
        if mail.contains(Mail::ORDERS) {
            self.take_orders(now);
        }
        // First what hosts sent, then whether they were silent too long: we
        // may be the one who did not look.
        self.allow_at_once();
        did_work |= self.poll_providers(now);
        did_work |= self.answer_requests(now);
        did_work |= self.begin_due(now);
        if mail.contains(Mail::POLL) || self.resources.timer.is_some_and(|timer| now >= timer) {
            self.look_after_queues(now);
        }
        if self.poll_storage(now)? {
            did_work = true;
            self.requests.note_served(now);
        }
        did_work |= self.feed(now);
        self.relieve(now);
        did_work |= self.go_on_locks(now);
        self.tell_peers(now);
        did_work |= self.close_leaving(now);
        did_work |= self.go_on_letting_go(now);
        did_work |= self.go_on_draining(now);
        // Some may have been listed meanwhile, and disks may have answered.
        did_work |= !self.resources.due.is_empty() || !self.done.is_empty();
        for provider in &mut self.providers {
            provider.submit(now);
        }
        Ok(Turn {
            did_work,
            drained: self.stage == Stage::Drained,
        })
    }

    /// Gets ready to sleep. Returns whether there is nothing to do until one of
    /// [`wait_fds`](Self::wait_fds) becomes readable or the
    /// [next deadline](Self::next_deadline) comes.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub fn rest(&mut self, now: Duration) -> Result<bool, StorageError> {
        if !self.done.is_empty() || !self.storage.may_sleep()? {
            return Ok(false);
        }
        for provider in &mut self.providers {
            provider.rest();
        }
        Ok(self.next_deadline().is_none_or(|at| at > now))
    }

    /// What to sleep on: providers, disks, and last its mailbox.
    pub fn wait_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let providers = self.providers.iter().filter_map(|one| one.wait_fd());
        providers
            .chain(self.storage.wait_fd())
            .chain([self.mailbox.wait_fd()])
    }

    /// Its mailbox.
    #[must_use]
    pub fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// When to turn again at the latest.
    pub fn next_deadline(&self) -> Option<Duration> {
        let providers = self.providers.iter().filter_map(|one| one.next_deadline());
        providers
            .chain(self.resources.timer)
            .chain(self.requests.deadline())
            .chain(self.relief.deadline())
            .chain(self.stage.deadline())
            .chain(self.detach.deadline())
            .chain(self.leaving.iter().filter_map(Leaving::deadline))
            .min()
    }

    fn poll_providers(&mut self, now: Duration) -> bool {
        let mut did_work = false;
        let mut events = std::mem::take(&mut self.events);
        self.poll_schedule.begin(self.providers.len());
        for at in 0..self.providers.len() {
            if !self.poll_schedule.looks(at) {
                continue;
            }
            if let Some(provider) = self.providers.get_mut(at) {
                let found = provider.poll(now, &mut events);
                self.poll_schedule.looked(at, found);
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

    /// Hands what came back to its queues, until there is something else that
    /// happened.
    fn serve(
        &mut self,
        provider: usize,
        events: &mut impl Iterator<Item = Event>,
        now: Duration,
    ) -> Option<Event> {
        let (queues, mut io) = self.split(provider, now)?;
        for event in events {
            match event {
                Event::Completion(completion) => {
                    let tag = Tag::from_bits(completion.tag.0);
                    if let Some(queue_pair) = queues.get(tag.queue) {
                        queue_pair.completed(completion, &mut io);
                    }
                }
                Event::Received(received) => {
                    let mut queue = Tag::from_bits(received.tag.0).queue;
                    if queue == NO_SLOT {
                        io.resources
                            .shared
                            .came_back(Tag::from_bits(received.tag.0).slot);
                        let Some(drew) = queues.place(provider, received.qp) else {
                            continue;
                        };
                        queue = drew;
                    }
                    if let Some(queue_pair) = queues.get(queue) {
                        queue_pair.received(received, &mut io);
                    }
                }
                event => return Some(event),
            }
        }
        None
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
            // What comes back is served.
            Event::Received(_)
            | Event::Completion(_)
            | Event::Established { .. }
            | Event::Rejected { .. } => {}
        }
    }

    fn end(&mut self, provider: usize, qp: QpId, now: Duration) {
        if let Some(place) = self.queues.place(provider, qp) {
            self.with_queue(place, now, QueuePair::end);
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
        self.resources.shared.leave(&receives);
        self.resources.locked.waiting.forget(&queue_pair);
        if self.counters.closed(reason) {
            queue_pair.broke();
        }
        // Gives back its buffers, of which others may be short.
        if queue_pair.closed(reason, now, &mut self.resources.connect_log) {
            self.resources.follow_ups |= FollowUps::POLL_ALL;
        }
        self.resources.accounts.tidy(now);
        if let Some(provider) = self.providers.get_mut(provider) {
            let more = || self.resources.capsules.take();
            self.resources
                .shared
                .refill(&receives, &mut **provider, more);
        }
    }

    /// The queues, and what those of `provider` work with.
    fn split(&mut self, provider: usize, now: Duration) -> Option<(&mut Queues, Io<'_>)> {
        let io = Io {
            now,
            provider: &mut **self.providers.get_mut(provider)?,
            storage: &mut self.storage,
            resources: &mut self.resources,
        };
        Some((&mut self.queues, io))
    }

    /// Calls `act` with a queue that is still there.
    fn with_queue<T>(
        &mut self,
        place: SlotId,
        now: Duration,
        act: impl FnOnce(&mut QueuePair, &mut Io<'_>) -> T,
    ) -> Option<T> {
        let provider = self.queues.get(place)?.link.provider;
        let (queues, mut io) = self.split(provider, now)?;
        Some(act(queues.get(place)?, &mut io))
    }

    /// Polls every queue, closes those whose host takes too long, and finds
    /// out when to do so again. First go on commands of which it is known whether
    /// what they asked for was kept.
    fn look_after_queues(&mut self, now: Duration) {
        self.resources.timer = None;
        self.resources.accounts.tidy(now);
        self.go_on_kept(now);
        let stall = self.config.stall;
        let looked = std::mem::replace(&mut self.looked, now);
        let mut stalled = 0;
        for place in self.queues.places() {
            self.with_queue(place, now, |queue_pair, io| {
                queue_pair.poll(io);
                queue_pair.give_up_lone_half(io);
                queue_pair.keep_out_of_slow(io);
                stalled += queue_pair.report_stalled(looked, io);
                let waits = queue_pair.longest_on_wire();
                if waits.is_some_and(|since| now.saturating_sub(since) >= stall) {
                    queue_pair.abandon("the host did not transfer the data of a command", io);
                }
                io.resources.poll_by(queue_pair.next_deadline());
            });
        }
        self.counters.stalled(stalled);
        // What is on the wire, now or by then.
        if !self.queues.is_empty() {
            self.resources.poll_by(Some(now + LOOK_AFTER));
        }
    }
}
