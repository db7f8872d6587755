//! Write protection of namespaces that hosts set, over all controllers of a
//! subsystem (Base 2.1, 8.1.16).
//!
//! ```text
//!   No Write Protect ◄──► Write Protect        by Set Features
//!         │                     │
//!         └─────────┬───────────┘ by Set Features
//!                   ▼
//!       Until Power Cycle ──► No Write Protect, when the target is started again
//! ```
//! Base 2.1, 8.1.16.1, figure 621: Write Protect is persistent across power cycles,
//! so whoever starts the target keeps it ([`KeepProtections`]) and brings it back
//! ([`Target::restore_protection`]). Where nobody keeps it the states are not offered.
//!
//! A namespace is protected as soon as a host asks for it and until it is kept that it
//! is not any more; the host is answered when what it asked for is kept. So what was
//! answered is there again after a crash, and what could not be kept is told to the
//! host and is as it was. Of requests that wait the last one for a namespace counts,
//! and one write keeps them all.
//!
//! What a host set belongs to the namespace, by subsystem, number and identifier,
//! whether that is served at present or not: a file may be missing for a while, or a
//! document leave it out. It ends when a host takes it back, or when an administrator
//! says that the namespace is no more ([`Target::forget_protection`]).
//!
//! A namespace that is read only by configuration is in the state Write Protect
//! and stays there. Permanent Write Protect is not supported: nothing here could
//! keep an administrator from undoing it.

mod desk;
mod states;

use std::sync::Arc;

use nvmeof_wire::Nqn;

pub(crate) use desk::{Desk, Open};
pub use desk::{KeepProtections, Keeping, NotKept, ToKeep};
pub(crate) use states::{Asked, Fixed, Protections, Settled, Step};

use crate::Target;

/// A namespace that a host write protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptProtection {
    /// Its number.
    pub nsid: u32,
    /// Its identifier: another namespace with that number is not protected.
    pub uuid: [u8; 16],
}

/// Why nothing came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is no such namespace.
    Gone,
    /// The state cannot be changed.
    Fixed,
}

impl From<Fixed> for Refused {
    fn from(_: Fixed) -> Self {
        Self::Fixed
    }
}

impl Target {
    /// `keeper` has kept what hosts write protect from now on. Call it before hosts
    /// connect: they are told whether they may protect namespaces (NWPC).
    pub fn keep_protections_in(&self, keeper: Arc<dyn KeepProtections>) {
        self.shared.desk.is_kept_by(keeper);
    }

    /// What is to be kept, all of it, if there is anything that is not being written
    /// already. For the keeper; see [`KeepProtections::wake`].
    #[must_use]
    pub fn to_keep(&self) -> Option<ToKeep> {
        ToKeep::take(&self.shared)
    }

    /// What was kept is so again: call it before hosts connect. False when there
    /// is no such namespace at present: it is protected when it comes.
    #[must_use]
    pub fn restore_protection(&self, subsystem: &Nqn, kept: KeptProtection) -> bool {
        let mut served = self.shared.served();
        if let Some(live) = served.live(subsystem) {
            return live.restore_protection(kept);
        }
        served.waiting.entry(*subsystem).or_default().restore(kept);
        false
    }

    /// What hosts set of the namespace with that number, or of all of the subsystem,
    /// is to be forgotten: an administrator removed it, and one that comes later is not
    /// protected. It is so when that is kept; when it cannot be, nothing changed.
    /// `None` when there is nothing to be forgotten.
    #[must_use]
    pub fn forget_protection(&self, subsystem: &Nqn, nsid: Option<u32>) -> Option<Keeping> {
        let mut desk = self.shared.desk.open();
        let mut served = self.shared.served();
        let any = match served.live(subsystem) {
            Some(live) => live.forget_protection(nsid),
            None => {
                let waiting = served.waiting.get_mut(subsystem);
                waiting.is_some_and(|waiting| waiting.forget(nsid))
            }
        };
        drop(served);
        any.then(|| desk.keep(subsystem)).flatten()
    }
}
