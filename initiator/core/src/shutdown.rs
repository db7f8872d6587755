//! Normal shutdown of a controller (NVMe Base 2.0, section 3.6.2).

use std::time::Duration;

use nvmeof_wire::registers::{Cc, Csts, Property, PropertyValue, ShutdownStatus};

use crate::admin;
use crate::setup::Next;

/// Requests a normal shutdown and waits until the controller reports that it is
/// complete, for a bounded time.
#[derive(Debug)]
pub struct Shutdown {
    cc: Cc,
    step: Step,
    asked: bool,
    deadline: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Notify,
    Status { ask_at: Duration },
    Done,
}

const STATUS_POLL: Duration = Duration::from_millis(10);

impl Shutdown {
    /// Starts; `cc` is the controller's configuration. It is over by `now + timeout`,
    /// even if the controller does not respond.
    #[must_use]
    pub fn new(cc: Cc, now: Duration, timeout: Duration) -> Self {
        Self {
            cc: cc.with_normal_shutdown(),
            step: Step::Notify,
            asked: false,
            deadline: now + timeout,
        }
    }

    /// The step that is due at `now`.
    pub fn poll(&mut self, now: Duration) -> Next {
        if now >= self.deadline {
            self.step = Step::Done;
        }
        match self.step {
            Step::Done => Next::Done,
            _ if self.asked => Next::Pending,
            Step::Status { ask_at } if now < ask_at => Next::Wait(ask_at.min(self.deadline)),
            Step::Notify => {
                self.asked = true;
                let cc = PropertyValue::Dword(self.cc.0);
                Next::Send(admin::property_set(Property::CC, cc).into())
            }
            Step::Status { .. } => {
                self.asked = true;
                Next::Send(admin::property_get(Property::CSTS, false).into())
            }
        }
    }

    /// Takes the result of the last command; `None`: it failed, which ends the
    /// shutdown.
    pub fn handle_completion(&mut self, now: Duration, result: Option<u64>) {
        self.asked = false;
        self.step = match (self.step, result) {
            (Step::Done, _) | (_, None) => Step::Done,
            (Step::Notify, Some(_)) => Step::Status { ask_at: now },
            (Step::Status { .. }, Some(csts)) => {
                let csts = u32::try_from(csts & 0xffff_ffff).unwrap_or_default();
                match Csts::from_bits_retain(csts).shutdown() {
                    ShutdownStatus::Complete => Step::Done,
                    _ => Step::Status {
                        ask_at: now + STATUS_POLL,
                    },
                }
            }
        };
    }

    /// The time when it is over at the latest.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;
    const COMPLETE: Option<u64> = Some(0b1001);
    const OCCURRING: Option<u64> = Some(0b0101);

    fn sent(next: Next) -> &'static str {
        match next {
            Next::Send(ask) => ask.command.name(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn notifies_then_waits_for_completion() {
        let mut shutdown = Shutdown::new(Cc::ENABLE, MS(0), MS(1000));
        assert_eq!(sent(shutdown.poll(MS(0))), "Property Set");
        assert!(matches!(shutdown.poll(MS(0)), Next::Pending));
        shutdown.handle_completion(MS(1), Some(0));
        assert_eq!(sent(shutdown.poll(MS(1))), "Property Get");
        shutdown.handle_completion(MS(2), OCCURRING);
        assert!(matches!(shutdown.poll(MS(2)), Next::Wait(at) if at == MS(12)));
        assert_eq!(sent(shutdown.poll(MS(12))), "Property Get");
        shutdown.handle_completion(MS(13), COMPLETE);
        assert!(matches!(shutdown.poll(MS(13)), Next::Done));
    }

    #[test]
    fn shutdown_of_silent_or_failing_controller_ends() {
        let mut shutdown = Shutdown::new(Cc::ENABLE, MS(0), MS(1000));
        let _ = shutdown.poll(MS(0));
        assert!(matches!(shutdown.poll(MS(1000)), Next::Done));
        let mut shutdown = Shutdown::new(Cc::ENABLE, MS(0), MS(1000));
        let _ = shutdown.poll(MS(0));
        shutdown.handle_completion(MS(1), None);
        assert!(matches!(shutdown.poll(MS(1)), Next::Done));
    }
}
