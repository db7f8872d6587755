//! Changing what is served while hosts are served.
//!
//! A change has three phases. Every reactor opens the new disks and listens on
//! the new ports; when one of them cannot, all take it back and nothing changed.
//! Then the target's model is replaced at once. Ports that are gone are closed
//! with the connections that came by them, and disks that nobody is served from
//! any more when the last command that was begun on them has ended.

mod drain;
mod faults;
mod fixed;
mod pool;
mod reactors;
mod remembered;
mod report;
mod resize;
mod seen;
mod served_ports;
#[cfg(test)]
mod tests;
mod unlinked;
mod waiting;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvmeof_target_core::{Applied, Model, NotKept, Target};
use nvmeof_wire::Nqn;

pub use drain::Drained;
pub use faults::Faulted;
pub use fixed::Fixed;
pub(crate) use pool::Pool;
pub(crate) use reactors::Reactors;
pub(crate) use remembered::Remembered;
pub use report::{ApplyError, Plan, Report};
pub use resize::{NewSize, NotResized};
pub use waiting::{Awaits, Waiting};

use crate::fault_counts::FaultCounts;
use crate::open::model_of;
use crate::ports::Port;
use nvmeof_target_config::{Config, ConfigError, on_unusual_names};
use pool::{Disk, Prepared};
use seen::{Changing, Seen};
use served_ports::{NextServedPorts, ServedPorts};

/// What is served now, and the way to change it. Calls come one after the
/// other, from whatever threads.
pub struct Manager {
    target: Target,
    reactors: Reactors,
    /// Whoever changes something has it until that is done.
    state: Mutex<State>,
    /// What it was after the last change, for everybody else.
    seen: Mutex<Seen>,
    /// Disks that answered nothing, and since when.
    doubts: Mutex<BTreeMap<u32, Instant>>,
    fault_counts: FaultCounts,
    /// Disks whose file lost its name, and what is said of that.
    unlinked: Mutex<BTreeMap<u32, String>>,
    /// Listeners that are waited for besides ports.
    listeners: Mutex<waiting::Listeners>,
    remembered: Remembered,
}

/// What the daemon was made of, as far as the next configuration is compared
/// with it.
struct State {
    fixed: Fixed,
    /// What is served, or waited for.
    config: Arc<Config>,
    served_ports: ServedPorts,
    pool: Pool,
    /// Whether all hosts were let go, and nothing is listened on.
    drained: Drained,
}

/// How long whoever removes a namespace waits until it is kept that hosts' write
/// protection goes with it.
pub const FORGET: Duration = Duration::from_secs(10);

/// What hosts write protected stays so, for all that is known.
#[derive(Debug, thiserror::Error)]
pub enum NotForgotten {
    /// It cannot be written.
    #[error(transparent)]
    NotKept(#[from] NotKept),
    /// It is not written yet.
    #[error(
        "the file beside `[control] state` was not written within {} s, and may be yet",
        FORGET.as_secs()
    )]
    NotYet,
}

impl Manager {
    pub(crate) fn new(
        target: Target,
        reactors: Reactors,
        config: &Config,
        ports: Vec<Port>,
        pool: Pool,
        remembered: Remembered,
    ) -> Self {
        let state = State {
            fixed: Fixed::of(config),
            config: Arc::new(config.clone()),
            served_ports: ServedPorts::new(config, ports),
            pool,
            drained: Drained::No,
        };
        Self {
            target,
            reactors,
            seen: Mutex::new(state.seen()),
            state: Mutex::new(state),
            doubts: Mutex::default(),
            fault_counts: FaultCounts::default(),
            unlinked: Mutex::default(),
            listeners: Mutex::default(),
            remembered,
        }
    }

