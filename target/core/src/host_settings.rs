//! What hosts set of the namespaces of a subsystem, and what is kept across restarts: write
//! protection and reservations.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::persist::PendingSave;
use crate::protection::{Protections, SavedProtection};
use crate::reservations::{Ended, ReservationTable, SavedReservations};

/// The settings of one subsystem. They last while it is not served.
#[derive(Debug, Default)]
pub(crate) struct HostSettings {
    pub(crate) protections: Protections,
    pub(crate) reservations: ReservationTable,
}

/// The settings of namespaces, as they are saved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedSettings {
    /// Namespaces in the state Write Protect.
    pub protected: Vec<SavedProtection>,
    /// Namespaces with registrants.
    pub reservations: Vec<SavedReservations>,
}

/// Why settings were not replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotReplace {
    /// A save of the namespace is in progress.
    #[error("an earlier change of the namespace is still being saved")]
    Saving,
    /// Hosts can use the namespace, and commands depend on what is in force.
    #[error("the namespace is served")]
    Served,
}

/// The result of [`HostSettings::forget`].
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Forgotten {
    /// NSIDs with write protection.
    pub(crate) protections: BTreeSet<u32>,
    /// NSIDs with reservations, and what to wait for.
    pub(crate) reservations: BTreeMap<u32, PendingSave>,
}

/// The result of [`HostSettings::kept`].
#[derive(Debug)]
#[must_use]
pub(crate) struct Kept {
    /// Whether the write protection of a namespace is another one.
    pub(crate) protections: bool,
    /// Whether reservations are others.
    pub(crate) reservations: bool,
    pub(crate) ended: Ended,
}

impl HostSettings {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.protections.is_empty() && self.reservations.is_empty()
    }

    /// Takes them, with the changes that are not saved yet. Those that remain are as before.
    pub(crate) fn retire(&mut self) -> Self {
        Self {
            protections: self.protections.clone().without_open(),
            reservations: self.reservations.retire(),
        }
    }

    /// Forgets those of namespace `nsid`, or of all, with the next save of each.
    pub(crate) fn forget(&mut self, nsid: Option<u32>) -> Forgotten {
        Forgotten {
            protections: self.protections.forget(nsid),
            reservations: self.reservations.forget(nsid),
        }
    }

    /// Restores what was saved, after a loss of power.
    pub(crate) fn restore(&mut self, saved: SavedSettings) {
        for one in saved.protected {
            self.protections.restore(one);
        }
        for one in saved.reservations {
            self.reservations.restore(one);
        }
    }

    /// Replaces the settings of the namespaces with that NSID by those that another target saved.
    pub(crate) fn replace(&mut self, nsid: u32, saved: SavedSettings) -> Ended {
        self.protections.replace(nsid, saved.protected);
        self.reservations.replace(nsid, saved.reservations)
    }

    /// What is to be saved now of the namespaces with that NSID. Call [`kept`](Self::kept)
    /// afterwards.
    pub(crate) fn begin_write(&mut self, nsid: u32) -> SavedSettings {
        SavedSettings {
            protected: self.protections.begin_write(nsid),
            reservations: self.reservations.begin_write(nsid),
        }
    }

    /// The save of the namespaces with that NSID completed or failed.
    pub(crate) fn kept(&mut self, nsid: u32, result: &io::Result<()>) -> Kept {
        let in_progress = self.reservations.is_saving();
        let ended = self.reservations.kept(nsid, result);
        Kept {
            protections: self.protections.kept(result.is_ok()),
            reservations: in_progress && result.is_ok(),
            ended,
        }
    }
}
