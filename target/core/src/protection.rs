//! Write protection of namespaces that hosts set, over all controllers of a
//! subsystem (Base 2.1, 8.1.16).
//!
//! ```text
//!   No Write Protect ◄──► Write Protect        by Set Features
//!         │                     │
//!         └─────────┬───────────┘ by Set Features
//!                   ▼
//!       Until Power Cycle ──► No Write Protect, when the target restarts
//! ```
//! Base 2.1, 8.1.16.1, figure 621: Write Protect is persistent across power cycles. The
//! caller therefore saves it ([`SettingsKeeper`](crate::SettingsKeeper)) and restores it at start
//! ([`Target::restore`]). Without persistence the states are not offered.
//!
//! A namespace is protected from the request of a host until the removal of the
//! protection has been saved. The command completes when the requested state has been
//! saved. An acknowledged state therefore survives a crash; if the save fails, the
//! command fails and the state is unchanged. Of several pending requests for a namespace
//! the last one counts, and one save covers them all.
//!
//! The state belongs to the namespace, by subsystem, NSID and UUID, whether it is served
//! at present or not: a file may be missing for a while, or a configuration may omit it.
//! It ends when a host removes the protection, or when an administrator removes the
//! namespace ([`Target::forget_settings`]).
//!
//! A namespace that is read-only by configuration is always in the state Write Protect.
//! Permanent Write Protect is not supported, because the target cannot prevent an
//! administrator from removing it.
//!
//! [`Target::restore`]: crate::Target::restore
//! [`Target::forget_settings`]: crate::Target::forget_settings

mod states;

pub(crate) use states::{Fixed, ProtectionRequest, Protections, Settled, Step};

/// A namespace that a host write protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedProtection {
    /// Its NSID.
    pub nsid: u32,
    /// Its UUID: another namespace with the same NSID is not protected.
    pub uuid: [u8; 16],
}

/// Why a request was refused.
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
