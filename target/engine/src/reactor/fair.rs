//! What hosts wait for goes to each of them in turn: to begin commands, and buffers.

use std::time::Duration;

use super::Reactor;
use crate::queue::Seconds;
use crate::storage::Storage;
use crate::tag::Place;
use crate::turns::{HostId, Turns};

/// Commands that one turn begins as they come. While no more come no host or queue waits
/// for another, and nothing is to be divided.
const AT_ONCE: u32 = 64;
/// Commands that hosts begin in one turn, one address after the other: so that disks and
/// providers are looked at again soon, however many wait.
const IN_TURN: usize = 64;

/// Commands that wait for a buffer: queues that have some, each once, of which some may be
/// gone, and those that wait for a second one.
#[derive(Debug)]
pub(crate) struct AwaitingBuffers {
    trusted: Turns<Place>,
    /// Of addresses that stalled lately: they have one turn together, however many there
    /// are.
    suspect: Turns<Place>,
    /// Buffers that the others got since that turn.
    since: usize,
    pub(crate) seconds: Seconds,
}

impl AwaitingBuffers {
    pub(crate) fn new(seconds: Seconds) -> Self {
        Self {
            trusted: Turns::default(),
            suspect: Turns::default(),
            since: 0,
            seconds,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.has_queues() && self.seconds.is_empty()
    }

    /// Whether commands wait for their first buffer.
    pub(crate) fn has_queues(&self) -> bool {
        !(self.trusted.is_empty() && self.suspect.is_empty())
    }

    /// Queues that wait.
    pub(crate) fn len(&self) -> usize {
        self.trusted.len() + self.suspect.len()
    }

    pub(crate) fn push(&mut self, host: HostId, queue: Place, is_suspect: bool) {
        self.of(is_suspect).push(host, queue);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Place> {
        self.trusted.iter().chain(self.suspect.iter())
    }

    fn of(&mut self, is_suspect: bool) -> &mut Turns<Place> {
        match is_suspect {
            true => &mut self.suspect,
            false => &mut self.trusted,
        }
    }
}

impl<S: Storage> Reactor<S> {
    /// A turn begins.
    pub(super) fn allow_at_once(&mut self) {
        self.resources.at_once = match self.resources.due.is_empty() {
            true if self.resources.accounts.take_turns() => AT_ONCE,
            true => u32::MAX,
            // Who waits is before those who come now.
            false => 0,
        };
    }

    /// Has queues begin commands that wait: some of one address, then some of the next; of
    /// each address some of one host after the other, and of each host of its queues.
    /// Says whether any was.
    #[inline]
    pub(super) fn begin_due(&mut self, now: Duration) -> bool {
        !self.resources.due.is_empty() && self.begin_all_due(now)
    }

    fn begin_all_due(&mut self, now: Duration) -> bool {
        let mut begun = 0;
        while begun < IN_TURN
            && let Some(place) = self.resources.due.pop()
        {
            let more = self.with_queue(place, now, |edge, io| edge.begin_due(io));
            begun += more.unwrap_or_default();
            self.resources.due.pass();
        }
        begun > 0
    }

    /// Gives buffers to commands that wait for them: one to each address, whose hosts
    /// take turns as their queues do, then another to each, so that none of them waits
    /// for all that another sent, over however many names and queues. Addresses that
    /// stalled lately have one turn together.
    #[inline]
    pub(super) fn feed(&mut self, now: Duration) -> bool {
        !self.resources.awaiting.is_empty() && self.feed_all(now)
    }

    fn feed_all(&mut self, now: Duration) -> bool {
        let mut fed = self.feed_seconds(now);
        loop {
            let is_suspect =
                self.resources.awaiting.since >= self.resources.awaiting.trusted.addresses();
            if !self.feed_one(is_suspect, now) && !self.feed_one(!is_suspect, now) {
                return fed;
            }
            fed = true;
        }
    }

    /// Gives a buffer to the next address for which there is one.
    fn feed_one(&mut self, is_suspect: bool, now: Duration) -> bool {
        let addresses = self.resources.awaiting.of(is_suspect).addresses();
        let fed = (0..addresses).any(|_| self.feed_address(is_suspect, now));
        if fed {
            self.resources.awaiting.since = if is_suspect {
                0
            } else {
                self.resources.awaiting.since + 1
            };
        }
        fed
    }

    /// Gives a buffer to the first host, of those of the address whose turn it is, for
    /// which there is one.
    fn feed_address(&mut self, is_suspect: bool, now: Duration) -> bool {
        let hosts = self.resources.awaiting.of(is_suspect).hosts_of_first();
        let fed = (0..hosts).any(|_| {
            let fed = self.feed_host(is_suspect, now);
            self.resources.awaiting.of(is_suspect).pass_host();
            fed
        });
        self.resources.awaiting.of(is_suspect).pass_address();
        fed
    }

    /// Gives commands their second buffer: one to each address.
    fn feed_seconds(&mut self, now: Duration) -> bool {
        let mut fed = false;
        for _ in 0..self.resources.awaiting.seconds.addresses() {
            let Some((queue, slot)) = self.resources.awaiting.seconds.pop() else {
                break;
            };
            match self.with_queue(queue, now, |edge, io| edge.feed_second(slot, io)) {
                Some(false) => self.resources.awaiting.seconds.put_back((queue, slot)),
                Some(true) | None => fed = true,
            }
            self.resources.awaiting.seconds.pass();
        }
        fed
    }

    /// Gives a buffer to the first queue, of those of the host whose turn it
    /// is, for which there is one.
    fn feed_host(&mut self, is_suspect: bool, now: Duration) -> bool {
        for _ in 0..self.resources.awaiting.of(is_suspect).of_first() {
            let Some(queue) = self.resources.awaiting.of(is_suspect).pop() else {
                break;
            };
            if self.with_queue(queue, now, |edge, io| edge.feed(io)) == Some(true) {
                return true;
            }
        }
        false
    }
}
