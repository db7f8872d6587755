//! What a reactor looks like at one moment, to whoever watches the target.

use std::time::Duration;

use nvmeof_backend::Storage;

use super::Reactor;
use crate::snapshot::ReactorSnapshot;

impl<S: Storage> Reactor<S> {
    /// Whether hosts and ports are charged just what they hold: for tests, since it
    /// walks all commands.
    ///
    /// # Errors
    /// Says who is charged something else.
    pub fn check_accounts(&self) -> Result<(), String> {
        let (queues, left) = self.queues.all();
        self.resources.accounts.check(queues, left)
    }

    /// Buffers for data that nobody holds, and capsules.
    #[must_use]
    pub fn free_buffers(&self) -> (usize, usize) {
        let capsules =
            self.resources.capsules.available() + self.resources.admin_capsules.available();
        (self.resources.buffers.available(), capsules)
    }

    /// How it is now.
    pub(super) fn snapshot(&mut self, now: Duration) -> ReactorSnapshot {
        let mut queues = Vec::with_capacity(self.queues.len());
        self.each_queue(now, |queue_pair, _| queues.push(queue_pair.snapshot()));
        ReactorSnapshot {
            queues,
            waiting_for_buffers: self.resources.awaiting.len(),
            waiting_for_disks: self.resources.backlog.len(),
            free_buffers: self.resources.buffers.available(),
            free_capsules: self.resources.capsules.available(),
        }
    }
}
