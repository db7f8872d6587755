//! This reactor's part in the locks on ranges of disks, and commands that wait.

use std::time::Duration;

use nvmeof_backend::Storage;
use nvmeof_target_core::LockMember;

use super::Reactor;
use crate::mailbox::{Mail, Mailbox};

/// The changes of locks that the reactor has processed.
#[derive(Debug)]
pub(super) struct LockChanges {
    /// The version up to which it has.
    seen: u64,
    /// Whether a lock or a barrier waits until something was written here.
    awaited: bool,
}

impl LockChanges {
    /// For a reactor that has processed none.
    pub(super) fn new(member: &LockMember) -> Self {
        Self {
            // Another one than it is: a lock may have been asked for since the
            // member joined, and waits for it.
            seen: member.version().wrapping_sub(1),
            awaited: false,
        }
    }
}

impl<S: Storage> Reactor<S> {
    /// Follows what changed: says of locks that are asked for whether anything
    /// is being written there, and tries again what waits. Called once a turn.
    #[inline]
    pub(super) fn go_on_locks(&mut self, now: Duration) -> bool {
        let nothing = !self.lock_changes.awaited
            && self.resources.locked.member.version() == self.lock_changes.seen;
        !nothing && self.follow_locks(now)
    }

    #[cold]
    fn follow_locks(&mut self, now: Duration) -> bool {
        let before = self.lock_changes.seen;
        self.lock_changes.seen = self.resources.locked.member.version();
        let (queues, storage) = (&self.queues, &self.storage);
        // By what is behind disks: a file that grew is two of them for a while.
        let settle = |lock, locked, bytes: &_| {
            queues.may_write(lock, &|disk| storage.identity(disk) == locked, bytes)
        };
        let oldest = |settled| queues.oldest_write(&|disk| storage.identity(disk) == settled);
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
        // Others may be asleep. That they are told what they know does no harm.
        if self.resources.locked.member.version() != before {
            Mailbox::send_all(&self.peers, Mail::LOCKS);
        }
        self.resources.locked.member.version() != self.lock_changes.seen
    }

    /// Commands go on that waited until what they asked for is kept.
    pub(super) fn go_on_kept(&mut self, now: Duration) {
        for kept in self.resources.locked.waiting.take_kept() {
            self.with_queue(kept.queue, now, |queue_pair, io| queue_pair.kept(&kept, io));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_was_asked_for_when_it_joined_is_seen() {
        let locks = nvmeof_target_core::Locks::default();
        let (other, member) = (locks.join(), locks.join());
        let _lock = other.ask(0, 0..512);
        let changes = LockChanges::new(&member);
        assert_ne!(changes.seen, member.version());
    }
}
