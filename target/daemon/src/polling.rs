//! When a reactor that finds nothing to do looks again, lets others run, or
//! sleeps.
//!
//! Waking up a thread takes longer than most commands do, so it pays to look
//! for a while before sleeping; how long, nobody knows beforehand. As KVM does
//! for halted processors (Linux, Documentation/virt/kvm/halt-polling.rst), the
//! time is learned from the sleeps: after one so short that looking for longer
//! would have saved it, it is doubled; after one that was longer than any
//! looking, it is halved.

use std::time::Duration;

use serde::Deserialize;

/// What a reactor is to be good at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// Both: it learns how long looking pays.
    #[default]
    Adaptive,
    /// Answers at once: it looks long before it sleeps.
    Latency,
    /// Leaves the processor to others: it does not look before it sleeps.
    Efficiency,
}

/// How a reactor polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollingConfig {
    /// Longest time to look for work before sleeping.
    pub longest: Duration,
    /// Whether it is shortened while looking does not pay.
    pub learns: bool,
}

impl PollingConfig {
    /// The preset, with another longest time if one is given.
    #[must_use]
    pub fn new(preset: Preset, longest: Option<Duration>) -> Self {
        let usual = match preset {
            Preset::Adaptive => 100,
            Preset::Latency => 10_000,
            Preset::Efficiency => 0,
        };
        Self {
            longest: longest.unwrap_or(Duration::from_micros(usual)),
            learns: preset == Preset::Adaptive,
        }
    }
}

/// What turns came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PollCounts {
    /// Turns in which there was something to do.
    pub(crate) useful: u64,
    /// Turns in which there was nothing.
    pub(crate) empty: u64,
    /// Times it slept.
    pub(crate) sleeps: u64,
}

/// What to do after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Turn again.
    Turn,
    /// Let somebody else have the processor, then turn again.
    Yield,
    /// Sleep, if there is nothing left that would not wake us.
    Sleep,
}

/// How one reactor polls, and what came of it.
#[derive(Debug)]
pub(crate) struct Polling {
    config: PollingConfig,
    /// How long it looks at the moment.
    window: Duration,
    last_work: Duration,
    /// Empty turns in a row.
    in_a_row: u32,
    counts: PollCounts,
}

/// The shortest time worth looking: below it, it is nothing.
const SHORTEST: Duration = Duration::from_micros(10);
/// Empty turns after which others get the processor: the one who has work for
/// us may wait for it. With a processor of our own that costs next to nothing.
const PATIENCE: u32 = 8;

impl Polling {
    pub(crate) fn new(config: PollingConfig, now: Duration) -> Self {
        Self {
            config,
            window: config.longest,
            last_work: now,
            in_a_row: 0,
            counts: PollCounts::default(),
        }
    }

    pub(crate) fn counts(&self) -> PollCounts {
        self.counts
    }

    /// A turn that began at `now` ended.
    pub(crate) fn turned(&mut self, did_work: bool, now: Duration) -> Next {
        if did_work {
            self.counts.useful += 1;
            self.last_work = now;
            self.in_a_row = 0;
            return Next::Turn;
        }
        self.counts.empty += 1;
        self.in_a_row = self.in_a_row.wrapping_add(1);
        if now.saturating_sub(self.last_work) >= self.window {
            Next::Sleep
        } else if self.in_a_row.is_multiple_of(PATIENCE) {
            Next::Yield
        } else {
            Next::Turn
        }
    }

    /// It slept for `time`.
    pub(crate) fn slept(&mut self, time: Duration) {
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

    fn polling(preset: Preset) -> Polling {
        Polling::new(PollingConfig::new(preset, None), Duration::ZERO)
    }

    #[test]
    fn it_looks_for_a_while_lets_others_run_and_sleeps() {
        let mut polling = polling(Preset::Adaptive);
        assert_eq!(polling.turned(true, US(1000)), Next::Turn);
        let next: Vec<Next> = (1..=17)
            .map(|n| polling.turned(false, US(1000 + n)))
            .collect();
        for (at, next) in (1..).zip(next) {
            let expected = if at % 8 == 0 { Next::Yield } else { Next::Turn };
            assert_eq!(next, expected, "empty turn {at}");
        }
        assert_eq!(polling.turned(false, US(1100)), Next::Sleep);
        assert_eq!(polling.turned(true, US(1200)), Next::Turn);
        assert_eq!(
            polling.turned(false, US(1201)),
            Next::Turn,
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
        let mut polling = polling(Preset::Adaptive);
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
        polling.turned(true, US(9000));
        assert_eq!(polling.turned(false, US(9049)), Next::Turn);
        assert_eq!(polling.turned(false, US(9050)), Next::Sleep);
        assert_eq!(polling.counts().sleeps, 12);
    }

    #[test]
    fn without_work_for_long_an_adaptive_reactor_does_not_look_at_all() {
        let mut polling = polling(Preset::Adaptive);
        (0..5).for_each(|_| polling.slept(US(1_000_000)));
        polling.turned(true, US(10));
        assert_eq!(polling.turned(false, US(10)), Next::Sleep);
    }

    #[test]
    fn presets_that_do_not_learn_keep_their_time() {
        let mut latency = polling(Preset::Latency);
        let mut efficiency = polling(Preset::Efficiency);
        for polling in [&mut latency, &mut efficiency] {
            for time in [1, 1_000_000] {
                polling.slept(US(time));
            }
            polling.turned(true, US(1));
        }
        assert_eq!(latency.turned(false, US(9_999)), Next::Turn);
        assert_eq!(latency.turned(false, US(10_001)), Next::Sleep);
        assert_eq!(efficiency.turned(false, US(1)), Next::Sleep);
    }

    #[test]
    fn who_says_not_to_look_is_obeyed() {
        let config = PollingConfig::new(Preset::Adaptive, Some(Duration::ZERO));
        let mut polling = Polling::new(config, Duration::ZERO);
        polling.slept(Duration::ZERO);
        assert_eq!(polling.window, Duration::ZERO);
    }
}
