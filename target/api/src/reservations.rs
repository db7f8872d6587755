//! Reservations of namespaces: bodies of requests (`...In`) and responses (`...Out`).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Reservations of all namespaces that have any.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct ReservationsOut {
    /// By subsystem and namespace.
    pub namespaces: Vec<NamespaceReservationsOut>,
    /// Namespaces whose reservations are unknown. They are not served.
    #[serde(default)]
    pub unknown: Vec<UnknownReservations>,
}

/// A namespace whose record of reservations cannot be read, or could not be restored after a failed
/// write.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct UnknownReservations {
    /// NQN of the subsystem.
    pub subsystem: String,
    /// NSID of the namespace.
    pub nsid: u32,
    /// The cause and the remedy.
    pub why: String,
}

/// Registrants and reservation of one namespace.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct NamespaceReservationsOut {
    /// NQN of the subsystem.
    pub subsystem: String,
    /// NSID of the namespace.
    pub nsid: u32,
    /// UUID of the namespace: another namespace with this NSID has reservations of its own.
    pub uuid: String,
    /// Generation: counts changes of registrations, modulo 2^32.
    pub generation: u32,
    /// Whether they persist through power loss, and thus a restart of the target.
    pub persistent: bool,
    /// The reservation; null if none is held.
    pub reservation: Option<ReservationOut>,
    /// The registrants.
    pub registrants: Vec<RegistrantOut>,
    /// The last time a host removed registrations of others; null if none did.
    #[serde(default)]
    pub preemption: Option<PreemptionOut>,
}

/// A reservation that is held.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct ReservationOut {
    /// Type: 1 Write Exclusive, 2 Exclusive Access, 3 and 4 the same for registrants only, 5 and 6
    /// the same with all registrants as holders.
    #[serde(rename = "type")]
    pub kind: u8,
    /// Its name, as in the specification.
    pub type_name: String,
    /// Since when the holder has it, in UTC (RFC 3339).
    pub since: String,
}

/// A registered host.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct RegistrantOut {
    /// Host identifier, as a UUID.
    pub host_id: String,
    /// NQN with which the host registered; null if it is not known.
    pub host: Option<String>,
    /// Its key, in hexadecimal.
    pub key: String,
    /// Whether it holds the reservation.
    pub holder: bool,
}

/// A host that removed registrations of others.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct PreemptionOut {
    /// When, in UTC (RFC 3339).
    pub at: String,
    /// The host that did it.
    pub by: ReservationHost,
    /// The hosts that lost their registration.
    pub preempted: Vec<ReservationHost>,
}

/// A host in a preemption.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct ReservationHost {
    /// Host identifier, as a UUID.
    pub host_id: String,
    /// Its NQN; null if it is not known.
    pub host: Option<String>,
}

/// A namespace whose reservations are to be removed.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClearReservationsIn {
    /// NQN of the subsystem.
    pub subsystem: String,
    /// NSID of the namespace.
    pub nsid: u32,
}

/// Reservations that a namespace is to have from now on, as `GET /v1/reservations` describes them.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportReservationsIn {
    /// NQN of the subsystem.
    pub subsystem: String,
    /// NSID of the namespace.
    pub nsid: u32,
    /// The reservations. Subsystem, NSID and UUID in it do not matter, nor do times.
    pub reservations: NamespaceReservationsOut,
}
