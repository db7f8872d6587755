//! When somebody who polls and finds nothing to do polls again, lets others
//! run, or sleeps.
//!
//! Waking up a thread takes longer than most commands do, so it pays to look
//! for a while before sleeping; how long, nobody knows beforehand. As KVM does
//! for halted CPUs (Linux, Documentation/virt/kvm/halt-polling.rst), the
//! time is learned from the sleeps: after one so short that looking for longer
//! would have saved it, it is doubled; after one that was longer than any
//! looking, it is halved.
//!
//! The one who has work for us may wait for our CPU, so that it is offered to
//! others now and then, and in each turn without work once somebody took it. Where
//! somebody keeps it for long each time, sleeping is better than offering.

#![forbid(unsafe_code)]

mod others;

use std::time::Duration;

use others::Others;

/// How to poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollingConfig {
    /// Longest time to look for work before sleeping.
    pub longest: Duration,
    /// Whether it is shortened while looking does not pay, and others get the
    /// CPU meanwhile. Without, nobody gets it before that time is over.
    pub learns: bool,
}

/// What turns came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollCounts {
    /// Turns in which there was something to do.
    pub useful: u64,
    /// Turns in which there was nothing.
    pub empty: u64,
    /// Times it slept.
    pub sleeps: u64,
}

/// What to do after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterTurn {
    /// Turn again.
    Turn,
    /// Let somebody else have the CPU ([`Polling::give_way`]), and turn again.
    Yield,
    /// Sleep, if there is nothing left that would not wake us, and say for how
    /// long ([`Polling::slept`]).
    Sleep,
}

/// How one thread polls, and what came of it. Time is an argument: since any
/// fixed moment.
#[derive(Debug)]
pub struct Polling {
    config: PollingConfig,
    /// How long it looks at the moment.
    window: Duration,
    last_work: Duration,
    /// Empty turns in a row.
    in_a_row: u32,
    others: Others,
    counts: PollCounts,
}

/// The shortest time worth looking: below it, it is nothing.
const SHORTEST: Duration = Duration::from_micros(10);

impl Polling {
    /// Begins at `now` with the longest time.
    #[must_use]
    pub fn new(config: PollingConfig, now: Duration) -> Self {
        Self {
            config,
            window: config.longest,
            last_work: now,
            in_a_row: 0,
            others: Others::new(now),
            counts: PollCounts::default(),
        }
    }

    /// What turns came to until now.
    #[must_use]
    pub fn counts(&self) -> PollCounts {
        self.counts
    }

    /// A turn that began at `now` ended.
    #[inline]
    #[must_use]
    pub fn turned(&mut self, did_work: bool, now: Duration) -> AfterTurn {
        if did_work {
            self.counts.useful += 1;
            self.last_work = now;
            self.in_a_row = 0;
        } else {
            self.counts.empty += 1;
            self.in_a_row = self.in_a_row.wrapping_add(1);
            if now.saturating_sub(self.last_work) >= self.window_at(now) {
                return AfterTurn::Sleep;
            }
        }
        self.kept_awake(now)
    }

    /// What to do in the place of sleeping, when there is something left that would not
    /// wake us.
    #[must_use]
    pub fn kept_awake(&self, now: Duration) -> AfterTurn {
        if self.config.learns && self.others.are_due(self.in_a_row, now) {
            AfterTurn::Yield
        } else {
            AfterTurn::Turn
        }
    }

    /// How long to look: where others keep the CPU, no longer than who answers at
    /// once needs for it.
    fn window_at(&self, now: Duration) -> Duration {
        if self.others.keep_it(now) {
            self.window.min(SHORTEST)
        } else {
            self.window
        }
    }

    /// Lets others have the CPU, and learns whether anybody wanted it. `clock` is
    /// the time as elsewhere.
    pub fn give_way(&mut self, clock: impl Fn() -> Duration) {
        self.others.let_run(clock);
    }

