//! Features: the dwords and data of Set Features and Get Features (NVMe Base 2.0, 5.27.1;
//! NVM command set 1.0, 4.1.3).

use core::mem::offset_of;

use bitflags::bitflags;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::number::numbers;
use crate::status::Status;

numbers! {
    /// A feature identifier (NVMe Base 2.0, figure 317).
    FeatureId {
        ARBITRATION = 0x01, "Arbitration";
        POWER_MANAGEMENT = 0x02, "Power Management";
        LBA_RANGE_TYPE = 0x03, "LBA Range Type";
        TEMPERATURE_THRESHOLD = 0x04, "Temperature Threshold";
        ERROR_RECOVERY = 0x05, "Error Recovery";
        VOLATILE_WRITE_CACHE = 0x06, "Volatile Write Cache";
        NUMBER_OF_QUEUES = 0x07, "Number of Queues";
        INTERRUPT_COALESCING = 0x08, "Interrupt Coalescing";
        INTERRUPT_VECTOR_CONFIG = 0x09, "Interrupt Vector Configuration";
        WRITE_ATOMICITY = 0x0a, "Write Atomicity Normal";
        ASYNC_EVENT_CONFIG = 0x0b, "Asynchronous Event Configuration";
        AUTONOMOUS_POWER_STATE = 0x0c, "Autonomous Power State Transition";
        HOST_MEMORY_BUFFER = 0x0d, "Host Memory Buffer";
        TIMESTAMP = 0x0e, "Timestamp";
        KEEP_ALIVE_TIMER = 0x0f, "Keep Alive Timer";
        HOST_THERMAL_MANAGEMENT = 0x10, "Host Controlled Thermal Management";
        NON_OPERATIONAL_POWER_STATE = 0x11, "Non-Operational Power State Config";
        READ_RECOVERY_LEVEL = 0x12, "Read Recovery Level Config";
        LBA_STATUS_INTERVAL = 0x15, "LBA Status Information Report Interval";
        HOST_BEHAVIOR = 0x16, "Host Behavior Support";
        SANITIZE_CONFIG = 0x17, "Sanitize Config";
        ENDURANCE_GROUP_EVENT_CONFIG = 0x18, "Endurance Group Event Configuration";
        IO_COMMAND_SET_PROFILE = 0x19, "I/O Command Set Profile";
        SOFTWARE_PROGRESS_MARKER = 0x80, "Software Progress Marker";
        HOST_IDENTIFIER = 0x81, "Host Identifier";
        RESERVATION_NOTIFICATION_MASK = 0x82, "Reservation Notification Mask";
        RESERVATION_PERSISTENCE = 0x83, "Reservation Persistence";
        NAMESPACE_WRITE_PROTECTION = 0x84, "Namespace Write Protection Config";
    }
}

bitflags! {
    /// Dword 0 of Get Features with Select 3h (supported capabilities).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FeatureCapabilities: u32 {
        /// The controller can save it.
        const SAVEABLE = 1 << 0;
        /// It has a value for each namespace.
        const NAMESPACE_SPECIFIC = 1 << 1;
        /// Set Features can change it.
        const CHANGEABLE = 1 << 2;
    }

    /// Asynchronous Event Configuration (0Bh): events that are reported.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AsyncEventConfig: u32 {
        /// SMART: available spare below its threshold.
        const SMART_SPARE = 1 << 0;
        /// SMART: temperature beyond a threshold.
        const SMART_TEMPERATURE = 1 << 1;
        /// SMART: reliability degraded.
        const SMART_RELIABILITY = 1 << 2;
        /// SMART: all media read only.
        const SMART_READ_ONLY = 1 << 3;
        /// SMART: volatile memory backup failed.
        const SMART_BACKUP = 1 << 4;
        /// SMART: persistent memory region read only or unreliable.
        const SMART_PMR = 1 << 5;
        /// Attached namespace attribute notices.
        const NSAN = 1 << 8;
        /// Firmware activation notices.
        const FAN = 1 << 9;
        /// Telemetry log notices.
        const TLN = 1 << 10;
        /// Asymmetric namespace access change notices.
        const ANACN = 1 << 11;
        /// Predictable latency event aggregate log change notices.
        const PLEALCN = 1 << 12;
        /// LBA status information alert notices.
        const LSIAN = 1 << 13;
        /// Endurance group event aggregate log change notices.
        const EGEALPCN = 1 << 14;
        /// Normal NVM subsystem shutdown.
        const NNSS = 1 << 15;
        /// Cross-Controller Reset completed notices (NVMe Base 2.3).
        const CCRCN = 1 << 20;
        /// Lost host communication notices (NVMe Base 2.3).
        const LHCN = 1 << 21;
        /// Zone descriptor changed notices.
        const ZDCN = 1 << 27;
        /// Discovery log page change notification.
        const DLPCN = 1 << 31;
    }
}

