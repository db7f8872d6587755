//! Fused Compare and Write: two commands of one queue that exclude other writes between
//! them.
//!
//! ```text
//!  first half ── second half ── data of both ── lock, compare ─┬ equal: write ───────────┬─ unlock
//!      └ another command, or none: it fails                      └ different: second fails ┘
//! ```

use std::ops::Range;
use std::time::Duration;

use nvmeof_target_core::{Action, Data, Event, IoOp, RangeLock, Remote};
use nvmeof_wire::Status;
use nvmeof_wire::sqe::SQE_LEN;

use super::slots::Lent;
use super::{Io, QueuePair, State};
use crate::tag::SlotId;

/// A fused operation.
#[derive(Debug)]
pub(super) struct Pair {
    first: SlotId,
    second: Option<SlotId>,
    /// Which halves have their data.
    ready: [bool; 2],
    /// Status of the first half, sent once it has its data, if it has no partner.
    failed: Option<Status>,
    lock: Option<RangeLock>,
    /// When the first half arrived.
    since: Duration,
}

/// The second half is the next command of the queue, so the host sends both at the same
/// time. One that is missing after so long will not arrive, and the first half would keep
/// its backing store open for ever.
const SECOND_HALF_TIMEOUT: Duration = Duration::from_secs(5);

impl Pair {
    fn has(&self, slot: SlotId) -> bool {
        self.first == slot || self.second == Some(slot)
    }
}

impl QueuePair {
    /// The command in `slot` has started, and is half of a fused operation or follows
    /// one.
    #[cold]
    pub(super) fn begin_beside_pairs(&mut self, slot: SlotId, fusing: bool, io: &mut Io<'_>) {
        if let Some(status) = self.core.take_unfused() {
            self.fail_first(status, io);
        }
        let Some(command) = self.slots.get(slot).filter(|_| fusing) else {
            return;
        };
        if !command.request.is_second_half() {
            self.cold.pairs.push(Pair {
                first: slot,
                second: None,
                ready: [false; 2],
                failed: None,
                lock: None,
                since: io.now,
            });
        } else if let Some(pair) = self.cold.pairs.last_mut() {
            pair.second = Some(slot);
        }
    }

    /// Completes a first half whose partner does not arrive, as if another command had
    /// arrived in its place (Base 2.0, 3.4.2).
    pub(crate) fn give_up_lone_half(&mut self, io: &mut Io<'_>) {
        let lone = self.cold.pairs.last().filter(|pair| pair.second.is_none());
        let lone = lone.filter(|pair| pair.failed.is_none());
        if lone.is_some_and(|pair| io.now.saturating_sub(pair.since) >= SECOND_HALF_TIMEOUT) {
            self.no_second_half(io);
            self.settle(io);
        }
    }

    /// The queue starts no more commands.
    pub(super) fn no_second_half(&mut self, io: &mut Io<'_>) {
        self.core.no_second_half();
        self.fail_first(Status::ABORTED_MISSING_FUSED, io);
    }

    /// Fails the first half that waits for a partner, if there is one.
    fn fail_first(&mut self, status: Status, io: &mut Io<'_>) {
        let Some(pair) = self
            .cold
            .pairs
            .last_mut()
            .filter(|pair| pair.second.is_none())
        else {
            return;
        };
        pair.failed = Some(status);
        let slot = pair.first;
        // Otherwise its data are being pulled into its capsule.
        if pair.ready == [true, false] {
            self.fail_half(slot, status, io);
        }
    }

    fn fail_half(&mut self, slot: SlotId, status: Status, io: &mut Io<'_>) {
        if let Some(command) = self.slots.get(slot)
            && let Action::Respond(response) = self.core.fail(&mut command.request, status)
        {
            self.respond(slot, &response, io);
        }
    }

    /// A half has its data. Returns the next action for it, if there is one.
    pub(super) fn fuse(&mut self, slot: SlotId, io: &mut Io<'_>) -> Option<Action> {
        self.align(slot);
        let Some(pair) = self.cold.pairs.iter_mut().find(|pair| pair.has(slot)) else {
            self.bug("half of a fused operation is in no pair", io);
            return None;
        };
        let at = usize::from(pair.first != slot);
        if let Some(ready) = pair.ready.get_mut(at) {
            *ready = true;
        }
        if let Some(status) = pair.failed {
            self.fail_half(slot, status, io);
            return None;
        }
        if pair.ready != [true, true] {
            return None;
        }
        let first = pair.first;
        let action = self.start_half(first, io)?;
        if first == slot {
            return Some(action);
        }
        self.perform(first, action, io);
        None
    }

    fn start_half(&mut self, slot: SlotId, io: &mut Io<'_>) -> Option<Action> {
        let command = self.slots.get(slot)?;
        Some(self.core.step(io.now, &mut command.request, Event::Execute))
    }

