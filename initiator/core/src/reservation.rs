//! Reservation commands, and the report (NVMe Base 2.1, 7.5 to 7.8 and 8.1.22).
//!
//! They are I/O commands. [`ReservationCommand`] has the three that change reservations,
//! [`report`] and [`ReservationReport`] the one that reads them.

use nvmeof_wire::opcode::{Direction, io};
use nvmeof_wire::reservation::{
    AcquireAction, EXTENDED_HEADER_LEN, ExtendedRegistrant, HOLDS, KEYS_LEN, Keys, PersistChange,
    RELEASE_LEN, Register, RegisterAction, ReleaseAction, Report, ReportHeader, ReservationType,
    Reserve,
};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use crate::command::Command;

/// A Reservation Register command (Base 2.1, 7.6). A registration belongs to the host identifier
/// of the connection, not to the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationRegister {
    /// What it does (RREGA).
    pub action: RegisterAction,
    /// The current key (CRKEY), which Unregister and Replace check.
    pub current: u64,
    /// The new key (NRKEY) of Register and Replace, not 0.
    pub new: u64,
    /// Whether Unregister and Replace do not check the current key (IEKEY).
    pub ignores_key: bool,
    /// Whether reservations and registrations of the namespace persist through a loss of power
    /// from then on (CPTPL).
    pub persist: PersistChange,
}

impl ReservationRegister {
    /// Registers this host with `key`, not 0. A host that is registered with the same key
    /// succeeds; with another key it fails with Reservation Conflict.
    #[must_use]
    pub fn register(key: u64) -> Self {
        Self {
            action: RegisterAction::REGISTER,
            current: 0,
            new: key,
            ignores_key: false,
            persist: PersistChange::KEEP,
        }
    }

    /// Ends the registration of this host, whose key is `current`. A reservation that it holds is
    /// released, unless all registrants hold it and others remain.
    #[must_use]
    pub fn unregister(current: u64) -> Self {
        Self {
            action: RegisterAction::UNREGISTER,
            current,
            ..Self::register(0)
        }
    }

    /// Replaces the key `current` of this host by `new`, not 0. A reservation that it holds stays.
    #[must_use]
    pub fn replace(current: u64, new: u64) -> Self {
        Self {
            action: RegisterAction::REPLACE,
            current,
            ..Self::register(new)
        }
    }

    /// The same, without a check of the current key (IEKEY).
    #[must_use]
    pub fn ignoring_key(self) -> Self {
        Self {
            ignores_key: true,
            ..self
        }
    }

    /// The same, with a change of the persistence through a loss of power (CPTPL).
    #[must_use]
    pub fn with_persistence(self, persist: PersistChange) -> Self {
        Self { persist, ..self }
    }
}

/// A Reservation Acquire command (Base 2.1, 7.5). This host must be registered with the key
/// `current`; otherwise it fails with Reservation Conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationAcquire {
    /// What it does (RACQA).
    pub action: AcquireAction,
    /// The type of the reservation (RTYPE).
    pub kind: ReservationType,
    /// The current key of this host (CRKEY).
    pub current: u64,
    /// Preempt: the key of the registrants to remove (PRKEY).
    pub preempted: u64,
}

impl ReservationAcquire {
    /// Acquires a reservation. It fails with Reservation Conflict if another host holds one, or
    /// this host holds one of another type.
    #[must_use]
    pub fn acquire(kind: ReservationType, current: u64) -> Self {
        Self {
            action: AcquireAction::ACQUIRE,
            kind,
            current,
            preempted: 0,
        }
    }

    /// Removes the registrants with the key `preempted`, and takes the reservation if one of them
    /// holds it. If all registrants hold it, 0 removes all others.
    #[must_use]
    pub fn preempt(kind: ReservationType, current: u64, preempted: u64) -> Self {
        Self {
            action: AcquireAction::PREEMPT,
            preempted,
            ..Self::acquire(kind, current)
        }
    }

