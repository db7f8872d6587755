//! Which providers an iteration polls. Some have to ask the kernel, which costs as much
//! as a small command: a quiet one should not slow down the others.

/// Polls without a result after which a provider counts as quiet.
const QUIET_AFTER: u32 = 256;
/// While others are busy, a quiet provider is polled once in so many iterations.
const QUIET_INTERVAL: u32 = 16;

/// How often each provider is polled.
#[derive(Debug, Default)]
pub(super) struct PollSchedule {
    iteration: u32,
    /// For each provider: polls in a row without a result.
    empty_polls: Vec<u32>,
}

impl PollSchedule {
    /// Begins an iteration with so many providers.
    pub(super) fn begin(&mut self, providers: usize) {
        self.iteration = self.iteration.wrapping_add(1);
        self.empty_polls.resize(providers, 0);
    }

    /// Whether this iteration polls provider `at`. If all are quiet, it polls each of
    /// them, so that the first event is served at once.
    pub(super) fn should_poll(&self, at: usize) -> bool {
        let is_quiet = |empty_polls: &u32| *empty_polls >= QUIET_AFTER;
        self.iteration.is_multiple_of(QUIET_INTERVAL)
            || !self.empty_polls.get(at).is_some_and(is_quiet)
            || self.empty_polls.iter().all(is_quiet)
    }

    /// Records the result of polling provider `at`.
    pub(super) fn polled(&mut self, at: usize, found: bool) {
        if let Some(empty_polls) = self.empty_polls.get_mut(at) {
            *empty_polls = if found {
                0
            } else {
                empty_polls.saturating_add(1)
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each of two providers is polled in 160 iterations, if those in `busy`
    /// have events.
    fn polls(poll_schedule: &mut PollSchedule, busy: [bool; 2]) -> [u32; 2] {
        let mut counts = [0; 2];
        for _ in 0..160 {
            poll_schedule.begin(2);
            for (at, (counts, busy)) in counts.iter_mut().zip(busy).enumerate() {
                if poll_schedule.should_poll(at) {
                    *counts += 1;
                    poll_schedule.polled(at, busy);
                }
            }
        }
        counts
    }

    #[test]
    fn quiet_provider_is_polled_seldom_beside_a_busy_one() {
        let mut poll_schedule = PollSchedule::default();
        for _ in 0..2 {
            polls(&mut poll_schedule, [false, true]);
        }
        assert_eq!(polls(&mut poll_schedule, [false, true]), [10, 160]);
        // It is polled as often as the other from its first event on.
        assert_eq!(polls(&mut poll_schedule, [true, true])[1], 160);
        assert_eq!(polls(&mut poll_schedule, [true, true]), [160, 160]);
        // All are polled if none is busy.
        polls(&mut poll_schedule, [false, false]);
        polls(&mut poll_schedule, [false, false]);
        assert_eq!(polls(&mut poll_schedule, [false, false]), [160, 160]);
    }

    #[test]
    fn single_provider_is_always_polled() {
        let mut poll_schedule = PollSchedule::default();
        for _ in 0..1000 {
            poll_schedule.begin(1);
            assert!(poll_schedule.should_poll(0));
            poll_schedule.polled(0, false);
        }
    }
}
