//! Cross-Controller Resets that a controller was asked for, as log page 1Eh reports them
//! (NVMe Base 2.3, 5.2.12.3.1).

use std::sync::Arc;

use nvmeof_wire::Status;
use nvmeof_wire::log::controllers::{CONTROLLER_ENTRIES_MAX, CrossResetFlags};
use nvmeof_wire::log::{CrossResetEntry, CrossResetState};

use super::in_flight::InFlightCount;
use crate::RemoteReset;

/// Resets that may be in progress (CCRL).
pub(crate) const LIMIT: u8 = 4;

/// The resets of one controller, oldest first.
#[derive(Debug, Default)]
pub(crate) struct CrossResets(Vec<CrossReset>);

#[derive(Debug)]
struct CrossReset {
    icid: u16,
    ciu: u8,
    progress: Progress,
}

#[derive(Debug)]
enum Progress {
    Pending(PendingReset),
    Ended { is_successful: bool },
}

/// What a reset in progress waits for.
#[derive(Debug)]
pub(crate) enum PendingReset {
    /// What is in flight of a controller of this gateway.
    Local(Arc<InFlightCount>),
    /// A controller of another gateway.
    Remote(Arc<RemoteReset>),
}

impl CrossReset {
    fn is_pending(&self) -> bool {
        matches!(self.progress, Progress::Pending(_))
    }
}

impl PendingReset {
    /// Whether it is successful, if it has ended.
    fn outcome(&self) -> Option<bool> {
        match self {
            Self::Local(in_flight) => in_flight.is_quiet().then_some(true),
            Self::Remote(reset) => reset.outcome(),
        }
    }
}

impl CrossResets {
    /// Whether one more may begin; the error is the status of the command.
    pub(crate) fn check_room(&self) -> Result<(), Status> {
        let pending = self.0.iter().filter(|one| one.is_pending());
        if pending.count() >= LIMIT.into() {
            return Err(Status::CROSS_RESET_LIMIT_EXCEEDED);
        }
        if self.0.len() >= CONTROLLER_ENTRIES_MAX {
            return Err(Status::CROSS_RESET_LOG_FULL);
        }
        Ok(())
    }

    /// A reset of that incarnation begins; it completes when `pending` has an outcome.
    pub(crate) fn begin(&mut self, icid: u16, ciu: u8, pending: PendingReset) {
        self.0.push(CrossReset {
            icid,
            ciu,
            progress: Progress::Pending(pending),
        });
    }

    /// Completes those that have an outcome. Says whether there are any.
    pub(crate) fn complete(&mut self) -> bool {
        let mut completed = false;
        for one in &mut self.0 {
            if let Progress::Pending(pending) = &one.progress
                && let Some(is_successful) = pending.outcome()
            {
                one.progress = Progress::Ended { is_successful };
                completed = true;
            }
        }
        completed
    }

    /// Whether one is in progress.
    pub(crate) fn is_pending(&self) -> bool {
        self.0.iter().any(CrossReset::is_pending)
    }

    /// Removes those that completed.
    pub(crate) fn remove_completed(&mut self) {
        self.0.retain(CrossReset::is_pending);
    }

    /// The entries of the log page of controller `acid`.
    pub(crate) fn entries(&self, acid: u16) -> impl ExactSizeIterator<Item = CrossResetEntry> {
        self.0.iter().map(move |one| CrossResetEntry {
            icid: one.icid.into(),
            ciu: one.ciu,
            rsvd3: 0,
            acid: acid.into(),
            ccrs: match one.progress {
                Progress::Pending(_) => CrossResetState::IN_PROGRESS,
                Progress::Ended {
                    is_successful: true,
                } => CrossResetState::SUCCESS,
                Progress::Ended {
                    is_successful: false,
                } => CrossResetState::FAILED,
            },
            ccrf: (CrossResetFlags::VALIDATED | CrossResetFlags::INITIATED).bits(),
        })
    }
}
