//! Commands that wait for a range lock, for earlier writes to a backing store, or until a
//! write protection is stored.

use std::collections::VecDeque;
use std::time::Duration;

use nvmeof_target_core::{
    Action, Barrier, BarrierScope, Event, Executed, IoKind, IoOp, LockMember, PendingSave,
};

use super::waits::WaitsFor;
use super::{Io, QueuePair, State};
use crate::tag::SlotId;

/// The range lock member of one reactor, and the commands that wait.
pub(crate) struct Locked {
    pub(crate) member: LockMember,
    pub(crate) waiting: Waiting,
}

/// Commands of one reactor that wait. Some may have ended.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Commands that wait for a lock: queue and slot.
    pub(crate) locked_out: VecDeque<(SlotId, SlotId)>,
    settling: Vec<Settling>,
    saves: Vec<AwaitingSave>,
}

/// A command that waits for commands that started before it.
#[derive(Debug)]
pub(crate) struct Settling {
    pub(crate) queue: SlotId,
    slot: SlotId,
    op: IoOp,
    barrier: Barrier,
}

/// A command that waits until its request is stored.
#[derive(Debug)]
pub(crate) struct AwaitingSave {
    pub(crate) queue: SlotId,
    slot: SlotId,
    save: PendingSave,
}

impl Waiting {
    /// Commands whose requests were stored or failed.
    pub(crate) fn take_saved(&mut self) -> Vec<AwaitingSave> {
        let saved = self.saves.extract_if(.., |one| one.save.is_complete());
        saved.collect()
    }

    /// Commands whose barriers are complete.
    pub(crate) fn take_settled(&mut self) -> Vec<Settling> {
        let settled = self.settling.extract_if(.., |one| one.barrier.is_quiet());
        settled.collect()
    }

    /// Why the command in `slot` of `queue` waits here, if it does.
    pub(super) fn reason(&self, queue: SlotId, slot: SlotId) -> Option<WaitsFor> {
        let is_it = |one: &AwaitingSave| (one.queue, one.slot) == (queue, slot);
        if self.locked_out.contains(&(queue, slot)) {
            Some(WaitsFor::Lock)
        } else if self.for_earlier_writes(queue, slot) {
            Some(WaitsFor::EarlierWrites)
        } else if self.saves.iter().any(is_it) {
            Some(WaitsFor::Save)
        } else {
            None
        }
    }

    /// Whether the command in `slot` of `queue` waits for earlier writes.
    pub(super) fn for_earlier_writes(&self, queue: SlotId, slot: SlotId) -> bool {
        let mut all = self.settling.iter();
        all.any(|one| (one.queue, one.slot) == (queue, slot))
    }

    /// The command in `slot` of `queue` no longer waits for a lock or for earlier writes.
    pub(super) fn remove(&mut self, queue: SlotId, slot: SlotId) {
        self.locked_out.retain(|one| *one != (queue, slot));
        self.settling
            .retain(|one| (one.queue, one.slot) != (queue, slot));
    }

    /// Commands that wait until they are stored.
    #[cfg(test)]
    pub(crate) fn pending_saves(&self) -> usize {
        self.saves.len()
    }

    /// The queue is closed and gets no response. Otherwise a host that connects, sends a
    /// request and disconnects again and again would fill the memory.
    pub(crate) fn forget(&mut self, gone: &QueuePair) {
        self.locked_out.retain(|(queue, _)| *queue != gone.id);
        self.settling.retain(|one| one.queue != gone.id);
        self.saves.retain(|one| one.queue != gone.id);
    }
}

impl QueuePair {
    /// Makes `op` of the command in `slot` wait until all operations that started on its
    /// backing store are complete, on every reactor.
    #[cold]
    pub(super) fn quiesce(&mut self, slot: SlotId, op: &IoOp, io: &mut Io<'_>) {
        let scope = match op.kind {
            IoKind::Await { reads: true } => BarrierScope::CheckedAccesses,
            IoKind::Await { reads: false } => BarrierScope::CheckedWrites,
            _ => BarrierScope::Writes,
        };
        io.resources.locked.waiting.settling.push(Settling {
            queue: self.id,
            slot,
            op: *op,
            barrier: io
                .resources
                .locked
                .member
                .barrier(io.stores.identity(op.store), scope),
        });
    }

    /// They are complete: flushes what was written, unless the command only waits.
    pub(crate) fn settled(&mut self, settled: &Settling, io: &mut Io<'_>) {
        if self.state == State::Closing {
            return;
        }
        if let IoKind::Await { .. } = settled.op.kind {
            if let Some(action) = self.step_executed(settled.slot, Executed::Ok, None, io) {
                self.perform(settled.slot, action, io);
            }
            return self.settle(io);
        }
        let flush = IoOp {
            kind: IoKind::Flush,
            ..settled.op
        };
        self.perform(settled.slot, Action::Execute(flush), io);
        self.settle(io);
    }

    /// Makes the command in `slot` wait until it is stored. Another thread does that and
    /// may stall: nothing else on the reactor waits. Its data are not used any more, and their
    /// buffer may be what commands need for which this one waits afterwards.
    #[cold]
    pub(super) fn await_save(&mut self, slot: SlotId, save: PendingSave, io: &mut Io<'_>) {
        if let Some(command) = self.slots.get(slot) {
            drop(command.data.end(self.account.as_ref()));
        }
        io.resources.locked.waiting.saves.push(AwaitingSave {
            queue: self.id,
            slot,
            save,
        });
    }

    /// The request was stored, or failed.
    pub(crate) fn saved(&mut self, pending: &AwaitingSave, io: &mut Io<'_>) {
        let (AwaitingSave { slot, save, .. }, false) = (pending, self.is_closing()) else {
            return;
        };
        let saved = matches!(save.outcome(), Some(Ok(())));
        let Some(command) = self.slots.get(*slot) else {
            return;
        };
        let event = Event::Saved { saved };
        let action = self.core.step(io.now, &mut command.request, event);
        self.perform(*slot, action, io);
        self.settle(io);
    }

    /// The start of the oldest command of this queue and scope that uses a backing store
    /// that `is_it` accepts.
    pub(crate) fn oldest(
        &self,
        is_it: &impl Fn(u32) -> bool,
        scope: BarrierScope,
    ) -> Option<Duration> {
        self.slots.oldest(is_it, scope)
    }
}
