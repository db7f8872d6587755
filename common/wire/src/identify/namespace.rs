//! The Identify Namespace structure of the NVM command set, CNS 00h (NVM
//! command set 1.0, figure 97).

use core::mem::offset_of;

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IDENTIFY_LEN;

bitflags! {
    /// Namespace Features.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Nsfeat: u8 {
        /// Thin provisioning.
        const THINP = 1 << 0;
        /// NAWUN, NAWUPF and NACWU are those of this namespace.
        const NSABP = 1 << 1;
        /// Deallocated or Unwritten Logical Block error is supported.
        const DAE = 1 << 2;
        /// NGUID and EUI64 are never reused.
        const UIDREUSE = 1 << 3;
        /// NPWG, NPWA, NPDG, NPDA and NOWS are defined.
        const OPTPERF = 1 << 4;
    }

    /// Namespace Multi-path I/O and Namespace Sharing Capabilities.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Nmic: u8 {
        /// May be attached to several controllers at a time.
        const SHRNS = 1 << 0;
        /// Dispersed namespace (NVMe Base 2.1).
        const DISNS = 1 << 1;
    }

    /// Reservation Capabilities.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Rescap: u8 {
        /// Persist through power loss.
        const PTPLS = 1 << 0;
        /// Write Exclusive.
        const WES = 1 << 1;
        /// Exclusive Access.
        const EAS = 1 << 2;
        /// Write Exclusive, registrants only.
        const WEROS = 1 << 3;
        /// Exclusive Access, registrants only.
        const EAROS = 1 << 4;
        /// Write Exclusive, all registrants.
        const WEARS = 1 << 5;
        /// Exclusive Access, all registrants.
        const EAARS = 1 << 6;
        /// Ignore Existing Key has the meaning of NVMe 1.3 and later.
        const IEKEY = 1 << 7;
    }

    /// Deallocate Logical Block Features. Bits 2:0 say what a deallocated
    /// block reads as: these constants are values of it, not bits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Dlfeat: u8 {
        /// Reads as zeros (001b).
        const READS_ZEROES = 0b001;
        /// Reads as all bits set (010b).
        const READS_ONES = 0b010;
        /// Write Zeroes supports the Deallocate bit.
        const WZDS = 1 << 3;
        /// The guard of a deallocated block is the CRC of what it reads as.
        const GDS = 1 << 4;
    }

    /// Namespace Attributes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Nsattr: u8 {
        /// The namespace is write protected now.
        const CWP = 1 << 0;
    }
}

/// An LBA format (NVM command set 1.0, figure 98).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct LbaFormat {
    /// Metadata bytes of a block.
    pub ms: U16,
    /// Block size is 2^n bytes; 0 says that the format is not available.
    pub lbads: u8,
    /// Relative performance in bits 1:0, 0 is best.
    pub rp: u8,
}

impl LbaFormat {
    /// Block size in bytes without metadata; `None` for a format that is not
    /// available (NVM command set: below 9 is not supported) or above 2^31.
    #[must_use]
    pub fn block_len(&self) -> Option<u32> {
        matches!(self.lbads, 9..=31).then(|| 1 << self.lbads)
    }
}

