//! What a host does with a command that did not succeed on a path.

use std::time::Duration;

use nvmeof_wire::Status;
use nvmeof_wire::identify::IdentifyController;
use nvmeof_wire::status::SCT_PATH;

/// What the execution of a command changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: Read, Compare, Verify, Flush, Reservation Report.
    None,
    /// The same however often it is executed: Write, Write Zeroes, Dataset Management, Copy of
    /// ranges that do not overlap the destination.
    Idempotent,
    /// Something else each time: Compare and Write, and the commands that change reservations. Of
    /// these, a repetition could undo what another host has done since, such as a preemption.
    Other,
}

/// How a command ended on a path without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The controller completed it with this status.
    Completed(Status),
    /// The path was lost before a response: it may or may not have been executed, or may still
    /// be.
    Lost,
}

/// What to do with the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryStep {
    /// Send it again on the same path after this time.
    SamePath {
        /// The delay that the controller asked for; zero: none.
        after: Duration,
    },
    /// Send it on another path now: this one did not execute it, or that does not matter.
    OtherPath {
        /// Read the ANA log page of this path first: its states are outdated.
        read_ana: bool,
    },
    /// Send it on another path when the lost controller is fenced (see [`Fence`](crate::Fence)):
    /// before, a late execution could undo newer writes.
    OtherPathOnceFenced,
    /// Report that its outcome is unknown, when the lost controller is fenced.
    UnknownOnceFenced,
    /// Report the error.
    Fail,
}

/// How often and after which delays commands are repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Retries of one command on working paths. Losses of paths do not count.
    pub max_retries: u32,
    /// Command Retry Delay Times 1 to 3 (CRDT1 to CRDT3).
    pub delays: [Duration; 3],
}

/// Retries of one command, as Linux has them (`nvme_core.max_retries`).
const MAX_RETRIES: u32 = 5;

/// A longer delay than this one is not accepted from a controller: CRDT reaches 109 minutes.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_retries: MAX_RETRIES,
            delays: [Duration::ZERO; 3],
        }
    }
}

impl RetryPolicy {
    /// The policy for a controller: five retries, with the delays that it reports, up to a
    /// minute each.
    #[must_use]
    pub fn of(identify: &IdentifyController) -> Self {
        let reported = [identify.crdt1, identify.crdt2, identify.crdt3];
        Self {
            max_retries: MAX_RETRIES,
            delays: reported
                .map(|units| Duration::from_millis(u64::from(units.get()) * 100))
                .map(|delay| delay.min(LONGEST_DELAY)),
        }
    }

    /// What to do with a command of `effect` that ended with `outcome` after `retries` retries.
    #[must_use]
    pub fn decide(&self, outcome: Outcome, effect: Effect, retries: u32) -> RetryStep {
        let status = match (outcome, effect) {
            (Outcome::Completed(status), _) => status,
            (Outcome::Lost, Effect::None) => return RetryStep::OtherPath { read_ana: false },
            (Outcome::Lost, Effect::Idempotent) => return RetryStep::OtherPathOnceFenced,
            (Outcome::Lost, Effect::Other) => return RetryStep::UnknownOnceFenced,
        };
        let is_final = status.dnr() || is_result(status);
        if is_final || retries >= self.max_retries {
            return RetryStep::Fail;
        }
        // Not executed. The queue was to be authenticated and the command sent again on it, so
        // that has failed.
        if status.is(Status::AUTHENTICATION_REQUIRED) {
            return RetryStep::OtherPath { read_ana: false };
        }
        let read_ana = is_ana(status);
        // Other path errors do not say that the command was not executed: one with Internal Path
        // Error "was not completed".
        let is_repeatable = read_ana || effect != Effect::Other;
        if status.code_type() == SCT_PATH && is_repeatable {
            return RetryStep::OtherPath { read_ana };
        }
        // Another status does not say how far the command got: after the write of a fused Compare
        // and Write was executed in part, a second comparison would fail because of that write.
        if effect == Effect::Other && !is_refusal(status) {
            return RetryStep::Fail;
        }
        let delay = usize::from(status.retry_delay()).checked_sub(1);
        let delay = delay.and_then(|at| self.delays.get(at));
        RetryStep::SamePath {
            after: delay.copied().unwrap_or_default(),
        }
    }
}

/// Whether `status` is the result of the command, on every path and each time: a comparison found a
/// difference, or the reservations do not permit this host the command (Base 2.1, 8.1.22). A
/// reservation may end, but then the blocks may have changed: the caller has to know.
fn is_result(status: Status) -> bool {
    status.is(Status::COMPARE_FAILURE) || status.is(Status::RESERVATION_CONFLICT)
}

/// Whether the ANA state of the namespace is the reason of `status`.
fn is_ana(status: Status) -> bool {
    let ana = [
        Status::ANA_PERSISTENT_LOSS,
        Status::ANA_INACCESSIBLE,
        Status::ANA_TRANSITION,
    ];
    ana.iter().any(|ana| ana.is(status))
}