    /// Moves data from the middle of a capsule to the offset from which backing stores
    /// accept them: behind the command.
    fn align(&mut self, slot: SlotId) {
        let Some(command) = self.slots.get(slot) else {
            return;
        };
        if let (Data::Capsule(range), Some(capsule)) =
            (command.request.data(), &mut command.capsule)
            && range.start != SQE_LEN
        {
            let range = range.clone();
            if range.end <= capsule.len() {
                capsule.copy_within(range, SQE_LEN);
                command.request.data_behind();
            }
        }
    }

    /// A response was sent: if it is that of a half, the other half is next, or the pair
    /// is complete.
    #[cold]
    pub(super) fn half_completed(&mut self, slot: SlotId, success: bool, io: &mut Io<'_>) {
        let Some(at) = self.cold.pairs.iter().position(|pair| pair.has(slot)) else {
            return;
        };
        let Some(pair) = self.cold.pairs.get(at) else {
            return;
        };
        match pair.second {
            Some(second) if pair.first == slot && success => {
                if self.state != State::Closing
                    && let Some(action) = self.start_half(second, io)
                {
                    self.perform(second, action, io);
                }
            }
            // Base 2.0, 3.4.2: if the first command fails, the second is aborted with
            // Command Aborted due to Failed Fused Command.
            Some(second) if pair.first == slot => {
                self.cold.pairs.remove(at);
                self.fail_half(second, Status::ABORTED_FAILED_FUSED, io);
            }
            _ => {
                self.cold.pairs.remove(at);
            }
        }
    }

    /// Whether `op` of the command in `slot` has to wait for a lock, its own or another
    /// one. It is tried again when locks change.
    #[cold]
    pub(super) fn is_locked_out(&mut self, slot: SlotId, op: &IoOp, io: &mut Io<'_>) -> bool {
        let Some(command) = self.slots.get(slot) else {
            return false;
        };
        let storage = io.stores.identity(op.store);
        // Each queue has one lock at a time, which bounds the locks of a host.
        let mut locks = self.cold.pairs.iter().filter(|pair| pair.lock.is_some());
        let other = locks.any(|pair| !pair.has(slot));
        let locked = match self.cold.pairs.iter_mut().find(|pair| pair.has(slot)) {
            // The lock is held since the compare.
            Some(pair) if pair.first != slot => false,
            Some(pair) => {
                let lock = &mut pair.lock;
                other
                    || !lock
                        .get_or_insert_with(|| io.resources.locked.member.ask(storage, op.bytes()))
                        .is_held()
            }
            None => {
                op.changes() && {
                    io.resources.locked.member.blocks(
                        storage,
                        &op.bytes(),
                        command.began,
                        &mut command.lock_ticket,
                    )
                }
            }
        };
        if locked {
            command.deferred = Some(Action::Execute(*op));
            io.resources
                .locked
                .waiting
                .locked_out
                .push_back((self.id, slot));
        } else {
            command.lock_ticket = None;
        }
        locked
    }

    /// Locks changed: tries the operation of `slot` again.
    pub(crate) fn try_again(&mut self, slot: SlotId, io: &mut Io<'_>) {
        // Its host may have reconnected and written newer data.
        if self.state == State::Closing {
            return;
        }
        let Some(command) = self.slots.get(slot) else {
            return;
        };
        let Some(action) = command.deferred.take() else {
            return;
        };
        if io.resources.locked.member.is_idle() {
            command.lock_ticket = None;
        }
        self.perform(slot, action, io);
        self.settle(io);
    }

    /// Whether a backing store that `is_it` accepts may be writing to `bytes` for this
    /// queue without a lock of its own, or will be before `lock`.
    pub(crate) fn may_write(
        &self,
        lock: u64,
        is_it: &impl Fn(u32) -> bool,
        bytes: &Range<u64>,
    ) -> bool {
        let own = |slot| self.cold.pairs.iter().any(|pair| pair.has(slot));
        self.slots.may_write(lock, is_it, bytes, own)
    }

    /// The locks of fused operations that backing stores may still be executing.
    pub(crate) fn take_locks(&mut self) -> Vec<RangeLock> {
        let locks = self
            .cold
            .pairs
            .iter_mut()
            .filter_map(|pair| pair.lock.take());
        locks.collect()
    }

    /// Whether the command in `slot` is half of a fused operation.
    pub(super) fn is_half(&self, slot: SlotId) -> bool {
        self.cold.pairs.iter().any(|pair| pair.has(slot))
    }

    /// Pulls the data of half of a fused operation into its capsule, behind the command,
    /// where there is room for the maximum length.
    pub(super) fn pull_behind(&mut self, slot: SlotId, remote: Remote, io: &mut Io<'_>) {
        let len = usize::try_from(remote.len).unwrap_or(usize::MAX);
        let capsule = self.slots.get(slot).and_then(|command| {
            let pieces = command.pieces();
            let mut capsule = command.capsule.take()?;
            command.lent = Lent::Capsule;
            command.on_wire = Some(io.now);
            capsule.set_view(SQE_LEN..SQE_LEN + len).ok()?;
            Some((capsule, pieces))
        });
        let Some((local, pieces)) = capsule else {
            return self.bug("the data of a fused command do not fit its capsule", io);
        };
        self.post_read(slot, local, remote, pieces, io);
    }
}
