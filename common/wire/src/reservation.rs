//! Reservations: the four commands, their data, and the notification log page, 80h (NVMe Base 2.1,
//! 7.5 to 7.8 and 8.1.22).

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Sqe;
use crate::number::numbers;
use crate::opcode::{Opcode, io};

numbers! {
    /// What a Reservation Register command does (RREGA).
    RegisterAction {
        REGISTER = 0, "Register Reservation Key";
        UNREGISTER = 1, "Unregister Reservation Key";
        REPLACE = 2, "Replace Reservation Key";
    }
}

numbers! {
    /// What a Reservation Acquire command does (RACQA).
    AcquireAction {
        ACQUIRE = 0, "Acquire";
        PREEMPT = 1, "Preempt";
        PREEMPT_AND_ABORT = 2, "Preempt and Abort";
    }
}

numbers! {
    /// What a Reservation Release command does (RRELA).
    ReleaseAction {
        RELEASE = 0, "Release";
        CLEAR = 1, "Clear";
    }
}

numbers! {
    /// Change of Persist Through Power Loss State (CPTPL).
    PersistChange {
        KEEP = 0, "No change";
        CLEAR = 2, "Released and cleared on a power on";
        SET = 3, "Persist across power loss";
    }
}

numbers! {
    /// A reservation type (RTYPE); 0 in a report: there is no reservation.
    ReservationType {
        NONE = 0, "No reservation";
        WRITE_EXCLUSIVE = 1, "Write Exclusive";
        EXCLUSIVE_ACCESS = 2, "Exclusive Access";
        WRITE_EXCLUSIVE_REGISTRANTS = 3, "Write Exclusive - Registrants Only";
        EXCLUSIVE_ACCESS_REGISTRANTS = 4, "Exclusive Access - Registrants Only";
        WRITE_EXCLUSIVE_ALL = 5, "Write Exclusive - All Registrants";
        EXCLUSIVE_ACCESS_ALL = 6, "Exclusive Access - All Registrants";
    }
}

numbers! {
    /// What a notification reports.
    NoticeType {
        EMPTY = 0, "Empty Log Page";
        REGISTRATION_PREEMPTED = 1, "Registration Preempted";
        RESERVATION_RELEASED = 2, "Reservation Released";
        RESERVATION_PREEMPTED = 3, "Reservation Preempted";
    }
}

bitflags::bitflags! {
    /// Notifications that are not to be reported (feature 82h).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct NoticeMask: u32 {
        /// Registration Preempted (REGPRE).
        const REGISTRATION_PREEMPTED = 1 << 1;
        /// Reservation Released (RESREL).
        const RESERVATION_RELEASED = 1 << 2;
        /// Reservation Preempted (RESPRE).
        const RESERVATION_PREEMPTED = 1 << 3;
    }
}

impl NoticeMask {
    /// Whether notifications of this type are masked.
    #[must_use]
    pub fn masks(self, notice: NoticeType) -> bool {
        self.bits() & 1_u32.checked_shl(notice.0.into()).unwrap_or_default() != 0
    }
}

impl ReservationType {
    /// All six types.
    pub const ALL: [Self; 6] = [
        Self::WRITE_EXCLUSIVE,
        Self::EXCLUSIVE_ACCESS,
        Self::WRITE_EXCLUSIVE_REGISTRANTS,
        Self::EXCLUSIVE_ACCESS_REGISTRANTS,
        Self::WRITE_EXCLUSIVE_ALL,
        Self::EXCLUSIVE_ACCESS_ALL,
    ];

    /// Whether it is one of the six types.
    #[must_use]
    pub fn is_known(self) -> bool {
        Self::ALL.contains(&self)
    }

    /// Whether registrants may do what others may not.
    #[must_use]
    pub fn depends_on_registrants(self) -> bool {
        self.is_known() && !matches!(self, Self::WRITE_EXCLUSIVE | Self::EXCLUSIVE_ACCESS)
    }