    /// The same, and aborts the commands of these hosts.
    #[must_use]
    pub fn preempt_and_abort(kind: ReservationType, current: u64, preempted: u64) -> Self {
        Self {
            action: AcquireAction::PREEMPT_AND_ABORT,
            ..Self::preempt(kind, current, preempted)
        }
    }
}

/// A Reservation Release command (Base 2.1, 7.7). This host must be registered with the key
/// `current`; otherwise it fails with Reservation Conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationRelease {
    /// What it does (RRELA).
    pub action: ReleaseAction,
    /// Release: the type of the reservation (RTYPE).
    pub kind: ReservationType,
    /// The current key of this host (CRKEY).
    pub current: u64,
}

impl ReservationRelease {
    /// Releases the reservation, which must have this type. It succeeds without an effect if this
    /// host does not hold it.
    #[must_use]
    pub fn release(kind: ReservationType, current: u64) -> Self {
        Self {
            action: ReleaseAction::RELEASE,
            kind,
            current,
        }
    }

    /// Removes the reservation, whichever host holds it, and all registrants.
    #[must_use]
    pub fn clear(current: u64) -> Self {
        Self {
            action: ReleaseAction::CLEAR,
            ..Self::release(ReservationType::NONE, current)
        }
    }
}

/// A command that changes reservations. Its payload, [`Command::len`] bytes, is filled by
/// [`put`](Self::put).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationCommand {
    /// Reservation Register.
    Register(ReservationRegister),
    /// Reservation Acquire.
    Acquire(ReservationAcquire),
    /// Reservation Release.
    Release(ReservationRelease),
}

impl From<ReservationRegister> for ReservationCommand {
    fn from(registration: ReservationRegister) -> Self {
        Self::Register(registration)
    }
}

impl From<ReservationAcquire> for ReservationCommand {
    fn from(acquisition: ReservationAcquire) -> Self {
        Self::Acquire(acquisition)
    }
}

impl From<ReservationRelease> for ReservationCommand {
    fn from(release: ReservationRelease) -> Self {
        Self::Release(release)
    }
}

impl ReservationCommand {
    /// Length of its payload in bytes: 16 or 8.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        match self {
            Self::Register(_) | Self::Acquire(_) => KEYS_LEN,
            Self::Release(_) => RELEASE_LEN,
        }
    }

    /// The command for namespace `nsid`.
    #[must_use]
    pub fn command(&self, nsid: u32) -> Command {
        let sqe = match *self {
            Self::Register(registration) => Register {
                nsid,
                action: registration.action,
                ignores_key: registration.ignores_key,
                persist: registration.persist,
            }
            .to_sqe(),
            Self::Acquire(acquisition) => {
                reserve(nsid, acquisition.action.0, acquisition.kind).to_acquire()
            }
            Self::Release(release) => reserve(nsid, release.action.0, release.kind).to_release(),
        };
        let len = u32::try_from(self.payload_len()).unwrap_or(u32::MAX);
        Command::new(sqe, io::name(sqe.opcode), Direction::ToController, len)
    }

    /// Writes the payload: the keys.
    pub fn put(&self, payload: &mut [u8]) {
        let (current, other) = match self {
            Self::Register(registration) => (registration.current, registration.new),
            Self::Acquire(acquisition) => (acquisition.current, acquisition.preempted),
            Self::Release(release) => (release.current, 0),
        };
        let keys = Keys {
            current: U64::new(current),
            other: U64::new(other),
        };
        let bytes = keys.as_bytes().iter().take(self.payload_len());
        for (to, from) in payload.iter_mut().zip(bytes) {
            *to = *from;
        }
    }
}

/// Base 2.1, 7.5 and 7.7: a controller refuses the commands with IEKEY.
fn reserve(nsid: u32, action: u8, kind: ReservationType) -> Reserve {
    Reserve {
        nsid,
        action,
        ignores_key: false,
        kind,
    }
}

/// Reservation Report (Base 2.1, 7.8): the first `len` bytes, a multiple of 4, of the extended
/// report, which [`ReservationReport::parse`] reads. Controllers over fabrics have no other one,
/// because host identifiers have 128 bits.
#[must_use]
pub fn report(nsid: u32, len: u32) -> Command {
    let len = len.next_multiple_of(4).max(4);
    let report = Report {
        nsid,
        len: len.into(),
        is_extended: true,
    };
    let name = io::name(io::RESERVATION_REPORT);
    Command::new(report.to_sqe(), name, Direction::ToHost, len)
}

