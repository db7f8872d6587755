//! Loss of a path: one host with two paths to one subsystem of a target in production code.
//!
//! A user of the host sees one block device. The oracle checks this device: an acknowledged
//! write is not undone, and a write that failed does not take effect later.

mod fencing;
mod initiator;
mod multipath;
mod plan;

use std::fmt;

use multipath::Multipath;
use plan::Plan;

/// Behavior of a host at the loss of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind {
    /// It sends all commands again at once over another path, as Linux up to 6.12.
    Resend,
    /// It fences the lost controller. Then it sends commands again, or gives up writes.
    Fence,
    /// The polled multipath interface of the initiator. It also follows ANA states, and its
    /// providers have faults.
    Initiator,
}

/// Faults of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// Partitions, command time-outs, and all of the other kind.
    Any,
    /// Resets of connections and restarts of the target: host and target are notified
    /// immediately.
    Notified,
}

/// A mechanism that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// Newer writes wait for writes of lost queues.
    RangeLocks,
    /// A host waits until a Cross-Controller Reset that is in progress has succeeded.
    ResetCompletion,
    /// A restarted target waits for the operations of its predecessor at the backing store. It
    /// tells hosts that a controller of the predecessor is quiet.
    PredecessorLock,
    /// CQT is longer than any operation of a backing store.
    QuiesceTime,
    /// Both [`QuiesceTime`](Self::QuiesceTime) and [`RangeLocks`](Self::RangeLocks): each of them
    /// is enough for a host that gives up no write.
    QuiesceTimeAndRangeLocks,
}

/// Host, faults and mechanisms of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// The kind of host.
    pub host: HostKind,
    /// The faults.
    pub faults: Faults,
    /// The mechanism that is switched off.
    pub without: Option<Mechanism>,
}

impl Mode {
    /// Whether `mechanism` is switched off.
    fn lacks(&self, mechanism: Mechanism) -> bool {
        use Mechanism::{QuiesceTime, QuiesceTimeAndRangeLocks, RangeLocks};
        let both = self.without == Some(QuiesceTimeAndRangeLocks);
        self.without == Some(mechanism) || (both && [QuiesceTime, RangeLocks].contains(&mechanism))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            host,
            faults,
            without,
        } = self;
        write!(f, "{host:?} {faults:?}")?;
        match without {
            Some(mechanism) => write!(f, " without {mechanism:?}"),
            None => Ok(()),
        }
    }
}

/// Summary of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Reads, writes and flushes that ended.
    pub calls: u64,
    /// Paths that were lost.
    pub losses: u64,
    /// Commands that were sent again. The initiator does not say how many.
    pub resent: u64,
    /// Writes that were given up.
    pub given_up: u64,
    /// Controllers that were fenced by a Cross-Controller Reset.
    pub reset: u64,
    /// Controllers that were fenced by waiting.
    pub waited: u64,
    /// Starts of the target.
    pub starts: u64,
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
    /// Whether a read returned what no correct block device returns.
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
            "to repeat: NVMEOF_SEED={seed} cargo test -p nvmeof-world --test paths"
        )
    }
}

/// Runs the world of `seed`.
///
/// # Errors
/// [`Failure`] on a violation, or if a call or the run does not end.
pub fn run(seed: u64, mode: Mode, print: bool) -> Result<Report, Box<Failure>> {
    Multipath::new(Plan::new(seed, mode), print).run()
}
