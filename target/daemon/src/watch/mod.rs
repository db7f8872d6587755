//! Watching the target: what is counted, how it is collected, and who is told.
//!
//! What is counted is read from counters that each reactor writes alone. What is
//! there at this moment (queues, commands in work) each reactor is asked for, by
//! an order in its mailbox; one that does not answer is left out, and named.

mod collect;
mod counters;
mod exporter;
mod faults;
mod health;
pub(crate) mod http;
mod joined;
mod latency;
mod openmetrics;
mod plain;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use nvmeof_rdma::Peer;

pub use collect::Watch;
pub(crate) use collect::Watched;
pub use counters::Counters;
#[cfg(test)]
pub(crate) use counters::End;
pub(crate) use counters::Spent;
pub(crate) use exporter::Exporter;
pub(crate) use faults::{Cause, FaultCounts};
pub use health::Health;
pub(crate) use http::routes;
pub use latency::Latency;
pub use snapshot::{
    Counts, Descriptors, Failed, GroupState, HostState, NamespaceState, QueueState, ReactorState,
    Snapshot, SubsystemState, WaitingState,
};

/// What a reactor has at one moment.
#[derive(Clone, Debug)]
pub struct Sight {
    pub(crate) queues: Vec<QueueSight>,
    /// Queues with commands that wait for a buffer.
    pub(crate) waiting_for_buffers: usize,
    /// Disk operations that wait for room.
    pub(crate) waiting_for_disks: usize,
    pub(crate) free_buffers: usize,
    pub(crate) free_capsules: usize,
}

/// One queue pair of it.
#[derive(Clone, Debug)]
pub(crate) struct QueueSight {
    /// The number of its provider.
    pub(crate) provider: usize,
    pub(crate) peer: Peer,
    pub(crate) queue: u16,
    pub(crate) entries: u16,
    /// Whose it is, when it is connected.
    pub(crate) member: Option<Member>,
    /// Commands in work.
    pub(crate) commands: usize,
    /// The same by namespace; those that are being answered are left out.
    pub(crate) namespaces: BTreeMap<u32, usize>,
}

/// The controller that a queue belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) host: String,
    pub(crate) subsystem: String,
    pub(crate) cntlid: u16,
}
