//! Configured objects that are not served yet: backing stores, addresses and key files that were
//! not available at the start.
//!
//! ```text
//!   start ── opens, listens ──────────────────────────► served
//!     └──── not yet ──► waiting ── retry, enable, apply ──► served
//! ```
//! A namespace that was served before is active meanwhile, with its last size, and is
//! Inaccessible (ANA) on every port. One that was never served is inactive.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use nvmeof_backend::{Claim, OpenError, Spec};
use nvmeof_rdma::Address;

use super::awaited_keys::{AwaitedKey, ReadKeys};
use super::drain::Drained;
use super::pool::{NamespaceStore, StoreState};
use super::{Manager, State};
use crate::held::{HeldGroups, Taken};
use crate::host_settings::{Admission, Former, Records, Unreadable};
use crate::open::{self, open_error};
use crate::ports::Port;
use crate::waits::WaitReason;
use nvmeof_target_address::port_address;
use nvmeof_target_config::{ConfigError, HostKey};

/// An object that waits. Displays as a name that does not change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitingObject {
    /// The backing store of a namespace.
    Namespace {
        /// NQN of the subsystem.
        nqn: String,
        /// NSID of the namespace.
        nsid: u32,
    },
    /// The address of a port.
    Port(String),
    /// Another listener: its key in the configuration.
    Listener(&'static str),
    /// A file with a key.
    HostKey {
        /// NQN of the host.
        host: String,
        /// Which of its keys.
        key: HostKey,
    },
}

/// An object that waits, and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The object.
    pub what: WaitingObject,
    /// The file or folder whose changes trigger a retry, if any.
    pub path: Option<PathBuf>,
    /// Why it is not served, and since when.
    pub waits: WaitReason,
}

/// Listeners outside of the manager, and why they wait.
pub(super) type Listeners = BTreeMap<&'static str, WaitReason>;

impl WaitingObject {
    /// Kind of the object, as a word.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Namespace { .. } => "namespace",
            Self::Port(_) => "port",
            Self::Listener(_) => "listener",
            Self::HostKey { .. } => "host_key",
        }
    }

    fn of_store(store: &NamespaceStore) -> Self {
        Self::Namespace {
            nqn: store.configured.nqn.clone(),
            nsid: store.configured.nsid,
        }
    }

    fn of_port(port: &Port) -> Self {
        Self::Port(port_address(port.address).to_string())
    }
}

impl Manager {
    /// Configured objects that are not served yet.
    #[must_use]
    pub fn waiting(&self) -> Vec<Waiting> {
        let snapshot = self.snapshot();
        let stores = snapshot.stores.iter().filter_map(|store| {
            Some(Waiting {
                what: WaitingObject::of_store(store),
                path: match &store.configured.spec {
                    Spec::File { path, .. } => Some(path.clone()),
                    Spec::Rbd { .. } | Spec::Ram { .. } | Spec::Null { .. } => None,
                },
                waits: store.waiting()?.waits.clone(),
            })
        });
        let ports = snapshot.awaited_ports.iter().filter_map(|port| {
            Some(Waiting {
                what: WaitingObject::of_port(port),
                // The folder changes when a socket in it is created or removed.
                path: match port.address {
                    Address::Unix(path) => path.as_path().parent().map(Path::to_path_buf),
                    Address::Ip(_) => None,
                },
                waits: port.waits.clone()?,
            })
        });
        let listeners = self.listeners();
        let listeners = listeners.iter().map(|(key, waits)| Waiting {
            what: WaitingObject::Listener(key),
            path: None,
            waits: waits.clone(),
        });
        let keys = snapshot.awaited_keys.iter().map(AwaitedKey::to_waiting);
        stores.chain(ports).chain(listeners).chain(keys).collect()
    }

    /// Records that the listener with that key waits, or does not wait any more.
    pub fn listener_waits(&self, key: &'static str, error: Option<&ConfigError>) {
        let mut listeners = self.listeners();
        match (error, listeners.get_mut(key)) {
            (Some(error), Some(waits)) => waits.still(&WaitingObject::Listener(key), error.what()),
            (Some(error), None) => drop(listeners.insert(key, WaitReason::of(error))),
            (None, _) => drop(listeners.remove(key)),
        }
    }

    fn listeners(&self) -> std::sync::MutexGuard<'_, Listeners> {
        // A panic of a holder leaves nothing inconsistent.
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Retries the waiting objects that are `due`. Returns whether any of them is served now.
    pub fn retry(&self, due: impl Fn(&WaitingObject) -> bool) -> bool {
        let is_due = |store: &&NamespaceStore| {
            store.waiting().is_some() && due(&WaitingObject::of_store(store))
        };
        // Without the lock: opening may be slow.
        let snapshot = self.snapshot();
        // Another thread opens the images of a group that is taken over.
        let is_taken = |store: &&NamespaceStore| {
            let group = store.configured.group;
            !group.is_some_and(|group| snapshot.held.is_taking(group))
        };
        let stores = snapshot.stores.iter().filter(is_due).filter(is_taken);
        let held = &snapshot.held;
        let tried = Tried {
            stores: stores
                .map(|store| (store.clone(), store.try_take(held, &self.records)))
                .collect(),
            keys: snapshot.read_keys(&due),
        };
        let served = self.settle(&mut self.lock(), tried, &due);
        for what in &served {
            tracing::info!("{what} is available and served");
        }
        if !served.is_empty() {
            self.remember();
        }
        !served.is_empty()
    }

