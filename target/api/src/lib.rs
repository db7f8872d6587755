//! Types and client of the control socket of the target.
//!
//! The server is in `nvmeof-target-control`. `docs/openapi.json` describes the requests and
//! responses; [`Snapshot`] is the body of `GET /snapshot`.
//!
//! ```no_run
//! use std::{path::Path, time::Duration};
//!
//! use nvmeof_target_api::Caller;
//!
//! let caller = Caller::new(Path::new("/run/nvmeof/control.sock"), Duration::from_secs(10));
//! let status = caller.ask("GET".parse()?, "/v1/status", None)?;
//! println!("{}", status["serving"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod client;
mod documents;
mod edit;
mod error;
mod ha;
mod latency;
mod object;
mod reservations;
mod resize;
mod snapshot;

pub use client::{CallError, Caller, HttpResponse};
pub use documents::*;
pub use edit::{ANY, Edit, HostKeys, KEY_PREFIX, KeyFiles, NamespaceAdd, Slot};
pub use error::{ErrorBody, ErrorText};
pub use ha::*;
pub use latency::Latency;
pub use reservations::*;
pub use resize::Resize;
pub use snapshot::{
    Counts, Descriptors, Failed, GroupState, HaGroupState, HaState, HostAuthentications, HostState,
    NamespaceState, QueueState, ReactorState, Snapshot, SubsystemState, WaitingState,
};
