//! Several gateways over one Ceph cluster: machines of `nvmeof-target-ha` in production code, over
//! a model of Ceph, with model hosts.
//!
//! The oracle checks the objects and what hosts read: no write takes effect after a newer one, and
//! no operation of an earlier owner after one of a later owner.

mod ceph;
mod driver;
mod hosts;
mod oracle;
mod plan;
mod scene;

use std::fmt;

use plan::Plan;
use scene::Scene;

/// A mechanism that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// Clients of the earlier owner are blocklisted. Without it, locks are broken all the same.
    Fence,
    /// New clients wait until they have the latest osdmap.
    MapWait,
    /// New clients wait for the latest osdmap also if there is nothing to fence.
    MapWaitWithoutFence,
    /// Clients are recorded before they open images.
    RecordBeforeUse,
    /// A gateway whose lease has expired disconnects its hosts before it serves again.
    Disconnect,
}

/// Faults of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// All.
    Any,
    /// None: an administrator moves groups, drains, stops and starts gateways.
    Planned,
    /// An owner is suspended, and the next owner moves the group before the first one continues.
    /// OSDs learn of new maps late, and most objects are used rarely.
    Successive,
    /// An owner is suspended and cut off from the host, loses its group, and gets it back before
    /// the commands of the host arrive.
    Returning,
}

/// Faults and mechanisms of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// The faults.
    pub faults: Faults,
    /// The mechanism that is switched off.
    pub without: Option<Mechanism>,
}

impl Mode {
    fn lacks(self, mechanism: Mechanism) -> bool {
        self.without == Some(mechanism)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.faults)?;
        match self.without {
            Some(mechanism) => write!(f, " without {mechanism:?}"),
            None => Ok(()),
        }
    }
}

/// Summary of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Reads and writes of hosts that ended.
    pub calls: u64,
    /// Commands that hosts sent again.
    pub resent: u64,
    /// Changes of owner.
    pub takeovers: u64,
    /// Clients that were blocklisted.
    pub fenced: u64,
    /// Operations of blocklisted clients that were refused.
    pub refused: u64,
    /// Controllers of another gateway that a gateway confirmed to have ended.
    pub ended: u64,
    /// Groups that were given up.
    pub given_up: u64,
    /// Hash of the trace: the same for the same seed.
    pub hash: u64,
}

/// A run that failed. Displays with the end of the trace.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The mode.
    pub mode: Mode,
    /// Whether an object or a read was wrong. Otherwise a group was not served, or a call did not
    /// end.
    pub is_violation: bool,
    /// The cause.
    pub what: String,
    /// The last lines of the trace.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        let Self {
            seed, mode, what, ..
        } = self;
        writeln!(f, "seed {seed} ({mode}): {what}")?;
        write!(
            f,
            "to repeat: NVMEOF_SEED={seed} cargo test -p nvmeof-world --test gateways"
        )
    }
}

/// Runs the world of `seed`.
///
/// # Errors
/// [`Failure`] on a violation, or if a group is not served after the faults have ended.
pub fn run(seed: u64, mode: Mode, print: bool) -> Result<Report, Box<Failure>> {
    Scene::new(Plan::new(seed, mode), print).run()
}
