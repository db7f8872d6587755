//! Fair queueing of hosts, for starting commands and for buffers.

use std::time::Duration;

use nvmeof_backend::BackingStores;

use super::Reactor;
use crate::awaiting_buffers::AwaitingBuffers;
use crate::fair_queue::FairQueue;
use crate::tag::SlotId;

/// Commands that one iteration starts as they arrive. Up to this number no host or queue
/// waits for another, and fair queueing is not needed.
const FAST_LIMIT: u32 = 64;
/// Commands that one iteration starts from the fair queue, so that backing stores and
/// providers are polled again soon, however many commands wait.
const FAIR_LIMIT: usize = 64;

/// Selects a fair queue.
type SelectQueue<T> = fn(&mut AwaitingBuffers) -> &mut FairQueue<T>;

impl<S: BackingStores> Reactor<S> {
    /// An iteration begins.
    pub(super) fn reset_start_budget(&mut self) {
        self.resources.start_budget = match self.resources.due.is_empty() {
            true if self.resources.accounts.needs_fair_queue() => FAST_LIMIT,
            true => u32::MAX,
            // Pending commands come before new ones.
            false => 0,
        };
    }

    /// Starts pending commands from the fair queue: some of one address, then some of the
    /// next; at each address some of one host after the other, and of each host some of
    /// its queues. Returns whether it started any.
    #[inline]
    pub(super) fn start_due(&mut self, now: Duration) -> bool {
        !self.resources.due.is_empty() && self.begin_all_due(now)
    }

    fn begin_all_due(&mut self, now: Duration) -> bool {
        let mut started = 0;
        while started < FAIR_LIMIT
            && let Some(id) = self.resources.due.pop()
        {
            let more = self.with_queue(id, now, |queue_pair, io| queue_pair.start_due(io));
            started += more.unwrap_or_default();
            self.resources.due.advance();
        }
        started > 0
    }

    /// Gives buffers to commands that wait for them: one to each address, where hosts and
    /// their queues alternate, then another to each. A command therefore does not wait
    /// for all commands of another host, however many names and queues that has. All
    /// addresses that stalled lately count as one.
    #[inline]
    pub(super) fn allocate_buffers(&mut self, now: Duration) -> bool {
        !self.resources.awaiting.is_empty() && self.allocate_all(now)
    }

    fn allocate_all(&mut self, now: Duration) -> bool {
        let mut fed = self.allocate_seconds(now);
        loop {
            let is_suspect = self.resources.awaiting.is_suspect_next();
            if !self.allocate_one(is_suspect, now) && !self.allocate_one(!is_suspect, now) {
                return fed;
            }
            fed = true;
        }
    }

    /// Gives a buffer to the next address that can use one.
    fn allocate_one(&mut self, is_suspect: bool, now: Duration) -> bool {
        let fair_queue: SelectQueue<SlotId> = match is_suspect {
            true => |all| all.queues(true),
            false => |all| all.queues(false),
        };
        let fed = self.serve_first(fair_queue, |reactor| {
            reactor.allocate_for_host(fair_queue, now)
        });
        if fed {
            self.resources.awaiting.served(is_suspect);
        }
        fed
    }

    /// Calls `serve` for the current host and the following ones until it returns true,
    /// first at the current address, then at the next ones. The host and the address that
    /// were served come last then. Those before them keep their positions: they wait for
    /// another resource, and newcomers do not overtake them.
    fn serve_first<T>(
        &mut self,
        fair_queue: SelectQueue<T>,
        serve: impl Fn(&mut Self) -> bool,
    ) -> bool {
        let mut skipped = 0;
        for _ in 0..fair_queue(&mut self.resources.awaiting).addresses() {
            let served = self.serve_host(fair_queue, &serve);
            let all = fair_queue(&mut self.resources.awaiting);
            let stays = all.advance_address();
            if served {
                all.return_addresses(skipped, stays);
                return true;
            }
            skipped += usize::from(stays);
        }
        false
    }

    /// As [`serve_first`](Self::serve_first), for the current address.
    fn serve_host<T>(
        &mut self,
        fair_queue: SelectQueue<T>,
        serve: impl Fn(&mut Self) -> bool,
    ) -> bool {
        let mut skipped = 0;
        for _ in 0..fair_queue(&mut self.resources.awaiting).hosts_of_first() {
            let served = serve(self);
            let all = fair_queue(&mut self.resources.awaiting);
            let stays = all.advance_host();
            if served {
                all.return_hosts(skipped, stays);
                return true;
            }
            skipped += usize::from(stays);
        }
        false
    }

    /// Gives commands their second buffer, at most one per address: each may need another
    /// one at once, for its next piece.
    fn allocate_seconds(&mut self, now: Duration) -> bool {
        let seconds: SelectQueue<(SlotId, SlotId)> = |all| all.seconds.fair_queue();
        let mut fed = false;
        for _ in 0..seconds(&mut self.resources.awaiting).addresses() {
            if !self.serve_first(seconds, |reactor| reactor.allocate_second(now)) {
                break;
            }
            fed = true;
        }
        fed
    }

    /// Gives the first command of the current host its second buffer.
    fn allocate_second(&mut self, now: Duration) -> bool {
        let Some((queue, slot)) = self.resources.awaiting.seconds.fair_queue().pop() else {
            return false;
        };
        let fed = self.with_queue(queue, now, |queue_pair, io| {
            queue_pair.allocate_second(slot, io)
        });
        if fed == Some(false) {
            let seconds = &mut self.resources.awaiting.seconds;
            seconds.fair_queue().put_back((queue, slot));
        }
        fed != Some(false)
    }

    /// Gives a buffer to the first queue of the current host that can use one.
    fn allocate_for_host(&mut self, fair_queue: SelectQueue<SlotId>, now: Duration) -> bool {
        let mut skipped = 0;
        for _ in 0..fair_queue(&mut self.resources.awaiting).of_first() {
            let all = fair_queue(&mut self.resources.awaiting);
            let Some(queue) = all.pop() else {
                break;
            };
            let others = all.of_first();
            let fed = self.with_queue(queue, now, |queue_pair, io| queue_pair.allocate_buffers(io))
                == Some(true);
            // It is listed again if one of its commands still waits.
            let all = fair_queue(&mut self.resources.awaiting);
            let stays = all.of_first() > others;
            if fed {
                all.return_items(skipped, stays);
                return true;
            }
            skipped += usize::from(stays);
        }
        false
    }
}
