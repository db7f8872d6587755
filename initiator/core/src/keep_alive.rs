//! The keep-alive timer of a host (NVMe Base 2.0, section 3.9).

use std::time::Duration;

/// Decides when to send Keep Alive commands, and when the controller has failed.
///
/// A command is sent after each half of the time-out, so that one may be late. The
/// controller has failed when one does not complete within the time-out.
#[derive(Debug)]
pub struct KeepAlive {
    /// Half the keep-alive time-out; `None`: keep-alive is disabled.
    interval: Option<Duration>,
    next_send: Duration,
    sent: Option<Duration>,
}

/// The next step of keep-alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAliveStep {
    /// Nothing now.
    Wait,
    /// Send a Keep Alive command.
    Send,
    /// The controller has not completed a Keep Alive command for a whole time-out.
    Failed,
}

impl KeepAlive {
    /// A timer that starts at `now`. A time-out of zero disables it.
    #[must_use]
    pub fn new(timeout: Duration, now: Duration) -> Self {
        let interval = (!timeout.is_zero()).then(|| timeout / 2);
        Self {
            interval,
            next_send: now + interval.unwrap_or_default(),
            sent: None,
        }
    }

    /// The step that is due at `now`.
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

    /// A Keep Alive command was sent.
    pub fn sent(&mut self, now: Duration) {
        self.sent = Some(now);
        self.next_send = now + self.interval.unwrap_or_default();
    }

    /// The command completed.
    pub fn completed(&mut self) {
        self.sent = None;
    }

    /// When [`poll`](Self::poll) has a step next.
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
    fn keep_alive_is_sent_every_half_time_out() {
        let mut timer = KeepAlive::new(S(10), S(100));
        assert_eq!(timer.poll(S(104)), KeepAliveStep::Wait);
        assert_eq!(timer.next_deadline(), Some(S(105)));
        assert_eq!(timer.poll(S(105)), KeepAliveStep::Send);
        timer.sent(S(105));
        assert_eq!(timer.poll(S(112)), KeepAliveStep::Wait);
        timer.completed();
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