    /// What [`apply`](Self::apply) of `config` would change. Everything it names
    /// is opened, so that what is wrong with it is found, and let go again;
    /// new ports are not tried.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    pub fn plan(&self, config: &Config) -> Result<Plan, ConfigError> {
        let mut state = self.lock();
        let (disks, served_ports) = state.prepare(config, &self.reactors)?;
        state.pool.given_up(&disks.fresh);
        let model = model(config, &disks, &served_ports)?;
        let changes = self.target.model().difference(&model);
        Ok(Plan { changes })
    }

    /// Serves what `config` says from now on. All of it, or nothing changed.
    ///
    /// Removing what is in use disconnects it: hosts of a subsystem that is
    /// gone, hosts that may not connect any more, and those who came by a port
    /// that is gone lose their connections. The report names them.
    ///
    /// A namespace whose storage was gone is served again when it is back. When it
    /// is not, that is one of the report's remarks.
    ///
    /// # Errors
    /// [`ApplyError`] names file, line and key where the configuration is to
    /// blame.
    pub fn apply(&self, config: &Config) -> Result<Report, ApplyError> {
        let mut state = self.settled();
        state.drained.check()?;
        let unusual = self.target.model().unusual_names();
        let unusual = config.unusual_names() - &unusual;
        let (disks, mut served_ports) = state.prepare(config, &self.reactors)?;
        let applied = match self.begin(config, &disks, &mut served_ports) {
            Ok(applied) => applied,
            Err(error) => {
                let closing = self.reactors.close(&disks.fresh);
                state.pool.leave(&disks.next, closing);
                return Err(error);
            }
        };
        self.reactors.poll_all();
        let mut disconnected = applied.disconnected;
        disconnected.extend(served_ports.leave(&self.reactors));
        let closing = self.reactors.close(&disks.gone);
        let mut remarks = disks.remarks;
        remarks.extend(on_unusual_names(&unusual));
        state.pool.becomes(disks.next, closing);
        state.served_ports = served_ports.next;
        state.config = Arc::new(config.clone());
        drop(state);
        self.remember();
        Ok(Report {
            changes: applied.changes,
            disconnected,
            remarks,
        })
    }

    /// Everything that can fail, then the change itself. When it fails disks
    /// are left to be closed.
    fn begin(
        &self,
        config: &Config,
        disks: &Prepared,
        served_ports: &mut NextServedPorts,
    ) -> Result<Applied, ApplyError> {
        let opened = self.reactors.open(&disks.fresh);
        opened.map_err(|failed| failed.of(config, &disks.places))?;
        served_ports.listen(config, &self.reactors)?;
        let applied = model(config, disks, served_ports)
            .map_err(ApplyError::from)
            .and_then(|model| {
                let applied = self.target.apply(model);
                // Sizes were compared before.
                applied.map_err(|error| ApplyError::Refused(error.to_string()))
            });
        if applied.is_err() {
            served_ports.unlisten(&self.reactors);
        }
        applied
    }

    /// The namespace with that number, or all of the subsystem, was removed by an
    /// administrator: what hosts set of it goes with it. Waits for `most` until that is
    /// kept.
    ///
    /// # Errors
    /// When that cannot be kept; then it stays. Or when it is not known whether it
    /// was, since the file hangs: it goes when it is written.
    pub fn forget_protection(
        &self,
        subsystem: &Nqn,
        nsid: Option<u32>,
        most: Duration,
    ) -> Result<(), NotForgotten> {
        let Some(keeping) = self.target.forget_protection(subsystem, nsid) else {
            return Ok(());
        };
        let kept = keeping.wait(most).ok_or(NotForgotten::NotYet)?;
        Ok(kept?)
    }

    /// What is served at this moment.
    #[must_use]
    pub fn model(&self) -> Arc<Model> {
        self.target.model()
    }

    /// Where hosts connect, and what serves them there.
    #[must_use]
    pub fn ports(&self) -> Vec<Port> {
        self.seen().ports
    }

    /// Namespaces served.
    #[must_use]
    pub fn namespaces(&self) -> usize {
        let seen = self.seen();
        let served = seen.disks.iter().filter(|disk| disk.awaited().is_none());
        served.count()
    }

    /// What is served, in a few words.
    #[must_use]
    pub fn status(&self) -> String {
        let seen = self.seen();
        let ports: Vec<_> = seen
            .ports
            .iter()
            .map(|port| format!("{} ({})", port.place(), port.provider_names()))
            .collect();
        let served = |disk: &&Disk| disk.awaited().is_none();
        let count = seen.disks.iter().filter(served).count();
        let plural = if count == 1 { "" } else { "s" };
        let disks = seen.disks.iter();
        let lost = match disks.filter(|disk| disk.lost().is_some()).count() {
            0 => String::new(),
            lost => format!(" ({lost} faulted)"),
        };
        let waiting = match self.waiting() {
            none if none.is_empty() => String::new(),
            all => {
                let all: Vec<_> = all.iter().map(|one| one.what.to_string()).collect();
                format!("; waiting for {}", all.join(", "))
            }
        };
        let ports = match ports.join(", ") {
            none if none.is_empty() => "no port".to_owned(),
            all => all,
        };
        format!(
            "serving {count} namespace{plural}{lost} on {ports}{}{waiting}",
            seen.drained
        )
    }

    /// The state, to be changed. Waits for whoever else is doing that.
    fn lock(&self) -> Changing<'_> {
        Changing::new(&self.state, &self.seen)
    }

    /// What the last change left. Waits for nobody.
    fn seen(&self) -> Seen {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.clone()
    }
}

impl State {
    /// Everything that can be found out before anything is changed.
    fn prepare(
        &mut self,
        config: &Config,
        reactors: &Reactors,
    ) -> Result<(Prepared, NextServedPorts), ConfigError> {
        self.fixed.check(config)?;
        self.pool.collect();
        let served_ports = self.served_ports.prepare(config, reactors)?;
        let disks = self.pool.prepare(config)?;
        match model(config, &disks, &served_ports) {
            Ok(_) => Ok((disks, served_ports)),
            Err(error) => {
                self.pool.given_up(&disks.fresh);
                Err(error)
            }
        }
    }
}

fn model(
    config: &Config,
    disks: &Prepared,
    served_ports: &NextServedPorts,
) -> Result<Model, ConfigError> {
    let disks = disks.next.iter().map(Disk::served);
    model_of(config, disks, &served_ports.next.specs())
}
