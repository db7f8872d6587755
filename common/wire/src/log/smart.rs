//! The SMART / Health Information log page, 02h (NVMe Base 2.0, figure 207).

use core::mem::offset_of;

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length in bytes of the page.
pub const SMART_LEN: usize = 512;

bitflags! {
    /// Critical Warning.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CriticalWarning: u8 {
        /// Available spare is below its threshold.
        const ASCBT = 1 << 0;
        /// A temperature is beyond its threshold.
        const TTC = 1 << 1;
        /// Reliability is degraded.
        const NDR = 1 << 2;
        /// All media are read only.
        const AMRO = 1 << 3;
        /// Volatile memory backup failed.
        const VMBF = 1 << 4;
        /// The persistent memory region is read only or unreliable.
        const PMRRO = 1 << 5;
    }
}

/// The page.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SmartLog {
    /// Critical warning: [`CriticalWarning`].
    pub cw: u8,
    /// Composite temperature in kelvins.
    pub ctemp: U16,
    /// Available spare in percent.
    pub avsp: u8,
    /// Available spare threshold in percent.
    pub avspt: u8,
    /// Percentage used, which may exceed 100.
    pub pused: u8,
    /// Endurance group critical warning summary.
    pub egcws: u8,
    #[doc(hidden)]
    pub rsvd7: [u8; 25],
    /// Data units read: [`data_units`].
    pub dur: U128,
    /// Data units written: [`data_units`].
    pub duw: U128,
    /// Host read commands.
    pub hrc: U128,
    /// Host write commands.
    pub hwc: U128,
    /// Controller busy time in minutes.
    pub cbt: U128,
    /// Power cycles.
    pub pwrc: U128,
    /// Power on hours.
    pub poh: U128,
    /// Unexpected power losses.
    pub upl: U128,
    /// Media and data integrity errors.
    pub mdie: U128,
    /// Number of error information log entries over the life of the controller.
    pub neile: U128,
    /// Warning composite temperature time in minutes.
    pub wctt: U32,
    /// Critical composite temperature time in minutes.
    pub cctt: U32,
    /// Temperature sensors 1 to 8 in kelvins; 0 if not implemented.
    pub tsen: [U16; 8],
    /// Thermal management temperature 1 transition count.
    pub tmt1tc: U32,
    /// Thermal management temperature 2 transition count.
    pub tmt2tc: U32,
    /// Total time for thermal management temperature 1 in seconds.
    pub tttmt1: U32,
    /// Total time for thermal management temperature 2 in seconds.
    pub tttmt2: U32,
    #[doc(hidden)]
    pub rsvd232: [u8; 280],
}

const _: () = {
    assert!(size_of::<SmartLog>() == SMART_LEN);
    assert!(offset_of!(SmartLog, ctemp) == 1);
    assert!(offset_of!(SmartLog, avsp) == 3);
    assert!(offset_of!(SmartLog, dur) == 32);
    assert!(offset_of!(SmartLog, hrc) == 64);
    assert!(offset_of!(SmartLog, poh) == 128);
    assert!(offset_of!(SmartLog, neile) == 176);
    assert!(offset_of!(SmartLog, wctt) == 192);
    assert!(offset_of!(SmartLog, tsen) == 200);
    assert!(offset_of!(SmartLog, tmt1tc) == 216);
    assert!(offset_of!(SmartLog, tttmt2) == 228);
};

/// Bytes of a data unit: 1000 times 512.
pub const DATA_UNIT_LEN: u128 = 512_000;

/// Data units of `bytes` bytes: the specification rounds up.
#[must_use]
pub const fn data_units(bytes: u128) -> u128 {
    bytes.div_ceil(DATA_UNIT_LEN)
}

impl SmartLog {
    /// A page of zeros.
    #[must_use]
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }

    /// Critical warning.
    #[must_use]
    pub fn critical_warning(&self) -> CriticalWarning {
        CriticalWarning::from_bits_retain(self.cw)
    }

    /// Composite temperature in degrees Celsius; `None` when not reported.
    #[must_use]
    pub fn celsius(&self) -> Option<i32> {
        let kelvins = self.ctemp.get();
        (kelvins != 0).then(|| i32::from(kelvins) - 273)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_page() {
        let mut page = SmartLog::zeroed();
        page.ctemp = U16::new(0x0139);
        page.avsp = 100;
        page.duw = U128::new(data_units(512_001));
        let bytes = page.as_bytes();
        assert_eq!(bytes[..4], [0, 0x39, 0x01, 100]);
        assert_eq!(bytes[48..50], [2, 0]);
        assert_eq!(page.celsius(), Some(40));
        assert_eq!(SmartLog::zeroed().celsius(), None);
    }

    #[test]
    fn data_units_round_up() {
        assert_eq!([0, 1, 512_000, 512_001].map(data_units), [0, 1, 1, 2]);
    }
}
