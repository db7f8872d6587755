//! Who may do what while a reservation is held (Base 2.1, figure "Command Behavior in the Presence
//! of a Reservation").

use nvmeof_wire::reservation::ReservationType;

use crate::{HostId, Reservations};

/// What a command does to a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It depends on the data: Read, Compare, Verify.
    Read,
    /// It changes data or what hosts rely on: Write, Write Zeroes, Dataset Management, Flush, and
    /// Set Features of the write protection of a namespace.
    Write,
}

/// A set of accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// [`Access::Read`].
    pub reads: bool,
    /// [`Access::Write`].
    pub writes: bool,
}

impl Accesses {
    /// What a host may do that is `registered`, or not, and does not hold the reservation alone.
    fn of(kind: ReservationType, registered: bool) -> Self {
        let (reads, writes) = match (kind, registered) {
            (ReservationType::EXCLUSIVE_ACCESS, _) => (false, false),
            (ReservationType::WRITE_EXCLUSIVE, _)
            | (
                ReservationType::WRITE_EXCLUSIVE_REGISTRANTS | ReservationType::WRITE_EXCLUSIVE_ALL,
                false,
            ) => (true, false),
            (_, is_registered) => (is_registered, is_registered),
        };
        Self { reads, writes }
    }

    /// All of them: no reservation is held.
    pub const ALL: Self = Self {
        reads: true,
        writes: true,
    };

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Whether it has that access.
    #[must_use]
    pub fn has(self, access: Access) -> bool {
        match access {
            Access::Read => self.reads,
            Access::Write => self.writes,
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            reads: self.reads || other.reads,
            writes: self.writes || other.writes,
        }
    }

    fn without(self, other: Self) -> Self {
        Self {
            reads: self.reads && !other.reads,
            writes: self.writes && !other.writes,
        }
    }
}

impl Reservations {
    /// What a host may do.
    #[must_use]
    pub fn accesses(&self, host: &HostId) -> Accesses {
        self.accesses_of(Some(host))
    }

    /// As [`accesses`](Self::accesses); `None`: a host that is not registered.
    fn accesses_of(&self, host: Option<&HostId>) -> Accesses {
        let Some(reservation) = &self.reservation else {
            return Accesses::ALL;
        };
        let is_registered = host.is_some_and(|host| self.registrants.contains_key(host));
        let is_holder = host.is_some_and(|host| self.is_holder(host));
        match is_holder {
            true => Accesses::ALL,
            false => Accesses::of(reservation.kind, is_registered),
        }
    }

    /// Accesses that some host has by `self` and not by `next`.
    pub(crate) fn lost_by(&self, next: &Self) -> Accesses {
        let hosts = self.registrants.keys().map(Some);
        // Others that are registered by `next` had what those have that are by none.
        let lost = |host| self.accesses_of(host).without(next.accesses_of(host));
        hosts
            .chain([None])
            .map(lost)
            .fold(Accesses::default(), Accesses::and)
    }
}
