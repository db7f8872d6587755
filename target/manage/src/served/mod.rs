//! Changes of ports, subsystems and namespaces while hosts are connected.
//!
//! A change has three phases. First, every reactor opens the new backing stores and listens on
//! the new ports. If a reactor cannot, all revert it and nothing changes. Second, the model of
//! the target is replaced atomically. Third, removed ports are closed with their connections,
//! and each retired backing store is closed when the last command in flight on it has
//! completed.

mod authentication;
mod awaited_keys;
mod drain;
mod faults;
mod fixed;
mod groups;
mod pool;
mod reactors;
mod remembered;
mod removal;
mod report;
mod reservations;
mod resize;
mod served_ports;
mod snapshot;
#[cfg(test)]
mod tests;
mod unlinked;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvmeof_target_core::{Applied, AuthenticationSpec, Model, SaveError, Target};
use nvmeof_wire::Nqn;

pub use authentication::{ControllerName, HostKeyState, OLD_KEY_NOTICE};
pub use drain::{ANNOUNCE, ANNOUNCE_POLL, Drained};
pub use faults::Faulted;
pub use fixed::Fixed;
pub(crate) use pool::Pool;
pub(crate) use reactors::Reactors;
pub(crate) use remembered::Remembered;
use removal::Removals;
pub use removal::{Removal, Removed};
pub use report::{ApplyError, Plan, Report};
pub use reservations::ReservationsError;
pub use resize::{ResizeNamespaceError, ResizeRequest};
pub use waiting::{Waiting, WaitingObject};

use crate::fault_counts::FaultCounts;
use crate::ha::HaControl;
use crate::held::HeldGroups;
use crate::host_settings::{Former, Records};
use crate::open::model_of;
use crate::ports::Port;
use awaited_keys::AwaitedKey;
use nvmeof_target_config::{Config, ConfigError, UnreadKey, on_unusual_names};
use pool::{NamespaceStore, Prepared};
use served_ports::{NextServedPorts, ServedPorts};
use snapshot::{Changing, Snapshot};

/// The state of the target, and the operations that change it. Any thread may call it; changes
/// are serialized.
pub struct Manager {
    target: Target,
    reactors: Reactors,
    /// A change holds the lock until it is done.
    state: Mutex<State>,
    /// The state after the last change, for queries.
    snapshot: Mutex<Snapshot>,
    /// Backing stores that could not be read, and since when.
    unreadable_since: Mutex<BTreeMap<u32, Instant>>,
    fault_counts: FaultCounts,
    /// Backing stores whose file lost its name, and the warning about it.
    unlinked: Mutex<BTreeMap<u32, String>>,
    /// Listeners other than ports that wait.
    listeners: Mutex<waiting::Listeners>,
    remembered: Remembered,
    /// What hosts set.
    records: Arc<Records>,
    /// High availability, if it is configured.
    ha: Option<HaControl>,
    removals: Mutex<Removals>,
}

/// The part of the state that the next configuration is compared with.
struct State {
    fixed: Fixed,
    /// The configuration that is served, with objects that wait.
    config: Arc<Config>,
    served_ports: ServedPorts,
    pool: Pool,
    awaited_keys: Vec<AwaitedKey>,
    /// Whether all hosts are disconnected and no port listens.
    drained: Drained,
}

/// A configuration that can be served, as far as can be known before anything is changed.
struct Checked {
    stores: Prepared,
    served_ports: NextServedPorts,
    /// The keys of hosts.
    keys: AuthenticationSpec,
}

/// Which key files a change reads: a key that was replaced in such a file takes effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeysToRead {
    /// All.
    All,
    /// Those of these hosts, and of the hosts whose `[[host]]` the change adds or changes. Other
    /// hosts keep the keys that are in effect, so that their files do not matter.
    Of(BTreeSet<Nqn>),
}

/// How long the removal of a namespace waits until the removal of what hosts set is saved.
pub const FORGET: Duration = Duration::from_secs(10);

/// Why write protection and reservations of hosts may still exist.
#[derive(Debug, thiserror::Error)]
pub enum ForgetError {
    /// The record cannot be written.
    #[error(transparent)]
    SaveError(#[from] SaveError),
    /// The record cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// The record is not written yet.
    #[error(
        "its record, beside `control.state` or in RADOS, was not written within {} s; it may \
         still be written",
        FORGET.as_secs()
    )]
    NotYet,
}

