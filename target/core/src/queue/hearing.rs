//! What proves that the host lives (Base 2.1, 3.9), besides the commands that are
//! begun on I/O queues.

use std::time::Duration;

use nvmeof_wire::Sqe;
use nvmeof_wire::opcode::{Opcode, admin};

use super::{Queue, Role};
use crate::Limits;
use crate::controller::Controller;

impl Queue {
    /// The host was heard otherwise than by a command.
    pub fn hear(&self, now: Duration) {
        if let Some(controller) = self.controller() {
            controller.hot.hear(now);
        }
    }

    /// The command of that capsule came and is not begun yet. The host was heard by it
    /// where any command counts (TBKAS), or if it is a Keep Alive; says whether it is.
    /// Whether the host lives does not depend on how long we take.
    #[must_use]
    pub fn hear_command(&self, now: Duration, capsule: &[u8]) -> bool {
        match &self.role {
            Role::Waiting { .. } => false,
            Role::Io(joined) => {
                joined.hear(now);
                false
            }
            Role::Admin(controller) => {
                let sqe = Sqe::in_capsule(capsule);
                sqe.is_some_and(|sqe| heard_by(controller, &self.shared.limits, sqe.opcode, now))
            }
        }
    }
}

/// An admin command came. Says whether it is a Keep Alive.
pub(super) fn heard_by(
    controller: &Controller,
    limits: &Limits,
    opcode: Opcode,
    now: Duration,
) -> bool {
    let keeps_alive = opcode == admin::KEEP_ALIVE;
    if keeps_alive || limits.traffic_keep_alive {
        controller.hot.hear(now);
    }
    keeps_alive
}
