//! The Error Information log page, 01h (NVMe Base 2.0, figure 206).

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::discovery::TransportType;
use crate::status::Status;

/// Length in bytes of an entry.
pub const ERROR_ENTRY_LEN: usize = 64;

/// An entry: the page holds ELPE + 1 of them, the most recent one first.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ErrorEntry {
    /// Error count: a unique number of each error, from 1; 0 in an unused entry.
    pub ecnt: U64,
    /// Submission queue; FFFFh if the error concerns no queue.
    pub sqid: U16,
    /// Command; FFFFh when it concerns no command.
    pub cid: U16,
    /// Bits 15:1 the status, bit 0 the phase tag.
    pub sts: U16,
    /// Parameter error location: byte of the command in bits 7:0, bit in 10:8; FFFFh if
    /// the error concerns no parameter.
    pub pel: U16,
    /// First block that had the error.
    pub lba: U64,
    /// Namespace.
    pub nsid: U32,
    /// Vendor specific log page with more; 0 is none.
    pub vsia: u8,
    /// Transport type; 0 is not reported.
    pub trtype: TransportType,
    /// Command set (NVMe Base 2.1).
    pub csi: u8,
    /// Opcode (NVMe Base 2.1).
    pub opc: u8,
    /// Command specific information.
    pub csinfo: U64,
    /// Transport type specific information.
    pub ttsi: U16,
    #[doc(hidden)]
    pub rsvd42: [u8; 21],
    /// Log page version (NVMe Base 2.1): 1 when `csi` and `opc` are valid.
    pub lpver: u8,
}

const _: () = {
    assert!(size_of::<ErrorEntry>() == ERROR_ENTRY_LEN);
    assert!(offset_of!(ErrorEntry, sqid) == 8);
    assert!(offset_of!(ErrorEntry, sts) == 12);
    assert!(offset_of!(ErrorEntry, pel) == 14);
    assert!(offset_of!(ErrorEntry, lba) == 16);
    assert!(offset_of!(ErrorEntry, nsid) == 24);
    assert!(offset_of!(ErrorEntry, trtype) == 29);
    assert!(offset_of!(ErrorEntry, csinfo) == 32);
    assert!(offset_of!(ErrorEntry, ttsi) == 40);
    assert!(offset_of!(ErrorEntry, lpver) == 63);
};

/// SQID, CID and PEL: not applicable.
pub const NONE_IN_PARTICULAR: u16 = 0xffff;

impl ErrorEntry {
    /// An unused entry.
    #[must_use]
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }

    /// Error number `ecnt`, of no particular command until the caller sets one.
    #[must_use]
    pub fn new(ecnt: u64, status: Status) -> Self {
        Self {
            ecnt: U64::new(ecnt),
            sqid: U16::new(NONE_IN_PARTICULAR),
            cid: U16::new(NONE_IN_PARTICULAR),
            sts: U16::new(status.to_field() << 1),
            pel: U16::new(NONE_IN_PARTICULAR),
            ..Self::zeroed()
        }
    }

    /// How the command ended.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::from_field(self.sts.get() >> 1)
    }

    /// Byte and bit of the parameter that caused the error.
    #[must_use]
    pub fn parameter(&self) -> Option<(u8, u8)> {
        let [byte, bit] = self.pel.get().to_le_bytes();
        (self.pel.get() != NONE_IN_PARTICULAR).then_some((byte, bit & 0x07))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_entry() {
        let mut entry = ErrorEntry::new(5, Status::INVALID_FIELD.with_dnr());
        entry.nsid = U32::new(1);
        let bytes = entry.as_bytes();
        assert_eq!(bytes[..8], [5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            bytes[8..16],
            [0xff, 0xff, 0xff, 0xff, 0x04, 0x80, 0xff, 0xff]
        );
        assert_eq!(bytes[24..28], [1, 0, 0, 0]);
        assert_eq!(entry.status(), Status::INVALID_FIELD.with_dnr());
        assert_eq!(entry.parameter(), None);
        entry.pel = U16::new(0x0328);
        assert_eq!(entry.parameter(), Some((40, 3)));
    }
}
