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
//!   `writers`, `seats` and `hits`; controllers are `controller`, `sight` and `protection`;
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
mod hits;
mod limits;
mod live;
mod locks;
pub mod metrics;
mod model;
mod persist;
mod protection;
mod queue;
mod registry;
mod request;
mod seats;
mod shared;
mod sight;
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
pub use hits::{Hits, Limit};
pub use limits::{Limits, OfPort};
pub use locks::{Barrier, LockMember, Locks, RangeLock};
pub use model::{
    AnaGroup, Carrier, Change, ChangeKind, ControllerIds, DEFAULT_ANA_GROUP, Discovery,
    DiscoverySpec, Fabric, Model, ModelError, NO_NGUID, Namespace, NamespaceSpec, NamespaceState,
    Place, Port, PortAddress, PortBounds, PortSpec, Preferred, Referral, ReferralSpec, Revision,
    Subject, Subsystem, SubsystemSpec, Traddr, derived,
};
pub use persist::{Keeping, NotKept};
pub use protection::{KeepProtections, KeptProtection};
pub use queue::{News, Queue, Scarce};
pub use request::Request;
pub use target::{PortSeat, Refusal, Target, ToKeep};
pub use writers::{Stake, Writers};
