//! What an NVM subsystem and its controllers do, without I/O.
//!
//! [`Model`] says what is served, [`Target`] holds the one that is served now
//! and the controllers that hosts have connected, and one [`Queue`] for each
//! queue pair turns commands into [`Action`]s: the edge pulls and pushes data,
//! runs disk operations, and says how they ended. A command is parsed and
//! checked once, at [`Queue::begin`].
//!
//! This crate opens nothing, waits for nothing and reads no clock: time is an
//! argument. It knows nothing of RDMA but addresses and keys, and never sees
//! the data of reads and writes.
//!
//! Modules import downwards only. Top down:
//!
//! * the target as a whole: `target`, `apply`, `connected`
//! * commands: `queue` (queue pairs, I/O and Fabrics commands), `admin`, `request`
//! * state that reactors share: `shared` holds `registry`, `live`, `generations`, `locks`,
//!   `writers`, `quota` and `limit_counters`; controllers are `controller`,
//!   `namespace_view` and `protection`;
//!   what is counted is `metrics` and `health`
//! * values: `model` (what is served) and `discovery` (its log page), `limits`, `action`,
//!   `persist`, `window`
#![forbid(unsafe_code)]

mod action;
mod admin;
mod apply;
mod connected;
mod controller;
mod discovery;
mod generations;
mod health;
mod limit_counters;
mod limits;
mod live;
mod locks;
pub mod metrics;
mod model;
mod namespace_view;
mod persist;
mod protection;
mod queue;
mod quota;
mod registry;
mod request;
mod shared;
mod target;
#[cfg(test)]
mod testing;
mod window;
mod writers;

pub use action::{
    Action, CloseCause, Data, Event, Executed, IoKind, IoOp, Order, Remote, Response, overlap,
};
pub use apply::{Applied, LimitsChanged};
pub use connected::Connected;
pub use controller::{DisconnectReason, Disconnected};
pub use limit_counters::{Limit, LimitCounters};
pub use limits::{Limits, OfPort};
pub use locks::{Barrier, LockMember, Locks, RangeLock};
pub use model::{
    AnaGroup, Carrier, Change, ChangeKind, ControllerIds, DEFAULT_ANA_GROUP, Discovery,
    DiscoverySpec, Fabric, Location, Model, ModelError, NO_NGUID, Namespace, NamespaceSpec,
    NamespaceState, Port, PortAddress, PortBounds, PortSpec, Preferred, Referral, ReferralSpec,
    Revision, Subject, Subsystem, SubsystemSpec, Traddr, derived,
};
pub use persist::{Keeping, NotKept};
pub use protection::{KeepProtections, KeptProtection};
pub use queue::{FollowUps, Queue, Scarce};
pub use request::Request;
pub use target::{PortQuotaGuard, Refusal, Target, ToKeep};
pub use writers::{WriteLoss, Writers};
