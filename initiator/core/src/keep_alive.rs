//! The keep-alive timer of a host (NVMe Base 2.0, section 3.9).

use std::time::Duration;

/// When to send Keep Alive commands and when to give the controller up.
///
/// A command goes out every half of the time-out, so that one may be late; the
/// controller has failed when one is not answered within the time-out.
#[derive(Debug)]
pub struct KeepAlive {
    /// Half the keep-alive time-out; `None` when keep-alive is off.
    interval: Option<Duration>,
    next_send: Duration,
    sent: Option<Duration>,
}

/// What to do about keep-alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAliveStep {
    /// Nothing now.
    Wait,
    /// Send a Keep Alive command.
    Send,
    /// The controller has not answered for a whole time-out.
    Failed,
}

impl KeepAlive {
    /// A timer that starts at `now`. A time-out of zero turns it off.
    #[must_use]
    pub fn new(timeout: Duration, now: Duration) -> Self {
        let interval = (!timeout.is_zero()).then(|| timeout / 2);
        Self {
            interval,
            next_send: now + interval.unwrap_or_default(),
            sent: None,
        }
    }

    /// What is due at `now`.
    #[must_use]
    pub fn poll(&self, now: Duration) -> KeepAliveStep {
        let Some(interval) = self.interval else {
            return KeepAliveStep::Wait;
        };
        match self.sent {
            Some(sent) if now >= sent + interval * 2 => KeepAliveStep::Failed,
            None if now >= self.next_send => KeepAliveStep::Send,
            _ => KeepAliveStep::Wait,
        }
    }

    /// A Keep Alive command went out.
    pub fn sent(&mut self, now: Duration) {
        self.sent = Some(now);
        self.next_send = now + self.interval.unwrap_or_default();
    }

    /// It was answered.
    pub fn answered(&mut self) {
        self.sent = None;
    }

    /// When [`poll`](Self::poll) has something to say next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let interval = self.interval?;
        Some(self.sent.map_or(self.next_send, |sent| sent + interval * 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn a_command_goes_out_every_half_time_out() {
        let mut timer = KeepAlive::new(S(10), S(100));
        assert_eq!(timer.poll(S(104)), KeepAliveStep::Wait);
        assert_eq!(timer.next_deadline(), Some(S(105)));
        assert_eq!(timer.poll(S(105)), KeepAliveStep::Send);
        timer.sent(S(105));
        assert_eq!(timer.poll(S(112)), KeepAliveStep::Wait);
        timer.answered();
        // The answer took longer than the interval: the next is due at once.
        assert_eq!(timer.poll(S(112)), KeepAliveStep::Send);
    }

    #[test]
    fn silence_for_a_whole_time_out_is_a_failure() {
        let mut timer = KeepAlive::new(S(10), S(0));
        timer.sent(S(5));
        assert_eq!(timer.poll(S(14)), KeepAliveStep::Wait);
        assert_eq!(timer.next_deadline(), Some(S(15)));
        assert_eq!(timer.poll(S(15)), KeepAliveStep::Failed);
    }

    #[test]
    fn zero_turns_it_off() {
        let timer = KeepAlive::new(Duration::ZERO, S(0));
        assert_eq!(timer.poll(S(1 << 40)), KeepAliveStep::Wait);
        assert_eq!(timer.next_deadline(), None);
    }
}
