//! What goes over the control socket of the target, as types, and who asks there.
#![forbid(unsafe_code)]

mod client;
mod documents;
mod edit;
mod error;
mod latency;
mod object;
mod resize;
mod snapshot;

pub use client::{Answer, CallError, Caller};
pub use documents::*;
pub use edit::{ANY, Edit, NamespaceAdd, Slot};
pub use error::{ErrorBody, ErrorText};
pub use latency::Latency;
pub use resize::Resize;
pub use snapshot::{
    Counts, Descriptors, Failed, GroupState, HostState, NamespaceState, QueueState, ReactorState,
    Snapshot, SubsystemState, WaitingState,
};