    /// Whether every registrant holds the reservation.
    #[must_use]
    pub fn is_of_all(self) -> bool {
        matches!(self, Self::WRITE_EXCLUSIVE_ALL | Self::EXCLUSIVE_ACCESS_ALL)
    }
}

/// The reservation commands.
pub const COMMANDS: [Opcode; 4] = [
    io::RESERVATION_REGISTER,
    io::RESERVATION_REPORT,
    io::RESERVATION_ACQUIRE,
    io::RESERVATION_RELEASE,
];

/// Bit 3 of dword 10: Ignore Existing Key (IEKEY).
const IEKEY: u8 = 1 << 3;

/// A Reservation Register command (0Dh).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// Namespace identifier.
    pub nsid: u32,
    /// What it does, 0 to 7.
    pub action: RegisterAction,
    /// Whether the current key is not checked (IEKEY).
    pub ignores_key: bool,
    /// The change of the persistence, 0 to 3.
    pub persist: PersistChange,
}

impl Register {
    /// From a Reservation Register command.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [low, _, _, high] = sqe.cdw10.to_bytes();
        Self {
            nsid: sqe.nsid.get(),
            action: RegisterAction(low & 0x7),
            ignores_key: low & IEKEY != 0,
            persist: PersistChange(high >> 6),
        }
    }

    /// Builds the command without data pointer and command identifier.
    #[must_use]
    pub fn to_sqe(self) -> Sqe {
        let mut sqe = Sqe::new(io::RESERVATION_REGISTER);
        sqe.nsid = U32::new(self.nsid);
        let low = (self.action.0 & 0x7) | if self.ignores_key { IEKEY } else { 0 };
        sqe.cdw10 = U32::from_bytes([low, 0, 0, self.persist.0 << 6]);
        sqe
    }
}

/// A Reservation Acquire (11h) or Release (15h) command, whose dwords have the same layout. The
/// action is an [`AcquireAction`] or a [`ReleaseAction`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// Namespace identifier.
    pub nsid: u32,
    /// What it does, 0 to 7.
    pub action: u8,
    /// Whether the current key is not to be checked (IEKEY), which NVMe Base 1.3 and later forbid.
    pub ignores_key: bool,
    /// The type of the reservation.
    pub kind: ReservationType,
}

impl Reserve {
    /// From one of the two commands.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [low, kind, _, _] = sqe.cdw10.to_bytes();
        Self {
            nsid: sqe.nsid.get(),
            action: low & 0x7,
            ignores_key: low & IEKEY != 0,
            kind: ReservationType(kind),
        }
    }

    /// Builds a Reservation Acquire command without data pointer and command identifier.
    #[must_use]
    pub fn to_acquire(self) -> Sqe {
        self.to_sqe(io::RESERVATION_ACQUIRE)
    }

    /// Builds a Reservation Release command without data pointer and command identifier.
    #[must_use]
    pub fn to_release(self) -> Sqe {
        self.to_sqe(io::RESERVATION_RELEASE)
    }

    fn to_sqe(self, opcode: Opcode) -> Sqe {
        let mut sqe = Sqe::new(opcode);
        sqe.nsid = U32::new(self.nsid);
        let low = (self.action & 0x7) | if self.ignores_key { IEKEY } else { 0 };
        sqe.cdw10 = U32::from_bytes([low, self.kind.0, 0, 0]);
        sqe
    }
}

/// A Reservation Report command (0Eh).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Namespace identifier.
    pub nsid: u32,
    /// Bytes of the report to return, a multiple of 4, up to 16 GiB.
    pub len: u64,
    /// Whether the extended format is requested (EDS), which has 128-bit host identifiers.
    pub is_extended: bool,
}

