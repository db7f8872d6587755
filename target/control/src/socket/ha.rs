//! Requests about high availability.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use axum::extract::State;
use axum::http::StatusCode;
use nvmeof_target_api::{
    HaCandidateOut, HaGatewayIn, HaGatewayOut, HaGroupOut, HaMoveIn, HaMoveOut, HaOut,
    HaTakeoverOut,
};
use nvmeof_target_config::utc;
use nvmeof_target_manage::Manager;
use nvmeof_target_manage::ha::{
    HaControl, HaGateway, HaGatewayState, HaGroup, HaOrder, HaOrderError, HaStanding, HaStatus,
    HaTakeover,
};

use super::Shared;
use super::routes::{Body, JsonResult, NoBody, ask};
use crate::http::{Fault, Refusals};

/// High availability: this gateway, the gateways in the record, and the configured groups.
///
/// 404 if it is not configured.
#[utoipa::path(
    get,
    path = "/v1/ha",
    responses((status = 200, body = HaOut), Refusals)
)]
pub(super) async fn ha(State(shared): State<Shared>, _: NoBody) -> JsonResult<HaOut> {
    ask(shared, |keeper| {
        let control = configured(keeper.manager())?;
        Ok(out(&control.status()))
    })
    .await
}

/// Moves a group to a gateway. Fail-back does not undo it.
///
/// It is done when `GET /v1/ha` shows the gateway as owner, with the phase `serving`.
#[utoipa::path(
    post,
    path = "/v1/ha/move",
    request_body = HaMoveIn,
    responses((status = 200, body = HaOut), Refusals)
)]
pub(super) async fn ha_move(
    State(shared): State<Shared>,
    Body(HaMoveIn { group, gateway }): Body<HaMoveIn>,
) -> JsonResult<HaOut> {
    order(shared, HaOrder::Move { group, gateway }).await
}

/// Moves all groups of a gateway to others, and gives it none until it is resumed.
///
/// It is done when `GET /v1/ha` shows no group with this owner. A group that no other gateway can
/// take stays.
#[utoipa::path(
    post,
    path = "/v1/ha/drain",
    request_body = HaGatewayIn,
    responses((status = 200, body = HaOut), Refusals)
)]
pub(super) async fn ha_drain(
    State(shared): State<Shared>,
    Body(HaGatewayIn { gateway }): Body<HaGatewayIn>,
) -> JsonResult<HaOut> {
    order(shared, HaOrder::Drain { gateway }).await
}

/// Ends a drain. Groups return by fail-back or by a move.
#[utoipa::path(
    post,
    path = "/v1/ha/resume",
    request_body = HaGatewayIn,
    responses((status = 200, body = HaOut), Refusals)
)]
pub(super) async fn ha_resume(
    State(shared): State<Shared>,
    Body(HaGatewayIn { gateway }): Body<HaGatewayIn>,
) -> JsonResult<HaOut> {
    order(shared, HaOrder::Resume { gateway }).await
}

/// Removes a gateway that no longer exists from the record.
#[utoipa::path(
    post,
    path = "/v1/ha/forget",
    request_body = HaGatewayIn,
    responses((status = 200, body = HaOut), Refusals)
)]
pub(super) async fn ha_forget(
    State(shared): State<Shared>,
    Body(HaGatewayIn { gateway }): Body<HaGatewayIn>,
) -> JsonResult<HaOut> {
    order(shared, HaOrder::Forget { gateway }).await
}

/// Orders a change, and returns the state after it was accepted.
async fn order(shared: Shared, order: HaOrder) -> JsonResult<HaOut> {
    check(&order)?;
    let permit = shared.queue.enter()?.acquire_for_order().await;
    ask(shared, move |keeper| {
        // Held until the end, also if the client disconnects.
        let _permit = permit;
        let control = configured(keeper.manager())?;
        let text = text(&order);
        match control.order(order) {
            Ok(()) => tracing::info!("high availability: ordered by an administrator: {text}"),
            Err(error) => {
                tracing::warn!("high availability: order failed: {text}: {error}");
                return Err(error.into());
            }
        }
        Ok(out(&control.status()))
    })
    .await
}

fn configured(manager: &Manager) -> Result<&HaControl, Fault> {
    manager.ha().ok_or_else(|| {
        let what = "high availability is not configured: add [ha] to the configuration file, then \
                    restart the target";
        Fault::new(StatusCode::NOT_FOUND, what)
    })
}

