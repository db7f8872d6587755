//! Calls that did not succeed at once: what is decided about them, and those that wait.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_initiator_core::Operation;
use nvmeof_initiator_core::multipath::{Effect, Outcome, RetryPolicy, RetryStep};
use nvmeof_rdma::Address;
use nvmeof_wire::opcode::io;
use slab::Slab;

use super::shared::Incarnation;
use crate::error::{Error, Lost, LostCause};
use crate::polled::call::{Call, CallTimeout, Done, Work};

/// The calls that are to be sent, are waiting, or were sent more than once.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// To be sent as soon as there is a path and room, oldest first.
    pub(super) waiting: VecDeque<Waiting>,
    held: Vec<Held>,
    /// Those in flight that were sent before, or have a time-out of their own.
    retried: Slab<Retried>,
    /// Fenced controllers whose queues may still return calls.
    fenced: Vec<Incarnation>,
}

/// A call that waits for a path or for room.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) call: Call,
    pub(super) tries: Tries,
}

/// What happened to a call until now.
#[derive(Debug, Default)]
pub(super) struct Tries {
    /// Completions with an error.
    retries: u32,
    /// The controller that refused it the last time.
    pub(super) avoid: Option<Incarnation>,
    /// The path that was lost while it may have been executed.
    lost: Option<Arc<Lost>>,
    /// Whether it was sent before.
    is_retry: bool,
}

#[derive(Debug)]
struct Held {
    waiting: Waiting,
    until: Until,
    /// How it ended the last time.
    error: Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    Time(Duration),
    /// That controller is fenced. Then the call is sent again, or its outcome is unknown.
    Fenced {
        of: Incarnation,
        is_sent_again: bool,
    },
}

#[derive(Debug)]
struct Retried {
    user: u64,
    timeout: CallTimeout,
    tries: Tries,
}

/// The controller on which a call ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) incarnation: Incarnation,
    pub(super) addr: Address,
    pub(super) retry: RetryPolicy,
    /// Whether the host closed its queues for good.
    pub(super) is_final: bool,
    /// Whether another path can be used now.
    pub(super) has_other: bool,
}

/// What follows the end of a call on a path.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The call has ended.
    Over(Done),
    /// It is sent again, sooner or later.
    Again,
    /// The same, and the ANA states of the path are outdated.
    AgainOutdated,
}

/// Identifiers of calls that are known to [`Calls`]; those of callers are lower.
const RETRIED: u64 = 1 << 63;

/// The pause before the first retry on a path without an alternative; it grows with each.
const AGAIN: Duration = Duration::from_millis(100);

/// Whether a call needs a decision: it failed, or was sent before.
#[inline]
pub(super) fn is_unusual(done: &Done) -> bool {
    done.result.is_err() || done.user >= RETRIED
}

