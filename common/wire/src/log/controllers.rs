//! Log pages that name controllers of the same subsystem: Cross-Controller Reset, 1Eh
//! (NVMe Base 2.3, figures 304 and 305), and Lost Host Communication, 1Fh (figures 306 and
//! 307). Each is [`EntryCount`] and as many entries of 8 bytes.

use core::mem::offset_of;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::number::numbers;

/// Most entries that either page has.
pub const CONTROLLER_ENTRIES_MAX: usize = 511;

/// Length in bytes of an entry of either page, and of what comes before the first.
pub const CONTROLLER_ENTRY_LEN: usize = 8;

/// What comes before the entries.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct EntryCount {
    /// Number of entries (NE).
    pub ne: U16,
    #[doc(hidden)]
    pub rsvd2: [u8; 6],
}

impl EntryCount {
    /// Before `entries` entries; no more than fit are counted.
    #[must_use]
    pub fn new(entries: usize) -> Self {
        let ne = u16::try_from(entries.min(CONTROLLER_ENTRIES_MAX)).unwrap_or(u16::MAX);
        Self {
            ne: ne.into(),
            rsvd2: [0; 6],
        }
    }
}

numbers! {
    /// State of a Cross-Controller Reset (CCRS).
    CrossResetState {
        IN_PROGRESS = 0, "in progress";
        SUCCESS = 1, "successful";
        FAILED = 2, "failed";
    }
}

bitflags::bitflags! {
    /// Flags of a Cross-Controller Reset (CCRF). Which bit is which is an assumption: the text
    /// of NVMe Base 2.3 was not available.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CrossResetFlags: u8 {
        /// The command was validated.
        const VALIDATED = 1 << 0;
        /// The reset was initiated.
        const INITIATED = 1 << 1;
        /// The host may retry.
        const RETRY = 1 << 2;
    }
}

/// A Cross-Controller Reset that a controller was asked for.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CrossResetEntry {
    /// Impacted controller.
    pub icid: U16,
    /// Its instance uniquifier.
    pub ciu: u8,
    #[doc(hidden)]
    pub rsvd3: u8,
    /// Controller that the reset was asked of.
    pub acid: U16,
    /// State.
    pub ccrs: CrossResetState,
    /// [`CrossResetFlags`].
    pub ccrf: u8,
}

/// Log Specific Parameter of the Cross-Controller Reset page: remove completed entries
/// (RMC). The bit is an assumption, as [`CrossResetFlags`].
pub const REMOVE_COMPLETED: u8 = 1;

/// A controller that lost communication with the host.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct LostHostEntry {
    /// The controller.
    pub cntlid: U16,
    /// How often it did (LC).
    pub lc: u8,
    /// Its instance uniquifier.
    pub ciu: u8,
    #[doc(hidden)]
    pub rsvd4: [u8; 4],
}

const _: () = {
    assert!(size_of::<EntryCount>() == CONTROLLER_ENTRY_LEN);
    assert!(size_of::<CrossResetEntry>() == CONTROLLER_ENTRY_LEN);
    assert!(offset_of!(CrossResetEntry, acid) == 4);
    assert!(offset_of!(CrossResetEntry, ccrf) == 7);
    assert!(size_of::<LostHostEntry>() == CONTROLLER_ENTRY_LEN);
    assert!(offset_of!(LostHostEntry, ciu) == 3);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_entries() {
        let entry = CrossResetEntry {
            icid: 0x0102.into(),
            ciu: 3,
            rsvd3: 0,
            acid: 0x0405.into(),
            ccrs: CrossResetState::SUCCESS,
            ccrf: (CrossResetFlags::VALIDATED | CrossResetFlags::INITIATED).bits(),
        };
        assert_eq!(entry.as_bytes(), [2, 1, 3, 0, 5, 4, 1, 3]);
        assert_eq!(
            EntryCount::new(9999).as_bytes(),
            [0xff, 1, 0, 0, 0, 0, 0, 0]
        );
    }
}
