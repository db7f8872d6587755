//! Commands that came and are begun when it is their host's turn.
//!
//! What a turn of the reactor begins at once is bounded where there are several hosts,
//! or several I/O queues of one: a command waits for some of each of the others then,
//! not for all that another sent over however many queues.

use super::{Capsule, Edge, Io, State};

/// Commands that one queue begins when it is its host's turn: few, so that others do
/// not wait, but more than one, which would cost each of them a turn of its own.
const TOGETHER: usize = 4;

impl Edge {
    /// Whether a command that comes now has to wait for its host's turn. Those of who
    /// did not say yet who it is do not: few connections are there without a Connect,
    /// each with one command. All others do, also those that enable a controller:
    /// admin queues can carry a flood as any other.
    #[inline]
    pub(super) fn takes_turns(&self, io: &mut Io<'_>) -> bool {
        if self.account.is_none() {
            return false;
        }
        let all_begun = *io.at_once == 0;
        *io.at_once = io.at_once.saturating_sub(1);
        all_begun
    }

    /// A command came whose turn it is not, or that finds others before it: its host was
    /// heard by it, whenever it is begun. A Keep Alive is answered at once where it is
    /// the next: its host takes us for dead that waits too long for that. One of a
    /// queue in each turn, so that these are no flood either.
    #[cold]
    pub(super) fn put_off(&mut self, capsule: Capsule, io: &mut Io<'_>) {
        let bytes = capsule.buf.get(..capsule.len).unwrap_or_default();
        let is_next = self.state == State::Open && self.begins_at_once();
        if self.core.hear_command(io.now, bytes) && is_next && self.kept_alive != Some(io.now) {
            self.kept_alive = Some(io.now);
            self.begin(capsule, io);
        } else {
            self.waiting.push_back(capsule);
        }
    }

    /// Whether what waits has to wait for its host's turn, which it gets.
    pub(super) fn waits_for_turn(&mut self, io: &mut Io<'_>) -> bool {
        let waits = !self.waiting.is_empty() && (self.due || self.takes_turns(io));
        if waits && !self.due {
            self.due = true;
            io.due.push(self.host(), self.place);
        }
        waits
    }

    /// It is this queue's turn to begin what waits. Returns how many commands it began.
    pub(crate) fn begin_due(&mut self, io: &mut Io<'_>) -> usize {
        self.due = false;
        let mut begun = 0;
        while begun < TOGETHER
            && self.state == State::Open
            && self.parked.is_empty()
            && !self.slots.is_full()
            && let Some(capsule) = self.waiting.pop_front()
        {
            self.begin(capsule, io);
            begun += 1;
        }
        self.settle(io);
        begun
    }
}