/// The longest name of a gateway.
const LONGEST_NAME: usize = 64;

/// Checks the form of names and numbers; the record decides whether they exist.
fn check(order: &HaOrder) -> Result<(), Fault> {
    let (HaOrder::Move { gateway, .. }
    | HaOrder::Drain { gateway }
    | HaOrder::Resume { gateway }
    | HaOrder::Forget { gateway }) = order;
    if let HaOrder::Move { group: 0, .. } = order {
        let what = "0: an ANA group ID is at least 1; GET /v1/ha lists the groups";
        return Err(Fault::invalid("group", what));
    }
    let is_permitted = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    if (1..=LONGEST_NAME).contains(&gateway.len()) && gateway.chars().all(is_permitted) {
        return Ok(());
    }
    let shown: String = gateway.chars().take(LONGEST_NAME).collect();
    let what = format!(
        "{shown:?}: a name has 1 to {LONGEST_NAME} letters, digits, dots, hyphens or underscores; \
         GET /v1/ha lists the gateways"
    );
    Err(Fault::invalid("gateway", &what))
}

fn text(order: &HaOrder) -> String {
    match order {
        HaOrder::Move { group, gateway } => format!("move group {group} to gateway {gateway}"),
        HaOrder::Drain { gateway } => format!("drain gateway {gateway}"),
        HaOrder::Resume { gateway } => format!("resume gateway {gateway}"),
        HaOrder::Forget { gateway } => format!("forget gateway {gateway}"),
    }
}

impl From<HaOrderError> for Fault {
    fn from(error: HaOrderError) -> Self {
        match error {
            HaOrderError::Refused(why) => Self::refused(why),
            HaOrderError::Busy => Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
            HaOrderError::NoResponse => {
                let what = format!("{error}. The order may still take effect: check `ctl ha`");
                Self::new(StatusCode::GATEWAY_TIMEOUT, what)
            }
        }
    }
}

fn out(status: &HaStatus) -> HaOut {
    let gateways = status.gateways.iter().map(|one| HaGatewayOut {
        gateway: one.name.clone(),
        state: state_name(one).to_owned(),
        first_controller_id: one.controller_ids.0,
        last_controller_id: one.controller_ids.1,
    });
    HaOut {
        gateway: status.gateway.clone(),
        record: status.record.clone(),
        standing: standing_name(status.standing).to_owned(),
        error: status.error.clone(),
        gateways: gateways.collect(),
        groups: status.groups.iter().map(group_out).collect(),
    }
}

fn standing_name(standing: HaStanding) -> &'static str {
    match standing {
        HaStanding::Starting => "starting",
        HaStanding::Member => "member",
        HaStanding::Refused => "refused",
        HaStanding::Stopped => "stopped",
    }
}

fn state_name(gateway: &HaGateway) -> &'static str {
    match gateway.state {
        HaGatewayState::Alive => "alive",
        HaGatewayState::Drained => "drained",
        HaGatewayState::Unknown => "unknown",
        HaGatewayState::Expired => "expired",
        HaGatewayState::Stopped => "stopped",
    }
}

fn group_out(group: &HaGroup) -> HaGroupOut {
    let moves_to = group.moves_to.as_ref();
    let candidates = group.candidates.iter().map(|one| HaCandidateOut {
        gateway: one.gateway.clone(),
        rank: one.rank,
        reason: one.reason.clone(),
    });
    HaGroupOut {
        group: group.id,
        owner: group.owner.clone(),
        served_here: group.is_served_here,
        epoch: group.epoch,
        phase: group.phase.to_owned(),
        since: time(group.since_s),
        moves_to: moves_to.map(|(gateway, why)| HaMoveOut {
            gateway: gateway.clone(),
            why: (*why).to_owned(),
        }),
        clients: group.clients.clone(),
        to_fence: group.to_fence.clone(),
        last_takeover: group.last.as_ref().map(takeover_out),
        note: group.note.clone(),
        error: group.error.clone(),
        candidates: candidates.collect(),
    }
}

fn takeover_out(last: &HaTakeover) -> HaTakeoverOut {
    HaTakeoverOut {
        from: last.from.clone(),
        why: last.why.clone(),
        fenced: last.fenced.clone(),
        fenced_at: last.fenced_at_s.and_then(time),
    }
}

