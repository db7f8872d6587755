//! Adaptive polling: decides whether a thread that found no work polls again, yields the
//! CPU, or sleeps.
//!
//! Waking a thread takes longer than most commands, so it pays to poll for a while before
//! sleeping. The best time is learned from the sleeps, as KVM does for halted CPUs
//! (Linux, Documentation/virt/kvm/halt-polling.rst). It is doubled after a sleep so short
//! that longer polling would have avoided it, and halved after a longer one.
//!
//! The thread that has work for this one may wait for the same CPU. The CPU is therefore
//! yielded now and then, and after each iteration without work once another thread took
//! it. If another thread keeps it for long each time, sleeping is better than yielding.
//!
//! ```
//! use std::time::Duration;
//!
//! use nvmeof_polling::{NextStep, Polling, PollingConfig};
//!
//! let config = PollingConfig {
//!     longest: Duration::from_micros(50),
//!     learns: false,
//! };
//! let mut polling = Polling::new(config, Duration::ZERO);
//! let us = Duration::from_micros;
//! assert_eq!(polling.after_iteration(true, us(0)), NextStep::Continue);
//! assert_eq!(polling.after_iteration(false, us(49)), NextStep::Continue);
//! assert_eq!(polling.after_iteration(false, us(50)), NextStep::Sleep);
//! ```

#![forbid(unsafe_code)]

mod others;

use std::time::Duration;

use others::Others;

/// Configuration of polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollingConfig {
    /// Longest time to poll before sleeping.
    pub longest: Duration,
    /// Whether to shorten that time while polling does not pay off, and to yield the CPU
    /// meanwhile. If not, the thread never yields.
    pub learns: bool,
}

/// Counts of iterations and sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollCounts {
    /// Iterations that found work.
    pub useful: u64,
    /// Iterations that found none.
    pub empty: u64,
    /// Sleeps.
    pub sleeps: u64,
}

/// What to do after an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Run the next iteration.
    Continue,
    /// Yield the CPU ([`Polling::yield_cpu`]), then run the next iteration.
    Yield,
    /// Sleep, unless work is left that would not wake the thread, and report for how long
    /// ([`Polling::slept`]).
    Sleep,
}

/// The polling state of one thread. Times are relative to any fixed moment.
#[derive(Debug)]
pub struct Polling {
    config: PollingConfig,
    /// How long to poll before sleeping at present.
    window: Duration,
    last_work: Duration,
    /// Iterations without work in a row.
    empty_in_a_row: u32,
    others: Others,
    counts: PollCounts,
}

/// The shortest time worth polling; below it, the thread sleeps at once.
const SHORTEST: Duration = Duration::from_micros(10);

impl Polling {
    /// Starts at `now` with the longest time.
    #[must_use]
    pub fn new(config: PollingConfig, now: Duration) -> Self {
        Self {
            config,
            window: config.longest,
            last_work: now,
            empty_in_a_row: 0,
            others: Others::new(now),
            counts: PollCounts::default(),
        }
    }

    /// Counts up to now.
    #[must_use]
    pub fn counts(&self) -> PollCounts {
        self.counts
    }

    /// Whether it adapts to what polling finds: see [`PollingConfig::learns`].
    #[inline]
    #[must_use]
    pub fn adapts(&self) -> bool {
        self.config.learns
    }

    /// An iteration that began at `now` ended.
    #[inline]
    #[must_use]
    pub fn after_iteration(&mut self, did_work: bool, now: Duration) -> NextStep {
        if did_work {
            self.counts.useful += 1;
            self.last_work = now;
            self.empty_in_a_row = 0;
        } else {
            self.counts.empty += 1;
            self.empty_in_a_row = self.empty_in_a_row.wrapping_add(1);
            if now.saturating_sub(self.last_work) >= self.poll_window(now) {
                return NextStep::Sleep;
            }
        }
        self.without_sleep(now)
    }

    /// What to do instead of sleeping if work is left that would not wake the thread.
    #[must_use]
    pub fn without_sleep(&self, now: Duration) -> NextStep {
        if self.config.learns && self.others.yield_is_due(self.empty_in_a_row, now) {
            NextStep::Yield
        } else {
            NextStep::Continue
        }
    }

    /// How long to poll: if other threads keep the CPU for long, no longer than a peer
    /// that responds at once needs.
    fn poll_window(&self, now: Duration) -> Duration {
        if self.others.keep_cpu(now) {
            self.window.min(SHORTEST)
        } else {
            self.window
        }
    }

    /// Yields the CPU, and learns whether another thread took it. `clock` has the same
    /// origin as the other times.
    pub fn yield_cpu(&mut self, clock: impl Fn() -> Duration) {
        self.others.yield_cpu(clock);
    }

