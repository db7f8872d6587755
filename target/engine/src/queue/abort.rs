//! Ending commands that wait: aborted by the host, or because their namespace was
//! removed.

use nvmeof_backend::{Op, Request as StoreRequest};
use nvmeof_target_core::{Action, IoKind, Response};
use nvmeof_wire::Sqe;
use nvmeof_wire::sqe::Fuse;

use super::{Capsule, Io, QueuePair};
use crate::tag::SlotId;

impl QueuePair {
    /// The host aborted command `cid`. It is aborted if it still waits: for a slot, for a
    /// buffer, for its RDMA Read, or for a free slot of its backing store.
    pub(super) fn abort(&mut self, cid: u16, io: &mut Io<'_>) {
        let aborted = match self.slots.find(cid) {
            Some(slot) => self.abort_begun(slot, io),
            None => self.abort_waiting(cid, io),
        };
        self.core.aborted(cid, aborted);
    }

    /// Commands for which no slot was free.
    fn abort_waiting(&mut self, cid: u16, io: &mut Io<'_>) -> bool {
        let is_it = |capsule: &Capsule| {
            let bytes = capsule.buf.get(..capsule.len).unwrap_or_default();
            // Half of a fused operation is not aborted without the other.
            Sqe::in_capsule(bytes).is_some_and(|sqe| sqe.cid.get() == cid && !sqe.is_fused())
        };
        // Its receive is posted again at once, so that another command may arrive and be
        // aborted. Without this limit the pending responses would grow with each.
        if self.arrivals.responses.len() >= usize::from(self.core.entries()) {
            return false;
        }
        let Some(at) = self.arrivals.waiting.iter().position(is_it) else {
            return false;
        };
        // Without it, the command behind it would follow a first half.
        if self.follows_first_half(at) {
            return false;
        }
        let Some(Capsule { buf, len, .. }) = self.arrivals.waiting.remove(at) else {
            return false;
        };
        let response = self.core.abort_unseen(buf.get(..len).unwrap_or_default());
        self.receive_again(Some(buf), io);
        self.arrivals.responses.extend(response);
        true
    }

    /// Whether the pending command before index `at` is the first half of a fused
    /// operation.
    fn follows_first_half(&self, at: usize) -> bool {
        match at
            .checked_sub(1)
            .and_then(|before| self.arrivals.waiting.get(before))
        {
            Some(Capsule { buf, len, .. }) => {
                let sqe = Sqe::in_capsule(buf.get(..*len).unwrap_or_default());
                sqe.is_some_and(|sqe| sqe.fuse() == Fuse::First)
            }
            None => self.core.expects_second_half(),
        }
    }

    fn abort_begun(&mut self, slot: SlotId, io: &mut Io<'_>) -> bool {
        // Half of a fused operation is not aborted without the other.
        if self.is_half(slot) {
            return false;
        }
        let waited = self.remove_from_queues(slot) || self.take_unbegun(slot, io);
        if waited && let Some(command) = self.slots.get(slot) {
            let action = self.core.abort(&mut command.request);
            self.end_waiting(slot, &action, io);
        }
        waited
    }

    /// Ends commands that wait for a local resource and started on `store`, the backing
    /// store of a removed namespace: what they wait for may never happen.
    pub(crate) fn end_removed(&mut self, store: u32, io: &mut Io<'_>) {
        for slot in self.slots.of_store(store) {
            if self.is_closing() || self.is_half(slot) {
                continue;
            }
            let tag = self.tag(slot).0;
            let Some(command) = self.slots.get(slot) else {
                continue;
            };
            let waits = command.deferred.is_some()
                || io.resources.backlog.has(tag)
                || io
                    .resources
                    .locked
                    .waiting
                    .for_earlier_writes(self.id, slot);
            if waits && let Some(action) = self.core.end_removed(&mut command.request) {
                self.remove_from_queues(slot);
                self.take_from_backlog(slot, |_| true, io);
                self.end_waiting(slot, &action, io);
            }
        }
        self.settle(io);
    }

    /// Sends the response to the command in `slot`, which no longer waits for anything.
    fn end_waiting(&mut self, slot: SlotId, action: &Action, io: &mut Io<'_>) {
        io.resources.locked.waiting.remove(self.id, slot);
        if let Action::Respond(response) = action {
            self.respond(slot, response, io);
            // It may have held an RDMA Read that it did not use yet.
            self.pull_more(io);
        }
    }

    /// Stops its wait for a buffer or for an RDMA Read. The queues of waiting commands
    /// skip slots that wait for nothing.
    fn remove_from_queues(&mut self, slot: SlotId) -> bool {
        let Some(command) = self.slots.get(slot) else {
            return false;
        };
        // A command of several operations may have done some of them. Between two pieces
        // of a Verify or a Copy it is aborted nevertheless: Base 2.1, 5.1.1 does not
        // require that nothing was done, and the rest may take long.
        let may_have_begun = matches!(
            &command.deferred,
            Some(Action::Execute(op)) if !matches!(op.kind, IoKind::Fetch { .. })
        ) && !command.request.is_one_operation();
        let waits = !may_have_begun && command.deferred.take().is_some();
        if waits && std::mem::take(&mut command.reads) {
            self.reads.left += 1;
        }
        waits
    }

    /// Stops its wait for a free slot of its backing store. In a command of several
    /// operations only a read is withdrawn: the earlier operations of a Verify or a Copy
    /// are done, and an Abort may leave them so, as between two pieces.
    fn take_unbegun(&mut self, slot: SlotId, io: &mut Io<'_>) -> bool {
        let one_operation = (self.slots.get(slot)).is_some_and(|it| it.request.is_one_operation());
        let may_end = |op: &Op| one_operation || matches!(op, Op::Read { .. });
        self.take_from_backlog(slot, may_end, io)
    }

    fn take_from_backlog(
        &mut self,
        slot: SlotId,
        may_end: impl Fn(&Op) -> bool,
        io: &mut Io<'_>,
    ) -> bool {
        let tag = self.tag(slot).0;
        let wanted = |one: &StoreRequest| one.tag == tag && may_end(&one.op);
        let Some(request) = io.resources.backlog.remove(self.host(), wanted) else {
            return false;
        };
        self.store_ops = self.store_ops.saturating_sub(1);
        if let Some(command) = self.slots.get(slot) {
            drop(command.take_back(request.op.into_buf(), self.account.as_ref()));
        }
        self.cold.lingering.complete(slot);
        true
    }

    /// The response follows later, by an order: releases all resources of the command.
    pub(super) fn hold(&mut self, slot: SlotId, io: &mut Io<'_>) {
        let capsule = self
            .slots
            .get(slot)
            .and_then(|command| command.capsule.take());
        self.free(slot);
        self.receive_again(capsule, io);
    }

    pub(super) fn respond_held(&mut self, response: &Response, io: &mut Io<'_>) {
        match self.slots.take() {
            Some((slot, _nothing)) => self.send_response(slot, response, false, io),
            None => self.bug("an answer was begun without a slot", io),
        }
    }
}