/// Length in bytes of a report with that number of registrants.
#[must_use]
pub fn report_len(registrants: u16) -> usize {
    EXTENDED_HEADER_LEN + usize::from(registrants) * size_of::<ExtendedRegistrant>()
}

/// Reservations of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationReport {
    /// Counts changes of registrations, modulo 2^32 (GEN).
    pub generation: u32,
    /// The type of the reservation; [`ReservationType::NONE`] if there is none.
    pub kind: ReservationType,
    /// Whether reservations and registrations persist through a loss of power (PTPLS).
    pub persists: bool,
    /// Number of registrants. There are more than in [`registrants`](Self::registrants) if the
    /// report was read in part.
    pub registered: u16,
    /// The registrants.
    pub registrants: Vec<Registrant>,
}

/// A host that is registered with a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// Its identifier, as in its Connect commands.
    pub hostid: [u8; 16],
    /// Its key.
    pub key: u64,
    /// Whether it holds the reservation.
    pub holds: bool,
    /// The controller of the host; FFFFh with the dynamic controllers of fabrics.
    pub cntlid: u16,
}

impl ReservationReport {
    /// Reads the beginning of an extended report. `None` if it is shorter than its header, 64
    /// bytes.
    #[must_use]
    pub fn parse(data: &[u8]) -> Option<Self> {
        let (header, rest) = data.split_at_checked(EXTENDED_HEADER_LEN)?;
        let (header, _) = ReportHeader::read_from_prefix(header).ok()?;
        let registered = header.registrants.get();
        let entries = rest.chunks_exact(size_of::<ExtendedRegistrant>());
        let entries = entries.take(usize::from(registered));
        let entries = entries.filter_map(|entry| ExtendedRegistrant::read_from_bytes(entry).ok());
        Some(Self {
            generation: header.generation.get(),
            kind: header.kind,
            persists: header.persists & 1 != 0,
            registered,
            registrants: entries.map(Registrant::from).collect(),
        })
    }

    /// The registration of the host with that identifier.
    #[must_use]
    pub fn registrant(&self, hostid: [u8; 16]) -> Option<&Registrant> {
        self.registrants.iter().find(|one| one.hostid == hostid)
    }
}