impl Report {
    /// From a Reservation Report command. NUMD is 0's based on the wire.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        Self {
            nsid: sqe.nsid.get(),
            len: (u64::from(sqe.cdw10.get()) + 1) * 4,
            is_extended: sqe.cdw11.get() & 1 != 0,
        }
    }

    /// Builds the command without data pointer and command identifier. `len` must be a multiple of
    /// 4 and from 4 to 16 GiB.
    #[must_use]
    pub fn to_sqe(self) -> Sqe {
        debug_assert!(self.len >= 4 && self.len.is_multiple_of(4), "dwords");
        let mut sqe = Sqe::new(io::RESERVATION_REPORT);
        let numd = (self.len / 4).saturating_sub(1);
        sqe.nsid = U32::new(self.nsid);
        sqe.cdw10 = U32::new(u32::try_from(numd).unwrap_or(u32::MAX));
        sqe.cdw11 = U32::new(self.is_extended.into());
        sqe
    }
}

/// Data of a Reservation Register or Acquire command.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Keys {
    /// Current Reservation Key (CRKEY).
    pub current: U64,
    /// Register: New Reservation Key (NRKEY). Acquire: Preempt Reservation Key (PRKEY).
    pub other: U64,
}

const _: () = assert!(size_of::<Keys>() == KEYS_LEN);

/// Length in bytes of the data of Register and Acquire.
pub const KEYS_LEN: usize = 16;
/// Length in bytes of the data of Release: a Current Reservation Key.
pub const RELEASE_LEN: usize = 8;

/// Length in bytes of the header of a report.
pub const REPORT_HEADER_LEN: usize = 24;
/// Length in bytes of the header of an extended report.
pub const EXTENDED_HEADER_LEN: usize = 64;

/// Header of a report. In the extended format, zeroes up to [`EXTENDED_HEADER_LEN`] follow.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ReportHeader {
    /// Generation (GEN): counts changes of registrations, modulo 2^32.
    pub generation: U32,
    /// Type of the reservation; NONE if there is none.
    pub kind: ReservationType,
    /// Number of registered controllers or registrants (REGSTRNT), also if the report is cut off.
    pub registrants: U16,
    #[doc(hidden)]
    pub rsvd7: [u8; 2],
    /// Persist Through Power Loss State (PTPLS): 1 if it is set.
    pub persists: u8,
    #[doc(hidden)]
    pub rsvd10: [u8; 14],
}

const _: () = {
    assert!(size_of::<ReportHeader>() == REPORT_HEADER_LEN);
    assert!(offset_of!(ReportHeader, kind) == 4);
    assert!(offset_of!(ReportHeader, registrants) == 5);
    assert!(offset_of!(ReportHeader, persists) == 9);
};

impl ReportHeader {
    /// A header.
    #[must_use]
    pub fn new(generation: u32, kind: ReservationType, registrants: u16, persists: bool) -> Self {
        Self {
            generation: U32::new(generation),
            kind,
            registrants: U16::new(registrants),
            persists: persists.into(),
            ..Self::new_zeroed()
        }
    }
}

/// CNTLID of a registrant that no static controller stands for.
pub const CNTLID_DYNAMIC: u16 = 0xffff;

/// Bit 0 of the status of a registrant (RCSTS): it holds the reservation.
pub const HOLDS: u8 = 1;

/// A registrant in a report, with a 64-bit host identifier.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Registrant {
    /// Controller identifier; FFFFh with dynamic controllers.
    pub cntlid: U16,
    /// Status (RCSTS): see [`HOLDS`].
    pub status: u8,
    #[doc(hidden)]
    pub rsvd3: [u8; 5],
    /// Host identifier.
    pub hostid: [u8; 8],
    /// Its key.
    pub key: U64,
}

const _: () = {
    assert!(size_of::<Registrant>() == 24);
    assert!(offset_of!(Registrant, hostid) == 8);
    assert!(offset_of!(Registrant, key) == 16);
};

/// A registrant in an extended report, with a 128-bit host identifier.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ExtendedRegistrant {
    /// Controller identifier; FFFFh with dynamic controllers.
    pub cntlid: U16,
    /// Status (RCSTS): see [`HOLDS`].
    pub status: u8,
    #[doc(hidden)]
    pub rsvd3: [u8; 5],
    /// Its key.
    pub key: U64,
    /// Host identifier.
    pub hostid: [u8; 16],
    #[doc(hidden)]
    pub rsvd32: [u8; 32],
}

