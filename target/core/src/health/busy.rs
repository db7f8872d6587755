//! For how long commands were outstanding on any I/O queue of a subsystem.

use std::time::Duration;

/// Ticks of a second: 59 of 2^24 nanoseconds, and a shorter one.
const PER_SECOND: u64 = 60;

/// The tick of a queue that has no commands outstanding: later than all.
pub(super) const IDLE: u64 = u64::MAX;

/// The time in ticks of about 17 milliseconds. A tick counts as a whole, so that a
/// queue updates the busy time once per tick, not for each command.
#[inline]
pub(super) fn tick(now: Duration) -> u64 {
    now.as_secs() * PER_SECOND + u64::from(now.subsec_nanos() >> 24)
}

/// The ticks that were counted.
#[derive(Debug, Default)]
pub(super) struct Busy {
    /// The first one that is not included yet.
    next: u64,
    count: u64,
}

impl Busy {
    /// Commands were outstanding from `since` on, or from earlier, and are at
    /// `tick`.
    pub(super) fn until(&mut self, since: u64, tick: u64) {
        let first = since.max(self.next);
        if first <= tick {
            self.next = tick.saturating_add(1);
            self.count += self.next - first;
        }
    }

    pub(super) fn minutes(&self) -> u64 {
        self.count / (60 * PER_SECOND)
    }
}
