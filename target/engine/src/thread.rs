//! The thread of one reactor: runs its loop, and sleeps when there is no work.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_backend::{BackingStores, BackingStoresError};
use nvmeof_dhchap::mark_reactor_thread;
use nvmeof_polling::{NextStep, PollCounts, Polling, PollingConfig};

use crate::counters::{Counters, ThreadState};
use crate::{PollResult, Reactor};

/// The clock of all reactors: time since the start of the program.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    fn now(self) -> Duration {
        self.start.elapsed()
    }
}

/// Runs the reactor until it is drained, and sleeps when there is no work. Logs now and
/// then how much of its polling found work. In a debug build, an exponentiation on this thread
/// panics from now on.
///
/// # Errors
/// If the backing stores fail for a reason that concerns no single request.
pub fn run<S: BackingStores>(
    reactor: &mut Reactor<S>,
    clock: Clock,
    config: PollingConfig,
) -> Result<(), BackingStoresError> {
    mark_reactor_thread();
    let counters = Arc::clone(reactor.counters());
    let mut polling = Polling::new(config, clock.now());
    let mut last_log = clock.now();
    let mut accounting = TimeAccounting::new(&counters, last_log);
    loop {
        let now = clock.now();
        accounting.ended(now);
        let (did_work, action) = step(reactor, &mut polling, now)?;
        accounting.classify(did_work);
        match action {
            LoopAction::Continue => std::hint::spin_loop(),
            LoopAction::Yield => polling.yield_cpu(|| clock.now()),
            LoopAction::Sleep { until } => {
                if now.saturating_sub(last_log) >= LOG_INTERVAL {
                    last_log = now;
                    tracing::debug!(counts = ?polling.counts(), "reactor polling statistics");
                }
                sleep(reactor, until.map(|at| at.saturating_sub(now)));
                let after = clock.now();
                polling.slept(after.saturating_sub(now));
                accounting.slept(after);
            }
            LoopAction::Exit => {
                let PollCounts {
                    useful,
                    empty,
                    sleeps,
                } = polling.counts();
                tracing::info!(useful, empty, sleeps, "reactor polling statistics");
                return Ok(());
            }
        }
    }
}

/// What to do after an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopAction {
    /// The next iteration, at once.
    Continue,
    /// Yield the CPU, then the next iteration.
    Yield,
    /// [`sleep`] until an event, and at most until a deadline.
    Sleep {
        /// When the next iteration is due at the latest.
        until: Option<Duration>,
    },
    /// End the loop: the reactor is drained.
    Exit,
}

/// Runs one iteration. Returns whether it did any work, and what to do next. Both threads
/// and the simulation use it.
///
/// # Errors
/// As [`Reactor::poll_once`].
#[inline]
pub fn step<S: BackingStores>(
    reactor: &mut Reactor<S>,
    polling: &mut Polling,
    now: Duration,
) -> Result<(bool, LoopAction), BackingStoresError> {
    let PollResult { did_work, drained } = reactor.poll_once(now)?;
    if drained {
        return Ok((did_work, LoopAction::Exit));
    }
    let mut next = polling.after_iteration(did_work, now);
    if !did_work && polling.adapts() && reactor.completes_in_batches() {
        next = NextStep::Sleep;
    }
    let next = match next {
        NextStep::Sleep if !reactor.rest(now)? => polling.without_sleep(now),
        next => next,
    };
    let action = match next {
        NextStep::Continue => LoopAction::Continue,
        NextStep::Yield => LoopAction::Yield,
        NextStep::Sleep => LoopAction::Sleep {
            until: reactor.latest_wake(now),
        },
    };
    Ok((did_work, action))
}

/// Accounting of the thread's time, one iteration after the other.
struct TimeAccounting<'a> {
    counters: &'a Counters,
    since: Duration,
    state: Option<ThreadState>,
}

impl<'a> TimeAccounting<'a> {
    fn new(counters: &'a Counters, since: Duration) -> Self {
        Self {
            counters,
            since,
            state: None,
        }
    }

    /// The iteration before this moment ended.
    fn ended(&mut self, now: Duration) {
        if let Some(state) = self.state.take() {
            let time = now.saturating_sub(self.since);
            self.counters.add_time(state, time);
        }
        self.since = now;
    }

    /// Classifies the current iteration.
    fn classify(&mut self, did_work: bool) {
        self.state = Some(if did_work {
            ThreadState::Working
        } else {
            ThreadState::Polling
        });
    }

    /// It slept since the iteration began, which took next to nothing.
    fn slept(&mut self, until: Duration) {
        self.state = Some(ThreadState::Asleep);
        self.ended(until);
    }
}

/// Interval between log lines about polling. The reactor does not wake up for them.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Descriptors for which a sleep needs no allocation: providers, backing stores and the
/// mailbox.
const FEW: usize = 16;

/// Sleeps until an event or `timeout`; returns whether there was an event. A reactor with
/// little work sleeps for each command, so it does not allocate.
#[allow(clippy::must_use_candidate, reason = "called for its effect")]
pub fn sleep<S: BackingStores>(reactor: &Reactor<S>, timeout: Option<Duration>) -> bool {
    let mailbox = reactor.mailbox().wait_fd();
    let mut few: [PollFd<'_>; FEW] = std::array::from_fn(|_| readable(mailbox));
    let mut many = Vec::new();
    let mut count = 0;
    for fd in reactor.wait_fds() {
        match few.get_mut(count) {
            Some(place) => *place = readable(fd),
            None => many.push(readable(fd)),
        }
        count += 1;
    }
    let fds = if many.is_empty() {
        few.get_mut(..count).unwrap_or_default()
    } else {
        many.splice(..0, few);
        &mut many
    };
    // An interrupted sleep is a short one.
    let ready = poll(fds, poll_timeout(timeout));
    // The last one is its mailbox.
    if fds.last().and_then(PollFd::any) != Some(false) {
        reactor.mailbox().silence();
    }
    ready.is_ok_and(|ready| ready > 0)
}

/// The timeout for poll(2), rounded up: waking too early would cost an iteration.
#[must_use]
pub fn poll_timeout(timeout: Option<Duration>) -> PollTimeout {
    timeout.map_or(PollTimeout::NONE, |timeout| {
        let ms = timeout.as_micros().div_ceil(1000);
        PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)
    })
}

fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::POLLIN)
}
