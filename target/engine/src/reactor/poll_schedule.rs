//! Which providers an iteration polls. Some have to ask the kernel, which costs as much
//! as a small command: a quiet one should not slow down the others.

use std::time::Duration;

/// Polls without a result after which a provider counts as quiet.
const QUIET_AFTER: u32 = 256;
/// While others are busy, a quiet provider is polled at this interval. By time, because an
/// iteration may be shorter than the system call of a poll.
const QUIET_INTERVAL: Duration = Duration::from_micros(20);

/// When each provider is polled.
#[derive(Debug, Default)]
pub(super) struct PollSchedule {
    now: Duration,
    /// Whether this iteration polls all, and whether the next one does.
    all: bool,
    all_next: bool,
    providers: Vec<Polls>,
}

/// The polls of one provider.
#[derive(Clone, Copy, Debug, Default)]
struct Polls {
    /// Polls in a row without a result.
    empty: u32,
    /// The last poll.
    at: Duration,
}

impl Polls {
    fn is_quiet(&self) -> bool {
        self.empty >= QUIET_AFTER
    }
}

impl PollSchedule {
    /// Begins an iteration with so many providers. If all are quiet, it polls each of them, so
    /// that the first event is served at once.
    pub(super) fn begin(&mut self, providers: usize, now: Duration) {
        self.now = now;
        self.providers.resize(providers, Polls::default());
        let all_next = std::mem::take(&mut self.all_next);
        self.all = all_next || self.providers.iter().all(Polls::is_quiet);
    }

    /// The reactor may sleep now: the next iteration polls all, because any of them may have
    /// ended the sleep.
    pub(super) fn will_sleep(&mut self) {
        self.all_next = true;
    }

    /// Whether this iteration polls provider `at`.
    pub(super) fn should_poll(&self, at: usize) -> bool {
        let is_due = |polls: &Polls| {
            !polls.is_quiet() || self.now.saturating_sub(polls.at) >= QUIET_INTERVAL
        };
        self.all || self.providers.get(at).is_none_or(is_due)
    }

    /// Records the result of polling provider `at`.
    pub(super) fn polled(&mut self, at: usize, found: bool) {
        if let Some(polls) = self.providers.get_mut(at) {
            polls.at = self.now;
            polls.empty = if found {
                0
            } else {
                polls.empty.saturating_add(1)
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A schedule over two providers, with the time of an iteration.
    struct Bench {
        schedule: PollSchedule,
        now: Duration,
        step: Duration,
    }

    impl Bench {
        fn new(step_ns: u64) -> Self {
            Self {
                schedule: PollSchedule::default(),
                now: Duration::ZERO,
                step: Duration::from_nanos(step_ns),
            }
        }

        /// How often each is polled in 800 iterations, if those in `busy` have events.
        fn polls(&mut self, busy: [bool; 2]) -> [u32; 2] {
            let mut counts = [0; 2];
            for _ in 0..800 {
                self.now += self.step;
                self.schedule.begin(2, self.now);
                for (at, (counts, busy)) in counts.iter_mut().zip(busy).enumerate() {
                    if self.schedule.should_poll(at) {
                        *counts += 1;
                        self.schedule.polled(at, busy);
                    }
                }
            }
            counts
        }
    }

    #[test]
    fn quiet_provider_is_polled_at_intervals_beside_a_busy_one() {
        for (step_ns, expected) in [(100, 4), (1000, 40), (30_000, 800)] {
            let mut bench = Bench::new(step_ns);
            bench.polls([false, true]);
            assert_eq!(bench.polls([false, true]), [expected, 800]);
            // It is polled as often as the other from its first event on.
            bench.polls([true, true]);
            assert_eq!(bench.polls([true, true]), [800, 800]);
            // All are polled if none is busy.
            bench.polls([false, false]);
            assert_eq!(bench.polls([false, false]), [800, 800]);
        }
    }

    #[test]
    fn all_are_polled_after_a_sleep() {
        let mut bench = Bench::new(1);
        bench.polls([false, true]);
        assert!(!bench.schedule.should_poll(0));
        bench.schedule.will_sleep();
        bench.schedule.begin(2, bench.now);
        assert!(bench.schedule.should_poll(0));
        bench.schedule.begin(2, bench.now);
        assert!(!bench.schedule.should_poll(0));
    }

    #[test]
    fn single_provider_is_always_polled() {
        let mut poll_schedule = PollSchedule::default();
        for _ in 0..1000 {
            poll_schedule.begin(1, Duration::ZERO);
            assert!(poll_schedule.should_poll(0));
            poll_schedule.polled(0, false);
        }
    }
}
