//! Watching the target: what is counted, how it is collected, and who is told.
//!
//! What is counted is read from counters that each reactor writes alone. What is
//! there at this moment (queues, commands in work) each reactor is asked for, by
//! an order in its mailbox; one that does not answer is left out, and named.

mod collect;
mod exporter;
mod faults;
mod health;
pub(crate) mod http;
mod joined;
mod openmetrics;
mod plain;
#[cfg(test)]
mod tests;

pub use collect::Watch;
pub(crate) use collect::Watched;
pub(crate) use exporter::Exporter;
pub(crate) use faults::{Cause, FaultCounts};
pub use health::Health;
pub(crate) use http::routes;
pub use nvmeof_target_api::{
    Counts, Descriptors, Failed, GroupState, HostState, NamespaceState, QueueState, ReactorState,
    Snapshot, SubsystemState, WaitingState,
};
