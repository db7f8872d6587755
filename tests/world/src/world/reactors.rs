//! The reactors of the target, all in one thread: which of them run, and which are awake.
//! Each runs an iteration only when its own thread would run one, so that missing wake-ups
//! are not hidden.

use std::sync::Arc;
use std::time::Duration;

use nvmeof_polling::{Polling, PollingConfig};
use nvmeof_rdma::{Address, Provider};
use nvmeof_target_core::Target;
use nvmeof_target_engine::{LoopAction, Mail, Mailbox, Reactor, ReactorConfig, sleep, step};

use super::Workers;
use crate::disk::{DiskHandle, Disks};
use crate::oracle::Wrong;

/// A reactor sleeps as soon as there is nothing to do.
const AT_ONCE: PollingConfig = PollingConfig {
    longest: Duration::ZERO,
    learns: false,
};

/// The reactors of one run of the target; empty before and after.
#[derive(Default)]
pub(crate) struct Reactors {
    /// `None` when it was drained.
    all: Vec<Option<Running>>,
    /// Free buffers of each at the start.
    all_free: (usize, usize),
}

struct Running {
    reactor: Reactor<DiskHandle>,
    /// It does not poll before it sleeps: polls would hide missing wake-ups.
    polling: Polling,
    rest: Rest,
}

/// Whether a reactor's thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Awake,
    /// Until then at the latest.
    Asleep(Option<Duration>),
}

impl Running {
    /// When its thread runs the next iteration without an earlier event.
    fn next_at(&mut self, now: Duration) -> Option<Duration> {
        let Rest::Asleep(until) = self.rest else {
            return Some(now);
        };
        let due = until.is_some_and(|until| until <= now);
        if due || sleep(&self.reactor, Some(Duration::ZERO)) {
            self.rest = Rest::Awake;
            return Some(now);
        }
        until
    }

    fn sleeps_over_mail(&self) -> bool {
        self.rest != Rest::Awake && self.reactor.mailbox().holds(Mail::all())
    }
}

/// The result of an iteration of all reactors.
pub(crate) struct Polled {
    /// Whether there was progress.
    pub(crate) worked: bool,
    /// Whether the last one was drained.
    pub(crate) drained: bool,
}

impl Reactors {
    /// Starts one over each provider, listening on all addresses.
    pub(crate) fn start(
        config: &ReactorConfig,
        target: &Target,
        disks: &Disks,
        providers: Vec<Box<dyn Provider>>,
        addrs: &[Address],
        now: Duration,
    ) -> Self {
        Self::with_workers(config, target, disks, (providers, addrs), None, now)
    }

    /// The same, with workers for authentications.
    pub(crate) fn with_workers(
        config: &ReactorConfig,
        target: &Target,
        disks: &Disks,
        (providers, addrs): (Vec<Box<dyn Provider>>, &[Address]),
        workers: Option<&Workers>,
        now: Duration,
    ) -> Self {
        let mailboxes: Vec<_> = providers.iter().map(|_| Mailbox::new().unwrap()).collect();
        let peers: Arc<[Mailbox]> = mailboxes.clone().into();
        let mut reactors = Self::default();
        for (mailbox, provider) in mailboxes.into_iter().zip(providers) {
            let (stores, peers) = (disks.open(), Arc::clone(&peers));
            let (config, target) = (config.clone(), target.clone());
            let mut reactor = Reactor::new(config, target, stores, mailbox, peers).unwrap();
            if let Some(workers) = workers {
                reactor.set_workers(Arc::new(workers.clone()));
            }
            reactors.all_free = reactor.free_buffers();
            let provider = reactor.add_provider(provider).unwrap();
            for addr in addrs {
                reactor.listen(provider, *addr).unwrap();
            }
            reactors.all.push(Some(Running {
                reactor,
                polling: Polling::new(AT_ONCE, now),
                rest: Rest::Awake,
            }));
        }
        reactors
    }

    /// Whether the target runs.
    pub(crate) fn run(&self) -> bool {
        !self.all.is_empty()
    }

    fn running(&self) -> impl Iterator<Item = &Running> {
        self.all.iter().flatten()
    }

    /// Runs one iteration of each reactor that is awake. A drained one has ended, like its
    /// thread.
    pub(crate) fn poll_once(&mut self, now: Duration, disks: &Disks) -> Result<Polled, Wrong> {
        let mut worked = false;
        for at in 0..self.all.len() {
            let Some(running) = &mut self.all[at] else {
                continue;
            };
            if running.next_at(now) != Some(now) {
                continue;
            }
            let step = step(&mut running.reactor, &mut running.polling, now);
            let (did_work, then) =
                step.map_err(|error| Wrong(format!("the target failed: {error}")))?;
            worked |= did_work || then == LoopAction::Exit;
            running.reactor.check_accounts().map_err(Wrong)?;
            match then {
                LoopAction::Continue | LoopAction::Yield => {}
                LoopAction::Sleep { until } => running.rest = Rest::Asleep(until),
                LoopAction::Exit => {
                    self.check_drained(at, disks)?;
                    self.all[at] = None;
                }
            }
        }
        let drained = self.run() && self.running().next().is_none();
        Ok(Polled { worked, drained })
    }

    /// Operations of lost connections may still be in progress on disks.
    fn check_drained(&self, at: usize, disks: &Disks) -> Result<(), Wrong> {
        let free = self.all[at].as_ref().map(|one| one.reactor.free_buffers());
        if disks.work_for(at) || free == Some(self.all_free) {
            return Ok(());
        }
        Err(Wrong(format!(
            "the target drained without all its buffers: {free:?} of {:?} are free",
            self.all_free
        )))
    }

    /// When the first of them runs its next iteration without an earlier event.
    pub(crate) fn next_at(&mut self, now: Duration) -> Option<Duration> {
        let running = self.all.iter_mut().flatten();
        running.filter_map(|one| one.next_at(now)).min()
    }

    /// Whether one of them has messages in its mailbox and no wake-up.
    pub(crate) fn sleep_over_mail(&self) -> bool {
        self.running().any(Running::sleeps_over_mail)
    }

    /// Queue pairs of all.
    pub(crate) fn queue_pairs(&self) -> usize {
        self.running().map(|one| one.reactor.queue_pairs()).sum()
    }

    /// Wake-ups of all by messages, and polls of their queue pairs because of events.
    pub(crate) fn messages(&self) -> (u64, u64) {
        self.running()
            .map(|one| &one.reactor)
            .fold((0, 0), |(wakeups, polls), reactor| {
                let its = reactor.counters().all_queue_polls();
                (wakeups + reactor.mailbox().wakeups(), polls + its)
            })
    }

    /// Sends a message to all of them.
    pub(crate) fn send(&self, mail: Mail) {
        for one in self.running() {
            one.reactor.mailbox().send(mail);
        }
    }

    /// Fails if an idle reactor lacks a buffer.
    pub(crate) fn check_free(&self) -> Result<(), Wrong> {
        let free: Vec<_> = self
            .running()
            .map(|one| one.reactor.free_buffers())
            .collect();
        if free.iter().all(|free| *free == self.all_free) {
            return Ok(());
        }
        Err(Wrong(format!(
            "all hosts disconnected, but the target has only {free:?} of {:?} buffers free",
            self.all_free
        )))
    }
}
