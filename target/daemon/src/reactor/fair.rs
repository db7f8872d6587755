//! What hosts wait for goes to each of them in turn: to begin commands, and buffers.

use std::time::Duration;

use super::Reactor;
use crate::storage::Storage;

/// Commands that one turn begins as they come. While no more come no host or queue waits
/// for another, and nothing is to be divided.
const AT_ONCE: u32 = 64;
/// Commands that hosts begin in one turn, one host after the other: so that disks and
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

    /// Has queues begin commands that wait: some of one host, then some of the next, and
    /// of each host some of one queue after the other.
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

    /// Gives buffers to commands that wait for them: one to each host, whose
    /// queues take turns, then another to each, so that none of them waits for
    /// all that another sent, over however many queues.
    pub(super) fn feed(&mut self, now: Duration) -> bool {
        let mut fed = self.feed_seconds(now);
        // Hosts in a row for which there was nothing.
        let mut without = 0;
        while without < self.hungry.hosts() {
            without += 1;
            if self.feed_host(now) {
                (fed, without) = (true, 0);
            }
            self.hungry.pass();
        }
        fed
    }

    /// Gives commands their second buffer: one to each host.
    fn feed_seconds(&mut self, now: Duration) -> bool {
        let mut fed = false;
        for _ in 0..self.seconds.hosts() {
            let Some((queue, slot)) = self.seconds.pop() else {
                break;
            };
            match self.with_queue(queue, now, |edge, io| edge.feed_second(slot, io)) {
                Some(false) => self.seconds.put_back((queue, slot)),
                Some(true) | None => fed = true,
            }
            self.seconds.pass();
        }
        fed
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
