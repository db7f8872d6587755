//! Range locks of backing stores on this reactor, and commands that wait for them.

use std::time::Duration;

use nvmeof_backend::BackingStores;
use nvmeof_target_core::LockMember;

use super::Reactor;
use crate::mailbox::{Mail, Mailbox};

/// The lock changes that the reactor has processed.
#[derive(Debug)]
pub(super) struct LockChanges {
    /// The version of the last processed change.
    seen: u64,
    /// Whether a lock or a barrier waits for writes of this reactor.
    awaited: bool,
}

impl LockChanges {
    /// For a reactor that has processed no change.
    pub(super) fn new(member: &LockMember) -> Self {
        Self {
            // Any version but the current one: a lock may have been requested since the
            // member joined, and waits for it.
            seen: member.version().wrapping_sub(1),
            awaited: false,
        }
    }
}

impl<S: BackingStores> Reactor<S> {
    /// Processes changes: acknowledges requested locks if nothing is being written to
    /// their ranges, and retries waiting commands. Runs once per iteration.
    #[inline]
    pub(super) fn process_lock_changes(&mut self, now: Duration) -> bool {
        let nothing = !self.lock_changes.awaited
            && self.resources.locked.member.version() == self.lock_changes.seen;
        !nothing && self.follow_locks(now)
    }

    #[cold]
    fn follow_locks(&mut self, now: Duration) -> bool {
        let before = self.lock_changes.seen;
        self.lock_changes.seen = self.resources.locked.member.version();
        let (queues, stores) = (&self.queues, &self.stores);
        // By the identity of the file or device: a file that grew has two numbers for some time.
        let settle = |lock, locked, bytes: &_| {
            queues.may_write(lock, &|store| stores.identity(store) == locked, bytes)
        };
        let oldest =
            |settled, scope| queues.oldest(&|store| stores.identity(store) == settled, scope);
        let member = &self.resources.locked.member;
        self.lock_changes.awaited = member.settle(settle) | member.settle_barriers(now, oldest);
        for _ in 0..self.resources.locked.waiting.locked_out.len() {
            if let Some((queue, slot)) = self.resources.locked.waiting.locked_out.pop_front() {
                self.with_queue(queue, now, |queue_pair, io| queue_pair.try_again(slot, io));
            }
        }
        if self.resources.locked.member.version() != before {
            for settled in self.resources.locked.waiting.take_settled() {
                self.with_queue(settled.queue, now, |queue_pair, io| {
                    queue_pair.settled(&settled, io);
                });
            }
        }
        // Other reactors may be asleep. A redundant wake-up is harmless.
        if self.resources.locked.member.version() != before {
            Mailbox::send_all(&self.peers, Mail::LOCKS);
        }
        self.resources.locked.member.version() != self.lock_changes.seen
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_requested_while_joining_is_seen() {
        let locks = nvmeof_target_core::Locks::default();
        let (other, member) = (locks.join(), locks.join());
        let _lock = other.ask(0, 0..512);
        let changes = LockChanges::new(&member);
        assert_ne!(changes.seen, member.version());
    }
}