/// The Identify Namespace structure of the NVM command set.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// Size in blocks.
    pub nsze: U64,
    /// Capacity in blocks.
    pub ncap: U64,
    /// Utilization in blocks.
    pub nuse: U64,
    /// Features: [`Nsfeat`].
    pub nsfeat: u8,
    /// Number of LBA formats, 0's based.
    pub nlbaf: u8,
    /// Formatted LBA size: index of the format in bits 3:0 and, above them,
    /// 6:5; bit 4 says that metadata follows the data.
    pub flbas: u8,
    /// Metadata capabilities: bit 0 extended block, bit 1 separate buffer.
    pub mc: u8,
    /// End-to-end data protection capabilities.
    pub dpc: u8,
    /// End-to-end data protection type settings: bits 2:0 type.
    pub dps: u8,
    /// Multi-path and sharing capabilities: [`Nmic`].
    pub nmic: u8,
    /// Reservation capabilities: [`Rescap`].
    pub rescap: u8,
    /// Format progress indicator.
    pub fpi: u8,
    /// Deallocate logical block features: [`Dlfeat`].
    pub dlfeat: u8,
    /// Namespace atomic write unit normal in blocks, 0's based.
    pub nawun: U16,
    /// Namespace atomic write unit power fail in blocks, 0's based.
    pub nawupf: U16,
    /// Namespace atomic compare and write unit in blocks, 0's based.
    pub nacwu: U16,
    /// Namespace atomic boundary size normal in blocks.
    pub nabsn: U16,
    /// Namespace atomic boundary offset in blocks.
    pub nabo: U16,
    /// Namespace atomic boundary size power fail in blocks.
    pub nabspf: U16,
    /// Namespace optimal I/O boundary in blocks; 0 is none.
    pub noiob: U16,
    /// NVM capacity in bytes.
    pub nvmcap: U128,
    /// Preferred write granularity in blocks, 0's based.
    pub npwg: U16,
    /// Preferred write alignment in blocks, 0's based.
    pub npwa: U16,
    /// Preferred deallocate granularity in blocks, 0's based.
    pub npdg: U16,
    /// Preferred deallocate alignment in blocks, 0's based.
    pub npda: U16,
    /// Optimal write size in blocks, 0's based.
    pub nows: U16,
    /// Maximum single source range length of Copy in blocks.
    pub mssrl: U16,
    /// Maximum copy length in blocks.
    pub mcl: U32,
    /// Maximum source range count of Copy, 0's based.
    pub msrc: u8,
    /// Key per I/O status (NVM command set 1.1).
    pub kpios: u8,
    /// Number of unique attribute LBA formats (NVM command set 1.1).
    pub nulbaf: u8,
    #[doc(hidden)]
    pub rsvd83: u8,
    /// Key per I/O data access alignment and granularity (NVM command set 1.1).
    pub kpiodaag: U32,
    #[doc(hidden)]
    pub rsvd88: [u8; 4],
    /// ANA group identifier.
    pub anagrpid: U32,
    #[doc(hidden)]
    pub rsvd96: [u8; 3],
    /// Attributes: [`Nsattr`].
    pub nsattr: u8,
    /// NVM set identifier.
    pub nvmsetid: U16,
    /// Endurance group identifier.
    pub endgid: U16,
    /// Namespace globally unique identifier, most significant byte first.
    pub nguid: [u8; 16],
    /// IEEE extended unique identifier, most significant byte first.
    pub eui64: [u8; 8],
    /// LBA formats.
    pub lbaf: [LbaFormat; 64],
    /// Vendor specific.
    pub vs: [u8; 3712],
}

const _: () = {
    assert!(size_of::<LbaFormat>() == 4);
    assert!(size_of::<IdentifyNamespace>() == IDENTIFY_LEN);
    assert!(offset_of!(IdentifyNamespace, nsfeat) == 24);
    assert!(offset_of!(IdentifyNamespace, flbas) == 26);
    assert!(offset_of!(IdentifyNamespace, nmic) == 30);
    assert!(offset_of!(IdentifyNamespace, dlfeat) == 33);
    assert!(offset_of!(IdentifyNamespace, noiob) == 46);
    assert!(offset_of!(IdentifyNamespace, nvmcap) == 48);
    assert!(offset_of!(IdentifyNamespace, npwg) == 64);
    assert!(offset_of!(IdentifyNamespace, nows) == 72);
    assert!(offset_of!(IdentifyNamespace, mcl) == 76);
    assert!(offset_of!(IdentifyNamespace, msrc) == 80);
    assert!(offset_of!(IdentifyNamespace, anagrpid) == 92);
    assert!(offset_of!(IdentifyNamespace, nsattr) == 99);
    assert!(offset_of!(IdentifyNamespace, endgid) == 102);
    assert!(offset_of!(IdentifyNamespace, nguid) == 104);
    assert!(offset_of!(IdentifyNamespace, eui64) == 120);
    assert!(offset_of!(IdentifyNamespace, lbaf) == 128);
    assert!(offset_of!(IdentifyNamespace, vs) == 384);
};

/// Bit 4 of FLBAS: metadata is transferred at the end of each block.
const FLBAS_EXTENDED: u8 = 1 << 4;

