//! Requests about reservations of namespaces.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use nvmeof_target_api::{
    ClearReservationsIn, ImportReservationsIn, NamespaceReservationsOut, PreemptionOut,
    RegistrantOut, ReservationHost, ReservationOut, ReservationsOut, UnknownReservations,
};
use nvmeof_target_config::utc;
use nvmeof_target_core::{CannotImport, Registrant, ReservationState};
use nvmeof_target_manage::{Manager, NamespaceReservations, ReservationsError};
use nvmeof_target_reservations::{HostId, Reservation, Reservations};
use nvmeof_wire::Nqn;
use nvmeof_wire::reservation::ReservationType;
use uuid::Uuid;

use super::Shared;
use super::routes::{Body, JsonResult, NoBody, ask, nqn, with_permit};
use crate::http::{Fault, Refusals};

/// Reservations of all namespaces that have any.
#[utoipa::path(
    get,
    path = "/v1/reservations",
    responses((status = 200, body = ReservationsOut))
)]
pub(super) async fn reservations(
    State(shared): State<Shared>,
    _: NoBody,
) -> JsonResult<ReservationsOut> {
    ask(shared, |keeper| Ok(all(keeper.manager()))).await
}

/// Removes all registrations and the reservation of a namespace, and notifies its hosts.
///
/// Returns those that are left.
#[utoipa::path(
    post,
    path = "/v1/reservations/clear",
    request_body = ClearReservationsIn,
    responses((status = 200, body = ReservationsOut), Refusals)
)]
pub(super) async fn clear(
    State(shared): State<Shared>,
    Body(ClearReservationsIn { subsystem, nsid }): Body<ClearReservationsIn>,
) -> JsonResult<ReservationsOut> {
    with_permit(shared, move |keeper| {
        let (manager, subsystem) = (keeper.manager(), nqn("subsystem", &subsystem)?);
        manager.clear_reservations(subsystem, nsid)?;
        tracing::warn!(%subsystem, nsid, "reservations: cleared by an administrator");
        Ok(all(manager))
    })
    .await
}

/// Gives a namespace without registrants the reservations that it had elsewhere.
///
/// Returns those of all namespaces.
#[utoipa::path(
    post,
    path = "/v1/reservations/import",
    request_body = ImportReservationsIn,
    responses((status = 200, body = ReservationsOut), Refusals)
)]
pub(super) async fn import(
    State(shared): State<Shared>,
    Body(ImportReservationsIn {
        subsystem,
        nsid,
        reservations,
    }): Body<ImportReservationsIn>,
) -> JsonResult<ReservationsOut> {
    with_permit(shared, move |keeper| {
        let (manager, subsystem) = (keeper.manager(), nqn("subsystem", &subsystem)?);
        manager.import_reservations(subsystem, nsid, state_of(&reservations)?)?;
        tracing::warn!(%subsystem, nsid, "reservations: imported by an administrator");
        Ok(all(manager))
    })
    .await
}

fn all(manager: &Manager) -> ReservationsOut {
    let unknown = manager.unknown_records().into_iter();
    let unknown = unknown.map(|one| UnknownReservations {
        subsystem: one.subsystem.as_str().to_owned(),
        nsid: one.nsid,
        why: one.why,
    });
    ReservationsOut {
        namespaces: manager.reservations().iter().map(out).collect(),
        unknown: unknown.collect(),
    }
}

fn out(one: &NamespaceReservations) -> NamespaceReservationsOut {
    let its = &one.state.reservations;
    let registrants = its.registrants().map(|(host, key)| RegistrantOut {
        host_id: uuid(host),
        host: one.state.names.get(host).map(|nqn| nqn.as_str().to_owned()),
        key: format!("{key:#018x}"),
        holder: its.is_holder(host),
    });
    NamespaceReservationsOut {
        subsystem: one.subsystem.as_str().to_owned(),
        nsid: one.nsid,
        uuid: uuid(&one.uuid),
        generation: its.generation(),
        persistent: its.persists(),
        reservation: its.reservation().map(|held| ReservationOut {
            kind: held.kind.0,
            type_name: held.kind.name().to_owned(),
            since: one.held_since.map(utc).unwrap_or_default(),
        }),
        registrants: registrants.collect(),
        preemption: one.state.preemption.as_ref().map(|it| PreemptionOut {
            at: one.preempted_at.map(utc).unwrap_or_default(),
            by: host(&it.by),
            preempted: it.preempted.iter().map(host).collect(),
        }),
    }
}

