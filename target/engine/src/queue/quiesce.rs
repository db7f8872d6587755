//! Commands that wait for others: for a lock to go or to be held, until nothing that
//! was begun will write to a disk any more, or for whoever keeps what hosts protect.

use std::collections::VecDeque;
use std::time::Duration;

use nvmeof_target_core::{Action, Barrier, Event, IoKind, IoOp, Keeping, LockMember};

use super::waits::WaitsFor;
use super::{Io, QueuePair, State};
use crate::tag::SlotId;

/// The membership of one reactor in the range locks, and the commands that wait.
pub(crate) struct Locked {
    pub(crate) member: LockMember,
    pub(crate) waiting: Waiting,
}

/// What waits on one reactor. Some of it may be gone.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Commands that wait for a lock: queue and slot.
    pub(crate) locked_out: VecDeque<(SlotId, SlotId)>,
    settling: Vec<Settling>,
    keeping: Vec<ToBeKept>,
}

/// A command that waits for what was begun before it.
#[derive(Debug)]
pub(crate) struct Settling {
    pub(crate) queue: SlotId,
    slot: SlotId,
    op: IoOp,
    barrier: Barrier,
}

/// A command that waits until what it asked for is kept.
#[derive(Debug)]
pub(crate) struct ToBeKept {
    pub(crate) queue: SlotId,
    slot: SlotId,
    keeping: Keeping,
}

impl Waiting {
    /// Commands of which it is known whether they were kept.
    pub(crate) fn take_kept(&mut self) -> Vec<ToBeKept> {
        let kept = self.keeping.extract_if(.., |one| one.keeping.is_over());
        kept.collect()
    }

    /// Commands for which there is nothing left to wait.
    pub(crate) fn take_settled(&mut self) -> Vec<Settling> {
        let settled = self.settling.extract_if(.., |one| one.barrier.is_quiet());
        settled.collect()
    }

    /// For what the command in `slot` of `queue` waits here, if it does.
    pub(super) fn reason(&self, queue: SlotId, slot: SlotId) -> Option<WaitsFor> {
        let keeps = |one: &ToBeKept| (one.queue, one.slot) == (queue, slot);
        if self.locked_out.contains(&(queue, slot)) {
            Some(WaitsFor::Lock)
        } else if self.for_earlier_writes(queue, slot) {
            Some(WaitsFor::EarlierWrites)
        } else if self.keeping.iter().any(keeps) {
            Some(WaitsFor::Protection)
        } else {
            None
        }
    }

    /// Whether the command in `slot` of `queue` waits until earlier writes are over.
    pub(super) fn for_earlier_writes(&self, queue: SlotId, slot: SlotId) -> bool {
        let mut all = self.settling.iter();
        all.any(|one| (one.queue, one.slot) == (queue, slot))
    }

    /// The command in `slot` of `queue` waits neither for a lock nor for earlier writes
    /// any more.
    pub(super) fn leave(&mut self, queue: SlotId, slot: SlotId) {
        self.locked_out.retain(|one| *one != (queue, slot));
        self.settling
            .retain(|one| (one.queue, one.slot) != (queue, slot));
    }

    /// Commands that wait until they are kept.
    #[cfg(test)]
    pub(crate) fn to_be_kept(&self) -> usize {
        self.keeping.len()
    }

    /// The queue is gone: nobody is answered. Otherwise a host that comes, asks and
    /// goes would fill the memory while something is waited for.
    pub(crate) fn forget(&mut self, gone: &QueuePair) {
        self.locked_out.retain(|(queue, _)| *queue != gone.place);
        self.settling.retain(|one| one.queue != gone.place);
        self.keeping.retain(|one| one.queue != gone.place);
    }
}

impl QueuePair {
    /// Has `op` of the command in `slot` wait until everything that was begun for
    /// its disk is over, on every reactor.
    #[cold]
    pub(super) fn quiesce(&mut self, slot: SlotId, op: &IoOp, io: &mut Io<'_>) {
        io.resources.locked.waiting.settling.push(Settling {
            queue: self.place,
            slot,
            op: *op,
            barrier: io
                .resources
                .locked
                .member
                .barrier(io.storage.identity(op.disk)),
        });
    }

    /// It is over: what was written becomes stable.
    pub(crate) fn settled(&mut self, settled: &Settling, io: &mut Io<'_>) {
        if self.state == State::Closing {
            return;
        }
        let flush = IoOp {
            kind: IoKind::Flush,
            ..settled.op
        };
        self.perform(settled.slot, Action::Execute(flush), io);
        self.settle(io);
    }

    /// Has the command in `slot` wait until it is kept. Somebody else does that, who
    /// may hang: nothing of the reactor's waits.
    #[cold]
    pub(super) fn keep(&mut self, slot: SlotId, keeping: Keeping, io: &mut Io<'_>) {
        io.resources.locked.waiting.keeping.push(ToBeKept {
            queue: self.place,
            slot,
            keeping,
        });
    }

    /// It is known whether it was kept.
    pub(crate) fn kept(&mut self, kept: &ToBeKept, io: &mut Io<'_>) {
        let (ToBeKept { slot, keeping, .. }, false) = (kept, self.is_closing()) else {
            return;
        };
        let kept = matches!(keeping.outcome(), Some(Ok(())));
        let Some(command) = self.slots.get(*slot) else {
            return;
        };
        let event = Event::Kept { kept };
        let action = self.core.step(io.now, &mut command.request, event);
        self.perform(*slot, action, io);
        self.settle(io);
    }

    /// When the oldest command was begun here that will write to a disk of which
    /// `is_it` says that it is the one.
    pub(crate) fn oldest_write(&self, is_it: &impl Fn(u32) -> bool) -> Option<Duration> {
        self.slots.oldest_write(is_it)
    }
}
