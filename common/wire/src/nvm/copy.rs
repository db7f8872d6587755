//! The Copy command and the source ranges that are its data (NVM 1.0, 3.2.2).

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Sqe;
use crate::opcode::io;

/// A Copy command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Namespace identifier.
    pub nsid: u32,
    /// First block of the destination (SDLBA).
    pub slba: u64,
    /// Number of source ranges, 1 to 256.
    pub ranges: u16,
    /// Descriptor format of the source ranges (DESFMT), 0 to 15.
    pub format: u8,
    /// Protection information of the reads or of the write (PRINFOR, PRINFOW)
    /// is not zero.
    pub protected: bool,
    /// Force unit access.
    pub fua: bool,
}

/// Dword 12: PRINFOW in bits 29:26, PRINFOR in 15:12.
const PRINFO: u32 = 0xf << 26 | 0xf << 12;
/// Dword 12: force unit access.
const FUA: u32 = 1 << 30;

impl Copy {
    /// From a Copy command. NR is zero-based on the wire.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let cdw12 = sqe.cdw12.get();
        let [nr, format, ..] = cdw12.to_le_bytes();
        Self {
            nsid: sqe.nsid.get(),
            slba: u64::from(sqe.cdw10.get()) | (u64::from(sqe.cdw11.get()) << 32),
            ranges: u16::from(nr) + 1,
            format: format & 0xf,
            protected: cdw12 & PRINFO != 0,
            fua: cdw12 & FUA != 0,
        }
    }

    /// Builds the command, without protection information, data pointer and command
    /// identifier. `ranges` must be 1 to 256.
    #[must_use]
    pub fn to_sqe(self) -> Sqe {
        debug_assert!((1..=256).contains(&self.ranges), "NR has 8 bits");
        let mut sqe = Sqe::new(io::COPY);
        let [a, b, c, d, e, f, g, h] = self.slba.to_le_bytes();
        sqe.nsid = U32::new(self.nsid);
        sqe.cdw10 = U32::from_bytes([a, b, c, d]);
        sqe.cdw11 = U32::from_bytes([e, f, g, h]);
        let nr = u32::from(self.ranges.wrapping_sub(1) & 0xff);
        let format = u32::from(self.format & 0xf) << 8;
        sqe.cdw12 = U32::new(nr | format | if self.fua { FUA } else { 0 });
        sqe
    }
}

/// A source range in descriptor format 0h: for namespaces without protection
/// information, or with 16-bit guards.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CopyRange {
    #[doc(hidden)]
    pub rsvd0: [u8; 8],
    /// First block.
    pub slba: U64,
    /// Number of blocks, 0's based: see [`blocks`](Self::blocks).
    pub nlb: U16,
    #[doc(hidden)]
    pub rsvd18: [u8; 6],
    /// Expected initial reference tag.
    pub eilbrt: U32,
    /// Expected application tag.
    pub elbat: U16,
    /// Mask of the expected application tag.
    pub elbatm: U16,
}

/// Length of a source range of format 0h in bytes.
pub const COPY_RANGE_LEN: u32 = 32;

const _: () = {
    assert!(size_of::<CopyRange>() == COPY_RANGE_LEN as usize);
    assert!(offset_of!(CopyRange, slba) == 8);
    assert!(offset_of!(CopyRange, nlb) == 16);
    assert!(offset_of!(CopyRange, eilbrt) == 24);
    assert!(offset_of!(CopyRange, elbatm) == 30);
};

impl CopyRange {
    /// The range of `blocks` blocks, 1 to 65536, from `slba`.
    #[must_use]
    pub fn new(slba: u64, blocks: u32) -> Self {
        debug_assert!((1..=0x1_0000).contains(&blocks), "NLB has 16 bits");
        let [low, high, ..] = blocks.wrapping_sub(1).to_le_bytes();
        let mut range = Self::new_zeroed();
        range.slba = U64::new(slba);
        range.nlb = U16::from_bytes([low, high]);
        range
    }

    /// Number of blocks, 1 to 65536.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        u32::from(self.nlb.get()) + 1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_copy() {
        let copy = Copy {
            nsid: 1,
            slba: 0x1_0000_0002,
            ranges: 3,
            format: 0,
            protected: false,
            fua: true,
        };
        let sqe = copy.to_sqe();
        assert_eq!(sqe.opcode.0, 0x19);
        assert_eq!(
            (sqe.cdw10.get(), sqe.cdw11.get(), sqe.cdw12.get()),
            (2, 1, 0x4000_0002)
        );
        assert_eq!(Copy::parse(&sqe), copy);
        let mut sqe = sqe;
        for bit in (12..16).chain(26..30) {
            sqe.cdw12 = U32::new(1 << bit);
            assert!(Copy::parse(&sqe).protected, "{bit}");
        }
        let range = CopyRange::new(7, 65536);
        assert_eq!((range.nlb.get(), range.blocks()), (0xffff, 65536));
        assert_eq!(range.as_bytes()[8..18], [7, 0, 0, 0, 0, 0, 0, 0, 255, 255]);
    }

    proptest! {
        #[test]
        fn parsed_values_round_trip(bytes: [[u8; 32]; 2]) {
            let bytes: [u8; 64] = zerocopy::transmute!(bytes);
            let sqe = Sqe::from_capsule(&bytes).unwrap();
            let copy = Copy { protected: false, ..Copy::parse(&sqe) };
            prop_assert_eq!(Copy::parse(&copy.to_sqe()), copy);
        }
    }
}
