//! This reactor's part in the locks on ranges of disks.

use std::collections::VecDeque;
use std::time::Duration;

use nvmeof_target_core::{LockMember, Locks};

use super::Reactor;
use crate::mailbox::{Mail, Mailbox};
use crate::storage::Storage;
use crate::tag::Place;

/// What this reactor has to do with locks.
pub(super) struct Locked {
    pub(super) member: LockMember,
    /// Commands that wait for a lock to go or to be held: queue and slot. Some
    /// may be gone.
    pub(super) out: VecDeque<(Place, Place)>,
    /// Up to where changes were followed.
    seen: u64,
    /// Whether a lock waits until something was written here.
    awaited: bool,
}

impl Locked {
    pub(super) fn new(locks: &Locks) -> Self {
        let member = locks.join();
        Self {
            seen: member.version(),
            member,
            out: VecDeque::new(),
            awaited: false,
        }
    }
}

impl<S: Storage> Reactor<S> {
    /// Follows what changed: says of locks that are asked for whether anything
    /// is being written there, and tries again what waits. Called once a turn.
    #[inline]
    pub(super) fn go_on_locks(&mut self, now: Duration) -> bool {
        let nothing = !self.locked.awaited && self.locked.member.version() == self.locked.seen;
        !nothing && self.follow_locks(now)
    }

    #[cold]
    fn follow_locks(&mut self, now: Duration) -> bool {
        let before = self.locked.seen;
        self.locked.seen = self.locked.member.version();
        let queues = &self.queues;
        let settle = |lock, disk, bytes: &_| queues.may_write(lock, disk, bytes);
        self.locked.awaited = self.locked.member.settle(settle);
        for _ in 0..self.locked.out.len() {
            if let Some((queue, slot)) = self.locked.out.pop_front() {
                self.with_queue(queue, now, |edge, io| edge.try_again(slot, io));
            }
        }
        // Others may be asleep. That they are told what they know does no harm.
        if self.locked.member.version() != before {
            Mailbox::send_all(&self.peers, Mail::LOCKS);
        }
        self.locked.member.version() != self.locked.seen
    }
}