impl Calls {
    /// Whether no call waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.held.is_empty()
    }

    /// Calls that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.held.len()
    }

    /// Calls that wait until a lost controller is fenced.
    pub(super) fn awaiting_fence(&self) -> usize {
        let is_fence = |one: &&Held| matches!(one.until, Until::Fenced { .. });
        self.held.iter().filter(is_fence).count()
    }

    /// A call as it is to be submitted. One that was sent before gets another identifier, and one
    /// with a time-out of its own, which [`Done`] does not have.
    #[inline]
    pub(super) fn begin(&mut self, waiting: Waiting) -> Call {
        let Waiting { mut call, tries } = waiting;
        let timeout = call.timeout;
        if tries.is_retry || timeout != CallTimeout::Default {
            let user = call.user;
            let index = self.retried.insert(Retried {
                user,
                timeout,
                tries,
            });
            call.user = RETRIED | u64::try_from(index).unwrap_or_default();
        }
        call
    }

    /// The call again, after it was not accepted.
    pub(super) fn undo(&mut self, mut call: Call) -> Waiting {
        let (tries, _) = self.recall(&mut call.user);
        Waiting { call, tries }
    }

    /// The history and the time-out of a call; replaces its identifier by that of the caller.
    fn recall(&mut self, user: &mut u64) -> (Tries, CallTimeout) {
        let index = user.checked_sub(RETRIED);
        let index = index.and_then(|index| usize::try_from(index).ok());
        match index.and_then(|index| self.retried.try_remove(index)) {
            Some(retried) => {
                *user = retried.user;
                (retried.tries, retried.timeout)
            }
            None => (Tries::default(), CallTimeout::Default),
        }
    }

    /// A call ended on a path.
    pub(super) fn ended(&mut self, mut done: Done, origin: &Origin, now: Duration) -> Verdict {
        let (mut tries, timeout) = self.recall(&mut done.user);
        let Err(error) = &done.result else {
            return Verdict::Over(done);
        };
        let error = error.clone();
        let outcome = match &error {
            Error::Command(failed) => Outcome::Completed(failed.status),
            // The queue has ended, for whatever reason.
            _ => Outcome::Lost,
        };
        let has_memory = done.work.as_ref().is_none_or(|work| work.bytes() == 0);
        // The lost queue keeps a buffer that is missing.
        let is_whole = has_memory || done.buf.is_some();
        let is_over = origin.is_final || !is_whole;
        let Some(work) = done.work.take_if(|_| !is_over) else {
            return tries.over(done);
        };
        let effect = effect(&work);
        let step = origin.retry.decide(outcome, effect, tries.retries);
        match (outcome, &error) {
            (Outcome::Completed(_), _) => tries.retries += 1,
            (Outcome::Lost, _) if effect == Effect::None => {}
            (Outcome::Lost, Error::Lost(lost)) => tries.lost = Some(Arc::clone(lost)),
            (Outcome::Lost, _) => tries.lost = Some(Arc::new(ended_here(origin.addr))),
        }
        tries.is_retry = true;
        let pause = AGAIN.saturating_mul(tries.retries);
        let until = match step {
            RetryStep::Fail => {
                done.work = Some(work);
                return tries.over(done);
            }
            RetryStep::SamePath { after } => Until::Time(now + after),
            RetryStep::OtherPath { .. } if outcome == Outcome::Lost => Until::Time(now),
            RetryStep::OtherPath { .. } => {
                tries.avoid = Some(origin.incarnation);
                let at_once = origin.has_other && tries.retries < 2;
                Until::Time(if at_once { now } else { now + pause })
            }
            RetryStep::OtherPathOnceFenced | RetryStep::UnknownOnceFenced => Until::Fenced {
                of: origin.incarnation,
                is_sent_again: step == RetryStep::OtherPathOnceFenced,
            },
        };
        let call = Call {
            work: *work,
            buf: done.buf,
            user: done.user,
            timeout,
        };
        let waiting = Waiting { call, tries };
        self.held.push(Held {
            waiting,
            until,
            error,
        });
        match step {
            RetryStep::OtherPath { read_ana: true } => Verdict::AgainOutdated,
            _ => Verdict::Again,
        }
    }

    /// Controllers that are fenced now.
    pub(super) fn fenced(&mut self, fenced: &mut Vec<Incarnation>) {
        self.fenced.append(fenced);
    }

    /// Moves calls that need not wait any more to those that are sent, or ends them. Controllers
    /// for which `may_return` is false return no more calls. Returns whether there was a call.
    pub(super) fn release(
        &mut self,
        now: Duration,
        may_return: impl Fn(Incarnation) -> bool,
        done: &mut Vec<Done>,
    ) -> bool {
        let before = self.held.len();
        let fenced = &self.fenced;
        let is_due = |one: &mut Held| match one.until {
            Until::Time(at) => now >= at,
            Until::Fenced { of, .. } => fenced.contains(&of),
        };
        for one in self.held.extract_if(.., is_due) {
            match one.until {
                Until::Fenced {
                    is_sent_again: false,
                    ..
                } => done.push(one.waiting.end(one.error)),
                _ => self.waiting.push_back(one.waiting),
            }
        }
        self.fenced.retain(|one| may_return(*one));
        self.held.len() != before
    }

    /// Ends all calls that wait: no path may become available.
    pub(super) fn end_all(&mut self, no_path: &Error, done: &mut Vec<Done>) {
        let waiting = self.waiting.drain(..);
        done.extend(waiting.map(|one| one.end(no_path.clone())));
        for one in self.held.drain(..) {
            let error = match one.until {
                Until::Time(_) => no_path.clone(),
                Until::Fenced { .. } => one.error,
            };
            done.push(one.waiting.end(error));
        }
    }

    /// When [`release`](Self::release) has something to do, without an event.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let times = self.held.iter().filter_map(|one| match one.until {
            Until::Time(at) => Some(at),
            Until::Fenced { .. } => None,
        });
        times.min()
    }
}

impl Tries {
    /// The end of a call with an error, after these tries. One that may have been executed on a
    /// path that was lost has an unknown outcome, however the last try ended.
    fn over(self, mut done: Done) -> Verdict {
        if let Some(lost) = self.lost {
            done.result = Err(Error::UnknownOutcome(lost));
        }
        Verdict::Over(done)
    }
}

/// The loss of a path to `addr` whose queues ended because of this machine, as a whole.
fn ended_here(addr: Address) -> Lost {
    Lost {
        addr,
        qid: 0,
        // It concerns connections that were not established.
        provider: "unknown",
        established: true,
        cause: LostCause::Local,
    }
}

impl Waiting {
    /// The end of a call that is not sent again.
    pub(super) fn end(self, error: Error) -> Done {
        let error = match self.tries.lost {
            Some(lost) => Error::UnknownOutcome(lost),
            None => error,
        };
        Done {
            user: self.call.user,
            buf: self.call.buf,
            result: Err(error),
            work: Some(Box::new(self.call.work)),
        }
    }
}

/// What the execution of a call changes. A command of another kind counts as one that changes
/// something else each time.
fn effect(work: &Work) -> Effect {
    match work {
        Work::Blocks(blocks) => match blocks.operation {
            Operation::Read | Operation::Compare | Operation::Verify => Effect::None,
            Operation::Write | Operation::WriteZeroes { .. } => Effect::Idempotent,
            Operation::CompareWrite => Effect::Other,
        },
        Work::Single(command) => match command.sqe().opcode {
            io::FLUSH | io::RESERVATION_REPORT => Effect::None,
            io::DATASET_MANAGEMENT => Effect::Idempotent,
            _ => Effect::Other,
        },
    }
}
