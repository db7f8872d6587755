//! Range locks of backing stores on this reactor, and commands that wait for them.

use std::time::Duration;

use nvmeof_backend::BackingStores;

use super::Reactor;
use crate::mailbox::Mail;

impl<S: BackingStores> Reactor<S> {
    /// Processes changes: acknowledges requested locks if nothing is being written to
    /// their ranges, and retries waiting commands. Runs once per iteration.
    #[inline]
    pub(super) fn process_lock_changes(&mut self, now: Duration) -> bool {
        let is_concerned = self.locks_await_writes || self.resources.locked.member.has_changes();
        is_concerned && self.follow_locks(now)
    }

    #[cold]
    fn follow_locks(&mut self, now: Duration) -> bool {
        let member = &self.resources.locked.member;
        let mut has_changes = member.take_changes();
        let (queues, stores) = (&self.queues, &self.stores);
        // By the identity of the file or device: a file that grew has two numbers for some time.
        let settle = |lock, locked, bytes: &_| {
            queues.may_write(lock, &|store| stores.identity(store) == locked, bytes)
        };
        let oldest =
            |settled, scope| queues.oldest(&|store| stores.identity(store) == settled, scope);
        self.locks_await_writes = member.settle(settle) | member.settle_barriers(now, oldest);
        // Its own report may have been the last one.
        has_changes |= member.take_changes();
        if has_changes {
            self.retry_locked_out(now);
        }
        for reactor in self.resources.locked.member.take_calls() {
            if let Some(peer) = self.peers.get(usize::from(reactor)) {
                peer.send(Mail::LOCKS);
            }
        }
        self.resources.locked.member.has_changes()
    }

    /// Retries commands that wait for a lock or a barrier.
    fn retry_locked_out(&mut self, now: Duration) {
        for _ in 0..self.resources.locked.waiting.locked_out.len() {
            if let Some((queue, slot)) = self.resources.locked.waiting.locked_out.pop_front() {
                self.with_queue(queue, now, |queue_pair, io| queue_pair.try_again(slot, io));
            }
        }
        for settled in self.resources.locked.waiting.take_settled() {
            self.with_queue(settled.queue, now, |queue_pair, io| {
                queue_pair.settled(&settled, io);
            });
        }
    }

    /// Resumes commands that waited until their request was stored.
    pub(super) fn resume_saved(&mut self, now: Duration) {
        for pending in self.resources.locked.waiting.take_saved() {
            self.with_queue(pending.queue, now, |queue_pair, io| {
                queue_pair.saved(&pending, io);
            });
        }
    }
}
