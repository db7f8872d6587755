//! When somebody who polls and finds nothing to do polls again, lets others
//! run, or sleeps.
//!
//! Waking up a thread takes longer than most commands do, so it pays to look
//! for a while before sleeping; how long, nobody knows beforehand. As KVM does
//! for halted processors (Linux, Documentation/virt/kvm/halt-polling.rst), the
//! time is learned from the sleeps: after one so short that looking for longer
//! would have saved it, it is doubled; after one that was longer than any
//! looking, it is halved.
//!
//! The one who has work for us may wait for our processor, so that it is given
//! to others now and then. Where somebody else does take it, he keeps it for
//! milliseconds, while one who sleeps gets it back when there is work: then
//! sleeping is better than looking.

use std::time::Duration;

/// How to poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollingConfig {
    /// Longest time to look for work before sleeping.
    pub longest: Duration,
    /// Whether it is shortened while looking does not pay, and others get the
    /// processor meanwhile. Without, nobody gets it before that time is over.
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
    /// Let somebody else have the processor, say how long that took
    /// ([`Polling::yielded`]), and turn again.
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
    /// Until when others need the processor.
    crowded_until: Duration,
    /// Times in a row that others took it.
    taken: u32,
    /// Empty turns in a row, and after how many of them others get the processor.
    in_a_row: u32,
    patience: u32,
    counts: PollCounts,
}

/// The shortest time worth looking: below it, it is nothing.
const SHORTEST: Duration = Duration::from_micros(10);
/// Empty turns after which others get the processor.
const PATIENCE: u32 = 8;
/// The same at most: twice as many each time that nobody takes it. To offer it is
/// a system call, which takes as long as some turns and can come between us and
/// what we look for.
const MOST_PATIENCE: u32 = 64;
/// Who gets the processor back after less than this had it for himself.
const ALONE: Duration = Duration::from_micros(5);
/// Times in a row that others take the processor before it is believed that
/// they need it.
const WANTED: u32 = 3;
/// How long it is believed that others need the processor: finding out costs
/// as much as they keep it for.
const CROWDED: Duration = Duration::from_millis(200);

impl Polling {
    /// Begins at `now` with the longest time.
    #[must_use]
    pub fn new(config: PollingConfig, now: Duration) -> Self {
        Self {
            config,
            window: config.longest,
            last_work: now,
            crowded_until: now,
            taken: 0,
            in_a_row: 0,
            patience: PATIENCE,
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
            return AfterTurn::Turn;
        }
        self.counts.empty += 1;
        self.in_a_row = self.in_a_row.wrapping_add(1);
        if now.saturating_sub(self.last_work) >= self.window || now < self.crowded_until {
            AfterTurn::Sleep
        } else if self.config.learns && self.in_a_row.is_multiple_of(self.patience) {
            AfterTurn::Yield
        } else {
            AfterTurn::Turn
        }
    }

    /// Others could have the processor for `time`, until `now`.
    pub fn yielded(&mut self, time: Duration, now: Duration) {
        if !self.config.learns || time < ALONE {
            self.taken = 0;
            self.patience = (self.patience * 2).min(MOST_PATIENCE);
            return;
        }
        self.patience = PATIENCE;
        // The kernel itself takes it for a moment now and then.
        self.taken += 1;
        if self.taken == WANTED {
            self.taken = 0;
            self.crowded_until = now + CROWDED;
        }
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
        assert_eq!(polling.turned(true, US(1000)), AfterTurn::Turn);
        let next: Vec<AfterTurn> = (1..=17)
            .map(|n| polling.turned(false, US(1000 + n)))
            .collect();
        for (at, next) in (1..).zip(next) {
            let expected = if at % 8 == 0 {
                AfterTurn::Yield
            } else {
                AfterTurn::Turn
            };
            assert_eq!(next, expected, "empty turn {at}");
        }
        assert_eq!(polling.turned(false, US(1100)), AfterTurn::Sleep);
        assert_eq!(polling.turned(true, US(1200)), AfterTurn::Turn);
        assert_eq!(
            polling.turned(false, US(1201)),
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
    fn whom_nobody_asks_for_the_processor_offers_it_less_often() {
        let mut polling = polling(US(10_000), true);
        assert_eq!(polling.turned(true, US(0)), AfterTurn::Turn);
        let mut turns_until_yield = |took: Duration| {
            let yields = |_: &u32| polling.turned(false, US(1)) == AfterTurn::Yield;
            let turns = (1..=1000).find(yields);
            polling.yielded(took, US(1));
            turns
        };
        let alone: Vec<_> = (0..6).map(|_| turns_until_yield(US(1))).collect();
        assert_eq!(alone, [8, 8, 16, 32, 64, 64].map(Some));
        assert_eq!(turns_until_yield(US(3000)), Some(64), "somebody took it");
        assert_eq!(turns_until_yield(US(1)), Some(8));
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
        assert_eq!(polling.turned(true, US(9000)), AfterTurn::Turn);
        assert_eq!(polling.turned(false, US(9049)), AfterTurn::Turn);
        assert_eq!(polling.turned(false, US(9050)), AfterTurn::Sleep);
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
    fn where_others_take_the_processor_it_sleeps_instead_of_looking() {
        let mut one = polling(US(100), true);
        for time in [3000, 3000, 4, 3000, 3000] {
            one.yielded(US(time), US(10));
            assert_eq!(one.turned(true, US(10)), AfterTurn::Turn);
            assert_eq!(one.turned(false, US(11)), AfterTurn::Turn, "now and then");
        }
        one.yielded(US(3000), US(3010));
        for now in [3010, 203_009] {
            assert_eq!(one.turned(true, US(now)), AfterTurn::Turn);
            assert_eq!(one.turned(false, US(now)), AfterTurn::Sleep);
        }
        assert_eq!(one.turned(true, US(203_010)), AfterTurn::Turn);
        assert_eq!(
            one.turned(false, US(203_010)),
            AfterTurn::Turn,
            "tries again"
        );

        let mut other = polling(US(10_000), false);
        (0..3).for_each(|_| other.yielded(US(3000), US(3010)));
        for _ in 0..2 * PATIENCE {
            assert_eq!(other.turned(false, US(3011)), AfterTurn::Turn);
        }
        assert_eq!(
            other.turned(false, US(3011)),
            AfterTurn::Turn,
            "does not learn"
        );
    }
}