/// A time of the record, which another gateway may have written; `None` for 0 and for times that
/// cannot be represented.
fn time(since_1970_s: u64) -> Option<String> {
    let since = Duration::from_secs(since_1970_s);
    let time = SystemTime::UNIX_EPOCH.checked_add(since)?;
    (since_1970_s > 0).then(|| utc(time))
}

/// High availability in one line.
pub(super) fn summary(status: &HaStatus) -> String {
    let mut text = match (status.standing, &status.error) {
        (HaStanding::Refused, why) => {
            let why = why.as_deref().unwrap_or("the log has the reason");
            return format!("REFUSED, serves no group: {why}");
        }
        (HaStanding::Starting, _) => "starting, serves no group yet".to_owned(),
        (standing, _) => standing_name(standing).to_owned(),
    };
    let mut places: Vec<(String, Vec<String>)> = Vec::new();
    for group in &status.groups {
        let (place, id) = (place(status, group), group.id.to_string());
        match places.iter_mut().find(|(known, _)| *known == place) {
            Some((_, ids)) => ids.push(id),
            None => places.push((place, vec![id])),
        }
    }
    for (place, ids) in &places {
        let plural = if ids.len() == 1 { "" } else { "s" };
        let ids = format!("group{plural} {}", ids.join(", "));
        // Writing to a string does not fail.
        let _ = match place.as_str() {
            HERE => write!(text, "; serves {ids}"),
            place => write!(text, "; {ids} {place}"),
        };
    }
    if let Some(error) = &status.error {
        let _ = write!(text, "; ERROR: {error}");
    }
    text
}

/// The place of a group that this gateway serves.
const HERE: &str = "here";

