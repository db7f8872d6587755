//! Decisions of a host that uses several paths to a namespace, and of one that loses its only
//! path for a while:
//!
//! * [`Reconnect`]: when to connect a lost path again, and when to give it up.
//! * [`PathSelector`]: which path a command takes.
//! * [`RetryPolicy`]: what to do with a command that did not succeed on a path.
//! * [`AnaGroups`]: in which state a path reports a namespace, of the page that [`AnaReader`]
//!   reads.
//! * [`SharedNamespace`]: whether a namespace is the same one over a path, and its size.
//!
//! [`Fence`](crate::Fence) says when commands of a lost path can be sent over another one. None
//! of these does I/O or reads a clock.

mod ana;
mod ana_log;
mod reconnect;
mod retry;
mod select;
mod shared;

pub use ana::AnaGroups;
pub use ana_log::{AnaLimits, AnaLog, AnaLogGroup, AnaReader};
pub use reconnect::{PathState, Reconnect, ReconnectOptions, ReconnectStep};
pub use retry::{Effect, Outcome, RetryPolicy, RetryStep, is_refusal};
pub use select::{Path, PathAccess, PathPolicy, PathSelector, Rotation};
pub use shared::{Difference, SharedNamespace, check_subsystem, check_unique, grown};
