//! Controller properties (Base 2.0, 3.1.3): offsets and bit views.

use core::fmt;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Offset of a property in bytes, as used by Property Get and Set.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct Property(U32);

impl Property {
    /// Controller Capabilities, 8 bytes.
    pub const CAP: Self = Self(U32::new(0x00));
    /// Version, 4 bytes.
    pub const VS: Self = Self(U32::new(0x08));
    /// Controller Configuration, 4 bytes.
    pub const CC: Self = Self(U32::new(0x14));
    /// Controller Status, 4 bytes.
    pub const CSTS: Self = Self(U32::new(0x1c));
    /// NVM Subsystem Reset, 4 bytes.
    pub const NSSR: Self = Self(U32::new(0x20));
    /// Controller Ready Timeouts, 4 bytes.
    pub const CRTO: Self = Self(U32::new(0x68));

    /// The property at `offset`.
    #[must_use]
    pub const fn new(offset: u32) -> Self {
        Self(U32::new(offset))
    }

    /// Offset in bytes.
    #[must_use]
    pub fn offset(self) -> u32 {
        self.0.get()
    }

    /// Its abbreviation as in the specification, or `unknown`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::CAP => "CAP",
            Self::VS => "VS",
            Self::CC => "CC",
            Self::CSTS => "CSTS",
            Self::NSSR => "NSSR",
            Self::CRTO => "CRTO",
            _ => "unknown",
        }
    }
}

impl fmt::Debug for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Property({} at {:#x})", self.name(), self.offset())
    }
}

/// Extracts `width` bits from `value`, the lowest at `shift`.
const fn bits64(value: u64, shift: u32, width: u32) -> u64 {
    (value >> shift) & ((1 << width) - 1)
}

const fn bits32(value: u32, shift: u32, width: u32) -> u32 {
    (value >> shift) & ((1 << width) - 1)
}

/// `value` as a byte, for callers that have masked it to at most 8 bits.
const fn low_byte(value: u32) -> u8 {
    value.to_le_bytes()[0]
}

/// Controller Capabilities (CAP).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cap(pub u64);

impl Cap {
    /// Command set bit for the NVM command set, bit 0 of CSS.
    pub const CSS_NVM: u8 = 1;
    /// Command set bit for one or more I/O command sets, bit 6 of CSS.
    pub const CSS_IOCS: u8 = 1 << 6;

    /// Capabilities of a controller: `entries` of a queue (MQES, 0's based in the field),
    /// `ready_ms` to become ready (TO, in units of 500 ms, rounded up), command sets.
    /// Queues are contiguous (CQR), as fabrics require; doorbell stride and page sizes
    /// are 0: 4 KiB.
    #[must_use]
    pub fn new(entries: u16, ready_ms: u32, css: u8) -> Self {
        let mqes = u64::from(entries.saturating_sub(1));
        let to = u64::from(ready_ms.div_ceil(500).min(255));
        Self(mqes | (1 << 16) | (to << 24) | (u64::from(css) << 37))
    }

    /// The same for a controller that becomes ready only with its media (CRMS.CRWMS), and
    /// reports in CRTO how long that takes.
    #[must_use]
    pub fn ready_with_media(self) -> Self {
        Self(self.0 | 1 << 59)
    }

    /// Whether CRTO reports how long the controller takes to become ready with its media
    /// (CRMS.CRWMS).
    #[must_use]
    pub fn is_ready_with_media(self) -> bool {
        bits64(self.0, 59, 1) != 0
    }

    /// Entries of the largest queue (MQES plus one).
    #[must_use]
    pub fn max_queue_entries(self) -> u32 {
        u32::from(u16::try_from(bits64(self.0, 0, 16)).unwrap_or_default()) + 1
    }

    /// Longest time to become ready or not ready, in milliseconds.
    #[must_use]
    pub fn ready_timeout_ms(self) -> u32 {
        u32::try_from(bits64(self.0, 24, 8)).unwrap_or_default() * 500
    }

    /// Command sets supported.
    #[must_use]
    pub fn css(self) -> u8 {
        u8::try_from(bits64(self.0, 37, 8)).unwrap_or_default()
    }

    /// Smallest memory page size as a power of two.
    #[must_use]
    pub fn min_page_shift(self) -> u32 {
        u32::try_from(bits64(self.0, 48, 4)).unwrap_or_default() + 12
    }

    /// Largest memory page size as a power of two.
    #[must_use]
    pub fn max_page_shift(self) -> u32 {
        u32::try_from(bits64(self.0, 52, 4)).unwrap_or_default() + 12
    }

    /// Whether NVM Subsystem Reset is supported.
    #[must_use]
    pub fn subsystem_reset(self) -> bool {
        bits64(self.0, 36, 1) != 0
    }
}

/// Version (VS).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vs(pub u32);

impl Vs {
    /// NVMe 2.0.
    pub const V2_0: Self = Self(0x0002_0000);
    /// NVMe 2.1.
    pub const V2_1: Self = Self(0x0002_0100);
}

impl fmt::Display for Vs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [tertiary, minor, low, high] = self.0.to_le_bytes();
        let major = u16::from_le_bytes([low, high]);
        write!(f, "{major}.{minor}")?;
        if tertiary == 0 {
            Ok(())
        } else {
            write!(f, ".{tertiary}")
        }
    }
}

/// Controller Configuration (CC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cc(pub u32);

/// Shutdown notification, CC bits 15:14.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// No shutdown requested.
    None,
    /// Normal.
    Normal,
    /// Abrupt.
    Abrupt,
    /// 11b.
    Reserved,
}

