//! Requests of queues to other queues, of this reactor and of others.

use std::collections::BTreeSet;
use std::time::Duration;

use nvmeof_backend::BackingStores;
use nvmeof_target_core::{Call, FollowUps};

use super::Reactor;
use crate::mailbox::Mail;

impl<S: BackingStores> Reactor<S> {
    /// Makes reactors poll their queues of a controller, each once, however many commands of a
    /// host request it.
    fn deliver(&mut self, calls: Vec<Call>, now: Duration) {
        let calls = BTreeSet::from_iter(calls);
        let mut own = BTreeSet::new();
        for Call { reactor, cntlid } in calls {
            match self.peers.get(usize::from(reactor)) {
                Some(peer) if reactor != self.number => peer.call(cntlid),
                _ => drop(own.insert(cntlid)),
            }
        }
        if !own.is_empty() {
            self.poll_queues_of(&own, now);
        }
    }

    /// Polls the queues of those controllers.
    pub(super) fn poll_queues_of(&mut self, cntlids: &BTreeSet<u16>, now: Duration) {
        let ids = self.queues.ids_where(|queue_pair| {
            let cntlid = queue_pair.cntlid();
            cntlid.is_some_and(|cntlid| cntlids.contains(&cntlid))
        });
        self.counters.polled_queues(ids.len());
        for id in ids {
            self.with_queue(id, now, |queue_pair, io| {
                queue_pair.poll(io);
                io.resources.poll_by(queue_pair.next_deadline());
            });
        }
    }

    /// Handles further requests of queues: controllers that changed.
    pub(super) fn notify_peers(&mut self, now: Duration) {
        while !self.resources.follow_ups.is_empty() || !self.resources.calls.is_empty() {
            let follow_ups = std::mem::take(&mut self.resources.follow_ups);
            let calls = std::mem::take(&mut self.resources.calls);
            if follow_ups.contains(FollowUps::POLL_ALL) {
                for (peer, number) in self.peers.iter().zip(0..) {
                    if number != self.number {
                        peer.send(Mail::POLL);
                    }
                }
                self.check_queues_on_demand(now);
            } else {
                self.deliver(calls, now);
            }
        }
    }
}