/// Byte `index` of a dword, 0 being the lowest.
const fn byte_of(dword: u32, index: u32) -> u8 {
    let [a, b, c, d] = dword.to_le_bytes();
    match index {
        0 => a,
        1 => b,
        2 => c,
        _ => d,
    }
}

/// The low and the high half of a dword.
const fn halves_of(dword: u32) -> (u16, u16) {
    let [a, b, c, d] = dword.to_le_bytes();
    (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]))
}

/// Arbitration (01h). Queues of a fabric are served in order of arrival, so a target only
/// stores the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arbitration {
    /// Arbitration burst, 2^n commands; 7 is no limit.
    pub burst: u8,
    /// Weight of low priority queues, 1 to 256.
    pub low: u16,
    /// Weight of medium priority queues, 1 to 256.
    pub medium: u16,
    /// Weight of high priority queues, 1 to 256.
    pub high: u16,
}

impl Arbitration {
    /// Reads dword 11; the weights are 0's based there.
    #[must_use]
    pub fn from_dword(dword: u32) -> Self {
        let weight = |index| u16::from(byte_of(dword, index)) + 1;
        Self {
            burst: byte_of(dword, 0) & 0x07,
            low: weight(1),
            medium: weight(2),
            high: weight(3),
        }
    }

    /// The dword; weights out of range become the nearest valid ones.
    #[must_use]
    pub fn to_dword(self) -> u32 {
        let weight = |value: u16| u32::from(value.clamp(1, 256) - 1);
        u32::from(self.burst & 0x07)
            | weight(self.low) << 8
            | weight(self.medium) << 16
            | weight(self.high) << 24
    }
}

/// Power Management (02h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerManagement {
    /// Power state, 0 to 31.
    pub ps: u8,
    /// Workload hint, 0 to 7.
    pub wh: u8,
}

impl PowerManagement {
    /// Reads dword 11.
    #[must_use]
    pub fn from_dword(dword: u32) -> Self {
        let low = byte_of(dword, 0);
        Self {
            ps: low & 0x1f,
            wh: low >> 5,
        }
    }

    /// The dword.
    #[must_use]
    pub fn to_dword(self) -> u32 {
        u32::from(self.ps & 0x1f) | u32::from(self.wh & 0x07) << 5
    }
}

/// Temperature Threshold (04h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemperatureThreshold {
    /// Threshold in kelvins.
    pub tmpth: u16,
    /// Sensor: 0 composite, 1 to 8 a sensor, 15 all of them (Set Features).
    pub tmpsel: u8,
    /// Which threshold: 0 over temperature, 1 under temperature.
    pub thsel: u8,
}

impl TemperatureThreshold {
    /// Over temperature of `thsel`.
    pub const OVER: u8 = 0;
    /// Under temperature of `thsel`.
    pub const UNDER: u8 = 1;

    /// Reads dword 11.
    #[must_use]
    pub fn from_dword(dword: u32) -> Self {
        let select = byte_of(dword, 2);
        Self {
            tmpth: halves_of(dword).0,
            tmpsel: select & 0x0f,
            thsel: select >> 4 & 0x03,
        }
    }

    /// The dword.
    #[must_use]
    pub fn to_dword(self) -> u32 {
        u32::from(self.tmpth)
            | u32::from(self.tmpsel & 0x0f) << 16
            | u32::from(self.thsel & 0x03) << 20
    }
}

