//! High availability: bodies of requests (`...In`) and responses (`...Out`).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// High availability as this gateway sees it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct HaOut {
    /// Name of this gateway.
    pub gateway: String,
    /// The shared record, as `POOL[/NAMESPACE]/OBJECT`.
    pub record: String,
    /// Membership of this gateway: `starting`, `member`, `refused` (it serves no group, `error`
    /// says why) or `stopped`.
    pub standing: String,
    /// Why it is refused, or why the record cannot be read or written now.
    pub error: Option<String>,
    /// The gateways in the record, by name.
    pub gateways: Vec<HaGatewayOut>,
    /// The configured groups.
    pub groups: Vec<HaGroupOut>,
}

/// A gateway in the record.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct HaGatewayOut {
    /// Its name.
    pub gateway: String,
    /// `alive`; `drained`: alive, and it takes no group until it is resumed; `unknown`: not
    /// observed for long enough; `expired`: it does not renew its lease; `stopped`.
    pub state: String,
    /// Its first controller identifier.
    pub first_controller_id: u16,
    /// Its last controller identifier.
    pub last_controller_id: u16,
}

/// An ANA group.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct HaGroupOut {
    /// ANA group ID.
    pub group: u32,
    /// The gateway that owns it; null: none.
    pub owner: Option<String>,
    /// Whether this gateway serves it.
    pub served_here: bool,
    /// Grows with each takeover.
    pub epoch: u64,
    /// `free`: no owner; `taking`: the owner fences earlier clients and opens images; `serving`;
    /// `releasing`: the owner closes the images for a planned hand-over.
    pub phase: String,
    /// Since when it is in this phase, in UTC (RFC 3339); null: it never had an owner.
    pub since: Option<String>,
    /// Where it moves; null: nowhere.
    pub moves_to: Option<HaMoveOut>,
    /// Addresses of the clients of the owner.
    pub clients: Vec<String>,
    /// Addresses of clients of earlier owners that are not fenced yet.
    pub to_fence: Vec<String>,
    /// The last change of owner; null: none.
    pub last_takeover: Option<HaTakeoverOut>,
    /// Why the last move was dropped.
    pub note: Option<String>,
    /// The last failure of this gateway with this group.
    pub error: Option<String>,
    /// Its gateways in the order of priority.
    pub candidates: Vec<HaCandidateOut>,
}

/// A planned change of owner.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct HaMoveOut {
    /// The next owner.
    pub gateway: String,
    /// The reason.
    pub why: String,
}

/// The last change of owner of a group.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct HaTakeoverOut {
    /// The owner before; null: none.
    pub from: Option<String>,
    /// The reason.
    pub why: String,
    /// Addresses of the clients that were fenced.
    pub fenced: Vec<String>,
    /// When they were fenced, in UTC (RFC 3339); null: none was.
    pub fenced_at: Option<String>,
}

/// A gateway of a group.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct HaCandidateOut {
    /// Its name.
    pub gateway: String,
    /// Its position among the candidates for the group, from 0; null: it cannot take it.
    pub rank: Option<usize>,
    /// Why it cannot take the group, or what it failed at.
    pub reason: Option<String>,
}

/// A group to move.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HaMoveIn {
    /// ANA group ID.
    pub group: u32,
    /// The gateway that shall own it.
    pub gateway: String,
}

/// A gateway to drain, to resume or to forget.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HaGatewayIn {
    /// Its name.
    pub gateway: String,
}
