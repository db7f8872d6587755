//! Commands that are ended while they wait: aborted, or their namespace was removed.

use nvmeof_backend::{Op, Request as DiskRequest};
use nvmeof_target_core::{Action, IoKind, Response};
use nvmeof_wire::Sqe;
use nvmeof_wire::sqe::Fuse;

use super::{Capsule, Io, QueuePair};
use crate::tag::SlotId;

impl QueuePair {
    /// The host gave up command `cid`. It is answered if it still waits: for a
    /// place, for a buffer, for its RDMA Read, or for room on the disk.
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
            // Half of a fused operation is not given up without the other.
            Sqe::in_capsule(bytes).is_some_and(|sqe| sqe.cid.get() == cid && !sqe.is_fused())
        };
        // Its receive is posted again at once, so that another command may come and
        // be aborted: what is not answered yet must not grow with each.
        if self.arrivals.responses.len() >= usize::from(self.core.entries()) {
            return false;
        }
        let Some(at) = self.arrivals.waiting.iter().position(is_it) else {
            return false;
        };
        // Without it what is behind it would be next to a first half.
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

    /// Whether the command before that one of those that wait is the first half of
    /// a fused operation.
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
        // Half of a fused operation is not given up without the other.
        if self.is_half(slot) {
            return false;
        }
        let waited = self.take_from_rows(slot) || self.take_unbegun(slot, io);
        if waited && let Some(command) = self.slots.get(slot) {
            let action = self.core.abort(&mut command.request);
            self.end_waiting(slot, &action, io);
        }
        waited
    }

    /// Ends commands that wait for something of ours and were begun for `disk`, of a
    /// namespace that was removed: it may never do what they wait for.
    pub(crate) fn end_removed(&mut self, disk: u32, io: &mut Io<'_>) {
        for slot in self.slots.of_disk(disk) {
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
                    .for_earlier_writes(self.place, slot);
            if waits && let Some(action) = self.core.end_removed(&mut command.request) {
                self.take_from_rows(slot);
                self.take_from_backlog(slot, |_| true, io);
                self.end_waiting(slot, &action, io);
            }
        }
        self.settle(io);
    }

    /// The command in `slot` waits for nothing any more: it is answered.
    fn end_waiting(&mut self, slot: SlotId, action: &Action, io: &mut Io<'_>) {
        io.resources.locked.waiting.leave(self.place, slot);
        if let Action::Respond(response) = action {
            self.respond(slot, response, io);
            // It may have had a read that it was not using yet.
            self.pull_more(io);
        }
    }

    /// It waits for a buffer or for an RDMA Read: not any more. The rows pass
    /// over places that wait for nothing.
    fn take_from_rows(&mut self, slot: SlotId) -> bool {
        let Some(command) = self.slots.get(slot) else {
            return false;
        };
        // What has several operations may have had some of them. Between two pieces of
        // a Verify or a Copy it is aborted all the same: Base 2.1, 5.1.1 does not ask
        // that nothing was done, and the rest may be long.
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

    /// It waits for a free slot of its backing store: not any more. Of what has several
    /// operations only one that reads is taken back: those before it of a Verify or a
    /// Copy are done, which an Abort may leave so, as between two pieces.
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
        let wanted = |one: &DiskRequest| one.tag == tag && may_end(&one.op);
        let Some(request) = io.resources.backlog.remove(self.host(), wanted) else {
            return false;
        };
        self.on_disk = self.on_disk.saturating_sub(1);
        if let Some(command) = self.slots.get(slot) {
            drop(command.take_back(request.op.into_buf(), self.account.as_ref()));
        }
        self.rare.lingering.is_over(slot);
        true
    }

    /// The command is answered later, by an order: nothing is kept for it.
    pub(super) fn hold(&mut self, slot: SlotId, io: &mut Io<'_>) {
        let capsule = self
            .slots
            .get(slot)
            .and_then(|command| command.capsule.take());
        self.free(slot);
        self.receive_again(capsule, io);
    }

    pub(super) fn answer_held(&mut self, response: &Response, io: &mut Io<'_>) {
        match self.slots.take() {
            Some((slot, _nothing)) => self.give(slot, response, false, io),
            None => self.bug("an answer was begun without a slot", io),
        }
    }
}
