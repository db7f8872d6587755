//! The rate at which a queue starts operations.

use std::time::Duration;

/// Counts operations against a rate. Operations start at the beginning of each millisecond, so
/// that a rate has the same batches on every machine; late ones start as soon as possible.
#[derive(Debug)]
pub(super) struct Pace {
    /// Operations in each second; `None`: no limit.
    rate: Option<u64>,
    started: u64,
}

impl Pace {
    /// The share of queue `at` in a rate of `queues` queues.
    pub(super) fn new(rate: Option<u32>, at: u16, queues: u16) -> Self {
        let (at, queues) = (u64::from(at), u64::from(queues.max(1)));
        // The first queues have the remainder.
        let share = |rate| (u64::from(rate) + queues - 1 - at) / queues;
        Self {
            rate: rate.map(share),
            started: 0,
        }
    }

    /// Whether another operation may start after this time.
    pub(super) fn allows(&self, passed: Duration) -> bool {
        let Some(rate) = self.rate else {
            return true;
        };
        let millis = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        let due = rate.saturating_mul(millis.saturating_add(1)) / 1000;
        self.started < due
    }

    /// For how long no operation may start after this time, at most: until the next
    /// millisecond. `None` without a rate.
    pub(super) fn wait(&self, passed: Duration) -> Option<Duration> {
        let into = u64::from(passed.subsec_nanos() % 1_000_000);
        self.rate.map(|_| Duration::from_nanos(1_000_000 - into))
    }

    pub(super) fn started(&mut self) {
        self.started += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_millisecond_starts_its_operations() {
        let mut pace = Pace::new(Some(2500), 0, 1);
        let mut start_at = |micros| {
            let mut count = 0;
            while pace.allows(Duration::from_micros(micros)) {
                pace.started();
                count += 1;
            }
            count
        };
        assert_eq!([0, 999, 1000, 1001].map(&mut start_at), [2, 0, 3, 0]);
        assert_eq!(start_at(9000), 20, "late ones");
        assert!(Pace::new(None, 0, 1).allows(Duration::ZERO));
    }

    #[test]
    fn next_operation_may_start_in_the_next_millisecond() {
        let wait = |micros| Pace::new(Some(7), 0, 1).wait(Duration::from_micros(micros));
        assert_eq!(wait(0), Some(Duration::from_millis(1)));
        assert_eq!(wait(5_400), Some(Duration::from_micros(600)));
        assert_eq!(Pace::new(None, 0, 1).wait(Duration::ZERO), None);
    }

    #[test]
    fn queues_share_the_rate() {
        let shares = [0, 1, 2].map(|at| Pace::new(Some(200), at, 3).rate);
        assert_eq!(shares, [Some(67), Some(67), Some(66)]);
        assert_eq!(Pace::new(Some(1), 1, 2).rate, Some(0));
    }
}
