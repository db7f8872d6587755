//! Signs of life of the host for Keep Alive (Base 2.1, 3.9), besides commands that begin
//! on I/O queues.

use std::time::Duration;

use nvmeof_wire::Sqe;
use nvmeof_wire::opcode::{Opcode, admin};

use super::{Queue, Role};
use crate::Limits;
use crate::controller::Controller;

impl Queue {
    /// A sign of life other than a command.
    pub fn note_activity(&self, now: Duration) {
        if let Some(controller) = self.controller() {
            controller.hot.note_activity(now);
        }
    }

    /// The command of this capsule has arrived and not begun. It is a sign of life if any
    /// command counts (TBKAS), or if it is a Keep Alive. Returns whether it is a Keep Alive.
    /// Delays of the target therefore do not expire the Keep Alive Timer.
    #[must_use]
    pub fn note_command(&self, now: Duration, capsule: &[u8]) -> bool {
        match &self.role {
            Role::Unconnected { .. } => false,
            Role::Io(joined) => {
                joined.note_activity(now);
                false
            }
            Role::Admin(controller) => {
                let sqe = Sqe::in_capsule(capsule);
                sqe.is_some_and(|sqe| {
                    note_admin_command(controller, &self.shared.limits, sqe.opcode, now)
                })
            }
        }
    }
}

/// An admin command arrived. Returns whether it is a Keep Alive.
pub(super) fn note_admin_command(
    controller: &Controller,
    limits: &Limits,
    opcode: Opcode,
    now: Duration,
) -> bool {
    let keeps_alive = opcode == admin::KEEP_ALIVE;
    if keeps_alive || limits.traffic_keep_alive {
        controller.hot.note_activity(now);
    }
    keeps_alive
}