/// Whether `status` says that nothing of its command was executed: "the requested function (e.g.,
/// command) is not able to be performed" (Base 2.1, 4.2.3.4), the namespace is not ready, or the
/// queue was to be authenticated before. Other statuses do not say how far the command got.
#[must_use]
pub fn is_refusal(status: Status) -> bool {
    let others = [Status::NAMESPACE_NOT_READY, Status::AUTHENTICATION_REQUIRED];
    is_ana(status) || others.iter().any(|it| it.is(status))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;
    const EFFECTS: [Effect; 3] = [Effect::None, Effect::Idempotent, Effect::Other];

    fn policy() -> RetryPolicy {
        RetryPolicy {
            delays: [S(1), S(2), S(3)],
            ..RetryPolicy::default()
        }
    }

    fn completed(status: Status, retries: u32) -> RetryStep {
        policy().decide(Outcome::Completed(status), Effect::Idempotent, retries)
    }

    #[test]
    fn lost_commands_wait_for_the_fence_unless_they_change_nothing() {
        let steps = EFFECTS.map(|effect| policy().decide(Outcome::Lost, effect, 99));
        assert_eq!(
            steps,
            [
                RetryStep::OtherPath { read_ana: false },
                RetryStep::OtherPathOnceFenced,
                RetryStep::UnknownOnceFenced,
            ]
        );
    }

    #[test]
    fn path_errors_move_to_another_path() {
        for (status, read_ana) in [
            (Status::ANA_TRANSITION, true),
            (Status::ANA_INACCESSIBLE, true),
            (Status::ANA_PERSISTENT_LOSS, true),
            (Status::INTERNAL_PATH_ERROR, false),
            (Status::CONTROLLER_PATHING_ERROR, false),
        ] {
            assert_eq!(completed(status, 0), RetryStep::OtherPath { read_ana });
            assert_eq!(completed(status.with_dnr(), 0), RetryStep::Fail);
        }
    }

    #[test]
    fn commands_of_an_unauthenticated_queue_move_to_another_path() {
        let status = Status::AUTHENTICATION_REQUIRED;
        for effect in EFFECTS {
            let decide =
                |status, retries| policy().decide(Outcome::Completed(status), effect, retries);
            assert_eq!(decide(status, 0), RetryStep::OtherPath { read_ana: false });
            assert_eq!(decide(status, MAX_RETRIES), RetryStep::Fail);
            assert_eq!(decide(status.with_dnr(), 0), RetryStep::Fail);
        }
    }

    /// Only an ANA status says that the command was not executed.
    #[test]
    fn commands_that_may_be_half_executed_are_not_sent_again_after_other_path_errors() {
        for (status, may_be_executed) in [
            (Status::ANA_PERSISTENT_LOSS, false),
            (Status::ANA_INACCESSIBLE, false),
            (Status::ANA_TRANSITION, false),
            (Status::INTERNAL_PATH_ERROR, true),
            (Status::CONTROLLER_PATHING_ERROR, true),
            (Status::HOST_PATHING_ERROR, true),
        ] {
            let step = policy().decide(Outcome::Completed(status), Effect::Other, 0);
            let again = RetryStep::OtherPath { read_ana: true };
            let expected = if may_be_executed {
                RetryStep::Fail
            } else {
                again
            };
            assert_eq!(step, expected, "{status}");
        }
    }

    #[test]
    fn other_errors_are_retried_after_the_delay_of_the_controller() {
        let busy = Status::NAMESPACE_NOT_READY;
        for (crd, after) in [(0, S(0)), (1, S(1)), (2, S(2)), (3, S(3))] {
            let step = completed(busy.with_retry_delay(crd), 4);
            assert_eq!(step, RetryStep::SamePath { after });
        }
        assert_eq!(completed(busy, 5), RetryStep::Fail);
    }

    #[test]
    fn differences_conflicts_and_half_executed_commands_are_not_retried() {
        let decide = |status, effect| policy().decide(Outcome::Completed(status), effect, 0);
        for effect in EFFECTS {
            assert_eq!(decide(Status::COMPARE_FAILURE, effect), RetryStep::Fail);
            let conflict = Status::RESERVATION_CONFLICT;
            assert_eq!(decide(conflict, effect), RetryStep::Fail);
            assert_eq!(
                decide(conflict.with_retry_delay(1), effect),
                RetryStep::Fail
            );
        }
        let error = Status::INTERNAL_ERROR.with_retry_delay(1);
        let again = RetryStep::SamePath { after: S(1) };
        assert_eq!(
            EFFECTS.map(|effect| decide(error, effect)),
            [again, again, RetryStep::Fail]
        );
        // These were not executed at all.
        for status in [
            Status::NAMESPACE_NOT_READY,
            Status::ANA_TRANSITION,
            Status::AUTHENTICATION_REQUIRED,
        ] {
            assert!(is_refusal(status.with_dnr()), "{status}");
            assert_ne!(decide(status, Effect::Other), RetryStep::Fail);
        }
    }

    proptest! {
        /// Of a command that completed, nothing waits for a fence; retries are bounded.
        #[test]
        fn completed_commands_never_wait_for_a_fence(field in any::<u16>(), retries in 0u32..10) {
            let status = Status::from_field(field);
            prop_assume!(!status.is_success());
            for effect in EFFECTS {
                let step = policy().decide(Outcome::Completed(status), effect, retries);
                prop_assert!(step != RetryStep::OtherPathOnceFenced);
                prop_assert!(step != RetryStep::UnknownOnceFenced);
                prop_assert!(retries < MAX_RETRIES || step == RetryStep::Fail);
                prop_assert!(!status.dnr() || step == RetryStep::Fail);
            }
        }
    }
}