impl From<ExtendedRegistrant> for Registrant {
    fn from(entry: ExtendedRegistrant) -> Self {
        Self {
            hostid: entry.hostid,
            key: entry.key.get(),
            holds: entry.status & HOLDS != 0,
            cntlid: entry.cntlid.get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_wire::reservation::CNTLID_DYNAMIC;
    use proptest::prelude::*;

    use super::*;

    const KIND: ReservationType = ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS;

    /// The payload, in a longer buffer of FFh.
    fn payload(command: ReservationCommand) -> Vec<u8> {
        let mut payload = [0xff; 24];
        command.put(&mut payload);
        payload.to_vec()
    }

    fn bytes(current: u64, other: Option<u64>) -> Vec<u8> {
        let mut bytes = current.to_le_bytes().to_vec();
        bytes.extend(other.iter().flat_map(|key| key.to_le_bytes()));
        bytes.resize(24, 0xff);
        bytes
    }

    #[test]
    fn register_has_its_fields_and_both_keys() {
        let registration = ReservationRegister::replace(0x11, 0x22)
            .ignoring_key()
            .with_persistence(PersistChange::SET);
        for (registration, cdw10, keys) in [
            (ReservationRegister::register(7), 0, (0, 7)),
            (ReservationRegister::unregister(7), 1, (7, 0)),
            (registration, 0xc000_000a, (0x11, 0x22)),
        ] {
            let request = ReservationCommand::from(registration);
            let command = request.command(3);
            assert_eq!(
                (command.name(), command.len()),
                ("Reservation Register", 16)
            );
            assert_eq!(command.direction(), Direction::ToController);
            let sqe = command.sqe();
            assert_eq!((sqe.nsid.get(), sqe.cdw10.get()), (3, cdw10));
            assert_eq!(payload(request), bytes(keys.0, Some(keys.1)));
        }
    }

    #[test]
    fn acquire_and_release_have_type_and_keys() {
        for (request, cdw10, keys) in [
            (
                ReservationAcquire::acquire(KIND, 7).into(),
                0x400,
                (7, Some(0)),
            ),
            (
                ReservationAcquire::preempt(KIND, 7, 9).into(),
                0x401,
                (7, Some(9)),
            ),
            (
                ReservationAcquire::preempt_and_abort(KIND, 7, 9).into(),
                0x402,
                (7, Some(9)),
            ),
            (
                ReservationRelease::release(KIND, 7).into(),
                0x400,
                (7, None),
            ),
            (ReservationRelease::clear(7).into(), 1, (7, None)),
        ] {
            let request: ReservationCommand = request;
            let command = request.command(3);
            assert_eq!(command.sqe().cdw10.get(), cdw10, "{request:?}");
            assert_eq!(payload(request), bytes(keys.0, keys.1), "{request:?}");
            let len = if keys.1.is_some() { 16 } else { 8 };
            assert_eq!(command.len(), len);
            assert!(command.changes_data());
        }
    }

    #[test]
    fn report_is_extended_and_changes_nothing() {
        let command = report(3, 4096);
        let sqe = command.sqe();
        assert_eq!((sqe.cdw10.get(), sqe.cdw11.get()), (1023, 1));
        assert_eq!(
            (command.direction(), command.len()),
            (Direction::ToHost, 4096)
        );
        assert!(!command.changes_data());
        assert_eq!((report(3, 0).len(), report(3, 65).len()), (4, 68));
    }

    fn report_of(registered: u16, entries: &[ExtendedRegistrant]) -> Vec<u8> {
        let header = ReportHeader::new(5, KIND, registered, true);
        let mut data = header.as_bytes().to_vec();
        data.resize(EXTENDED_HEADER_LEN, 0);
        data.extend(entries.iter().flat_map(|entry| entry.as_bytes().to_vec()));
        data
    }

    #[test]
    fn report_has_registrants_with_keys_and_holder() {
        let entries = [
            ExtendedRegistrant::new([1; 16], 0x10, true),
            ExtendedRegistrant::new([2; 16], 0x20, false),
        ];
        let data = report_of(2, &entries);
        assert_eq!(data.len(), report_len(2));
        let report = ReservationReport::parse(&data).unwrap();
        assert_eq!((report.generation, report.kind), (5, KIND));
        assert!(report.persists);
        let expected = Registrant {
            hostid: [1; 16],
            key: 0x10,
            holds: true,
            cntlid: CNTLID_DYNAMIC,
        };
        assert_eq!(report.registrant([1; 16]), Some(&expected));
        assert!(!report.registrant([2; 16]).unwrap().holds);
        assert_eq!(report.registrant([3; 16]), None);
    }

    #[test]
    fn report_that_was_read_in_part_has_what_fits() {
        let entries = [ExtendedRegistrant::new([1; 16], 1, false); 3];
        let mut data = report_of(1000, &entries);
        data.truncate(report_len(3) - 1);
        let report = ReservationReport::parse(&data).unwrap();
        assert_eq!((report.registered, report.registrants.len()), (1000, 2));
        // Entries beyond the number of registrants are none.
        let report = ReservationReport::parse(&report_of(1, &entries)).unwrap();
        assert_eq!(report.registrants.len(), 1);
        assert_eq!(ReservationReport::parse(&data[..63]), None);
    }

    proptest! {
        #[test]
        fn any_report_of_a_peer_is_read(data in prop::collection::vec(any::<u8>(), 0..400)) {
            match ReservationReport::parse(&data) {
                None => prop_assert!(data.len() < EXTENDED_HEADER_LEN),
                Some(report) => {
                    prop_assert!(report.registrants.len() <= usize::from(report.registered));
                }
            }
        }
    }
}
