//! The state of this gateway and of its groups, and what administrators order.

use std::fmt;
use std::time::Duration;

/// The state of high availability as this gateway sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HaStatus {
    /// Name of this gateway.
    pub gateway: String,
    /// The shared record, as `POOL[/NAMESPACE]/OBJECT`.
    pub record: String,
    /// Its membership.
    pub standing: HaStanding,
    /// Why it is refused, or why the record cannot be read or written now.
    pub error: Option<String>,
    /// The gateways in the record, by name.
    pub gateways: Vec<HaGateway>,
    /// The configured groups.
    pub groups: Vec<HaGroup>,
}

/// Membership of this gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HaStanding {
    /// It has not read the record yet, or waits for the lease of a predecessor.
    #[default]
    Starting,
    /// It takes part.
    Member,
    /// It serves nothing: see the error.
    Refused,
    /// It has released all groups.
    Stopped,
}

/// A gateway in the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HaGateway {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: HaGatewayState,
    /// Its controller identifiers: first and last.
    pub controller_ids: (u16, u16),
}

/// State of a gateway, as this gateway observes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HaGatewayState {
    /// It renews its lease.
    Alive,
    /// The same, and an administrator drained it: it takes no group.
    Drained,
    /// Not observed for long enough.
    Unknown,
    /// Its lease has expired.
    Expired,
    /// It stopped and released its groups.
    Stopped,
}

/// An ANA group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HaGroup {
    /// ANAGRPID.
    pub id: u32,
    /// The gateway that owns it.
    pub owner: Option<String>,
    /// Whether this gateway serves it.
    pub is_served_here: bool,
    /// Grows with each takeover.
    pub epoch: u64,
    /// State in the record: `free`, `taking`, `serving` or `releasing`.
    pub phase: &'static str,
    /// Seconds since 1970 of the last change of the state.
    pub since_s: u64,
    /// The gateway that it moves to, and why.
    pub moves_to: Option<(String, &'static str)>,
    /// Addresses of the clients of the owner.
    pub clients: Vec<String>,
    /// Addresses of clients that are not fenced yet.
    pub to_fence: Vec<String>,
    /// The last change of owner.
    pub last: Option<HaTakeover>,
    /// Why the last move was dropped.
    pub note: Option<String>,
    /// The last failure of this gateway.
    pub error: Option<String>,
    /// Its gateways in the order of priority.
    pub candidates: Vec<HaCandidate>,
}

/// The last change of owner of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HaTakeover {
    /// The owner before.
    pub from: Option<String>,
    /// Why.
    pub why: String,
    /// Addresses of the clients that were fenced.
    pub fenced: Vec<String>,
    /// Seconds since 1970 when they were fenced.
    pub fenced_at_s: Option<u64>,
}

/// A gateway of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HaCandidate {
    /// Its name.
    pub gateway: String,
    /// Its position among the candidates for the group, from 0; `None`: it cannot take it.
    pub rank: Option<usize>,
    /// Why it cannot, or what it failed at.
    pub reason: Option<String>,
}

/// An order of an administrator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HaOrder {
    /// Moves a group to a gateway. Fail-back does not undo it.
    Move {
        /// ANAGRPID.
        group: u32,
        /// Name of the gateway.
        gateway: String,
    },
    /// Moves all groups of a gateway to others, and gives it none until it is resumed.
    Drain {
        /// Name of the gateway.
        gateway: String,
    },
    /// Ends a drain. Groups return by fail-back or by a move.
    Resume {
        /// Name of the gateway.
        gateway: String,
    },
    /// Removes a gateway that no longer exists from the record.
    Forget {
        /// Name of the gateway.
        gateway: String,
    },
}

/// Why an order is refused. The message names object, rule and remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HaOrderError {
    /// By the rules of the record.
    #[error("{0}")]
    Refused(String),
    /// High availability has stopped, or does not respond.
    #[error(
        "no response from the high-availability thread within {} s; see the log of the target",
        ORDER_TIMEOUT.as_secs()
    )]
    NoResponse,
    /// Too many orders wait.
    #[error("too many orders wait for the record; repeat it later")]
    Busy,
}

/// How long an order waits until it is accepted.
pub const ORDER_TIMEOUT: Duration = Duration::from_secs(5);

impl fmt::Display for HaStanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Starting => "starting: waits for the record",
            Self::Member => "member",
            Self::Refused => "refused",
            Self::Stopped => "stopped: all groups are released",
        })
    }
}
