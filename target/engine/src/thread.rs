//! The thread of one reactor: turns it, and sleeps when there is nothing to
//! do.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_backend::{Storage, StorageError};
use nvmeof_polling::{AfterTurn, PollCounts, Polling, PollingConfig};

use crate::counters::{Counters, Spent};
use crate::{Reactor, Turn};

/// The time of all reactors: since the start of the program.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// One that begins now.
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

/// Turns the reactor until it is drained, and sleeps when there is nothing to
/// do. Says in the log now and then how much of its polling was of use.
///
/// # Errors
/// When the disks fail in a way that no request is to blame for.
pub fn run<S: Storage>(
    reactor: &mut Reactor<S>,
    clock: Clock,
    config: PollingConfig,
) -> Result<(), StorageError> {
    let counters = Arc::clone(reactor.counters());
    let mut polling = Polling::new(config, clock.now());
    let mut told = clock.now();
    let mut turn = Spending::new(&counters, told);
    loop {
        let now = clock.now();
        turn.ended(now);
        let (did_work, then) = step(reactor, &mut polling, now)?;
        turn.is(did_work);
        match then {
            Then::Turn => std::hint::spin_loop(),
            Then::Yield => polling.give_way(|| clock.now()),
            Then::Sleep { until } => {
                if now.saturating_sub(told) >= TELL_EVERY {
                    told = now;
                    tracing::debug!(counts = ?polling.counts(), "turns of this reactor");
                }
                sleep(reactor, until.map(|at| at.saturating_sub(now)));
                let after = clock.now();
                polling.slept(after.saturating_sub(now));
                turn.slept(after);
            }
            Then::End => {
                let PollCounts {
                    useful,
                    empty,
                    sleeps,
                } = polling.counts();
                tracing::info!(useful, empty, sleeps, "turns of this reactor");
                return Ok(());
            }
        }
    }
}

/// What comes after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The next one, at once.
    Turn,
    /// The next one, when somebody else had the CPU.
    Yield,
    /// [`sleep`], until then at most; until something happens if there is no such
    /// time.
    Sleep {
        /// When to turn again at the latest.
        until: Option<Duration>,
    },
    /// Nothing: the reactor is drained.
    End,
}

/// Turns the reactor once. Says whether anything happened and what comes then. Whoever
/// turns a reactor and lets it sleep decides by this, threads and simulations.
///
/// # Errors
/// As [`Reactor::turn`].
#[inline]
pub fn step<S: Storage>(
    reactor: &mut Reactor<S>,
    polling: &mut Polling,
    now: Duration,
) -> Result<(bool, Then), StorageError> {
    let Turn { did_work, drained } = reactor.turn(now)?;
    if drained {
        return Ok((did_work, Then::End));
    }
    let next = match polling.turned(did_work, now) {
        AfterTurn::Sleep if !reactor.rest(now)? => polling.kept_awake(now),
        next => next,
    };
    let then = match next {
        AfterTurn::Turn => Then::Turn,
        AfterTurn::Yield => Then::Yield,
        AfterTurn::Sleep => Then::Sleep {
            until: reactor.next_deadline(),
        },
    };
    Ok((did_work, then))
}

/// What the thread does with its time, one turn after the other.
struct Spending<'a> {
    counters: &'a Counters,
    since: Duration,
    on: Option<Spent>,
}

impl<'a> Spending<'a> {
    fn new(counters: &'a Counters, since: Duration) -> Self {
        Self {
            counters,
            since,
            on: None,
        }
    }

    /// The turn before this moment is over.
    fn ended(&mut self, now: Duration) {
        if let Some(on) = self.on.take() {
            let time = now.saturating_sub(self.since);
            self.counters.spent(on, time);
        }
        self.since = now;
    }

    /// What the turn is that goes on.
    fn is(&mut self, did_work: bool) {
        self.on = Some(if did_work {
            Spent::Working
        } else {
            Spent::Polling
        });
    }

    /// It slept since the turn began, which took next to nothing.
    fn slept(&mut self, until: Duration) {
        self.on = Some(Spent::Asleep);
        self.ended(until);
    }
}

/// How often the log is told at most; a reactor does not wake up for it.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// Descriptors for which a sleep needs no memory: those of so many providers,
/// less the disks and the mailbox.
const FEW: usize = 16;

/// Sleeps until something happens or `timeout` has passed, and says whether something
/// did. A reactor that seldom finds work for its next turn sleeps for each command, so
/// it allocates nothing.
#[allow(clippy::must_use_candidate, reason = "called for its effect")]
pub fn sleep<S: Storage>(reactor: &Reactor<S>, timeout: Option<Duration>) -> bool {
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
    // The last is its mailbox.
    if fds.last().and_then(PollFd::any) != Some(false) {
        reactor.mailbox().silence();
    }
    ready.is_ok_and(|ready| ready > 0)
}

/// What poll(2) takes. Rounded up: waking too early would be a turn for nothing.
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
