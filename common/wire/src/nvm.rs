//! I/O commands of the NVM command set, parsed and built (NVM 1.0, 3.2).

mod copy;

use core::mem::offset_of;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Sqe;
use crate::opcode::{Opcode, io};
pub use copy::{COPY_RANGE_LEN, Copy, CopyRange};

bitflags::bitflags! {
    /// Bits 31:16 of dword 12: modifiers of Read, Write, Compare and Write Zeroes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct IoFlags: u32 {
        /// Deallocate (DEAC), Write Zeroes only.
        const DEALLOCATE = 1 << 25;
        /// Protection information: check guard, application tag, reference
        /// tag and the action bit (PRINFO).
        const PRINFO = 0xf << 26;
        /// The action bit of it.
        const PRACT = 1 << 29;
        /// Force unit access.
        const FUA = 1 << 30;
        /// Limited retry.
        const LIMITED_RETRY = 1 << 31;
    }
}

/// A range of blocks with flags: Read, Write, Compare, Write Zeroes, Verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// Namespace identifier.
    pub nsid: u32,
    /// First block.
    pub slba: u64,
    /// Number of blocks, 1 to 65536.
    pub blocks: u32,
    /// Flags.
    pub flags: IoFlags,
}

impl Io {
    /// A range without flags.
    #[must_use]
    pub const fn new(nsid: u32, slba: u64, blocks: u32) -> Self {
        Self {
            nsid,
            slba,
            blocks,
            flags: IoFlags::empty(),
        }
    }

    /// Parses a command with a range of blocks. NLB is 0's based on the wire, and a count
    /// here.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let cdw12 = sqe.cdw12.get();
        Self {
            nsid: sqe.nsid.get(),
            slba: u64::from(sqe.cdw10.get()) | (u64::from(sqe.cdw11.get()) << 32),
            blocks: (cdw12 & 0xffff) + 1,
            flags: IoFlags::from_bits_truncate(cdw12),
        }
    }

    /// Builds the command without data pointer and command identifier. `blocks` must be 1
    /// to 65536.
    #[must_use]
    pub fn to_sqe(self, opcode: Opcode) -> Sqe {
        debug_assert!((1..=0x1_0000).contains(&self.blocks), "NLB has 16 bits");
        let mut sqe = Sqe::new(opcode);
        let [a, b, c, d, e, f, g, h] = self.slba.to_le_bytes();
        sqe.nsid = U32::new(self.nsid);
        sqe.cdw10 = U32::from_bytes([a, b, c, d]);
        sqe.cdw11 = U32::from_bytes([e, f, g, h]);
        sqe.cdw12 = U32::new((self.blocks.wrapping_sub(1) & 0xffff) | self.flags.bits());
        sqe
    }
}

/// A Dataset Management command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetManagement {
    /// Namespace identifier.
    pub nsid: u32,
    /// Number of ranges, 1 to 256.
    pub ranges: u16,
    /// Attribute: deallocate (AD).
    pub deallocate: bool,
}

impl DatasetManagement {
    /// From a Dataset Management command. NR is zero-based on the wire.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [nr, ..] = sqe.cdw10.to_bytes();
        Self {
            nsid: sqe.nsid.get(),
            ranges: u16::from(nr) + 1,
            deallocate: sqe.cdw11.get() & 0x4 != 0,
        }
    }

    /// Builds the command without data pointer and command identifier. `ranges` must be 1
    /// to 256.
    #[must_use]
    pub fn to_sqe(self) -> Sqe {
        debug_assert!((1..=256).contains(&self.ranges), "NR has 8 bits");
        let mut sqe = Sqe::new(io::DATASET_MANAGEMENT);
        sqe.nsid = U32::new(self.nsid);
        sqe.cdw10 = U32::new(u32::from(self.ranges.wrapping_sub(1) & 0xff));
        sqe.cdw11 = U32::new(u32::from(self.deallocate) << 2);
        sqe
    }

    /// Length of the data in bytes.
    #[must_use]
    pub fn data_len(&self) -> u32 {
        u32::from(self.ranges) * DSM_RANGE_LEN
    }
}

/// A range of a Dataset Management command: 16 bytes of its data.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DsmRange {
    /// Context attributes: hints.
    pub attributes: U32,
    /// Number of blocks; not zero-based.
    pub blocks: U32,
    /// First block.
    pub slba: U64,
}

/// Length of a range in bytes.
pub const DSM_RANGE_LEN: u32 = 16;

const _: () = {
    assert!(size_of::<DsmRange>() == DSM_RANGE_LEN as usize);
    assert!(offset_of!(DsmRange, blocks) == 4);
    assert!(offset_of!(DsmRange, slba) == 8);
};

impl DsmRange {
    /// The range of `blocks` blocks from `slba`.
    #[must_use]
    pub fn new(slba: u64, blocks: u32) -> Self {
        Self {
            attributes: U32::ZERO,
            blocks: U32::new(blocks),
            slba: U64::new(slba),
        }
    }
}

/// A Flush of namespace `nsid`, or of all with FFFFFFFFh.
#[must_use]
pub fn flush(nsid: u32) -> Sqe {
    let mut sqe = Sqe::new(io::FLUSH);
    sqe.nsid = U32::new(nsid);
    sqe
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_write_with_fua() {
        let flags = IoFlags::FUA;
        let write = Io {
            nsid: 1,
            slba: 0x1_0000_0002,
            blocks: 8,
            flags,
        };
        let sqe = write.to_sqe(io::WRITE);
        assert_eq!(
            (sqe.cdw10.get(), sqe.cdw11.get(), sqe.cdw12.get()),
            (2, 1, 0x4000_0007)
        );
        assert_eq!(Io::parse(&sqe), write);
    }

    #[test]
    fn counts_are_zero_based_only_on_the_wire() {
        let most = Io::new(1, 0, 65_536);
        assert_eq!(most.to_sqe(io::READ).cdw12.get(), 0xffff);
        let dsm = DatasetManagement {
            nsid: 1,
            ranges: 256,
            deallocate: true,
        };
        assert_eq!(
            (dsm.to_sqe().cdw10.get(), dsm.to_sqe().cdw11.get()),
            (255, 4)
        );
        assert_eq!(dsm.data_len(), 4096);
    }

    proptest! {
        #[test]
        fn parsed_values_round_trip(bytes: [[u8; 32]; 2]) {
            let bytes: [u8; 64] = zerocopy::transmute!(bytes);
            let sqe = Sqe::from_capsule(&bytes).unwrap();
            let range = Io::parse(&sqe);
            prop_assert_eq!(Io::parse(&range.to_sqe(io::READ)), range);
            let dsm = DatasetManagement::parse(&sqe);
            prop_assert_eq!(DatasetManagement::parse(&dsm.to_sqe()), dsm);
        }
    }
}