impl Cc {
    /// The value with which a host enables a controller: 64-byte submission and 16-byte
    /// completion entries, 4 KiB pages, round robin, the NVM command set.
    pub const ENABLE: Self = Self(1 | (6 << 16) | (4 << 20));
    /// CSS: the NVM command set.
    pub const CSS_NVM: u8 = 0b000;
    /// CSS: all I/O command sets that the controller supports (CAP.CSS.IOCSS).
    pub const CSS_ALL: u8 = 0b110;

    /// Enable (EN).
    #[must_use]
    pub fn enabled(self) -> bool {
        bits32(self.0, 0, 1) != 0
    }

    /// I/O command set selected (CSS).
    #[must_use]
    pub fn css(self) -> u8 {
        low_byte(bits32(self.0, 4, 3))
    }

    /// Memory page size as a power of two (MPS plus 12).
    #[must_use]
    pub fn page_shift(self) -> u32 {
        bits32(self.0, 7, 4) + 12
    }

    /// Arbitration mechanism selected (AMS).
    #[must_use]
    pub fn ams(self) -> u8 {
        low_byte(bits32(self.0, 11, 3))
    }

    /// Shutdown notification (SHN).
    #[must_use]
    pub fn shutdown(self) -> Shutdown {
        match bits32(self.0, 14, 2) {
            0 => Shutdown::None,
            1 => Shutdown::Normal,
            2 => Shutdown::Abrupt,
            _ => Shutdown::Reserved,
        }
    }

    /// I/O submission queue entry size as a power of two (IOSQES).
    #[must_use]
    pub fn iosqes(self) -> u8 {
        low_byte(bits32(self.0, 16, 4))
    }

    /// I/O completion queue entry size as a power of two (IOCQES).
    #[must_use]
    pub fn iocqes(self) -> u8 {
        low_byte(bits32(self.0, 20, 4))
    }

    /// The same, with a request for a normal shutdown.
    #[must_use]
    pub fn with_normal_shutdown(self) -> Self {
        Self((self.0 & !(3 << 14)) | (1 << 14))
    }

    /// The same with EN as given.
    #[must_use]
    pub fn with_enable(self, enable: bool) -> Self {
        Self((self.0 & !1) | u32::from(enable))
    }
}

/// Shutdown status, CSTS bits 3:2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownStatus {
    /// Normal operation.
    None,
    /// Shutdown in progress.
    Occurring,
    /// Shutdown is complete.
    Complete,
    /// 11b.
    Reserved,
}

bitflags::bitflags! {
    /// Controller Status (CSTS).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Csts: u32 {
        /// Ready (RDY).
        const RDY = 1;
        /// Controller Fatal Status (CFS).
        const CFS = 1 << 1;
        /// Shutdown status 01b: occurring.
        const SHST_OCCURRING = 1 << 2;
        /// Shutdown status 10b: complete.
        const SHST_COMPLETE = 1 << 3;
        /// NVM Subsystem Reset Occurred (NSSRO).
        const NSSRO = 1 << 4;
        /// Processing paused (PP).
        const PP = 1 << 5;
    }
}

impl Csts {
    /// The shutdown status.
    #[must_use]
    pub fn shutdown(self) -> ShutdownStatus {
        match (
            self.contains(Self::SHST_COMPLETE),
            self.contains(Self::SHST_OCCURRING),
        ) {
            (false, false) => ShutdownStatus::None,
            (false, true) => ShutdownStatus::Occurring,
            (true, false) => ShutdownStatus::Complete,
            (true, true) => ShutdownStatus::Reserved,
        }
    }
}

/// Value of a property of 4 or 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropertyValue {
    /// A 4-byte property.
    Dword(u32),
    /// An 8-byte property.
    Qword(u64),
}

impl PropertyValue {
    /// As in the 8-byte field of Property Get and Set.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        match self {
            Self::Dword(value) => u64::from(value),
            Self::Qword(value) => value,
        }
    }

    /// As bytes of that field.
    #[must_use]
    pub fn to_field(self) -> U64 {
        U64::new(self.to_u64())
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn cap_fields() {
        let cap = Cap::new(128, 7_600, Cap::CSS_NVM);
        assert_eq!(cap.max_queue_entries(), 128);
        assert_eq!(cap.ready_timeout_ms(), 8_000);
        assert_eq!(
            (cap.css(), cap.min_page_shift(), cap.max_page_shift()),
            (1, 12, 12)
        );
        // MQES 7fh, CQR, TO 10h, CSS bit 37.
        assert_eq!(cap.0, 0x0000_0020_1001_007f);
        assert!(!cap.subsystem_reset());
    }

    #[test]
    fn cc_fields() {
        assert_eq!(Cc::ENABLE.0, 0x0046_0001);
        let cc = Cc::ENABLE.with_normal_shutdown();
        assert_eq!(cc.shutdown(), Shutdown::Normal);
        assert_eq!((cc.iosqes(), cc.iocqes(), cc.page_shift()), (6, 4, 12));
        assert!(cc.enabled() && !cc.with_enable(false).enabled());
        assert_eq!(
            (Cc(0xc000).shutdown(), Cc(0x3870).css()),
            (Shutdown::Reserved, 7)
        );
    }

    #[test]
    fn versions_and_names() {
        assert_eq!(
            (Vs::V2_0.to_string(), Vs(0x0001_0201).to_string()),
            ("2.0".into(), "1.2.1".into())
        );
        assert_eq!(Property::new(0x14).name(), "CC");
        assert_eq!(Property::new(0x24).name(), "unknown");
    }

    #[test]
    fn csts_shutdown() {
        assert_eq!(
            Csts::from_bits_retain(0x9).shutdown(),
            ShutdownStatus::Complete
        );
        assert_eq!(Csts::RDY.shutdown(), ShutdownStatus::None);
    }
}
