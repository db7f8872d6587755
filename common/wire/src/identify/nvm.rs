//! Identify structures of the NVM command set: CNS 05h and 06h with CSI 0 (NVM
//! command set 1.0, figures 100 and 102).

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IDENTIFY_LEN;

/// The I/O command set specific Identify Namespace structure, CNS 05h. Zeros
/// are right for namespaces without protection information; fields after
/// `elbaf` are of NVM command set 1.1.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IdentifyNamespaceNvm {
    /// Logical block storage tag mask.
    pub lbstm: U64,
    /// Protection information capabilities.
    pub pic: u8,
    /// Protection information format attributes (NVM command set 1.1).
    pub pifa: u8,
    #[doc(hidden)]
    pub rsvd10: [u8; 2],
    /// Extended LBA formats: storage tag size in bits 6:0, protection
    /// information format in 8:7.
    pub elbaf: [U32; 64],
    /// Preferred deallocate granularity in blocks, 0's based, beyond 16 bits.
    pub npdgl: U32,
    /// Preferred read granularity in blocks, 0's based.
    pub nprg: U32,
    /// Preferred read alignment in blocks, 0's based.
    pub npra: U32,
    /// Optimal read size in blocks, 0's based.
    pub nors: U32,
    /// Preferred deallocate alignment in blocks, 0's based, beyond 16 bits.
    pub npdal: U32,
    /// LBA format placement shard size in blocks.
    pub lbapss: U32,
    /// Tracked LBA allocation granularity in blocks.
    pub tlbaag: U32,
    #[doc(hidden)]
    pub rsvd296: [u8; 3800],
}

/// The I/O command set specific Identify Controller structure, CNS 06h. Fields
/// after `dmsl` are of NVM command set 1.1.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IdentifyControllerNvm {
    /// Verify size limit, 2^n pages of CAP.MPSMIN; 0 is no limit.
    pub vsl: u8,
    /// Write Zeroes size limit, 2^n pages of CAP.MPSMIN; 0 is no limit.
    pub wzsl: u8,
    /// Write Uncorrectable size limit, 2^n pages of CAP.MPSMIN; 0 is no limit.
    pub wusl: u8,
    /// Dataset Management ranges limit; 0 is no limit.
    pub dmrl: u8,
    /// Dataset Management range size limit in blocks; 0 is no limit.
    pub dmrsl: U32,
    /// Dataset Management size limit in blocks; 0 is no limit.
    pub dmsl: U64,
    /// Key per I/O capabilities.
    pub kpiocap: u8,
    /// Size limit of Write Zeroes with Deallocate, 2^n pages of CAP.MPSMIN.
    pub wzdsl: u8,
    /// Admin optional command support.
    pub aocs: U16,
    /// Version of the NVM command set specification.
    pub ver: U32,
    /// LBA migration queue format.
    pub lbamqf: u8,
    #[doc(hidden)]
    pub rsvd25: [u8; 4071],
}

const _: () = {
    assert!(size_of::<IdentifyNamespaceNvm>() == IDENTIFY_LEN);
    assert!(offset_of!(IdentifyNamespaceNvm, pic) == 8);
    assert!(offset_of!(IdentifyNamespaceNvm, elbaf) == 12);
    assert!(offset_of!(IdentifyNamespaceNvm, npdgl) == 268);
    assert!(offset_of!(IdentifyNamespaceNvm, tlbaag) == 292);
    assert!(size_of::<IdentifyControllerNvm>() == IDENTIFY_LEN);
    assert!(offset_of!(IdentifyControllerNvm, dmrsl) == 4);
    assert!(offset_of!(IdentifyControllerNvm, dmsl) == 8);
    assert!(offset_of!(IdentifyControllerNvm, aocs) == 18);
    assert!(offset_of!(IdentifyControllerNvm, ver) == 20);
    assert!(offset_of!(IdentifyControllerNvm, lbamqf) == 24);
};

impl IdentifyNamespaceNvm {
    /// A structure of zeros.
    #[must_use]
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }
}

impl IdentifyControllerNvm {
    /// A structure of zeros: no limits.
    #[must_use]
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }
}
