//! A snapshot of a reactor, for monitoring.

use std::time::Duration;

use nvmeof_backend::BackingStores;

use super::Reactor;
use crate::snapshot::ReactorSnapshot;

impl<S: BackingStores> Reactor<S> {
    /// Whether hosts and ports are charged exactly what they hold. For tests, because it
    /// walks all commands.
    ///
    /// # Errors
    /// A description of the difference.
    pub fn check_accounts(&self) -> Result<(), String> {
        let (queues, left) = self.queues.all();
        self.resources.accounts.check(queues, left)
    }

    /// Free data buffers, and free capsule buffers.
    #[must_use]
    pub fn free_buffers(&self) -> (usize, usize) {
        let capsules =
            self.resources.capsules.available() + self.resources.admin_capsules.available();
        (self.resources.buffers.available(), capsules)
    }

    /// Its present state.
    pub(super) fn snapshot(&mut self, now: Duration) -> ReactorSnapshot {
        let mut queues = Vec::with_capacity(self.queues.len());
        self.each_queue(now, |queue_pair, _| queues.push(queue_pair.snapshot()));
        ReactorSnapshot {
            queues,
            waiting_for_buffers: self.resources.awaiting.len(),
            waiting_for_stores: self.resources.backlog.len(),
            free_buffers: self.resources.buffers.available(),
            free_capsules: self.resources.capsules.available(),
        }
    }
}