    /// The thread slept for `time`.
    pub fn slept(&mut self, time: Duration) {
        self.counts.sleeps += 1;
        if !self.config.learns {
            return;
        }
        self.window = if time <= self.config.longest {
            (self.window * 2).max(SHORTEST).min(self.config.longest)
        } else if self.window / 2 < SHORTEST {
            Duration::ZERO
        } else {
            self.window / 2
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    fn polling(longest: Duration, learns: bool) -> Polling {
        Polling::new(PollingConfig { longest, learns }, Duration::ZERO)
    }

    #[test]
    fn idle_thread_polls_yields_and_sleeps() {
        let mut polling = polling(US(100), true);
        assert_eq!(polling.after_iteration(true, US(100)), NextStep::Continue);
        let next: Vec<NextStep> = (1..=17)
            .map(|n| polling.after_iteration(false, US(100 + n)))
            .collect();
        for (at, next) in (1..).zip(next) {
            let expected = if at % 8 == 0 {
                NextStep::Yield
            } else {
                NextStep::Continue
            };
            assert_eq!(next, expected, "empty iteration {at}");
        }
        assert_eq!(polling.after_iteration(false, US(200)), NextStep::Sleep);
        assert_eq!(polling.after_iteration(true, US(300)), NextStep::Continue);
        assert_eq!(
            polling.after_iteration(false, US(301)),
            NextStep::Continue,
            "counts from 1 again"
        );
        let counts = PollCounts {
            useful: 2,
            empty: 19,
            sleeps: 0,
        };
        assert_eq!(polling.counts(), counts);
    }

    #[test]
    fn long_sleeps_shorten_polling_and_short_ones_lengthen_it() {
        let mut polling = polling(US(100), true);
        let mut windows = Vec::new();
        for time in [5000, 5000, 5000, 5000, 5000, 20, 20, 20, 20, 20, 20, 101] {
            polling.slept(US(time));
            windows.push(polling.window);
        }
        let expected = [
            50.0, 25.0, 12.5, 0.0, 0.0, 10.0, 20.0, 40.0, 80.0, 100.0, 100.0, 50.0,
        ];
        let expected = expected.map(|us: f64| Duration::from_secs_f64(us / 1e6));
        assert_eq!(windows, expected);
        assert_eq!(polling.after_iteration(true, US(900)), NextStep::Continue);
        assert_eq!(polling.after_iteration(false, US(949)), NextStep::Continue);
        assert_eq!(polling.after_iteration(false, US(950)), NextStep::Sleep);
        assert_eq!(polling.counts().sleeps, 12);
    }

    #[test]
    fn idle_thread_stops_polling() {
        let mut polling = polling(US(100), true);
        (0..5).for_each(|_| polling.slept(US(1_000_000)));
        assert_eq!(polling.after_iteration(true, US(10)), NextStep::Continue);
        assert_eq!(polling.after_iteration(false, US(10)), NextStep::Sleep);
    }

    #[test]
    fn fixed_polling_time_is_kept() {
        let mut latency = polling(US(10_000), false);
        let mut efficiency = polling(US(0), false);
        for polling in [&mut latency, &mut efficiency] {
            for time in [1, 1_000_000] {
                polling.slept(US(time));
            }
            assert_eq!(polling.after_iteration(true, US(1)), NextStep::Continue);
        }
        assert_eq!(
            latency.after_iteration(false, US(9_999)),
            NextStep::Continue
        );
        assert_eq!(latency.after_iteration(false, US(10_001)), NextStep::Sleep);
        assert_eq!(efficiency.after_iteration(false, US(1)), NextStep::Sleep);
    }

    #[test]
    fn zero_polling_time_is_kept() {
        let mut polling = polling(US(0), true);
        polling.slept(Duration::ZERO);
        assert_eq!(polling.window, Duration::ZERO);
    }

    #[test]
    fn polling_is_short_while_others_keep_the_cpu() {
        let mut one = polling(US(100), true);
        (0..2).for_each(|_| one.others.record_yield(Some(US(3000)), US(0)));
        assert_eq!(one.after_iteration(true, US(10)), NextStep::Continue);
        assert_eq!(one.after_iteration(false, US(19)), NextStep::Continue);
        assert_eq!(one.after_iteration(false, US(20)), NextStep::Sleep);
        assert_eq!(
            one.without_sleep(US(20)),
            NextStep::Continue,
            "keeps what it has"
        );
    }

    #[test]
    fn thread_that_cannot_sleep_yields() {
        let mut polling = polling(US(100), true);
        polling.others.record_yield(Some(US(3)), US(1));
        assert_eq!(polling.after_iteration(false, US(500)), NextStep::Sleep);
        assert_eq!(polling.without_sleep(US(500)), NextStep::Yield);
    }

    #[test]
    fn fixed_polling_never_yields() {
        let mut latency = polling(US(10_000), false);
        latency.others.record_yield(Some(US(3)), US(0));
        assert_eq!(latency.after_iteration(true, US(3_000)), NextStep::Continue);
        assert_eq!(
            latency.after_iteration(false, US(3_001)),
            NextStep::Continue
        );
    }
}
