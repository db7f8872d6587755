//! Cross-Controller Resets that a controller was asked for, as log page 1Eh reports them
//! (NVMe Base 2.3, 5.2.12.3.1).

use std::sync::Arc;

use nvmeof_wire::Status;
use nvmeof_wire::log::controllers::{CONTROLLER_ENTRIES_MAX, CrossResetFlags};
use nvmeof_wire::log::{CrossResetEntry, CrossResetState};

use super::in_flight::InFlightCount;

/// Resets that may be in progress (CCRL).
pub(crate) const LIMIT: u8 = 4;

/// The resets of one controller, oldest first.
#[derive(Debug, Default)]
pub(crate) struct CrossResets(Vec<CrossReset>);

#[derive(Debug)]
struct CrossReset {
    icid: u16,
    ciu: u8,
    /// What is in flight of the impacted controller, while the reset is in progress.
    pending: Option<Arc<InFlightCount>>,
}

impl CrossResets {
    /// Whether one more may begin; the error is the status of the command.
    pub(crate) fn check_room(&self) -> Result<(), Status> {
        let pending = self.0.iter().filter(|one| one.pending.is_some());
        if pending.count() >= LIMIT.into() {
            return Err(Status::CROSS_RESET_LIMIT_EXCEEDED);
        }
        if self.0.len() >= CONTROLLER_ENTRIES_MAX {
            return Err(Status::CROSS_RESET_LOG_FULL);
        }
        Ok(())
    }

    /// A reset of that incarnation begins; it completes when `pending` is quiet.
    pub(crate) fn begin(&mut self, icid: u16, ciu: u8, pending: Arc<InFlightCount>) {
        self.0.push(CrossReset {
            icid,
            ciu,
            pending: Some(pending),
        });
    }

    /// Completes those of which nothing is in flight any more. Says whether there are any.
    pub(crate) fn complete(&mut self) -> bool {
        let mut completed = false;
        for one in &mut self.0 {
            if one.pending.take_if(|pending| pending.is_quiet()).is_some() {
                completed = true;
            }
        }
        completed
    }

    /// Whether one is in progress.
    pub(crate) fn is_pending(&self) -> bool {
        self.0.iter().any(|one| one.pending.is_some())
    }

    /// Removes those that completed.
    pub(crate) fn remove_completed(&mut self) {
        self.0.retain(|one| one.pending.is_some());
    }

    /// The entries of the log page of controller `acid`.
    pub(crate) fn entries(&self, acid: u16) -> impl ExactSizeIterator<Item = CrossResetEntry> {
        self.0.iter().map(move |one| CrossResetEntry {
            icid: one.icid.into(),
            ciu: one.ciu,
            rsvd3: 0,
            acid: acid.into(),
            ccrs: match one.pending {
                Some(_) => CrossResetState::IN_PROGRESS,
                None => CrossResetState::SUCCESS,
            },
            ccrf: (CrossResetFlags::VALIDATED | CrossResetFlags::INITIATED).bits(),
        })
    }
}