fn host(registrant: &Registrant) -> ReservationHost {
    ReservationHost {
        host_id: uuid(&registrant.host),
        host: registrant.nqn.map(|nqn| nqn.as_str().to_owned()),
    }
}

fn uuid(bytes: &[u8; 16]) -> String {
    Uuid::from_bytes(*bytes).to_string()
}

/// The state that a document describes.
fn state_of(document: &NamespaceReservationsOut) -> Result<ReservationState, Fault> {
    let invalid = |what: String| Fault::invalid("reservations", &what);
    let (mut registrants, mut names) = (BTreeMap::new(), BTreeMap::new());
    let mut holder = None;
    for one in &document.registrants {
        let id: HostId = one
            .host_id
            .parse::<Uuid>()
            .map_err(|_| invalid(format!("host_id {:?} is not a UUID", one.host_id)))?
            .into_bytes();
        let digits = one.key.strip_prefix("0x");
        let key = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let key = key.ok_or_else(|| {
            invalid(format!(
                "key {:?} is not 0x and up to 16 hexadecimal digits",
                one.key
            ))
        })?;
        if registrants.insert(id, key).is_some() {
            return Err(invalid(format!("host_id {} is listed twice", one.host_id)));
        }
        if let Some(name) = &one.host {
            let nqn = Nqn::new(name).map_err(|error| invalid(format!("{name:?}: {error}")))?;
            names.insert(id, nqn);
        }
        holder = if one.holder { Some(id) } else { holder };
    }
    let reservation = document.reservation.as_ref().map(|held| {
        let kind = ReservationType(held.kind);
        let holder = holder.filter(|_| !kind.is_of_all());
        Reservation { kind, holder }
    });
    let reservations = Reservations::restore(
        document.generation,
        document.persistent,
        registrants,
        reservation,
    );
    let impossible = || {
        invalid(
            "no sequence of commands leads to these: a key is 0, the type is unknown, or the \
             reservation has no holder among the registrants"
                .to_owned(),
        )
    };
    Ok(ReservationState {
        reservations: reservations.ok_or_else(impossible)?,
        names,
        preemption: None,
    })
}

impl From<ReservationsError> for Fault {
    fn from(error: ReservationsError) -> Self {
        let status = match &error {
            ReservationsError::None { .. }
            | ReservationsError::CannotChange {
                why: CannotImport::NoNamespace,
                ..
            } => StatusCode::NOT_FOUND,
            ReservationsError::CannotChange { .. } | ReservationsError::Connected { .. } => {
                StatusCode::CONFLICT
            }
            ReservationsError::SaveError(_) | ReservationsError::NotYet => {
                StatusCode::INSUFFICIENT_STORAGE
            }
        };
        Self::new(status, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::time::SystemTime;

    use super::*;

    fn exported(kind: ReservationType) -> NamespaceReservations {
        let registrants = BTreeMap::from([([1; 16], 1), ([2; 16], u64::MAX)]);
        let held = Reservation {
            kind,
            holder: (!kind.is_of_all()).then_some([2; 16]),
        };
        let nqn = |name| Nqn::new(name).unwrap();
        NamespaceReservations {
            subsystem: nqn("nqn.2026-11.org.example:disk"),
            nsid: 1,
            uuid: [3; 16],
            state: ReservationState {
                reservations: Reservations::restore(7, true, registrants, Some(held)).unwrap(),
                names: BTreeMap::from([([1; 16], nqn("nqn.2026-11.org.example:host"))]),
                preemption: None,
            },
            held_since: Some(SystemTime::now()),
            preempted_at: None,
        }
    }

    #[test]
    fn what_is_exported_can_be_imported() {
        for kind in ReservationType::ALL {
            let exported = exported(kind);
            assert_eq!(state_of(&out(&exported)).unwrap(), exported.state);
        }
    }

    #[test]
    fn impossible_documents_are_refused() {
        let edits: [fn(&mut NamespaceReservationsOut); 6] = [
            |it| it.registrants[0].host_id = "host".to_owned(),
            |it| it.registrants[0].key = "1".to_owned(),
            |it| it.registrants[0].key = "0x0".to_owned(),
            |it| it.registrants[0].host_id = it.registrants[1].host_id.clone(),
            |it| it.registrants.clear(),
            |it| it.reservation.as_mut().unwrap().kind = 7,
        ];
        for edit in edits {
            let mut document = out(&exported(ReservationType::WRITE_EXCLUSIVE));
            edit(&mut document);
            assert!(state_of(&document).is_err(), "{document:?}");
        }
    }
}
