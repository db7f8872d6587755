//! What hosts wait for goes to each of them in turn: to begin commands, and buffers.

use std::time::Duration;

use super::Reactor;
use crate::storage::Storage;

/// Commands that one turn begins as they come. While no more come no host or queue waits
/// for another, and nothing is to be divided.
const AT_ONCE: u32 = 64;
/// Commands that hosts begin in one turn, one address after the other: so that disks and
/// providers are looked at again soon, however many wait.
const IN_TURN: usize = 64;

impl<S: Storage> Reactor<S> {
    /// A turn begins.
    pub(super) fn allow_at_once(&mut self) {
        self.at_once = match self.due.is_empty() {
            true if self.accounts.take_turns() => AT_ONCE,
            true => u32::MAX,
            // Who waits is before those who come now.
            false => 0,
        };
    }

    /// Has queues begin commands that wait: some of one address, then some of the next; of
    /// each address some of one host after the other, and of each host of its queues.
    /// Says whether any was.
    pub(super) fn begin_due(&mut self, now: Duration) -> bool {
        let mut begun = 0;
        while begun < IN_TURN
            && let Some(place) = self.due.pop()
        {
            let more = self.with_queue(place, now, |edge, io| edge.begin_due(io));
            begun += more.unwrap_or_default();
            self.due.pass();
        }
        begun > 0
    }

    /// Gives buffers to commands that wait for them: one to each address, whose hosts
    /// take turns as their queues do, then another to each, so that none of them waits
    /// for all that another sent, over however many names and queues.
    pub(super) fn feed(&mut self, now: Duration) -> bool {
        let mut fed = false;
        // Addresses in a row for which there was nothing.
        let mut without = 0;
        while without < self.hungry.addresses() {
            without += 1;
            if self.feed_address(now) {
                (fed, without) = (true, 0);
            }
            self.hungry.pass_address();
        }
        fed
    }

    /// Gives a buffer to the first host, of those of the address whose turn it is, for
    /// which there is one.
    fn feed_address(&mut self, now: Duration) -> bool {
        for _ in 0..self.hungry.hosts_of_first() {
            let fed = self.feed_host(now);
            self.hungry.pass_host();
            if fed {
                return true;
            }
        }
        false
    }

    /// Gives a buffer to the first queue, of those of the host whose turn it
    /// is, for which there is one.
    fn feed_host(&mut self, now: Duration) -> bool {
        for _ in 0..self.hungry.of_first() {
            let Some(queue) = self.hungry.pop() else {
                break;
            };
            if self.with_queue(queue, now, |edge, io| edge.feed(io)) == Some(true) {
                return true;
            }
        }
        false
    }
}
