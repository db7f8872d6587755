//! The lost controllers of a host that fences, and the commands that `Fence` requests.

use std::time::Duration;

use nvmeof_initiator::Error;
use nvmeof_initiator::polled::{Call, Done, SubmitError};
use nvmeof_initiator_core::{Fence, FenceMethod, FenceStep, LostController, admin};
use nvmeof_wire::Status;
use nvmeof_wire::admin::CrossControllerReset;
use nvmeof_wire::log::controllers::CONTROLLER_ENTRY_LEN;
use nvmeof_wire::log::{CrossResetEntry, EntryCount};
use zerocopy::FromBytes;

use super::Mechanism;
use super::multipath::{Connection, Multipath, Wrong};
use crate::oracle::OpId;

/// A controller that was lost with outstanding calls.
pub(super) struct Lost {
    pub(super) at: Connection,
    fence: Fence,
    pub(super) calls: Vec<OpId>,
    /// The sibling that executes the reset.
    via: Option<Connection>,
    /// Siblings that do not reset it.
    refused: Vec<Connection>,
}

/// Calls of admin queues: this bit, twice the number of the lost controller, and whether it
/// is a read of the log page.
pub(super) const ADMIN: u64 = 1 << 62;

const LOG_LEN: u32 = 4096;

impl Lost {
    pub(super) fn new(at: Connection, identity: &LostController, now: Duration) -> Self {
        Self {
            at,
            fence: Fence::new(identity, None, now),
            calls: Vec::new(),
            via: None,
            refused: Vec::new(),
        }
    }

    /// When to ask it again.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.fence.next_deadline()
    }

    /// A path was lost, possibly that of the sibling.
    pub(super) fn path_lost(&mut self, sibling: Connection, now: Duration) {
        if self.via == Some(sibling) {
            self.via = None;
            self.fence.sibling_lost(now);
        }
    }

    /// That sibling reported the end of a reset.
    pub(super) fn notified(&mut self, sibling: Connection, now: Duration) {
        if self.via == Some(sibling) {
            self.fence.notified(now);
        }
    }
}

impl Multipath {
    /// Performs the steps of all fences. Returns whether there was one.
    pub(super) fn poll_fences(&mut self, now: Duration) -> Result<bool, Wrong> {
        let mut progress = false;
        let numbers: Vec<u64> = self.lost.keys().copied().collect();
        for number in numbers {
            progress |= self.poll_fence(number, now)?;
        }
        Ok(progress)
    }

    fn poll_fence(&mut self, number: u64, now: Duration) -> Result<bool, Wrong> {
        let mut siblings: Vec<Connection> = self.connections().collect();
        let lost = self.lost.get_mut(&number).unwrap();
        siblings.retain(|sibling| !lost.refused.contains(sibling));
        match lost.fence.poll(now, !siblings.is_empty()) {
            FenceStep::Wait => Ok(false),
            FenceStep::Reset(reset) => {
                let sibling = siblings[self.dice.below(siblings.len())];
                lost.via = Some(sibling);
                let command = admin::cross_controller_reset(reset);
                let call = Call::new(command.into(), None, ADMIN | (number << 1));
                self.send_to(sibling, number, call, now)
            }
            FenceStep::ReadLog => {
                let sibling = lost.via.unwrap();
                let command = admin::cross_resets(LOG_LEN);
                let admin = self.paths[sibling.path].admin().unwrap();
                let Some(page) = admin.page(LOG_LEN as usize) else {
                    return Ok(false);
                };
                let call = Call::new(command.into(), Some(page), ADMIN | (number << 1) | 1);
                self.send_to(sibling, number, call, now)
            }
            FenceStep::Fenced(method) => {
                let Some(lost) = self.lost.remove(&number) else {
                    return Ok(false);
                };
                self.say(format_args!("{:?} is fenced: {method:?}", lost.at));
                match method {
                    FenceMethod::CrossControllerReset => self.report.reset += 1,
                    _ => self.report.waited += 1,
                }
                self.fenced(lost)?;
                Ok(true)
            }
        }
    }

    fn send_to(
        &mut self,
        sibling: Connection,
        number: u64,
        call: Call,
        now: Duration,
    ) -> Result<bool, Wrong> {
        let admin = self.paths[sibling.path].admin().unwrap();
        match admin.submit(call, now) {
            Ok(()) => {
                self.lost.get_mut(&number).unwrap().fence.sent();
                Ok(true)
            }
            Err(refused) => match refused.why {
                SubmitError::Full => Ok(false),
                why => Err(Wrong::Broken(format!(
                    "an admin queue refused a command: {why}"
                ))),
            },
        }
    }

    /// A command of a fence ended.
    pub(super) fn admin_done(&mut self, sibling: Connection, done: &Done, now: Duration) {
        let number = (done.user & !ADMIN) >> 1;
        if done.user & 1 == 1 {
            return self.log_read(sibling, done, now);
        }
        let early = self.plan.mode.without == Some(Mechanism::ResetCompletion);
        let Some(lost) = self.lost.get_mut(&number) else {
            return;
        };
        if lost.via != Some(sibling) {
            return;
        }
        let (status, mut result) = match &done.result {
            Ok(result) => (
                Status::SUCCESS,
                u32::try_from(result & 0xffff_ffff).unwrap(),
            ),
            Err(Error::Command(error)) => (error.status, 0),
            Err(_) => return lost.path_lost(sibling, now),
        };
        if early && status.is_success() {
            result |= CrossControllerReset::IMMEDIATE;
        }
        if lost.fence.reset_completed(now, status, result).is_some() {
            lost.refused.push(sibling);
        }
        let at = lost.at;
        self.say(format_args!(
            "reset of {at:?} by {sibling:?}: {status} {result}"
        ));
    }

    fn log_read(&mut self, sibling: Connection, done: &Done, now: Duration) {
        let entries: Vec<CrossResetEntry> = match (&done.result, &done.buf) {
            (Ok(_), Some(page)) => {
                let (count, _) = EntryCount::read_from_prefix(page).unwrap();
                let entries = page[CONTROLLER_ENTRY_LEN..].chunks_exact(CONTROLLER_ENTRY_LEN);
                let entries = entries.take(count.ne.get().into());
                entries
                    .map(|entry| CrossResetEntry::read_from_bytes(entry).unwrap())
                    .collect()
            }
            _ => return,
        };
        for lost in self.lost.values_mut() {
            if lost.via == Some(sibling) && lost.fence.log_read(now, &entries).is_some() {
                lost.refused.push(sibling);
            }
        }
    }
}
