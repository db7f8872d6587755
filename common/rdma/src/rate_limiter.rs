//! Rate limit of log messages about peers.

use std::time::Duration;

/// Lets a few of many similar messages through, so that peers cannot fill the
/// log.
#[derive(Debug)]
pub struct RateLimiter {
    /// Messages a second.
    most: u32,
    second: u64,
    said: u32,
    left_out: u64,
}

/// Messages of one kind a second.
const A_SECOND: u32 = 10;

impl Default for RateLimiter {
    /// Ten a second.
    fn default() -> Self {
        Self::of(A_SECOND)
    }
}

impl RateLimiter {
    /// Lets `most` messages a second through.
    #[must_use]
    pub fn of(most: u32) -> Self {
        Self {
            most,
            second: 0,
            said: 0,
            left_out: 0,
        }
    }

    /// Whether to say something now, and how much was left out since the last
    /// time. `now` is a time as [`Provider::poll`](crate::Provider::poll) takes it.
    pub fn ask(&mut self, now: Duration) -> Option<u64> {
        if now.as_secs() != self.second {
            self.second = now.as_secs();
            self.said = 0;
        }
        if self.said >= self.most {
            self.left_out += 1;
            return None;
        }
        self.said += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_a_second_and_the_rest_is_counted() {
        let mut log = RateLimiter::default();
        let now = Duration::from_secs(1);
        let said = (0..25).filter(|_| log.ask(now).is_some()).count();
        assert_eq!(said, 10);
        assert_eq!(log.ask(Duration::from_secs(2)), Some(15));
        assert_eq!(log.ask(Duration::from_secs(2)), Some(0));
    }
}