/// Error Recovery (05h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorRecovery {
    /// Time limited error recovery in units of 100 ms; 0 is no limit.
    pub tler: u16,
    /// Deallocated or Unwritten Logical Block error is enabled.
    pub dulbe: bool,
}

impl ErrorRecovery {
    /// Reads dword 11.
    #[must_use]
    pub fn from_dword(dword: u32) -> Self {
        let (tler, flags) = halves_of(dword);
        Self {
            tler,
            dulbe: flags & 1 != 0,
        }
    }

    /// The dword.
    #[must_use]
    pub fn to_dword(self) -> u32 {
        u32::from(self.tler) | u32::from(self.dulbe) << 16
    }
}

/// Volatile Write Cache (06h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolatileWriteCache {
    /// WCE: the cache is enabled.
    pub enabled: bool,
}

impl VolatileWriteCache {
    /// Reads dword 11.
    #[must_use]
    pub fn from_dword(dword: u32) -> Self {
        Self {
            enabled: dword & 1 != 0,
        }
    }

    /// The dword.
    #[must_use]
    pub fn to_dword(self) -> u32 {
        u32::from(self.enabled)
    }
}

/// Number of Queues (07h): dword 11 is the request, dword 0 of the completion the
/// allocation. These counts are 1's based; on the wire they are 0's based.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberOfQueues {
    /// I/O submission queues, 1 to 65,535.
    pub submission: u16,
    /// I/O completion queues, 1 to 65,535.
    pub completion: u16,
}

impl NumberOfQueues {
    /// Reads a dword.
    ///
    /// # Errors
    /// Invalid Field in Command for the value 65,535, which NVMe Base 2.0,
    /// 5.27.1.5, does not allow.
    pub fn from_dword(dword: u32) -> Result<Self, Status> {
        let (submission, completion) = halves_of(dword);
        let count = |zero_based: u16| zero_based.checked_add(1).ok_or(Status::INVALID_FIELD);
        Ok(Self {
            submission: count(submission)?,
            completion: count(completion)?,
        })
    }

    /// The dword. Zero queues, which cannot be encoded, become one.
    #[must_use]
    pub fn to_dword(self) -> u32 {
        let zero_based = |count: u16| u32::from(count.saturating_sub(1));
        zero_based(self.submission) | zero_based(self.completion) << 16
    }

    /// Queue pairs: a fabric has equal numbers of both kinds.
    #[must_use]
    pub fn pairs(self) -> u16 {
        self.submission.min(self.completion)
    }
}

/// Write Atomicity Normal (0Ah).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteAtomicity {
    /// DN: AWUN and NAWUN need not be honoured.
    pub disable_normal: bool,
}

impl WriteAtomicity {
    /// Reads dword 11.
    #[must_use]
    pub fn from_dword(dword: u32) -> Self {
        Self {
            disable_normal: dword & 1 != 0,
        }
    }

    /// The dword.
    #[must_use]
    pub fn to_dword(self) -> u32 {
        u32::from(self.disable_normal)
    }
}

/// Keep Alive Timer (0Fh). Connect has the same value in dword 12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAliveTimer {
    /// KATO in milliseconds; 0 is off.
    pub kato_ms: u32,
}

impl KeepAliveTimer {
    /// Reads dword 11.
    #[must_use]
    pub fn from_dword(dword: u32) -> Self {
        Self { kato_ms: dword }
    }

    /// The dword.
    #[must_use]
    pub fn to_dword(self) -> u32 {
        self.kato_ms
    }

    /// The value rounded up to the granularity of the controller, `kas` of its Identify
    /// structure in units of 100 ms (NVMe Base 2.0, 3.9: the controller rounds up).
    #[must_use]
    pub fn round_up(self, kas: u16) -> Self {
        let unit = u32::from(kas) * 100;
        let rounded = if unit == 0 {
            self.kato_ms
        } else {
            self.kato_ms.div_ceil(unit).saturating_mul(unit)
        };
        Self { kato_ms: rounded }
    }
}

