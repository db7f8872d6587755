//! Rate limit of log messages about peers.

use std::time::Duration;

/// Passes a few of many similar messages, so that peers cannot fill the log.
#[derive(Debug)]
pub struct RateLimiter {
    /// Messages per second.
    most: u32,
    second: u64,
    passed: u32,
    left_out: u64,
}

/// Default rate, in messages per second.
const A_SECOND: u32 = 10;

impl Default for RateLimiter {
    /// Ten messages per second.
    fn default() -> Self {
        Self::of(A_SECOND)
    }
}

impl RateLimiter {
    /// Passes `most` messages per second.
    #[must_use]
    pub fn of(most: u32) -> Self {
        Self {
            most,
            second: 0,
            passed: 0,
            left_out: 0,
        }
    }

    /// `Some` if a message may be logged now, with the number of messages suppressed since
    /// the last one. `now` is a time as [`Provider::poll`](crate::Provider::poll) takes it.
    pub fn ask(&mut self, now: Duration) -> Option<u64> {
        if now.as_secs() != self.second {
            self.second = now.as_secs();
            self.passed = 0;
        }
        if self.passed >= self.most {
            self.left_out += 1;
            return None;
        }
        self.passed += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_above_rate_are_suppressed_and_counted() {
        let mut log = RateLimiter::default();
        let now = Duration::from_secs(1);
        let passed = (0..25).filter(|_| log.ask(now).is_some()).count();
        assert_eq!(passed, 10);
        assert_eq!(log.ask(Duration::from_secs(2)), Some(15));
        assert_eq!(log.ask(Duration::from_secs(2)), Some(0));
    }
}