impl KeysToRead {
    /// Whether a change from `before` to `config` reads the files of `host`.
    fn includes(&self, before: &Config, config: &Config, host: &Nqn) -> bool {
        match self {
            Self::All => true,
            Self::Of(hosts) => hosts.contains(host) || !config.has_same(before, host),
        }
    }
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
        let records = Arc::clone(pool.records());
        let state = State {
            fixed: Fixed::of(config),
            config: Arc::new(config.clone()),
            served_ports: ServedPorts::new(config, ports),
            pool,
            awaited_keys: Vec::new(),
            drained: Drained::No,
        };
        Self {
            target,
            reactors,
            snapshot: Mutex::new(state.snapshot()),
            state: Mutex::new(state),
            unreadable_since: Mutex::default(),
            fault_counts: FaultCounts::default(),
            unlinked: Mutex::default(),
            listeners: Mutex::default(),
            remembered,
            records,
            ha: None,
            removals: Mutex::default(),
        }
    }

    /// With high availability.
    pub(crate) fn with_ha(self, ha: Option<HaControl>) -> Self {
        if let Some(ha) = &ha {
            self.target.set_other_gateways(Arc::new(ha.clone()));
        }
        Self { ha, ..self }
    }

    /// High availability; `None` without `[ha]`.
    #[must_use]
    pub fn ha(&self) -> Option<&HaControl> {
        self.ha.as_ref()
    }

    /// Waits for `unread` keys, which were not read at the start.
    pub(crate) fn awaiting(self, unread: Vec<UnreadKey>) -> Self {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.awaited_keys = unread.into_iter().map(AwaitedKey::of).collect();
        let snapshot = state.snapshot();
        drop(state);
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
        self
    }

    /// [`plan_with`](Self::plan_with) all key files.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    pub fn plan(&self, config: &Config) -> Result<Plan, ConfigError> {
        self.plan_with(config, &KeysToRead::All)
    }

    /// The changes that [`apply_with`](Self::apply_with) of `config` would make. Opens and closes
    /// all new backing stores to find errors; does not listen on new ports.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    pub fn plan_with(&self, config: &Config, files: &KeysToRead) -> Result<Plan, ConfigError> {
        let mut state = self.lock();
        let served = self.target.model();
        let Checked {
            stores,
            served_ports,
            keys,
        } = state.prepare(config, &self.reactors, served.authentication(), files)?;
        state.pool.release(&stores);
        let model = model(config, &stores, &served_ports, state.pool.held(), keys)?;
        let mut remarks = state.remarks_on_hosts(config, files);
        remarks.extend(self.remarks_on_keys_of(&model));
        Ok(Plan {
            changes: served.difference(&model),
            remarks,
        })
    }

    /// [`apply_with`](Self::apply_with) all key files.
    ///
    /// # Errors
    /// [`ApplyError`], with file, line and key if the configuration is the cause.
    pub fn apply(&self, config: &Config) -> Result<Report, ApplyError> {
        self.apply_with(config, &KeysToRead::All)
    }

    /// Serves `config` from now on, completely or not at all.
    ///
    /// Removing an object disconnects the hosts that use it: hosts of a removed subsystem, hosts
    /// that may not connect any more, and hosts that connected through a removed port. The report
    /// lists them.
    ///
    /// A faulted namespace is served again if its backing store is available again. Otherwise the
    /// report has a remark.
    ///
    /// # Errors
    /// [`ApplyError`], with file, line and key if the configuration is the cause.
    pub fn apply_with(&self, config: &Config, files: &KeysToRead) -> Result<Report, ApplyError> {
        let mut state = self.settled();
        state.drained.check()?;
        let served = self.target.model();
        let unusual = served.unusual_names();
        let unusual = config.unusual_names() - &unusual;
        let Checked {
            mut stores,
            mut served_ports,
            keys,
        } = state.prepare(config, &self.reactors, served.authentication(), files)?;
        drop(served);
        let held = state.pool.held().clone();
        let begun = self.begin(config, &mut stores, &mut served_ports, &held, keys);
        let (applied, former) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                let closing = self.reactors.close(&stores.fresh);
                state.pool.retire(&stores.next, closing);
                state.pool.release_standby(&stores);
                return Err(error);
            }
        };
        self.reactors.poll_all();
        self.records.remove_former(former);
        let mut disconnected = applied.disconnected;
        disconnected.extend(served_ports.close_removed(&self.reactors));
        let closing = self.reactors.close(&stores.gone);
        self.keep_removed(state.pool.stores(), stores.gone);
        let mut remarks = stores.remarks;
        remarks.extend(on_unusual_names(&unusual));
        remarks.extend(state.remarks_on_hosts(config, files));
        state.forget_awaited_keys(config, files);
        state.pool.commit(stores.next, closing);
        state.served_ports = served_ports.next;
        state.config = Arc::new(config.clone());
        drop(state);
        self.remember();
        if let Some(ha) = &self.ha {
            ha.set_config(config);
        }
        Ok(Report {
            changes: applied.changes,
            disconnected,
            remarks,
        })
    }

    /// All steps that can fail, then the change itself. If one fails, the caller must close the
    /// new backing stores.
    fn begin(
        &self,
        config: &Config,
        stores: &mut Prepared,
        served_ports: &mut NextServedPorts,
        held: &HeldGroups,
        keys: AuthenticationSpec,
    ) -> Result<(Applied, Former), ApplyError> {
        let opened = self.reactors.open(&stores.fresh);
        opened.map_err(|failed| failed.of(config, &stores.places))?;
        served_ports.listen(config, &self.reactors)?;
        let applied = model(config, stores, served_ports, held, keys)
            .map_err(ApplyError::from)
            .and_then(|model| {
                // None of these namespaces is served yet.
                let former = self.records.adopt(std::mem::take(&mut stores.admissions));
                let former = former.map_err(|error| ApplyError::Refused(error.to_string()))?;
                let applied = self.target.apply(model);
                // The limits were compared before.
                let applied = applied.map_err(|error| ApplyError::Refused(error.to_string()))?;
                Ok((applied, former))
            });
        if applied.is_err() {
            served_ports.unlisten(&self.reactors);
        }
        applied
    }

    /// Removes what hosts set of a namespace, or of all namespaces of the subsystem, after an
    /// administrator removed it. Waits at most `most` until that is saved. The record of an image
    /// is removed if [`begin_removal`](Self::begin_removal) keeps the image open.
    ///
    /// # Errors
    /// If it cannot be saved; then it stays. Or if its file is unresponsive; then it ends when the
    /// file is written.
    pub fn forget_settings(
        &self,
        subsystem: &Nqn,
        nsid: Option<u32>,
        most: Duration,
    ) -> Result<(), ForgetError> {
        let save = self.target.forget_settings(subsystem, nsid);
        let others = self.records.remove_unread(subsystem, nsid);
        save.wait(most).ok_or(ForgetError::NotYet)??;
        others.map_err(|error| ForgetError::Unreadable(error.to_string()))
    }

    /// The current model.
    #[must_use]
    pub fn model(&self) -> Arc<Model> {
        self.target.model()
    }

    /// The ports that listen, with their providers.
    #[must_use]
    pub fn ports(&self) -> Vec<Port> {
        self.snapshot().ports
    }

    /// Number of namespaces that are served.
    #[must_use]
    pub fn namespaces(&self) -> usize {
        let snapshot = self.snapshot();
        let served = snapshot
            .stores
            .iter()
            .filter(|store| store.waiting().is_none());
        served.count()
    }

    /// The status in one line.
    #[must_use]
    pub fn status(&self) -> String {
        let snapshot = self.snapshot();
        let ports: Vec<_> = snapshot
            .ports
            .iter()
            .map(|port| format!("{} ({})", port.place(), port.provider_names()))
            .collect();
        let served = |store: &&NamespaceStore| store.waiting().is_none();
        let count = snapshot.stores.iter().filter(served).count();
        let plural = if count == 1 { "" } else { "s" };
        let stores = snapshot.stores.iter();
        let lost = match stores.filter(|store| store.failure().is_some()).count() {
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
            snapshot.drained
        )
    }

    /// Locks the state for a change. Waits for a change in progress.
    fn lock(&self) -> Changing<'_> {
        Changing::new(&self.state, &self.snapshot)
    }

    /// The state after the last change. Does not wait for a change in progress.
    fn snapshot(&self) -> Snapshot {
        let snapshot = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        snapshot.clone()
    }
}