/// Timestamp (0Eh), 8 bytes of data (NVMe Base 2.0, figure 325).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Timestamp {
    /// Milliseconds since 1970-01-01 UTC, 48 bits.
    pub timestamp: [u8; 6],
    /// Bit 0: the clock may have stopped (SYNCH); bits 3:1: origin.
    pub attributes: u8,
    #[doc(hidden)]
    pub rsvd7: u8,
}

impl Timestamp {
    /// Origin bits of `attributes`: cleared by a reset, counts from there.
    pub const ORIGIN_RESET: u8 = 0b000 << 1;
    /// Origin bits of `attributes`: set by the host.
    pub const ORIGIN_HOST: u8 = 0b001 << 1;

    /// A time in milliseconds, of which 48 bits are kept.
    #[must_use]
    pub fn new(ms: u64, attributes: u8) -> Self {
        let [a, b, c, d, e, f, ..] = ms.to_le_bytes();
        Self {
            timestamp: [a, b, c, d, e, f],
            attributes,
            rsvd7: 0,
        }
    }

    /// The time in milliseconds.
    #[must_use]
    pub fn ms(&self) -> u64 {
        let [a, b, c, d, e, f] = self.timestamp;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }
}

/// Namespace Write Protection Config (84h), dword 11: the state of a namespace
/// (NVMe Base 2.0, 5.27.1.28 and 8.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteProtection(pub u8);

impl WriteProtection {
    /// No Write Protect.
    pub const NONE: Self = Self(0);
    /// Write Protect.
    pub const PROTECTED: Self = Self(1);
    /// Write Protect Until Power Cycle.
    pub const UNTIL_POWER_CYCLE: Self = Self(2);
    /// Permanent Write Protect.
    pub const PERMANENT: Self = Self(3);

    /// Reads dword 11.
    #[must_use]
    pub fn from_dword(dword: u32) -> Self {
        Self(byte_of(dword, 0) & 0x07)
    }

    /// The dword.
    #[must_use]
    pub fn to_dword(self) -> u32 {
        u32::from(self.0 & 0x07)
    }
}

/// Host Behavior Support (16h), 512 bytes of data (NVMe Base 2.0, figure 332).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct HostBehavior {
    /// Advanced command retry enable: 1 lets the controller set CRD.
    pub acre: u8,
    /// Extended telemetry data area 4 supported.
    pub etdas: u8,
    /// LBA format extension enable.
    pub lbafee: u8,
    /// Host dispersed namespace support (NVMe Base 2.1).
    pub hdisns: u8,
    /// Copy descriptor formats enable (NVMe Base 2.1).
    pub cdfe: U16,
    #[doc(hidden)]
    pub rsvd6: [u8; 506],
}

impl HostBehavior {
    /// The default, for a host that sets nothing.
    #[must_use]
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }
}

const _: () = {
    assert!(size_of::<Timestamp>() == 8);
    assert!(offset_of!(Timestamp, attributes) == 6);
    assert!(size_of::<HostBehavior>() == 512);
    assert!(offset_of!(HostBehavior, cdfe) == 4);
};

/// I/O Command Set Profile (19h), dword 11: index of the selected combination in Identify
/// with CNS 1Ch (IOCSCI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoCommandSetProfile {
    /// Index of the combination, 0 to 511.
    pub index: u16,
}

impl IoCommandSetProfile {
    /// The first combination: the NVM command set, of a controller that has no other.
    pub const NVM: Self = Self { index: 0 };

    /// Reads dword 11.
    #[must_use]
    pub fn from_dword(dword: u32) -> Self {
        let index = halves_of(dword).0 & 0x01ff;
        Self { index }
    }

    /// The dword.
    #[must_use]
    pub fn to_dword(self) -> u32 {
        u32::from(self.index & 0x01ff)
    }
}

/// Length in bytes of the extended host identifier, the only one over fabrics.
pub const HOST_IDENTIFIER_LEN: usize = 16;

/// Host Identifier (81h), dword 11: whether the identifier has 128 bits (EXHID). Over
/// fabrics this is required: the controller returns Invalid Field in Command if the bit
/// is cleared (NVMe Base 2.0, 5.27.1.25).
#[must_use]
pub fn is_extended_host_identifier(dword: u32) -> bool {
    dword & 1 != 0
}

#[cfg(test)]
mod tests;
