//! Status codes with names (NVMe Base 2.1, 4.2.3; Fabrics status codes in figure 105
//! there; NVM 1.0).

use core::fmt;

/// The 15-bit status field of a completion: status code in bits 7:0, status
/// code type in 10:8, command retry delay in 12:11, More in 13, Do Not Retry
/// in 14.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u16);

/// Status code type 0h: generic.
pub const SCT_GENERIC: u8 = 0;
/// Status code type 1h: command specific.
pub const SCT_COMMAND: u8 = 1;
/// Status code type 2h: media and data integrity.
pub const SCT_MEDIA: u8 = 2;
/// Status code type 3h: path related.
pub const SCT_PATH: u8 = 3;

const CODE_MASK: u16 = 0x07ff;
const CRD_SHIFT: u32 = 11;
const CRD_MASK: u16 = 0x3;
const MORE: u16 = 1 << 13;
const DNR: u16 = 1 << 14;
const FIELD_MASK: u16 = 0x7fff;

impl Status {
    /// From the field of a completion; bit 15 is ignored.
    #[must_use]
    pub const fn from_field(field: u16) -> Self {
        Self(field & FIELD_MASK)
    }

    /// The field of a completion.
    #[must_use]
    pub const fn to_field(self) -> u16 {
        self.0
    }

    /// Status code type, 0 to 7.
    #[must_use]
    pub const fn code_type(self) -> u8 {
        ((self.0 >> 8) & 0x7).to_le_bytes()[0]
    }

    /// Status code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// Type and code only, to compare with the constants.
    #[must_use]
    pub const fn kind(self) -> Self {
        Self(self.0 & CODE_MASK)
    }

    /// Whether this and `other` are the same type and code.
    #[must_use]
    pub const fn is(self, other: Self) -> bool {
        self.kind().0 == other.kind().0
    }

    /// Whether the command succeeded.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & CODE_MASK == 0
    }

    /// The same, with Do Not Retry: a retry would fail.
    #[must_use]
    pub const fn with_dnr(self) -> Self {
        Self(self.0 | DNR)
    }

    /// Command Retry Delay: 0 for none, else the number of the delay time (CRDT1 to CRDT3 of
    /// Identify Controller) before a retry.
    #[must_use]
    pub const fn retry_delay(self) -> u8 {
        ((self.0 >> CRD_SHIFT) & CRD_MASK).to_le_bytes()[0]
    }

    /// The same, with that Command Retry Delay, 0 to 3.
    #[must_use]
    pub const fn with_retry_delay(self, delay: u8) -> Self {
        let delay = (delay as u16 & CRD_MASK) << CRD_SHIFT;
        Self(self.0 & !(CRD_MASK << CRD_SHIFT) | delay)
    }

    /// The same, with More: the error log has details.
    #[must_use]
    pub const fn with_more(self) -> Self {
        Self(self.0 | MORE)
    }

    /// The same, without More, for decisions of a host.
    #[must_use]
    pub const fn without_more(self) -> Self {
        Self(self.0 & !MORE)
    }

    /// Whether a retry of the command would fail.
    #[must_use]
    pub const fn dnr(self) -> bool {
        self.0 & DNR != 0
    }

    /// Whether the error log has details.
    #[must_use]
    pub const fn more(self) -> bool {
        self.0 & MORE != 0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dnr = if self.dnr() { ", do not retry" } else { "" };
        write!(f, "{} (status {:#05x}{dnr})", self.name(), self.kind().0)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({self})")
    }
}

