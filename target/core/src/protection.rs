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
//!
//! [`Target::restore_protection`]: crate::Target::restore_protection
//! [`Target::forget_protection`]: crate::Target::forget_protection

mod desk;
mod states;

pub use desk::KeepProtections;
pub(crate) use desk::{Desk, Open};
pub(crate) use states::{Asked, Fixed, Protections, Settled, Step};

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
