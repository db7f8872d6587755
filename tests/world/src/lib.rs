//! Target and initiator in one world: one thread, one seed, virtual time.
//!
//! A world has the target's reactors, one or several, and core over simulated disks,
//! hosts made of the initiator's polled queues, and a simulated network between them.
//! What hosts ask for, how long everything takes and what goes wrong follows
//! from one number. An oracle knows what a correct disk may answer.
//! At the end everything is read, the hosts leave, and nobody has kept
//! anything.
//!
//! This crate tests no real network, no real disk and no process: that is for
//! the end-to-end tests.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic here fails the seed it happens in"
)]

mod content;
pub mod crowd;
mod disk;
mod host;
mod medium;
mod oracle;
mod plan;
mod trace;
mod workload;
mod world;

use std::fmt;
use std::time::Duration;

use world::World;

/// What happened in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Calls that ended.
    pub calls: u64,
    /// Faults that were planned.
    pub faults: usize,
    /// Times a host began or ended a connection.
    pub connections: u64,
    /// How long it took in virtual time.
    pub virtual_time: Duration,
    /// Lines of the trace.
    pub lines: u64,
    /// A hash of the trace: the same for the same seed.
    pub hash: u64,
}

/// Something happened that must not. Displays with the end of the trace and
/// the command that shows it again.
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
            "to see it again: NVMEOF_SEED={} cargo test -p nvmeof-world",
            self.seed
        )
    }
}

/// Runs the world that `seed` means.
///
/// # Errors
/// [`Failure`] when something happens that must not.
pub fn run(seed: u64) -> Result<Report, Failure> {
    World::new(seed, false).run()
}

/// Runs it and prints the trace.
///
/// # Errors
/// As [`run`].
pub fn run_aloud(seed: u64) -> Result<Report, Failure> {
    World::new(seed, true).run()
}
