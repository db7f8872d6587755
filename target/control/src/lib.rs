//! Management and monitoring of a running target: run-time changes that survive a restart, the
//! HTTP API on the control socket, and metrics.
//!
//! * A [`Keeper`] keeps the served configuration and its run-time changes. [`LoadedConfig`] reads
//!   both at the start.
//! * [`Bound`] and [`Control`] serve the HTTP API on the control socket.
//! * A [`Watch`] collects snapshots of the reactors. An [`Exporter`] serves them over TCP.
//!
//! Applying a change to reactors is the task of `nvmeof-target-manage`. This crate knows no
//! command line and no service manager.
#![forbid(unsafe_code)]

mod changes;
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod socket;
mod watch;

pub use changes::{ChangeError, EditError, Keeper, LoadedConfig, Outcome, check_state};
pub use http::HttpServer;
pub use socket::{Bound, ChangeQueue, Control, Shared, openapi};
pub use watch::{Exporter, Health, Watch};