macro_rules! statuses {
    ($($name:ident = $value:literal, $words:literal;)*) => {
        impl Status {
            $(
                #[doc = $words]
                pub const $name: Self = Self($value);
            )*

            /// Every status with a name here, for tables and tests.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The name as in the specification.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self.kind() {
                    $(Self::$name => $words,)*
                    _ => "Unknown status",
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0x000, "Success";
    INVALID_OPCODE = 0x001, "Invalid Command Opcode";
    INVALID_FIELD = 0x002, "Invalid Field in Command";
    COMMAND_ID_CONFLICT = 0x003, "Command ID Conflict";
    DATA_TRANSFER_ERROR = 0x004, "Data Transfer Error";
    POWER_LOSS = 0x005, "Commands Aborted due to Power Loss Notification";
    INTERNAL_ERROR = 0x006, "Internal Error";
    ABORT_REQUESTED = 0x007, "Command Abort Requested";
    ABORTED_SQ_DELETION = 0x008, "Command Aborted due to SQ Deletion";
    ABORTED_FAILED_FUSED = 0x009, "Command Aborted due to Failed Fused Command";
    ABORTED_MISSING_FUSED = 0x00a, "Command Aborted due to Missing Fused Command";
    INVALID_NAMESPACE = 0x00b, "Invalid Namespace or Format";
    COMMAND_SEQUENCE_ERROR = 0x00c, "Command Sequence Error";
    INVALID_SGL_SEGMENT = 0x00d, "Invalid SGL Segment Descriptor";
    INVALID_SGL_COUNT = 0x00e, "Invalid Number of SGL Descriptors";
    DATA_SGL_LENGTH_INVALID = 0x00f, "Data SGL Length Invalid";
    METADATA_SGL_LENGTH_INVALID = 0x010, "Metadata SGL Length Invalid";
    SGL_DESCRIPTOR_TYPE_INVALID = 0x011, "SGL Descriptor Type Invalid";
    INVALID_CMB_USE = 0x012, "Invalid Use of Controller Memory Buffer";
    PRP_OFFSET_INVALID = 0x013, "PRP Offset Invalid";
    ATOMIC_WRITE_UNIT_EXCEEDED = 0x014, "Atomic Write Unit Exceeded";
    OPERATION_DENIED = 0x015, "Operation Denied";
    SGL_OFFSET_INVALID = 0x016, "SGL Offset Invalid";
    HOST_ID_INCONSISTENT = 0x018, "Host Identifier Inconsistent Format";
    KEEP_ALIVE_EXPIRED = 0x019, "Keep Alive Timer Expired";
    KEEP_ALIVE_TIMEOUT_INVALID = 0x01a, "Keep Alive Timeout Invalid";
    ABORTED_PREEMPT = 0x01b, "Command Aborted due to Preempt and Abort";
    SANITIZE_FAILED = 0x01c, "Sanitize Failed";
    SANITIZE_IN_PROGRESS = 0x01d, "Sanitize In Progress";
    SGL_GRANULARITY_INVALID = 0x01e, "SGL Data Block Granularity Invalid";
    QUEUE_IN_CMB_UNSUPPORTED = 0x01f, "Command Not Supported for Queue in CMB";
    NAMESPACE_WRITE_PROTECTED = 0x020, "Namespace is Write Protected";
    COMMAND_INTERRUPTED = 0x021, "Command Interrupted";
    TRANSIENT_TRANSPORT_ERROR = 0x022, "Transient Transport Error";
    PROHIBITED_BY_LOCKDOWN = 0x023, "Command Prohibited by Lockdown";
    ADMIN_MEDIA_NOT_READY = 0x024, "Admin Command Media Not Ready";
    LBA_OUT_OF_RANGE = 0x080, "LBA Out of Range";
    CAPACITY_EXCEEDED = 0x081, "Capacity Exceeded";
    NAMESPACE_NOT_READY = 0x082, "Namespace Not Ready";
    RESERVATION_CONFLICT = 0x083, "Reservation Conflict";
    FORMAT_IN_PROGRESS = 0x084, "Format In Progress";
    COMPLETION_QUEUE_INVALID = 0x100, "Completion Queue Invalid";
    INVALID_QUEUE_ID = 0x101, "Invalid Queue Identifier";
    INVALID_QUEUE_SIZE = 0x102, "Invalid Queue Size";
    ABORT_LIMIT_EXCEEDED = 0x103, "Abort Command Limit Exceeded";
    ASYNC_EVENT_LIMIT_EXCEEDED = 0x105, "Asynchronous Event Request Limit Exceeded";
    INVALID_FIRMWARE_SLOT = 0x106, "Invalid Firmware Slot";
    INVALID_LOG_PAGE = 0x109, "Invalid Log Page";
    INVALID_FORMAT = 0x10a, "Invalid Format";
    FEATURE_NOT_SAVEABLE = 0x10d, "Feature Identifier Not Saveable";
    FEATURE_NOT_CHANGEABLE = 0x10e, "Feature Not Changeable";
    FEATURE_NOT_NAMESPACE_SPECIFIC = 0x10f, "Feature Not Namespace Specific";
    NAMESPACE_NOT_ATTACHED = 0x11a, "Namespace Not Attached";
    CONTROLLER_LIST_INVALID = 0x11c, "Controller List Invalid";
    INVALID_CONTROLLER_ID = 0x11f, "Invalid Controller Identifier";
    COMMAND_SET_NOT_SUPPORTED = 0x129, "I/O Command Set Not Supported";
    COMMAND_SET_COMBINATION_REJECTED = 0x12b, "I/O Command Set Combination Rejected";
    INVALID_COMMAND_SET = 0x12c, "Invalid I/O Command Set";
    CROSS_RESET_IN_PROGRESS = 0x13f, "Cross-Controller Reset in Progress";
    CROSS_RESET_LOG_FULL = 0x140, "Cross-Controller Reset Log Page Full";
    CROSS_RESET_LIMIT_EXCEEDED = 0x141, "Cross-Controller Reset Limit Exceeded";
    OVERLAPPING_RANGE = 0x187, "Overlapping I/O Range";
    CONFLICTING_ATTRIBUTES = 0x180, "Conflicting Attributes, or Connect Incompatible Format";
    CONNECT_CONTROLLER_BUSY = 0x181, "Connect Controller Busy";
    CONNECT_INVALID_PARAMETERS = 0x182, "Connect Invalid Parameters";
    CONNECT_RESTART_DISCOVERY = 0x183, "Connect Restart Discovery, or Command Size Limit Exceeded";
    CONNECT_INVALID_HOST = 0x184, "Connect Invalid Host";
    INVALID_QUEUE_TYPE = 0x185, "Invalid Queue Type";
    DISCOVER_RESTART = 0x190, "Discover Restart";
    AUTHENTICATION_REQUIRED = 0x191, "Authentication Required";
    WRITE_FAULT = 0x280, "Write Fault";
    UNRECOVERED_READ_ERROR = 0x281, "Unrecovered Read Error";
    GUARD_CHECK_ERROR = 0x282, "End-to-end Guard Check Error";
    APPLICATION_TAG_CHECK_ERROR = 0x283, "End-to-end Application Tag Check Error";
    REFERENCE_TAG_CHECK_ERROR = 0x284, "End-to-end Reference Tag Check Error";
    COMPARE_FAILURE = 0x285, "Compare Failure";
    ACCESS_DENIED = 0x286, "Access Denied";
    DEALLOCATED_BLOCK = 0x287, "Deallocated or Unwritten Logical Block";
    INTERNAL_PATH_ERROR = 0x300, "Internal Path Error";
    ANA_PERSISTENT_LOSS = 0x301, "Asymmetric Access Persistent Loss";
    ANA_INACCESSIBLE = 0x302, "Asymmetric Access Inaccessible";
    ANA_TRANSITION = 0x303, "Asymmetric Access Transition";
    CONTROLLER_PATHING_ERROR = 0x360, "Controller Pathing Error";
    HOST_PATHING_ERROR = 0x370, "Host Pathing Error";
    ABORTED_BY_HOST = 0x371, "Command Aborted By Host";
}

impl Status {
    /// Connect Incompatible Format: 180h in the response to a Connect command. The same
    /// number means Conflicting Attributes elsewhere.
    pub const CONNECT_INCOMPATIBLE_FORMAT: Self = Self::CONFLICTING_ATTRIBUTES;
    /// Command Size Limit Exceeded: 183h in the response to a Copy or Dataset Management
    /// command. The same number means Connect Restart Discovery in the response to a
    /// Connect.
    pub const COMMAND_SIZE_LIMIT_EXCEEDED: Self = Self::CONNECT_RESTART_DISCOVERY;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::string::ToString;

    use super::*;

    #[test]
    fn status_fields_match_the_specification() {
        let status = Status::COMPARE_FAILURE.with_dnr().with_more();
        assert_eq!((status.code_type(), status.code()), (SCT_MEDIA, 0x85));
        assert_eq!(status.to_field(), 0x6285);
        assert!(status.is(Status::COMPARE_FAILURE) && status != Status::COMPARE_FAILURE);
        assert_eq!(
            status.to_string(),
            "Compare Failure (status 0x285, do not retry)"
        );
        assert_eq!(status.without_more(), Status::COMPARE_FAILURE.with_dnr());
        assert!(Status::from_field(0x8000).is_success());
    }

    #[test]
    fn status_numbers_are_unique() {
        let numbers: BTreeSet<u16> = Status::ALL.iter().map(|status| status.to_field()).collect();
        assert_eq!(numbers.len(), Status::ALL.len());
        assert_eq!(Status::from_field(0x7f).name(), "Unknown status");
    }
}
