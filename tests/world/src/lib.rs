//! Simulation of target and initiator: one thread, one seed, virtual time.
//!
//! A world has the reactors and the core of the target over simulated backing stores, hosts
//! with the polled queues of the initiator, and a simulated network. The seed determines
//! the workload, all delays and all faults. An oracle knows the results that a correct
//! namespace may return. At the end everything is read, the hosts disconnect, and no
//! resource remains in use.
//!
//! [`crowd`] has an honest host beside hostile peers, [`paths`] a host that loses one of two
//! paths, [`gateways`] several gateways that take over from each other, and [`scale`] many
//! reactors, whose messages it counts.
//!
//! This crate tests no real network, no real backing store and no process: the end-to-end
//! tests do.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic here fails the seed it happens in"
)]

mod content;
pub mod crowd;
mod disk;
pub mod gateways;
mod host;
mod imposter;
mod keys;
mod medium;
mod oracle;
pub mod paths;
mod plain;
mod plan;
mod reservations;
pub mod scale;
mod trace;
mod workload;
mod world;

use std::fmt;
use std::time::Duration;

use world::World;

/// Summary of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Calls that ended.
    pub calls: u64,
    /// Faults that were planned.
    pub faults: usize,
    /// Number of connects and disconnects of hosts.
    pub connections: u64,
    /// Queues that the target authenticated.
    pub authenticated: u64,
    /// Wrong keys of imposters that the target refused.
    pub refused: u64,
    /// Changes of reservations that succeeded.
    pub reserved: u64,
    /// Other calls that reservations denied.
    pub denied: u64,
    /// Its duration in virtual time.
    pub virtual_time: Duration,
    /// Lines of the trace.
    pub lines: u64,
    /// A hash of the trace: the same for the same seed.
    pub hash: u64,
}

/// A violation. Displays with the end of the trace and the command that repeats it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What happened.
    pub what: String,
    /// The last lines of the trace.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        write!(
            f,
            "to repeat: NVMEOF_SEED={} cargo test -p nvmeof-world",
            self.seed
        )
    }
}

/// Whether hosts reserve namespaces in the world of `seed`.
#[must_use]
pub fn has_reservations(seed: u64) -> bool {
    plan::Plan::new(seed).reservations.is_some()
}

/// Runs the world of `seed`.
///
/// # Errors
/// [`Failure`] on a violation.
pub fn run(seed: u64) -> Result<Report, Failure> {
    World::new(seed, false).run()
}

/// Runs it and prints the trace.
///
/// # Errors
/// As [`run`].
pub fn run_with_trace(seed: u64) -> Result<Report, Failure> {
    World::new(seed, true).run()
}
