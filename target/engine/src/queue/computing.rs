//! Commands that wait for a computation of an authentication, which a worker runs.

use std::sync::Arc;

use nvmeof_dhchap::{Work, WorkResult};
use nvmeof_target_core::{Action, Event};

use super::{Io, QueuePair};
use crate::authentication::{ComputeJob, ComputeWorkers, JobPeer, JobSource};
use crate::mailbox::Mailbox;
use crate::tag::{SlotId, Tag};

/// The workers of a reactor, and the mailbox to which they report.
pub(crate) struct Workers {
    pub(crate) workers: Arc<dyn ComputeWorkers>,
    pub(crate) mailbox: Mailbox,
}

impl QueuePair {
    /// Makes the command in `slot` wait for `work`. Returns the next action if there are no
    /// workers.
    #[cold]
    pub(super) fn compute(&mut self, slot: SlotId, work: Work, io: &mut Io<'_>) -> Option<Action> {
        let command = self.slots.get(slot)?;
        // The core has read its message. A command holds no buffer while it waits.
        let data = command.data.end(self.account.as_ref());
        io.resources.buffers.put_back(data);
        let Some(Workers { workers, mailbox }) = &io.resources.workers else {
            let refusal = Event::Computed(work.not_run("the reactor has no workers"));
            return Some(self.core.step(io.now, &mut command.request, refusal));
        };
        let tag = Tag {
            queue: self.id,
            slot,
        };
        let (job, pending) = ComputeJob::new(work, self.job_source(), mailbox.clone(), tag);
        self.cold.computing.push((slot, pending));
        workers.submit(job);
        None
    }

    /// Whose turn its computations take. The name of a host without a controller proves nothing.
    fn job_source(&self) -> JobSource {
        JobSource {
            port: self.core.port().cloned(),
            peer: match self.core.hostnqn() {
                Some(host) => JobPeer::Host(Box::new(host)),
                None => JobPeer::Unproven(self.source().network()),
            },
        }
    }

    /// The computation for the command in `slot` has a result, or was refused.
    pub(crate) fn computed(&mut self, slot: SlotId, result: WorkResult, io: &mut Io<'_>) {
        let mut waiting = self.cold.computing.iter();
        let Some(at) = waiting.position(|(its, _)| *its == slot) else {
            return;
        };
        self.cold.computing.swap_remove(at);
        let room = self.make_room(io);
        let Some(command) = self.slots.get(slot) else {
            return;
        };
        let event = Event::Computed(result);
        let action = self.core.step(io.now, &mut command.request, event);
        self.take_room(room, io);
        self.perform(slot, action, io);
        self.settle(io);
    }

    /// Whether the command in `slot` waits for a computation.
    pub(super) fn is_computing(&self, slot: SlotId) -> bool {
        self.cold.computing.iter().any(|(its, _)| *its == slot)
    }

    /// Whether any command waits for a computation.
    pub(crate) fn awaits_worker(&self) -> bool {
        !self.cold.computing.is_empty()
    }
}