const _: () = {
    assert!(size_of::<ExtendedRegistrant>() == 64);
    assert!(offset_of!(ExtendedRegistrant, key) == 8);
    assert!(offset_of!(ExtendedRegistrant, hostid) == 16);
};

impl ExtendedRegistrant {
    /// A registrant with dynamic controllers.
    #[must_use]
    pub fn new(hostid: [u8; 16], key: u64, holds: bool) -> Self {
        Self {
            cntlid: U16::new(CNTLID_DYNAMIC),
            status: if holds { HOLDS } else { 0 },
            key: U64::new(key),
            hostid,
            ..Self::new_zeroed()
        }
    }
}

/// The Reservation Notification log page.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct NoticePage {
    /// Log Page Count: incremented for each notification, from FFFFFFFFFFFFFFFFh to 1; 0 if the
    /// page is empty.
    pub count: U64,
    /// What happened.
    pub kind: NoticeType,
    /// Further pages that can be read, at most 255 (NALP).
    pub available: u8,
    #[doc(hidden)]
    pub rsvd10: [u8; 2],
    /// The namespace.
    pub nsid: U32,
    #[doc(hidden)]
    pub rsvd16: [u8; 48],
}

const _: () = {
    assert!(size_of::<NoticePage>() == 64);
    assert!(offset_of!(NoticePage, kind) == 8);
    assert!(offset_of!(NoticePage, available) == 9);
    assert!(offset_of!(NoticePage, nsid) == 12);
};

impl NoticePage {
    /// A page with a notification.
    #[must_use]
    pub fn new(count: u64, kind: NoticeType, available: u8, nsid: u32) -> Self {
        Self {
            count: U64::new(count),
            kind,
            available,
            nsid: U32::new(nsid),
            ..Self::new_zeroed()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dwords_have_the_layout_of_the_specification() {
        let register = Register {
            nsid: 7,
            action: RegisterAction::REPLACE,
            ignores_key: true,
            persist: PersistChange::SET,
        };
        assert_eq!(register.to_sqe().cdw10.get(), 0xc000_000a);
        let acquire = Reserve {
            nsid: 7,
            action: AcquireAction::PREEMPT_AND_ABORT.0,
            ignores_key: false,
            kind: ReservationType::EXCLUSIVE_ACCESS_ALL,
        };
        assert_eq!(acquire.to_acquire().cdw10.get(), 0x0602);
        assert_eq!(acquire.to_acquire().opcode.0, 0x11);
        assert_eq!(acquire.to_release().opcode.0, 0x15);
        let report = Report {
            nsid: 7,
            len: 4096,
            is_extended: true,
        };
        let sqe = report.to_sqe();
        assert_eq!((sqe.cdw10.get(), sqe.cdw11.get()), (1023, 1));
    }

    #[test]
    fn mask_has_a_bit_for_each_type() {
        let mask = NoticeMask::RESERVATION_RELEASED;
        assert!(mask.masks(NoticeType::RESERVATION_RELEASED));
        for other in [0, 1, 3, 4, 31, 32, 255] {
            assert!(!mask.masks(NoticeType(other)));
        }
    }

    proptest! {
        #[test]
        fn commands_survive_a_round_trip(cdw10: u32, cdw11: u32, nsid: u32) {
            let mut sqe = Sqe::new(io::RESERVATION_REGISTER);
            (sqe.cdw10, sqe.cdw11) = (U32::new(cdw10), U32::new(cdw11));
            sqe.nsid = U32::new(nsid);
            let register = Register::parse(&sqe);
            prop_assert_eq!(Register::parse(&register.to_sqe()), register);
            let reserve = Reserve::parse(&sqe);
            prop_assert_eq!(Reserve::parse(&reserve.to_acquire()), reserve);
            prop_assert_eq!(Reserve::parse(&reserve.to_release()), reserve);
            let report = Report::parse(&sqe);
            prop_assert_eq!(Report::parse(&report.to_sqe()), report);
        }
    }
}