impl State {
    /// All checks that are possible before anything is changed.
    fn prepare(
        &mut self,
        config: &Config,
        reactors: &Reactors,
        served: &AuthenticationSpec,
        files: &KeysToRead,
    ) -> Result<Checked, ConfigError> {
        self.fixed.check(config)?;
        self.pool.collect();
        let served_ports = self.served_ports.prepare(config, reactors)?;
        // Reads the key files: what was checked is what will be served.
        let keeps = |host: &Nqn| !files.includes(&self.config, config, host);
        let keys = config.authentication_with(served, keeps)?;
        let stores = self.pool.prepare(config)?;
        match model(
            config,
            &stores,
            &served_ports,
            self.pool.held(),
            keys.clone(),
        ) {
            Ok(_) => Ok(Checked {
                stores,
                served_ports,
                keys,
            }),
            Err(error) => {
                self.pool.release(&stores);
                Err(error)
            }
        }
    }
}

fn model(
    config: &Config,
    stores: &Prepared,
    served_ports: &NextServedPorts,
    held: &HeldGroups,
    keys: AuthenticationSpec,
) -> Result<Model, ConfigError> {
    let stores = stores.next.iter().map(NamespaceStore::served);
    model_of(config, stores, &served_ports.next.specs(), held, keys)
}
