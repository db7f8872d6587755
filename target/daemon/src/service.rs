//! What the service manager is told (sd_notify(3)): that hosts are served, that
//! we stop, and now and then that we live. Nothing where there is none.

use std::time::{Duration, Instant};

use nvmeof_rdma::explain;
use sd_notify::NotifyState;

use nvmeof_target_engine::{Mail, Mailbox};

/// Hosts are served; `status` says what and where.
pub(crate) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// What is served has changed.
pub(crate) fn status(status: &str) {
    tell(&[NotifyState::Status(status)]);
}

/// Nothing can be served before that is there, and the start may take `longer` for it.
pub(crate) fn waiting(status: &str, longer: Duration) {
    let longer = u32::try_from(longer.as_micros()).unwrap_or(u32::MAX);
    tell(&[
        NotifyState::Status(status),
        NotifyState::ExtendTimeoutUsec(longer),
    ]);
}

/// No new connection is taken from now on; commands in flight have `drain` to end.
pub(crate) fn stopping(drain: Duration) {
    let status = "stopping; completing commands in flight";
    tell(&[
        NotifyState::Stopping,
        NotifyState::Status(status),
        NotifyState::ExtendTimeoutUsec(longest_stop_us(drain)),
    ]);
}

/// What is neither commands, connections nor flushes: files are closed, memory is
/// given back.
const REST: Duration = Duration::from_secs(30);

/// How long a stop takes at most.
pub(crate) fn longest_stop(drain: Duration) -> Duration {
    // Commands end, connections close and disks are flushed: each has that long.
    drain.saturating_mul(3).saturating_add(REST)
}

/// The same in microseconds. sd_notify(3): "A service timeout will
/// occur if the message isn't received, but only if the runtime of the current state is
/// beyond the original maximum times of ... TimeoutStopSec=": it makes none shorter.
fn longest_stop_us(drain: Duration) -> u32 {
    u32::try_from(longest_stop(drain).as_micros()).unwrap_or(u32::MAX)
}

/// The configuration is read again from now on, until [`ready`].
pub(crate) fn reloading() {
    // sd_notify(3): the message "must be accompanied by" the time, by which the
    // service manager knows which reload it was.
    match NotifyState::monotonic_usec_now() {
        Ok(time) => tell(&[NotifyState::Reloading, time]),
        Err(error) => tracing::warn!("the time of the reload is not known: {error}"),
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(
            "cannot notify the service manager: {}; see NOTIFY_SOCKET",
            explain(&error)
        );
    }
}

/// Tells the service manager that we live, as long as all reactors do. When one
/// hangs nothing is told, and the service manager ends the process after the
/// time of `WatchdogSec=`.
pub(crate) struct Watchdog {
    /// From one look to the next.
    every: Duration,
    next: Instant,
    /// Reactors of which the log says that they hang.
    hanging: Vec<bool>,
}

impl Watchdog {
    /// As the service manager wants it; `None` where it does not.
    pub(crate) fn of_service(now: Instant) -> Option<Self> {
        // sd_watchdog_enabled(3): "it is recommended that a daemon sends a
        // keep-alive notification ... every half of the time returned here".
        sd_notify::watchdog_enabled().map(|limit| Self::new(limit / 2, now))
    }

    fn new(every: Duration, now: Instant) -> Self {
        Self {
            every,
            next: now,
            hanging: Vec::new(),
        }
    }

    /// When it has to look again.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Looks after the reactors when it is time, and tells that we live if all
    /// of them took their mail since the last time. `reactors` are those that
    /// have not ended.
    pub(crate) fn look<'a>(
        &mut self,
        now: Instant,
        reactors: impl Iterator<Item = (usize, &'a Mailbox)>,
    ) {
        if now < self.next {
            return;
        }
        self.next = now + self.every;
        if self.all_live(reactors) {
            tell(&[NotifyState::Watchdog]);
        }
    }

    fn all_live<'a>(&mut self, reactors: impl Iterator<Item = (usize, &'a Mailbox)>) -> bool {
        let mut all = true;
        for (at, mailbox) in reactors {
            let hangs = mailbox.holds(Mail::ARE_YOU_THERE);
            mailbox.send(Mail::ARE_YOU_THERE);
            all &= !hangs;
            if self.hanging.len() <= at {
                self.hanging.resize(at + 1, false);
            }
            let known = self.hanging.get_mut(at);
            if known.is_some_and(|known| std::mem::replace(known, hangs) != hangs) {
                let every = self.every;
                if hangs {
                    tracing::error!(
                        "reactor {at} stalled for {every:?}; withholding watchdog notifications"
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
    fn we_live_as_long_as_every_reactor_takes_its_mail() {
        let now = Instant::now();
        let mut watchdog = Watchdog::new(Duration::from_secs(1), now);
        let boxes = [Mailbox::new().unwrap(), Mailbox::new().unwrap()];
        let mut live = |boxes: &[Mailbox]| watchdog.all_live(boxes.iter().enumerate());
        assert!(live(&boxes), "nothing was asked before");
        let _ = boxes.each_ref().map(Mailbox::take);
        assert!(live(&boxes));
        let _ = boxes[0].take();
        assert!(!live(&boxes), "the second did not take its mail");
        let _ = boxes.each_ref().map(Mailbox::take);
        assert!(live(&boxes), "it goes on");
    }

    #[test]
    fn a_stop_may_take_as_long_as_its_three_parts() {
        let seconds = |drain| longest_stop_us(Duration::from_secs(drain)) / 1_000_000;
        // 600 is the longest that the configuration takes.
        assert_eq!([0, 5, 120, 600].map(seconds), [30, 45, 390, 1830]);
        assert_eq!(longest_stop_us(Duration::MAX), u32::MAX);
    }

    #[test]
    fn it_looks_when_it_is_time() {
        let now = Instant::now();
        let mut watchdog = Watchdog::new(Duration::from_secs(1), now);
        let mailbox = Mailbox::new().unwrap();
        let asked = |mailbox: &Mailbox| mailbox.take() == Mail::ARE_YOU_THERE;
        for (ms, looks) in [(0, true), (999, false), (1500, true), (2400, false)] {
            watchdog.look(now + Duration::from_millis(ms), [(0, &mailbox)].into_iter());
            assert_eq!(asked(&mailbox), looks, "{ms}");
        }
        assert_eq!(watchdog.next(), now + Duration::from_millis(2500));
    }
}
