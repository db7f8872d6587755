//! The reservations of one namespace (NVMe Base 2.1, 8.1.22): a value, and what each command makes
//! of it.
//!
//! ```text
//!   Register, Acquire, Release  ──►  Change { next, notices, ends }
//!                                         │        │        │
//!                       saved, then served┘        │        └ accesses that must have ended
//!                                 to other hosts ──┘          before the command completes
//! ```
//! Nothing changes in place, so that the next state can be saved first: if that fails, the command
//! fails, and the present state remains.
//!
//! # Where the specification leaves a choice, or hosts differ
//! * Replace with a new key of 0 unregisters the host if [`Rules::replace_with_zero_unregisters`]:
//!   Linux (`IOC_PR_REGISTER`) unregisters so. Otherwise it is refused with Invalid Field.
//! * Base 2.1, 7.8: the generation "is incremented each time ... a Reservation Register command
//!   completes successfully", thus also when a host registers its key again. Linux' target leaves
//!   it as it is then.
//! * Preempt with a key of 0 is refused with Invalid Field unless all registrants hold the
//!   reservation. Linux' target lets the holder preempt so.
#![forbid(unsafe_code)]

mod access;
mod change;
mod effect;
mod report;

use std::collections::BTreeMap;

use nvmeof_wire::Status;
use nvmeof_wire::reservation::{NoticeType, ReservationType};

pub use access::{Access, Accesses};
pub use effect::{Effect, effect_of};

/// A 128-bit host identifier, which identifies a registrant on all its controllers.
pub type HostId = [u8; 16];

/// What a target decides for all its namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Registrants of a namespace, at most. A report has room for 65,535.
    pub most_registrants: u16,
    /// Whether Replace with a new key of 0 is Unregister, as Linux hosts mean it.
    pub replace_with_zero_unregisters: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            most_registrants: 4096,
            replace_with_zero_unregisters: true,
        }
    }
}

/// The reservations of a namespace. The default has no registrant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    generation: u32,
    persists: bool,
    /// The key of each registrant.
    registrants: BTreeMap<HostId, u64>,
    reservation: Option<Reservation>,
}

/// A reservation that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Its type, one of the six.
    pub kind: ReservationType,
    /// The host that holds it; `None`: all registrants do.
    pub holder: Option<HostId>,
}

/// What a command makes of the reservations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The reservations from now on.
    pub next: Reservations,
    /// Notifications to the controllers of other hosts, ordered by host.
    pub notices: Vec<(HostId, NoticeType)>,
    /// Accesses that some hosts had and do not have any more. Those that began before must have
    /// ended before the command completes.
    pub ends: Accesses,
}

/// Why a command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The host is no registrant, has another key, or another host holds the reservation.
    #[error("Reservation Conflict")]
    Conflict,
    /// A field has a value that it may not have.
    #[error("{0}")]
    Field(InvalidField),
    /// There are as many registrants as there may be.
    #[error("the namespace has the maximum number of registrants")]
    Full,
}

/// A field of a reservation command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidField {
    /// Action: reserved.
    #[error("the action is reserved")]
    Action,
    /// IEKEY where it may not be set.
    #[error("IEKEY is set")]
    IgnoresKey,
    /// RTYPE: reserved, or not that of the reservation to be released.
    #[error("RTYPE is not valid")]
    Kind,
    /// CPTPL: reserved.
    #[error("CPTPL is reserved")]
    Persist,
    /// NRKEY is 0.
    #[error("NRKEY is 0")]
    NewKey,
    /// PRKEY is 0.
    #[error("PRKEY is 0")]
    PreemptKey,
}

impl Refused {
    /// The status of the command. None of them is worth a retry.
    #[must_use]
    pub fn status(self) -> Status {
        match self {
            Self::Conflict => Status::RESERVATION_CONFLICT,
            Self::Field(_) => Status::INVALID_FIELD,
            Self::Full => Status::INTERNAL_ERROR,
        }
    }
}

impl Reservations {
    /// The state of a record.
    ///
    /// # Errors
    /// `None` if it is not one that commands can lead to: a key of 0, a holder that is no
    /// registrant, or an unknown type.
    #[must_use]
    pub fn restore(
        generation: u32,
        persists: bool,
        registrants: BTreeMap<HostId, u64>,
        reservation: Option<Reservation>,
    ) -> Option<Self> {
        let is_valid = |one: &Reservation| {
            one.kind.is_known()
                && one.kind.is_of_all() == one.holder.is_none()
                && one
                    .holder
                    .is_none_or(|host| registrants.contains_key(&host))
        };
        let is_valid = reservation.as_ref().is_none_or(is_valid)
            && (reservation.is_none() || !registrants.is_empty())
            && registrants
                .iter()
                .all(|(host, key)| *host != [0; 16] && *key != 0);
        is_valid.then_some(Self {
            generation,
            persists,
            registrants,
            reservation,
        })
    }

    /// Whether no command has changed anything yet.
    #[must_use]
    pub fn is_new(&self) -> bool {
        *self == Self::default()
    }

    /// The generation: counts changes, modulo 2^32.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether they persist through power loss (Base 2.1, 8.1.22.6).
    #[must_use]
    pub fn persists(&self) -> bool {
        self.persists
    }

    /// The registrants and their keys, ordered by host identifier.
    #[must_use]
    pub fn registrants(&self) -> impl ExactSizeIterator<Item = (&HostId, u64)> {
        self.registrants.iter().map(|(host, key)| (host, *key))
    }

    /// Whether the host is a registrant.
    #[must_use]
    pub fn is_registrant(&self, host: &HostId) -> bool {
        self.registrants.contains_key(host)
    }

    /// The reservation, if one is held.
    #[must_use]
    pub fn reservation(&self) -> Option<&Reservation> {
        self.reservation.as_ref()
    }

    /// Accesses that the reservation denies to hosts that are not registered, or to all that do not
    /// hold it.
    #[must_use]
    pub fn denied(&self) -> Accesses {
        let permitted = self.accesses(&[0; 16]);
        Accesses {
            reads: !permitted.reads,
            writes: !permitted.writes,
        }
    }

    /// Whether the host holds the reservation.
    #[must_use]
    pub fn is_holder(&self, host: &HostId) -> bool {
        self.reservation.is_some_and(|one| match one.holder {
            Some(holder) => holder == *host,
            None => self.registrants.contains_key(host),
        })
    }
}
