//! What a host does with a command that did not succeed on a path.

use std::time::Duration;

use nvmeof_wire::Status;
use nvmeof_wire::identify::IdentifyController;
use nvmeof_wire::status::SCT_PATH;

/// What the execution of a command changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: Read, Compare, Verify, Flush.
    None,
    /// The same however often it is executed: Write, Write Zeroes, Dataset Management.
    Idempotent,
    /// Something else each time: Compare and Write, reservations, Copy of overlapping ranges.
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
        if status.dnr() || retries >= self.max_retries {
            return RetryStep::Fail;
        }
        if status.code_type() == SCT_PATH {
            // Base 2.1, 4.2.3.4: the command was not executed.
            return RetryStep::OtherPath {
                read_ana: [
                    Status::ANA_PERSISTENT_LOSS,
                    Status::ANA_INACCESSIBLE,
                    Status::ANA_TRANSITION,
                ]
                .iter()
                .any(|ana| ana.is(status)),
            };
        }
        let delay = usize::from(status.retry_delay()).checked_sub(1);
        let delay = delay.and_then(|at| self.delays.get(at));
        RetryStep::SamePath {
            after: delay.copied().unwrap_or_default(),
        }
    }
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
    fn other_errors_are_retried_after_the_delay_of_the_controller() {
        let busy = Status::NAMESPACE_NOT_READY;
        for (crd, after) in [(0, S(0)), (1, S(1)), (2, S(2)), (3, S(3))] {
            let step = completed(busy.with_retry_delay(crd), 4);
            assert_eq!(step, RetryStep::SamePath { after });
        }
        assert_eq!(completed(busy, 5), RetryStep::Fail);
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
