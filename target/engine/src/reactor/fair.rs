//! What hosts wait for goes to each of them in turn: to begin commands, and buffers.

use std::time::Duration;

use nvmeof_backend::Storage;

use super::Reactor;
use crate::awaiting_buffers::AwaitingBuffers;
use crate::fair_queue::FairQueue;
use crate::tag::SlotId;

/// Commands that one turn begins as they come. While no more come no host or queue waits
/// for another, and nothing is to be divided.
const AT_ONCE: u32 = 64;
/// Commands that hosts begin in one turn, one address after the other: so that disks and
/// providers are looked at again soon, however many wait.
const IN_TURN: usize = 64;

/// Which of those that wait.
type Row<T> = fn(&mut AwaitingBuffers) -> &mut FairQueue<T>;

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
            let more = self.with_queue(place, now, |queue_pair, io| queue_pair.begin_due(io));
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
            let is_suspect = self.resources.awaiting.is_turn_of_suspect();
            if !self.feed_one(is_suspect, now) && !self.feed_one(!is_suspect, now) {
                return fed;
            }
            fed = true;
        }
    }

    /// Gives a buffer to the next address for which there is one.
    fn feed_one(&mut self, is_suspect: bool, now: Duration) -> bool {
        let fair_queue: Row<SlotId> = match is_suspect {
            true => |all| all.queues(true),
            false => |all| all.queues(false),
        };
        let fed = self.serve_first(fair_queue, |reactor| reactor.feed_host(fair_queue, now));
        if fed {
            self.resources.awaiting.served(is_suspect);
        }
        fed
    }

    /// Has `serve` serve the first host of which it says that it could, at the address
    /// whose turn it is or the next one that has such a host. That one comes last then, as
    /// its address does. Those before it keep their places: they wait for something else
    /// than what there is, and newcomers do not get before them.
    fn serve_first<T>(&mut self, fair_queue: Row<T>, serve: impl Fn(&mut Self) -> bool) -> bool {
        let mut skipped = 0;
        for _ in 0..fair_queue(&mut self.resources.awaiting).addresses() {
            let served = self.serve_host(fair_queue, &serve);
            let all = fair_queue(&mut self.resources.awaiting);
            let stays = all.pass_address();
            if served {
                all.return_addresses(skipped, stays);
                return true;
            }
            skipped += usize::from(stays);
        }
        false
    }

    /// The same of the address whose turn it is.
    fn serve_host<T>(&mut self, fair_queue: Row<T>, serve: impl Fn(&mut Self) -> bool) -> bool {
        let mut skipped = 0;
        for _ in 0..fair_queue(&mut self.resources.awaiting).hosts_of_first() {
            let served = serve(self);
            let all = fair_queue(&mut self.resources.awaiting);
            let stays = all.pass_host();
            if served {
                all.return_hosts(skipped, stays);
                return true;
            }
            skipped += usize::from(stays);
        }
        false
    }

    /// Gives commands their second buffer, as many as there are addresses: each may want
    /// another one at once, for its next piece.
    fn feed_seconds(&mut self, now: Duration) -> bool {
        let seconds: Row<(SlotId, SlotId)> = |all| all.seconds.fair_queue();
        let mut fed = false;
        for _ in 0..seconds(&mut self.resources.awaiting).addresses() {
            if !self.serve_first(seconds, |reactor| reactor.feed_second(now)) {
                break;
            }
            fed = true;
        }
        fed
    }

    /// Gives the first command of the host whose turn it is its second buffer.
    fn feed_second(&mut self, now: Duration) -> bool {
        let Some((queue, slot)) = self.resources.awaiting.seconds.fair_queue().pop() else {
            return false;
        };
        let fed = self.with_queue(queue, now, |queue_pair, io| {
            queue_pair.feed_second(slot, io)
        });
        if fed == Some(false) {
            let seconds = &mut self.resources.awaiting.seconds;
            seconds.fair_queue().put_back((queue, slot));
        }
        fed != Some(false)
    }

    /// Gives a buffer to the first queue, of those of the host whose turn it
    /// is, for which there is one.
    fn feed_host(&mut self, fair_queue: Row<SlotId>, now: Duration) -> bool {
        let mut skipped = 0;
        for _ in 0..fair_queue(&mut self.resources.awaiting).of_first() {
            let all = fair_queue(&mut self.resources.awaiting);
            let Some(queue) = all.pop() else {
                break;
            };
            let others = all.of_first();
            let fed =
                self.with_queue(queue, now, |queue_pair, io| queue_pair.feed(io)) == Some(true);
            // It is listed again when a command of it still waits.
            let all = fair_queue(&mut self.resources.awaiting);
            let stays = all.of_first() > others;
            if fed {
                all.return_things(skipped, stays);
                return true;
            }
            skipped += usize::from(stays);
        }
        false
    }
}