    /// Serves the backing stores that could be opened, accepts the keys that could be read, and
    /// listens on ports that are due. Returns the objects that are served now.
    fn settle(
        &self,
        state: &mut State,
        tried: Tried,
        due: impl Fn(&WaitingObject) -> bool,
    ) -> Vec<WaitingObject> {
        state.pool.collect();
        let mut next = state.pool.stores().to_vec();
        let (fresh, mut served, former) = self.settle_stores(state, tried.stores, &mut next);
        if let Err(failed) = self.reactors.open(&fresh) {
            tracing::error!("cannot open a backing store that is available now: {failed}");
            let closing = self.reactors.close(&fresh);
            state.pool.retire(&next, closing);
            state.pool.free_standby(&next);
            return Vec::new();
        }
        let mut served_ports = state.served_ports.clone();
        // A drained target does not listen.
        if state.drained == Drained::No {
            let due = |port: &Port| due(&WaitingObject::of_port(port));
            let listening = served_ports.retry(&state.config, &self.reactors, due);
            served.extend(listening.iter().map(WaitingObject::of_port));
        }
        let stores = next.iter().map(NamespaceStore::served);
        // The keys in use: only a change reads their files again.
        let mut keys = self.target.model().authentication().clone();
        served.extend(state.settle_keys(tried.keys, &mut keys));
        let ports = served_ports.specs();
        let model = open::model_of(&state.config, stores, &ports, state.pool.held(), keys);
        match model {
            // The limits of the target did not change.
            Ok(model) => drop(self.target.apply(model)),
            Err(error) => {
                tracing::error!("cannot serve an object that is available now: {error}");
            }
        }
        self.reactors.poll_all();
        self.records.remove_former(former);
        state.pool.commit(next, BTreeMap::new());
        state.served_ports = served_ports;
        served
    }

    /// Marks the backing stores that could be opened as open in `next`, and puts in force what
    /// hosts set of their namespaces.
    fn settle_stores(
        &self,
        state: &mut State,
        tried: Vec<(NamespaceStore, Result<Ready, NotServed>)>,
        next: &mut [NamespaceStore],
    ) -> (Vec<(u32, Claim)>, Vec<WaitingObject>, Former) {
        let (mut fresh, mut served, mut former) = (Vec::new(), Vec::new(), Former::default());
        for (before, ready) in tried {
            let same = |store: &NamespaceStore| {
                store.number == before.number && store.configured == before.configured
            };
            let at = next.iter().position(same);
            let Some((at, store)) = at.and_then(|at| Some((at, next.get_mut(at)?))) else {
                continue;
            };
            let what = WaitingObject::of_store(store);
            match (ready, &mut store.state) {
                (Ok((taken, admission)), StoreState::Waiting(awaited))
                    if state.pool.held().permits(&before.configured, &taken) =>
                {
                    match self.records.adopt(admission) {
                        Ok(its) => former.append(its),
                        Err(error) => {
                            awaited.waits.still(&what, &error.to_string());
                            continue;
                        }
                    }
                    let Some(number) = state.pool.number() else {
                        continue;
                    };
                    (store.number, store.state) = (number, taken.into());
                    fresh.extend(store.number_and_claim());
                    served.push(what);
                }
                (Err(NotServed::Open(error)), StoreState::Waiting(awaited)) => {
                    let error = open_error(&state.config, at, &error);
                    awaited.waits.still(&what, error.what());
                }
                (Err(NotServed::Invalid(why)), StoreState::Waiting(awaited)) => {
                    awaited.waits.still(&what, &why);
                }
                _ => {}
            }
        }
        (fresh, served, former)
    }
}

impl NamespaceStore {
    /// Opens and locks the backing store, if it suits the namespace that hosts know.
    fn try_take(&self, held: &HeldGroups, records: &Records) -> Result<Ready, NotServed> {
        let taken = open::take(&self.configured, held).map_err(NotServed::Open)?;
        let admission = records.read(&self.configured, taken.claim())?;
        let fits = self.waiting().map_or(Ok(()), |awaited| {
            awaited.check(&self.configured, taken.geometry())
        });
        fits.map_err(NotServed::Invalid)?;
        Ok((taken, admission))
    }
}

/// A backing store that is available, and what hosts set of its namespace.
type Ready = (Taken, Option<Admission>);

/// The results of attempts.
struct Tried {
    stores: Vec<(NamespaceStore, Result<Ready, NotServed>)>,
    keys: ReadKeys,
}

/// Why a backing store that waits is not served.
enum NotServed {
    Open(OpenError),
    /// It is available, but not as hosts know it.
    Invalid(String),
}

impl From<Unreadable> for NotServed {
    fn from(error: Unreadable) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl fmt::Display for WaitingObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace { nqn, nsid } => write!(f, "namespace {nsid} of {nqn}"),
            Self::Port(address) => write!(f, "port {address}"),
            Self::Listener(key) => write!(f, "listener {key}"),
            Self::HostKey { host, key } => write!(f, "{} of host {host}", key.name()),
        }
    }
}
