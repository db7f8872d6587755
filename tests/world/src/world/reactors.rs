//! The target's reactors, all in one thread: which of them run, and when each has to
//! be turned.

use std::sync::Arc;
use std::time::Duration;

use nvmeof_rdma::{Address, Provider};
use nvmeof_target::{Mail, Mailbox, Reactor, ReactorConfig};
use nvmeof_target_core::Target;

use crate::disk::{DiskHandle, Disks};
use crate::oracle::Wrong;

/// Those of one run of the target. None before and after.
#[derive(Default)]
pub(super) struct Reactors {
    /// `None` when it was drained.
    all: Vec<Option<Running>>,
    /// Buffers that each had free at the start.
    all_free: (usize, usize),
}

struct Running {
    reactor: Reactor<DiskHandle>,
    /// When it has to be turned at the latest.
    deadline: Option<Duration>,
}

/// What came of a turn of all of them.
pub(super) struct Turned {
    /// Whether anything happened.
    pub(super) worked: bool,
    /// Whether the last one was drained.
    pub(super) drained: bool,
}

impl Reactors {
    /// Starts one over each provider, listening on all addresses.
    pub(super) fn start(
        config: &ReactorConfig,
        target: &Target,
        disks: &Disks,
        providers: Vec<Box<dyn Provider>>,
        addrs: &[Address],
        now: Duration,
    ) -> Self {
        let mailboxes: Vec<_> = providers.iter().map(|_| Mailbox::new().unwrap()).collect();
        let peers: Arc<[Mailbox]> = mailboxes.clone().into();
        let mut reactors = Self::default();
        for (mailbox, provider) in mailboxes.into_iter().zip(providers) {
            let (storage, peers) = (disks.open(), Arc::clone(&peers));
            let (config, target) = (config.clone(), target.clone());
            let mut reactor = Reactor::new(config, target, storage, mailbox, peers).unwrap();
            reactors.all_free = reactor.free_buffers();
            let provider = reactor.add_provider(provider).unwrap();
            for addr in addrs {
                reactor.listen(provider, *addr).unwrap();
            }
            let deadline = Some(now);
            reactors.all.push(Some(Running { reactor, deadline }));
        }
        reactors
    }

    /// Whether the target runs.
    pub(super) fn run(&self) -> bool {
        !self.all.is_empty()
    }

    fn running(&self) -> impl Iterator<Item = &Running> {
        self.all.iter().flatten()
    }

    /// Turns each once. One that is drained is over, as its thread is.
    pub(super) fn turn(&mut self, now: Duration, disks: &Disks) -> Result<Turned, Wrong> {
        let mut worked = false;
        for at in 0..self.all.len() {
            let Some(running) = &mut self.all[at] else {
                continue;
            };
            let turn = running.reactor.turn(now);
            let turn = turn.map_err(|error| Wrong(format!("the target failed: {error}")))?;
            running.deadline = turn.next_deadline;
            worked |= turn.did_work || turn.drained;
            if turn.drained {
                self.check_drained(at, disks)?;
                self.all[at] = None;
            }
        }
        // Mail wakes up whom it is for.
        let mut mailboxes = self.running().map(|one| one.reactor.mailbox());
        worked |= mailboxes.any(|mailbox| mailbox.holds(Mail::all()));
        let drained = self.run() && self.running().next().is_none();
        Ok(Turned { worked, drained })
    }

    /// What connections that were lost began on the disks may go on.
    fn check_drained(&self, at: usize, disks: &Disks) -> Result<(), Wrong> {
        let free = self.all[at].as_ref().map(|one| one.reactor.free_buffers());
        if disks.work_for(at) || free == Some(self.all_free) {
            return Ok(());
        }
        Err(Wrong(format!(
            "the target drained and did not get all its buffers back: {free:?} of {:?}",
            self.all_free
        )))
    }

    /// When the first of them has to be turned.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.running().filter_map(|one| one.deadline).min()
    }

    /// Queue pairs of all.
    pub(super) fn queue_pairs(&self) -> usize {
        self.running().map(|one| one.reactor.queue_pairs()).sum()
    }

    /// Sends all of them mail.
    pub(super) fn send(&mut self, mail: Mail, now: Duration) {
        for one in self.all.iter_mut().flatten() {
            one.reactor.mailbox().send(mail);
            one.deadline = Some(now);
        }
    }

    pub(super) fn start_drain(&mut self, now: Duration) {
        for one in self.all.iter_mut().flatten() {
            one.reactor.start_drain(now);
            one.deadline = Some(now);
        }
    }

    /// Fails when one of them, with nothing to do, lacks a buffer.
    pub(super) fn check_free(&self) -> Result<(), Wrong> {
        let free: Vec<_> = self
            .running()
            .map(|one| one.reactor.free_buffers())
            .collect();
        if free.iter().all(|free| *free == self.all_free) {
            return Ok(());
        }
        Err(Wrong(format!(
            "all hosts left, and the target has {free:?} of {:?} buffers free",
            self.all_free
        )))
    }
}
