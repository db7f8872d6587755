//! How a target that runs is changed and watched: changes that survive a restart, the HTTP
//! API on the control socket, and metrics.
//!
//! What a change does to reactors is `nvmeof-target-manage`'s. This crate knows no command
//! line and no service manager.
#![forbid(unsafe_code)]

mod changes;
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod socket;
mod watch;

pub use changes::{ChangeError, EditError, Keeper, Outcome, Standing, check_state};
pub use http::Answering;
pub use socket::{Bound, ChangeQueue, Control, Shared, openapi};
pub use watch::{Exporter, Health, Watch};
