//! Commands that are aborted before anything was done for them.

use nvmeof_target_core::Action;
use nvmeof_wire::Sqe;
use nvmeof_wire::sqe::Fuse;

use super::{Capsule, Edge, Io};
use crate::tag::{Place, Tag};

impl Edge {
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
        if self.parked.len() >= usize::from(self.core.entries()) {
            return false;
        }
        let Some(at) = self.waiting.iter().position(is_it) else {
            return false;
        };
        // Without it what is behind it would be next to a first half.
        if self.follows_first_half(at) {
            return false;
        }
        let Some(Capsule { buf, len }) = self.waiting.remove(at) else {
            return false;
        };
        let response = self.core.abort_unseen(buf.get(..len).unwrap_or_default());
        self.receive_again(Some(buf), io);
        self.parked.extend(response);
        true
    }

    /// Whether the command before that one of those that wait is the first half of
    /// a fused operation.
    fn follows_first_half(&self, at: usize) -> bool {
        match at
            .checked_sub(1)
            .and_then(|before| self.waiting.get(before))
        {
            Some(Capsule { buf, len }) => {
                let sqe = Sqe::in_capsule(buf.get(..*len).unwrap_or_default());
                sqe.is_some_and(|sqe| sqe.fuse() == Fuse::First)
            }
            None => self.core.expects_second_half(),
        }
    }

    fn abort_begun(&mut self, slot: Place, io: &mut Io<'_>) -> bool {
        // Half of a fused operation is not given up without the other.
        if self.is_half(slot) {
            return false;
        }
        let waited = self.take_from_rows(slot) || self.take_from_backlog(slot, io);
        if waited {
            let queue = self.place;
            io.waiting.locked_out.retain(|one| *one != (queue, slot));
        }
        if waited
            && let Some(job) = self.slots.get(slot)
            && let Action::Respond(response) = self.core.abort(&mut job.request)
        {
            self.respond(slot, &response, io);
            // It may have had a read that it was not using yet.
            self.pull_more(io);
        }
        waited
    }

    /// It waits for a buffer or for an RDMA Read: not any more. The rows pass
    /// over places that wait for nothing.
    fn take_from_rows(&mut self, slot: Place) -> bool {
        let Some(job) = self.slots.get(slot) else {
            return false;
        };
        // What has several operations may have had some of them.
        let may_have_begun =
            matches!(&job.hungry, Some(Action::Execute(_))) && !job.request.is_one_operation();
        let waits = !may_have_begun && job.hungry.take().is_some();
        if waits && std::mem::take(&mut job.reads) {
            self.reads_left += 1;
        }
        waits
    }

    /// It waits for room on its disk: not any more.
    fn take_from_backlog(&mut self, slot: Place, io: &mut Io<'_>) -> bool {
        let queue = self.place;
        let tag = Tag { queue, slot }.to_bits();
        let host = self.host();
        let Some(job) = self.slots.get(slot) else {
            return false;
        };
        if !job.request.is_one_operation() {
            return false;
        }
        let Some((_, request)) = io.backlog.remove(host, |(_, one)| one.tag == tag) else {
            return false;
        };
        self.on_disk = self.on_disk.saturating_sub(1);
        drop(job.take_back(request.op.into_buf(), self.account.as_ref()));
        self.lingering.is_over(slot);
        true
    }
}
