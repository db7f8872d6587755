//! The Firmware Slot Information log page, 03h (NVMe Base 2.0, figure 208).

use core::mem::offset_of;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ascii::Ascii;

/// Length in bytes of the page.
pub const FIRMWARE_LEN: usize = 512;

/// The page.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct FirmwareSlots {
    /// Active firmware info: bits 2:0 the active slot, 6:4 that of the next
    /// reset, 0 when not indicated.
    pub afi: u8,
    #[doc(hidden)]
    pub rsvd1: [u8; 7],
    /// Revisions in slots 1 to 7; zeros if a slot is empty.
    pub frs: [Ascii<8>; 7],
    #[doc(hidden)]
    pub rsvd64: [u8; 448],
}

const _: () = {
    assert!(size_of::<FirmwareSlots>() == FIRMWARE_LEN);
    assert!(offset_of!(FirmwareSlots, frs) == 8);
    assert!(offset_of!(FirmwareSlots, rsvd64) == 64);
};

impl FirmwareSlots {
    /// One slot, which is active.
    #[must_use]
    pub fn single(revision: Ascii<8>) -> Self {
        let mut page = Self {
            afi: 1,
            ..Self::new_zeroed()
        };
        if let Some(first) = page.frs.first_mut() {
            *first = revision;
        }
        page
    }

    /// The revision that runs.
    #[must_use]
    pub fn active(&self) -> Option<&Ascii<8>> {
        usize::from(self.afi & 0x07)
            .checked_sub(1)
            .and_then(|slot| self.frs.get(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_page_of_one_slot() {
        let mut page = FirmwareSlots::single(Ascii::new("0.1.0"));
        let bytes = page.as_bytes();
        assert_eq!(
            bytes[..24],
            *b"\x01\0\0\0\0\0\0\x000.1.0   \0\0\0\0\0\0\0\0"
        );
        assert_eq!(page.active(), Some(&Ascii::new("0.1.0")));
        for afi in 0..=255 {
            page.afi = afi;
            assert_eq!(page.active().is_some(), afi & 0x07 != 0, "{afi}");
        }
    }
}
