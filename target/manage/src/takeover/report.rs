//! The state of the machine for administrators.

use nvmeof_target_ha::{Liveness, Machine, Phase, Standing, Time, Why, WishReason};

use crate::ha::{
    HaCandidate, HaGateway, HaGatewayState, HaGroup, HaStanding, HaStatus, HaTakeover,
};

/// The state of `machine`, whose record is at `place`.
pub(super) fn status(machine: &Machine, now: Time, place: &str) -> HaStatus {
    let (standing, refusal) = match machine.standing() {
        Standing::Starting => (HaStanding::Starting, None),
        Standing::Member => (HaStanding::Member, None),
        Standing::Refused(refusal) => (HaStanding::Refused, Some(refusal.to_string())),
        Standing::Stopped => (HaStanding::Stopped, None),
    };
    let gateways = machine.record().into_iter().flat_map(|it| &it.gateways);
    let gateways = gateways.map(|(name, gateway)| HaGateway {
        name: name.clone(),
        state: match machine.liveness(name) {
            _ if gateway.stopped => HaGatewayState::Stopped,
            Liveness::Expired(_) => HaGatewayState::Expired,
            Liveness::Unknown => HaGatewayState::Unknown,
            Liveness::Alive if gateway.drained => HaGatewayState::Drained,
            Liveness::Alive => HaGatewayState::Alive,
        },
        controller_ids: (
            gateway.facts.controller_ids.first,
            gateway.facts.controller_ids.last,
        ),
    });
    let groups = machine.groups().map(|id| {
        let why = machine.why(now, id);
        let is_served_here = machine.is_serving(id);
        let group = why.map_or_else(HaGroup::default, |why| group(why, is_served_here));
        HaGroup { id, ..group }
    });
    HaStatus {
        gateway: machine.name().to_owned(),
        record: place.to_owned(),
        standing,
        error: refusal.or_else(|| machine.last_error().map(str::to_owned)),
        gateways: gateways.collect(),
        groups: groups.collect(),
    }
}

fn group(why: Why, is_served_here: bool) -> HaGroup {
    let Why {
        id,
        group,
        candidates,
        last_error,
    } = why;
    HaGroup {
        id,
        owner: group.owner.map(|owner| owner.gateway),
        is_served_here,
        epoch: group.epoch,
        phase: match group.phase {
            Phase::Free => "free",
            Phase::Taking => "taking",
            Phase::Serving => "serving",
            Phase::Releasing => "releasing",
        },
        since_s: group.since_s,
        moves_to: group.wish.map(|wish| (wish.gateway, reason(wish.reason))),
        clients: group.clients,
        to_fence: group.to_fence,
        last: group.last.map(|last| HaTakeover {
            from: last.from,
            why: last.why,
            fenced: last.fenced,
            fenced_at_s: last.fenced_at_s,
        }),
        note: group.note,
        error: last_error,
        candidates: candidates
            .into_iter()
            .map(|one| HaCandidate {
                gateway: one.gateway,
                rank: one.rank,
                reason: one.reason,
            })
            .collect(),
    }
}

fn reason(reason: WishReason) -> &'static str {
    match reason {
        WishReason::Move => "moved by an administrator",
        WishReason::Drain => "its owner is drained",
        WishReason::Stop => "its owner stops",
        WishReason::Failback => "a preferred gateway is alive again",
        WishReason::GaveUp => "its owner failed to serve it",
    }
}
