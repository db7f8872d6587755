//! Notifications to the service manager (sd_notify(3)): readiness, status, reload, stop and
//! watchdog. Without a service manager they do nothing.

use std::time::{Duration, Instant};

use nvmeof_rdma::explain;
use sd_notify::NotifyState;

use nvmeof_target_engine::{Mail, Mailbox};

/// Reports that hosts are served; `status` summarizes what and where.
pub(crate) fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Reports a changed status.
pub(crate) fn status(status: &str) {
    notify(&[NotifyState::Status(status)]);
}

/// Reports why the start waits, and extends its timeout by `longer`.
pub(crate) fn waiting(status: &str, longer: Duration) {
    let longer = u32::try_from(longer.as_micros()).unwrap_or(u32::MAX);
    notify(&[
        NotifyState::Status(status),
        NotifyState::ExtendTimeoutUsec(longer),
    ]);
}

/// Reports the stop: no new connections; commands in flight have `drain` to complete.
pub(crate) fn stopping(drain: Duration) {
    let status = "stopping; completing commands in flight";
    notify(&[
        NotifyState::Stopping,
        NotifyState::Status(status),
        NotifyState::ExtendTimeoutUsec(longest_stop_us(drain)),
    ]);
}

/// Time for the rest of a stop: closing files and releasing memory.
const REST: Duration = Duration::from_secs(30);

/// The longest time that a stop takes.
pub(crate) fn longest_stop(drain: Duration) -> Duration {
    // Commands complete, connections close and backing stores are flushed: each has this time.
    drain.saturating_mul(3).saturating_add(REST)
}

/// The same in microseconds. sd_notify(3): "A service timeout will
/// occur if the message isn't received, but only if the runtime of the current state is
/// beyond the original maximum times of ... TimeoutStopSec=": it makes none shorter.
fn longest_stop_us(drain: Duration) -> u32 {
    u32::try_from(longest_stop(drain).as_micros()).unwrap_or(u32::MAX)
}

/// Reports a reload, which lasts until [`ready`].
pub(crate) fn reloading() {
    // sd_notify(3): the message "must be accompanied by" the time, by which the
    // service manager knows which reload it was.
    match NotifyState::monotonic_usec_now() {
        Ok(time) => notify(&[NotifyState::Reloading, time]),
        Err(error) => tracing::warn!(
            "cannot notify the service manager of the reload: monotonic clock: {error}"
        ),
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(
            "cannot notify the service manager: {}; see NOTIFY_SOCKET",
            explain(&error)
        );
    }
}

/// Sends watchdog notifications while no reactor is stalled. Without them the service
/// manager ends the process after `WatchdogSec=`.
pub(crate) struct Watchdog {
    interval: Duration,
    next: Instant,
    /// Which reactors were logged as stalled.
    stalled: Vec<bool>,
}

impl Watchdog {
    /// As configured by the service manager; `None` without `WatchdogSec=`.
    pub(crate) fn of_service(now: Instant) -> Option<Self> {
        // sd_watchdog_enabled(3): "it is recommended that a daemon sends a
        // keep-alive notification ... every half of the time returned here".
        sd_notify::watchdog_enabled().map(|limit| Self::new(limit / 2, now))
    }

    fn new(interval: Duration, now: Instant) -> Self {
        Self {
            interval,
            next: now,
            stalled: Vec::new(),
        }
    }

    /// The time of the next check.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// When it is time, checks the reactors and sends a notification if all of them have
    /// taken their mail since the previous check. `reactors` are those that have not
    /// ended.
    pub(crate) fn check<'a>(
        &mut self,
        now: Instant,
        reactors: impl Iterator<Item = (usize, &'a Mailbox)>,
    ) {
        if now < self.next {
            return;
        }
        self.next = now + self.interval;
        if self.all_responsive(reactors) {
            notify(&[NotifyState::Watchdog]);
        }
    }

    fn all_responsive<'a>(&mut self, reactors: impl Iterator<Item = (usize, &'a Mailbox)>) -> bool {
        let mut all = true;
        for (at, mailbox) in reactors {
            let is_stalled = mailbox.holds(Mail::LIVENESS_CHECK);
            mailbox.send(Mail::LIVENESS_CHECK);
            all &= !is_stalled;
            if self.stalled.len() <= at {
                self.stalled.resize(at + 1, false);
            }
            let known = self.stalled.get_mut(at);
            if known.is_some_and(|known| std::mem::replace(known, is_stalled) != is_stalled) {
                let interval = self.interval;
                if is_stalled {
                    tracing::error!(
                        "reactor {at} stalled for {interval:?}; withholding watchdog notifications"
                    );
                } else {
                    tracing::warn!("reactor {at} recovered");
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalled_reactor_withholds_notifications_until_it_recovers() {
        let now = Instant::now();
        let mut watchdog = Watchdog::new(Duration::from_secs(1), now);
        let boxes = [Mailbox::new().unwrap(), Mailbox::new().unwrap()];
        let mut live = |boxes: &[Mailbox]| watchdog.all_responsive(boxes.iter().enumerate());
        assert!(live(&boxes), "no mail was sent before");
        let _ = boxes.each_ref().map(Mailbox::take);
        assert!(live(&boxes));
        let _ = boxes[0].take();
        assert!(!live(&boxes), "the second is stalled");
        let _ = boxes.each_ref().map(Mailbox::take);
        assert!(live(&boxes), "it recovered");
    }

    #[test]
    fn stop_timeout_covers_commands_connections_and_flushes() {
        let seconds = |drain| longest_stop_us(Duration::from_secs(drain)) / 1_000_000;
        // 600 is the maximum of reactor.drain_s.
        assert_eq!([0, 5, 120, 600].map(seconds), [30, 45, 390, 1830]);
        assert_eq!(longest_stop_us(Duration::MAX), u32::MAX);
    }

    #[test]
    fn watchdog_checks_at_its_interval() {
        let now = Instant::now();
        let mut watchdog = Watchdog::new(Duration::from_secs(1), now);
        let mailbox = Mailbox::new().unwrap();
        let asked = |mailbox: &Mailbox| mailbox.take() == Mail::LIVENESS_CHECK;
        for (ms, is_due) in [(0, true), (999, false), (1500, true), (2400, false)] {
            watchdog.check(now + Duration::from_millis(ms), [(0, &mailbox)].into_iter());
            assert_eq!(asked(&mailbox), is_due, "{ms}");
        }
        assert_eq!(watchdog.next(), now + Duration::from_millis(2500));
    }
}
