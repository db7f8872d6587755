//! Commands that arrived and wait for the fair queue.
//!
//! With several hosts, or several I/O queues of one host, the number of commands that
//! start at once in one iteration of the reactor is bounded. A command then waits for
//! some commands of each other queue, not for all that one host sent over many queues.

use std::collections::VecDeque;
use std::time::Duration;

use nvmeof_target_core::Response;

use super::{Capsule, Io, QueuePair, State};

/// Commands of one queue pair that have arrived and not started.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Capsules that arrived while no slot was free, or while others were next in the
    /// fair queue.
    pub(super) waiting: VecDeque<Capsule>,
    /// Responses to held commands that wait for a slot.
    pub(super) responses: VecDeque<Response>,
    /// Whether the queue is in the fair queue of the reactor.
    is_due: bool,
    /// When a Keep Alive last started out of order.
    kept_alive: Option<Duration>,
}

/// Commands that one queue starts when it is next: few, so that others do not wait long,
/// but more than one, because each pass through the fair queue has a cost.
const START_BATCH: usize = 4;

impl QueuePair {
    /// Defers a command that is not next, or that has others before it. Its arrival
    /// counts as a sign of life of its host, whenever it starts. A Keep Alive that is
    /// first in its queue starts at once: a host that waits too long for its response
    /// disconnects. Only one per queue and iteration, so that Keep Alives cannot flood
    /// the reactor either.
    #[cold]
    pub(super) fn defer(&mut self, capsule: Capsule, io: &mut Io<'_>) {
        let bytes = capsule.buf.get(..capsule.len).unwrap_or_default();
        let is_next = self.state == State::Open && self.is_next_to_start();
        if self.core.note_command(io.now, bytes)
            && is_next
            && self.arrivals.kept_alive != Some(io.now)
        {
            self.arrivals.kept_alive = Some(io.now);
            self.begin(capsule, io);
        } else {
            self.arrivals.waiting.push_back(capsule);
        }
    }

    /// Whether pending commands have to wait for the fair queue; if so, lists the queue
    /// there.
    pub(super) fn wait_for_fair_queue(&mut self, io: &mut Io<'_>) -> bool {
        let waits =
            !self.arrivals.waiting.is_empty() && (self.arrivals.is_due || self.must_queue(io));
        if waits && !self.arrivals.is_due {
            self.arrivals.is_due = true;
            io.resources.due.push(self.host(), self.id);
        }
        waits
    }

    /// Starts pending commands: this queue is next in the fair queue. Returns their
    /// number.
    pub(crate) fn start_due(&mut self, io: &mut Io<'_>) -> usize {
        self.arrivals.is_due = false;
        let mut started = 0;
        while started < START_BATCH
            && self.state == State::Open
            && self.arrivals.responses.is_empty()
            && !self.slots.is_full()
            && let Some(capsule) = self.arrivals.waiting.pop_front()
        {
            self.begin(capsule, io);
            started += 1;
        }
        self.settle(io);
        started
    }
}