/// Where a group is.
fn place(status: &HaStatus, group: &HaGroup) -> String {
    match &group.owner {
        _ if group.is_served_here => HERE.to_owned(),
        None => "without owner".to_owned(),
        Some(owner) if *owner == status.gateway && group.phase == "serving" => {
            format!("at {owner}, not served")
        }
        Some(owner) if group.phase == "serving" => format!("at {owner}"),
        Some(owner) => format!("{} at {owner}", group.phase),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use nvmeof_target_manage::ha::HaCandidate;
    use serde_json::json;

    use super::*;

    fn group(id: u32, owner: Option<&str>, phase: &'static str) -> HaGroup {
        HaGroup {
            id,
            owner: owner.map(str::to_owned),
            is_served_here: owner == Some("gw1") && phase == "serving",
            phase,
            ..HaGroup::default()
        }
    }

    fn status(groups: Vec<HaGroup>) -> HaStatus {
        HaStatus {
            gateway: "gw1".to_owned(),
            record: "rbd/nvmeof-ha".to_owned(),
            standing: HaStanding::Member,
            error: None,
            gateways: vec![HaGateway {
                name: "gw1".to_owned(),
                state: HaGatewayState::Alive,
                controller_ids: (1, 1000),
            }],
            groups,
        }
    }

    #[test]
    fn document_has_all_of_the_state() {
        let candidate = |gateway: &str, rank, reason: Option<&str>| HaCandidate {
            gateway: gateway.to_owned(),
            rank,
            reason: reason.map(str::to_owned),
        };
        let whole = HaGroup {
            epoch: 7,
            since_s: 1_764_316_800,
            moves_to: Some(("gw2".to_owned(), "moved by an administrator")),
            clients: vec!["192.0.2.1:0/1".to_owned()],
            to_fence: vec!["192.0.2.2:0/2".to_owned()],
            last: Some(HaTakeover {
                from: Some("gw2".to_owned()),
                why: "no renewal for 3.0 s".to_owned(),
                fenced: vec!["192.0.2.2:0/1".to_owned()],
                fenced_at_s: Some(1_764_316_799),
            }),
            note: Some("a note".to_owned()),
            error: Some("an error".to_owned()),
            candidates: vec![
                candidate("gw1", Some(0), None),
                candidate("gw2", None, Some("drained")),
            ],
            ..group(1, Some("gw1"), "serving")
        };
        let expected = json!({
            "gateway": "gw1", "record": "rbd/nvmeof-ha", "standing": "member", "error": null,
            "gateways": [{"gateway": "gw1", "state": "alive", "first_controller_id": 1,
                "last_controller_id": 1000}],
            "groups": [
                {"group": 1, "owner": "gw1", "served_here": true, "epoch": 7, "phase": "serving",
                    "since": "2025-11-28T08:00:00Z",
                    "moves_to": {"gateway": "gw2", "why": "moved by an administrator"},
                    "clients": ["192.0.2.1:0/1"], "to_fence": ["192.0.2.2:0/2"],
                    "last_takeover": {"from": "gw2", "why": "no renewal for 3.0 s",
                        "fenced": ["192.0.2.2:0/1"], "fenced_at": "2025-11-28T07:59:59Z"},
                    "note": "a note", "error": "an error",
                    "candidates": [{"gateway": "gw1", "rank": 0, "reason": null},
                        {"gateway": "gw2", "rank": null, "reason": "drained"}]},
                {"group": 2, "owner": null, "served_here": false, "epoch": 0, "phase": "free",
                    "since": null, "moves_to": null, "clients": [], "to_fence": [],
                    "last_takeover": null, "note": null, "error": null, "candidates": []},
            ],
        });
        let document = out(&status(vec![whole, group(2, None, "free")]));
        assert_eq!(json!(document), expected);
    }

    #[test]
    fn times_beyond_the_range_are_unknown() {
        assert_eq!(time(0), None);
        assert_eq!(time(1).unwrap(), "1970-01-01T00:00:01Z");
        assert_eq!(time(u64::MAX), None);
    }

    #[test]
    fn summary_groups_places_and_names_errors() {
        let mut status = status(vec![
            group(1, Some("gw1"), "serving"),
            group(2, Some("gw2"), "serving"),
            group(3, Some("gw1"), "serving"),
            group(4, Some("gw2"), "taking"),
            group(5, None, "free"),
        ]);
        let expected = "member; serves groups 1, 3; group 2 at gw2; group 4 taking at gw2; group 5 \
                        without owner";
        assert_eq!(summary(&status), expected);
        status.groups.truncate(1);
        status
            .groups
            .iter_mut()
            .for_each(|one| one.is_served_here = false);
        status.error = Some("the record cannot be written: timed out".to_owned());
        let expected = "member; group 1 at gw1, not served; ERROR: the record cannot be written: \
                        timed out";
        assert_eq!(summary(&status), expected);
        status.standing = HaStanding::Refused;
        status.error = Some("gateway gw1: another process with this name is alive".to_owned());
        let expected = "REFUSED, serves no group: gateway gw1: another process with this name is \
                        alive";
        assert_eq!(summary(&status), expected);
        status.standing = HaStanding::Starting;
        (status.error, status.groups) = (None, Vec::new());
        assert_eq!(summary(&status), "starting, serves no group yet");
    }

    #[test]
    fn refused_orders_conflict_and_unanswered_ones_may_take_effect() {
        let fault = |error: HaOrderError| {
            let Fault { status, error } = error.into();
            (status.as_u16(), error.message)
        };
        let why = "group 1: gateway gw2 cannot take it: drained";
        let refused = fault(HaOrderError::Refused(why.to_owned()));
        assert_eq!(refused, (409, why.to_owned()));
        let (status, text) = fault(HaOrderError::Busy);
        assert!(status == 503 && text.ends_with("repeat it later"), "{text}");
        let (status, text) = fault(HaOrderError::NoResponse);
        assert!(
            status == 504 && text.ends_with("may still take effect: check `ctl ha`"),
            "{text}"
        );
    }

    #[test]
    fn names_and_numbers_are_checked() {
        let gateway = |name: &str| HaOrder::Drain {
            gateway: name.to_owned(),
        };
        for name in ["gw1", "Gateway-1.rack_2", &"n".repeat(64)] {
            check(&gateway(name)).unwrap();
        }
        for name in ["", "a b", "gw\n1", "gätéway", &"n".repeat(65)] {
            let fault = check(&gateway(name)).unwrap_err();
            assert_eq!(fault.status.as_u16(), 422, "{name:?}");
            assert_eq!(fault.error.key.as_deref(), Some("gateway"), "{name:?}");
            assert!(!fault.error.message.contains('\n'), "{name:?}");
        }
        let order = HaOrder::Move {
            group: 0,
            gateway: "gw1".to_owned(),
        };
        let fault = check(&order).unwrap_err();
        assert_eq!(fault.error.key.as_deref(), Some("group"));
    }
}