    /// It slept for `time`.
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
    fn it_looks_for_a_while_lets_others_run_and_sleeps() {
        let mut polling = polling(US(100), true);
        assert_eq!(polling.turned(true, US(100)), AfterTurn::Turn);
        let next: Vec<AfterTurn> = (1..=17)
            .map(|n| polling.turned(false, US(100 + n)))
            .collect();
        for (at, next) in (1..).zip(next) {
            let expected = if at % 8 == 0 {
                AfterTurn::Yield
            } else {
                AfterTurn::Turn
            };
            assert_eq!(next, expected, "empty turn {at}");
        }
        assert_eq!(polling.turned(false, US(200)), AfterTurn::Sleep);
        assert_eq!(polling.turned(true, US(300)), AfterTurn::Turn);
        assert_eq!(
            polling.turned(false, US(301)),
            AfterTurn::Turn,
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
    fn long_sleeps_shorten_the_looking_and_short_ones_lengthen_it() {
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
        assert_eq!(polling.turned(true, US(900)), AfterTurn::Turn);
        assert_eq!(polling.turned(false, US(949)), AfterTurn::Turn);
        assert_eq!(polling.turned(false, US(950)), AfterTurn::Sleep);
        assert_eq!(polling.counts().sleeps, 12);
    }

    #[test]
    fn without_work_for_long_it_does_not_look_at_all() {
        let mut polling = polling(US(100), true);
        (0..5).for_each(|_| polling.slept(US(1_000_000)));
        assert_eq!(polling.turned(true, US(10)), AfterTurn::Turn);
        assert_eq!(polling.turned(false, US(10)), AfterTurn::Sleep);
    }

    #[test]
    fn who_does_not_learn_keeps_the_time() {
        let mut latency = polling(US(10_000), false);
        let mut efficiency = polling(US(0), false);
        for polling in [&mut latency, &mut efficiency] {
            for time in [1, 1_000_000] {
                polling.slept(US(time));
            }
            assert_eq!(polling.turned(true, US(1)), AfterTurn::Turn);
        }
        assert_eq!(latency.turned(false, US(9_999)), AfterTurn::Turn);
        assert_eq!(latency.turned(false, US(10_001)), AfterTurn::Sleep);
        assert_eq!(efficiency.turned(false, US(1)), AfterTurn::Sleep);
    }

    #[test]
    fn who_says_not_to_look_is_obeyed() {
        let mut polling = polling(US(0), true);
        polling.slept(Duration::ZERO);
        assert_eq!(polling.window, Duration::ZERO);
    }

    #[test]
    fn where_others_keep_the_processor_it_does_not_look_for_long() {
        let mut one = polling(US(100), true);
        (0..2).for_each(|_| one.others.had_it(Some(US(3000)), US(0)));
        assert_eq!(one.turned(true, US(10)), AfterTurn::Turn);
        assert_eq!(one.turned(false, US(19)), AfterTurn::Turn);
        assert_eq!(one.turned(false, US(20)), AfterTurn::Sleep);
        assert_eq!(one.kept_awake(US(20)), AfterTurn::Turn, "keeps what it has");
    }

    #[test]
    fn who_cannot_sleep_lets_others_run() {
        let mut polling = polling(US(100), true);
        polling.others.had_it(Some(US(3)), US(1));
        assert_eq!(polling.turned(false, US(500)), AfterTurn::Sleep);
        assert_eq!(polling.kept_awake(US(500)), AfterTurn::Yield);
    }

    #[test]
    fn who_does_not_learn_gives_nobody_the_processor() {
        let mut latency = polling(US(10_000), false);
        latency.others.had_it(Some(US(3)), US(0));
        assert_eq!(latency.turned(true, US(3_000)), AfterTurn::Turn);
        assert_eq!(latency.turned(false, US(3_001)), AfterTurn::Turn);
    }
}
