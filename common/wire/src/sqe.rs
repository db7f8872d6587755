//! The 64-byte submission queue entry (NVMe Base 2.0, 3.3.3.1).

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::opcode::Opcode;
use crate::sgl::SglDescriptor;

/// Length of a submission queue entry in bytes.
pub const SQE_LEN: usize = 64;

/// A submission queue entry. Command specific dwords are named by their number;
/// [`crate::admin`], [`crate::nvm`] and [`crate::fabrics`] define their meaning.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Sqe {
    /// Opcode.
    pub opcode: Opcode,
    /// Fused operation in bits 1:0, PRP or SGL for data transfer (PSDT) in
    /// bits 7:6.
    pub flags: u8,
    /// Command identifier.
    pub cid: U16,
    /// Namespace identifier. In a Fabrics command byte 4 is its type.
    pub nsid: U32,
    /// Command dword 2.
    pub cdw2: U32,
    /// Command dword 3.
    pub cdw3: U32,
    /// Metadata pointer.
    pub mptr: U64,
    /// Data pointer: over fabrics always one SGL descriptor.
    pub dptr: SglDescriptor,
    /// Command dword 10.
    pub cdw10: U32,
    /// Command dword 11.
    pub cdw11: U32,
    /// Command dword 12.
    pub cdw12: U32,
    /// Command dword 13.
    pub cdw13: U32,
    /// Command dword 14.
    pub cdw14: U32,
    /// Command dword 15.
    pub cdw15: U32,
}

const _: () = {
    assert!(size_of::<Sqe>() == SQE_LEN);
    assert!(offset_of!(Sqe, cid) == 2);
    assert!(offset_of!(Sqe, nsid) == 4);
    assert!(offset_of!(Sqe, mptr) == 16);
    assert!(offset_of!(Sqe, dptr) == 24);
    assert!(offset_of!(Sqe, cdw10) == 40);
    assert!(offset_of!(Sqe, cdw15) == 60);
};

/// Role of a command in a fused operation (Base 2.0, figure 87, FUSE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fuse {
    /// None: 00b.
    Normal,
    /// First command: 01b.
    First,
    /// Second command: 10b.
    Second,
    /// Reserved: 11b.
    Reserved,
}

/// Fused operation, bits 1:0 of [`Sqe::flags`].
pub const FUSE_MASK: u8 = 0x03;
/// PSDT, bits 7:6 of [`Sqe::flags`].
pub const PSDT_MASK: u8 = 0xc0;
/// PSDT 01b: SGLs, metadata pointer is an address. The value that commands
/// over fabrics use.
pub const PSDT_SGL: u8 = 0x40;
/// PSDT 10b: SGLs, metadata pointer is an SGL segment.
pub const PSDT_SGL_METADATA: u8 = 0x80;

impl Sqe {
    /// An entry of zeros except for opcode and PSDT. PSDT is 01b: NVMe over Fabrics
    /// allows no PRPs.
    #[must_use]
    pub fn new(opcode: Opcode) -> Self {
        Self {
            opcode,
            flags: PSDT_SGL,
            ..Self::new_zeroed()
        }
    }

    /// The entry at the start of a capsule, as a copy; `None` if the capsule is shorter.
    #[must_use]
    pub fn from_capsule(capsule: &[u8]) -> Option<Self> {
        Self::read_from_prefix(capsule).ok().map(|(sqe, _rest)| sqe)
    }

    /// The entry at the start of a capsule, in place; `None` if the capsule is shorter.
    #[must_use]
    pub fn in_capsule(capsule: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(capsule).ok().map(|(sqe, _rest)| sqe)
    }

    /// The bytes as on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; SQE_LEN] {
        zerocopy::transmute!(*self)
    }

    /// Which half of a fused operation it is: FUSE, bits 1:0 of the flags.
    #[must_use]
    pub fn fuse(&self) -> Fuse {
        match self.flags & FUSE_MASK {
            0 => Fuse::Normal,
            1 => Fuse::First,
            2 => Fuse::Second,
            _ => Fuse::Reserved,
        }
    }

    /// Sets FUSE.
    pub fn set_fuse(&mut self, fuse: Fuse) {
        let bits = match fuse {
            Fuse::Normal => 0,
            Fuse::First => 1,
            Fuse::Second => 2,
            Fuse::Reserved => 3,
        };
        self.flags = self.flags & !FUSE_MASK | bits;
    }

    /// Whether the command is half of a fused operation.
    #[must_use]
    pub fn is_fused(&self) -> bool {
        self.flags & FUSE_MASK != 0
    }

    /// Whether PSDT specifies an SGL (01b or 10b).
    #[must_use]
    pub fn uses_sgl(&self) -> bool {
        matches!(self.flags & PSDT_MASK, PSDT_SGL | PSDT_SGL_METADATA)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opcode;

    #[test]
    fn golden_read_of_a_linux_host() {
        let mut sqe = Sqe::new(opcode::io::READ);
        sqe.cid = U16::new(0x1234);
        sqe.nsid = U32::new(1);
        sqe.cdw10 = U32::new(8);
        let bytes = sqe.to_bytes();
        assert_eq!(bytes[..8], [0x02, 0x40, 0x34, 0x12, 1, 0, 0, 0]);
        assert_eq!(bytes[40..44], [8, 0, 0, 0]);
        assert_eq!(Sqe::from_capsule(&bytes), Some(sqe));
        assert_eq!(Sqe::from_capsule(&bytes[..63]), None);
        assert_eq!(Sqe::in_capsule(&bytes), Some(&sqe));
        assert_eq!(Sqe::in_capsule(&bytes[..63]), None);
    }

    #[test]
    fn fuse_is_the_two_low_bits() {
        let mut sqe = Sqe::new(opcode::io::COMPARE);
        let all = [Fuse::Normal, Fuse::First, Fuse::Second, Fuse::Reserved];
        for (bits, fuse) in (0u8..).zip(all) {
            sqe.flags = PSDT_SGL | bits;
            assert_eq!((sqe.fuse(), sqe.is_fused()), (fuse, bits != 0));
        }
    }

    #[test]
    fn psdt_zero_and_three_are_not_sgl() {
        let mut sqe = Sqe::new(opcode::io::READ);
        for (flags, sgl) in [(0x00, false), (0x40, true), (0x80, true), (0xc0, false)] {
            sqe.flags = flags;
            assert_eq!(sqe.uses_sgl(), sgl, "{flags:#x}");
        }
    }
}
