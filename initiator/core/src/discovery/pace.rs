//! When the log page of a discovery service is read again.

use std::time::Duration;

/// The times of reads of one log page. A service that changes its page all the time is read once
/// a second, and less often if the page changes during each read.
#[derive(Clone, Debug)]
pub struct ReadPace {
    /// Time between reads of a service that does not report changes; `None` if it does.
    interval: Option<Duration>,
    is_requested: bool,
    /// Not before this time.
    earliest: Duration,
    /// When to read without a request.
    due: Option<Duration>,
    /// Consecutive reads that did not end, because the page changed meanwhile.
    unstable: u32,
}

/// The shortest time between two reads.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest time until a page that changed during a read is read again.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl ReadPace {
    /// The first read is due at `now`. A service that reports changes has no `interval`.
    #[must_use]
    pub fn new(interval: Option<Duration>, now: Duration) -> Self {
        Self {
            interval,
            is_requested: true,
            earliest: now,
            due: None,
            unstable: 0,
        }
    }

    /// The service reported a change.
    pub fn request(&mut self) {
        self.is_requested = true;
    }

    /// Whether to read at `now`. If so, call [`completed`](Self::completed) or
    /// [`changed`](Self::changed) when the read ends.
    pub fn poll(&mut self, now: Duration) -> bool {
        let is_due = self.next_deadline().is_some_and(|at| at <= now);
        if is_due {
            self.is_requested = false;
            self.due = None;
        }
        is_due
    }

    /// When to [`poll`](Self::poll) next, if the service reports no change.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        match self.is_requested {
            true => Some(self.earliest),
            false => self.due,
        }
    }

    /// The page was read.
    pub fn completed(&mut self, now: Duration) {
        self.unstable = 0;
        self.earliest = now.saturating_add(PAUSE);
        self.due = self
            .interval
            .map(|interval| now.saturating_add(interval.max(PAUSE)));
    }

    /// The page changed during each attempt to read it. Returns whether the previous read had
    /// succeeded: this is to be logged.
    pub fn changed(&mut self, now: Duration) -> bool {
        let factor = 1u32.checked_shl(self.unstable).unwrap_or(u32::MAX);
        self.unstable = self.unstable.saturating_add(1);
        self.earliest = now.saturating_add(PAUSE.saturating_mul(factor).min(LONGEST_PAUSE));
        self.is_requested = true;
        self.unstable == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn page_is_read_at_once_and_on_request() {
        let mut pace = ReadPace::new(None, S(5));
        assert!(pace.poll(S(5)) && !pace.poll(S(5)));
        pace.completed(S(6));
        assert_eq!(pace.next_deadline(), None);
        assert!(!pace.poll(S(1000)));
        pace.request();
        assert!(pace.poll(S(1000)));
    }

    #[test]
    fn requests_are_served_once_a_second() {
        let mut pace = ReadPace::new(None, S(0));
        assert!(pace.poll(S(0)));
        pace.completed(S(0));
        let mut reads = 0;
        for tick in 0..100 {
            pace.request();
            let now = Duration::from_millis(tick * 100);
            if pace.poll(now) {
                reads += 1;
                pace.completed(now);
            }
        }
        assert_eq!(reads, 9);
    }

    #[test]
    fn service_without_notices_is_read_at_intervals() {
        let mut pace = ReadPace::new(Some(S(60)), S(0));
        assert!(pace.poll(S(0)));
        pace.completed(S(1));
        assert_eq!(pace.next_deadline(), Some(S(61)));
        assert!(!pace.poll(S(60)) && pace.poll(S(61)));
    }

    #[test]
    fn page_that_always_changes_is_read_after_growing_pauses() {
        let mut pace = ReadPace::new(None, S(0));
        let mut now = S(0);
        let mut pauses = Vec::new();
        for attempt in 0..40 {
            assert!(pace.poll(now));
            assert_eq!(pace.changed(now), attempt == 0, "logged once");
            let next = pace.next_deadline().unwrap();
            pauses.push((next - now).as_secs());
            now = next;
        }
        assert_eq!(pauses[..6], [1, 2, 4, 8, 16, 30]);
        assert_eq!(pauses.last(), Some(&30));
        assert!(pace.poll(now));
        pace.completed(now);
        pace.request();
        assert!(pace.poll(now + S(1)));
        assert!(pace.changed(now), "after a success it is logged again");
    }
}
