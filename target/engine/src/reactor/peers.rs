//! Requests of queues to other queues, of this reactor and of others.

use std::time::Duration;

use nvmeof_backend::BackingStores;
use nvmeof_target_core::FollowUps;

use super::Reactor;
use crate::mailbox::{Mail, Mailbox};

impl<S: BackingStores> Reactor<S> {
    /// Makes those reactors poll their queues.
    fn call(&mut self, mut reactors: Vec<u16>, now: Duration) {
        // Once, however many commands of a host request it.
        reactors.sort_unstable();
        reactors.dedup();
        for at in &reactors {
            match self.peers.get(usize::from(*at)) {
                Some(peer) if *at != self.number => peer.send(Mail::POLL),
                _ => self.check_queues(now),
            }
        }
    }

    /// Handles further requests of queues: controllers that changed.
    pub(super) fn notify_peers(&mut self, now: Duration) {
        while !self.resources.follow_ups.is_empty() {
            let follow_ups = std::mem::take(&mut self.resources.follow_ups);
            let calls = std::mem::take(&mut self.resources.calls);
            if follow_ups.contains(FollowUps::POLL_ALL) {
                Mailbox::send_all(&self.peers, Mail::POLL);
                self.check_queues(now);
            } else {
                self.call(calls, now);
            }
        }
    }
}