impl IdentifyNamespace {
    /// A structure of zeros: what an inactive namespace returns.
    #[must_use]
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }

    /// A namespace of `blocks` blocks of 2^`block_shift` bytes without
    /// metadata, its only format. All of its capacity is in use.
    #[must_use]
    pub fn with_format(blocks: u64, block_shift: u8) -> Self {
        let mut id = Self::zeroed();
        id.nsze = U64::new(blocks);
        id.ncap = id.nsze;
        id.nuse = id.nsze;
        if let Some(format) = id.lbaf.first_mut() {
            format.lbads = block_shift;
        }
        id
    }

    /// Index of the LBA format in use. FLBAS 6:5 extend it where there are
    /// more than 16 formats; they are reserved where there are not.
    #[must_use]
    pub fn format_index(&self) -> usize {
        let low = usize::from(self.flbas & 0x0f);
        if self.nlbaf < 16 {
            low
        } else {
            low | usize::from(self.flbas >> 5 & 0b11) << 4
        }
    }

    /// The LBA format in use.
    #[must_use]
    pub fn format(&self) -> Option<&LbaFormat> {
        self.lbaf.get(self.format_index())
    }

    /// Whether metadata is transferred with the data of each block.
    #[must_use]
    pub fn has_extended_blocks(&self) -> bool {
        self.flbas & FLBAS_EXTENDED != 0 && self.format().is_some_and(|format| format.ms.get() != 0)
    }

    /// Features.
    #[must_use]
    pub fn nsfeat(&self) -> Nsfeat {
        Nsfeat::from_bits_retain(self.nsfeat)
    }

    /// Multi-path and sharing capabilities.
    #[must_use]
    pub fn nmic(&self) -> Nmic {
        Nmic::from_bits_retain(self.nmic)
    }

    /// Reservation capabilities.
    #[must_use]
    pub fn rescap(&self) -> Rescap {
        Rescap::from_bits_retain(self.rescap)
    }

    /// Deallocate logical block features.
    #[must_use]
    pub fn dlfeat(&self) -> Dlfeat {
        Dlfeat::from_bits_retain(self.dlfeat)
    }

    /// Attributes.
    #[must_use]
    pub fn nsattr(&self) -> Nsattr {
        Nsattr::from_bits_retain(self.nsattr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_fields_of_a_namespace() {
        let mut id = IdentifyNamespace::with_format(0x1234, 12);
        id.nmic = Nmic::SHRNS.bits();
        id.dlfeat = (Dlfeat::READS_ZEROES | Dlfeat::WZDS).bits();
        id.anagrpid = U32::new(1);
        id.nguid = [0xa5; 16];
        let bytes = id.as_bytes();
        for at in [0, 8, 16] {
            assert_eq!(bytes[at..at + 8], [0x34, 0x12, 0, 0, 0, 0, 0, 0]);
        }
        assert_eq!(bytes[30], 1);
        assert_eq!(bytes[33], 0b1001);
        assert_eq!(bytes[92..96], [1, 0, 0, 0]);
        assert_eq!(bytes[104..120], [0xa5; 16]);
        assert_eq!(bytes[128..132], [0, 0, 12, 0]);
        let back = IdentifyNamespace::read_from_bytes(bytes).unwrap();
        assert_eq!(back.format().unwrap().block_len(), Some(4096));
        assert!(!back.has_extended_blocks());
    }

    #[test]
    fn format_index_has_two_parts_only_beyond_16_formats() {
        let mut id = IdentifyNamespace::zeroed();
        id.flbas = 0b0110_0011;
        assert_eq!(id.format_index(), 3);
        id.nlbaf = 16;
        assert_eq!(id.format_index(), 0b11_0011);
        id.flbas = 0xff;
        assert_eq!(id.format_index(), 63);
        assert!(id.format().is_some());
    }

    #[test]
    fn extended_blocks_need_metadata() {
        let mut id = IdentifyNamespace::with_format(8, 9);
        id.flbas = FLBAS_EXTENDED;
        assert!(!id.has_extended_blocks());
        id.lbaf[0].ms = U16::new(8);
        assert!(id.has_extended_blocks());
    }

    #[test]
    fn block_len_of_any_shift_is_a_power_of_two_or_none() {
        for lbads in 0..=255 {
            let format = LbaFormat {
                lbads,
                ..LbaFormat::new_zeroed()
            };
            let expected = if (9..32).contains(&lbads) {
                Some(2u32.pow(lbads.into()))
            } else {
                None
            };
            assert_eq!(format.block_len(), expected, "{lbads}");
        }
    }
}
