//! Commands that came and are begun when it is their host's turn.
//!
//! What a turn of the reactor begins at once is bounded where there are several hosts,
//! or several I/O queues of one: a command waits for some of each of the others then,
//! not for all that another sent over however many queues.

use std::collections::VecDeque;
use std::time::Duration;

use nvmeof_target_core::Response;

use super::{Capsule, Io, QueuePair, State};

/// What came to one queue pair and was not begun.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Capsules that came while no slot was free, or while it was the turn of others.
    pub(super) waiting: VecDeque<Capsule>,
    /// Responses to commands that were held, which wait for a slot.
    pub(super) responses: VecDeque<Response>,
    /// Whether the reactor is to have the queue begin commands that wait.
    is_due: bool,
    /// When a Keep Alive was last begun although it was not its host's turn.
    kept_alive: Option<Duration>,
}

/// Commands that one queue begins when it is its host's turn: few, so that others do
/// not wait, but more than one, which would cost each of them a turn of its own.
const TOGETHER: usize = 4;

impl QueuePair {
    /// A command came whose turn it is not, or that finds others before it: its host was
    /// heard by it, whenever it is begun. A Keep Alive is answered at once where it is
    /// the next: its host takes us for dead that waits too long for that. One of a
    /// queue in each turn, so that these are no flood either.
    #[cold]
    pub(super) fn put_off(&mut self, capsule: Capsule, io: &mut Io<'_>) {
        let bytes = capsule.buf.get(..capsule.len).unwrap_or_default();
        let is_next = self.state == State::Open && self.begins_at_once();
        if self.core.hear_command(io.now, bytes)
            && is_next
            && self.arrivals.kept_alive != Some(io.now)
        {
            self.arrivals.kept_alive = Some(io.now);
            self.begin(capsule, io);
        } else {
            self.arrivals.waiting.push_back(capsule);
        }
    }

    /// Whether what waits has to wait for its host's turn, which it gets.
    pub(super) fn waits_for_turn(&mut self, io: &mut Io<'_>) -> bool {
        let waits =
            !self.arrivals.waiting.is_empty() && (self.arrivals.is_due || self.takes_turns(io));
        if waits && !self.arrivals.is_due {
            self.arrivals.is_due = true;
            io.resources.due.push(self.host(), self.place);
        }
        waits
    }

    /// It is this queue's turn to begin what waits. Returns how many commands it began.
    pub(crate) fn begin_due(&mut self, io: &mut Io<'_>) -> usize {
        self.arrivals.is_due = false;
        let mut begun = 0;
        while begun < TOGETHER
            && self.state == State::Open
            && self.arrivals.responses.is_empty()
            && !self.slots.is_full()
            && let Some(capsule) = self.arrivals.waiting.pop_front()
        {
            self.begin(capsule, io);
            begun += 1;
        }
        self.settle(io);
        begun
    }
}
