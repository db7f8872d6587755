//! The logic of an NVM subsystem and its controllers, without I/O.
//!
//! A [`Model`] describes ports, subsystems and namespaces. A [`Target`] serves
//! one model at a time and holds the controllers that hosts have connected. Each
//! queue pair has a [`Queue`], which translates commands into [`Action`]s. The
//! caller, which is the engine, executes them: it pulls and pushes data, runs
//! operations of backing stores, and reports their outcome as [`Event`]s. A
//! command is parsed and checked once, in [`Queue::begin`].
//!
//! This crate opens no file or socket, never blocks and reads no clock: time is
//! an argument. Of RDMA it knows addresses and keys only, and it does not access
//! the data of reads and writes.
//!
//! In this crate, a *store* is the number by which the engine knows an open backing
//! store. A *storage* is the number of the file or device behind it, which stays the
//! same when it is opened again.
//!
//! Modules import downwards only. Top down:
//!
//! * the target as a whole: `target`, `apply`, `connected`
//! * commands: `queue` (queue pairs, I/O and Fabrics commands), `admin`, `request`
//! * state that reactors share: `shared` holds `registry`, `live`, `generations`, `locks`,
//!   `writers`, `quota` and `limit_counters`; controllers are in `controller`,
//!   `namespace_view` and `protection`; counters are in `metrics`, `health` and
//!   `authentication`
//! * values: `model` (what is served) and `discovery` (its log page), `limits`, `action`,
//!   `call`, `persist`, `window`
#![forbid(unsafe_code)]

mod action;
mod admin;
mod apply;
mod authentication;
mod call;
mod connected;
mod controller;
mod discovery;
mod generations;
mod health;
mod host_settings;
mod limit_counters;
mod limits;
mod live;
mod locks;
pub mod metrics;
mod model;
mod namespace_view;
mod other_gateways;
mod persist;
mod protection;
mod queue;
mod quota;
mod registry;
mod request;
mod reservations;
mod save_queue;
mod settings_key;
mod shared;
mod source;
mod target;
#[cfg(test)]
mod testing;
mod window;
mod writers;

pub use action::{
    Action, CloseCause, Data, Event, Executed, IoKind, IoOp, Order, Remote, Response, overlap,
};
pub use apply::{Applied, LimitsChanged};
pub use authentication::{
    Authenticated, AuthenticationCounts, AuthenticationOutcome, AuthenticationReport, KeyState,
};
pub use call::Call;
pub use connected::Connected;
pub use controller::in_flight::InFlight;
pub use controller::instance::IncarnationKey;
pub use controller::{DisconnectReason, Disconnected};
pub use host_settings::{CannotReplace, SavedSettings};
pub use limit_counters::{Limit, LimitCounters};
pub use limits::{Limits, PortLimit};
pub use locks::{Barrier, BarrierScope, LockMember, Locks, RangeLock};
pub use model::{
    AnaGroup, AuthenticationSpec, Carrier, Change, ChangeKind, ControllerIds, DEFAULT_ANA_GROUP,
    Discovery, DiscoverySpec, Fabric, Location, Model, ModelError, NO_NGUID, Namespace,
    NamespaceSpec, NamespaceState, Port, PortAddress, PortBounds, PortSpec, Preferred, Referral,
    ReferralSpec, Revision, Subject, Subsystem, SubsystemSpec, Traddr, derived,
};
pub use other_gateways::{OtherGateways, RemoteReset};
pub use persist::{PendingSave, SaveError};
pub use protection::SavedProtection;
pub use queue::{ExhaustedQuotas, FollowUps, Queue};
pub use request::Request;
pub use reservations::{CannotImport, Preemption, Registrant, ReservationState, SavedReservations};
pub use save_queue::SettingsKeeper;
pub use source::Source;
pub use target::{PortQuotaGuard, Refusal, SettingsSave, Target};
pub use writers::{WriteLoss, Writers};
