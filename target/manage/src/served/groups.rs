//! ANA groups that move between gateways: their images are opened, served, suspended and closed.
//!
//! ```text
//!   Standby ── open ──► Standby, with a claim ── serve ──► Open
//!      ▲                    │        ▲                      │
//!      └────── close ───────┴────────┴───── suspend ────────┘
//! ```
//! Whether operations may start is up to the clients of the group ([`RbdClients::permit`]), which
//! does not wait for a change in progress. What hosts see follows.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvmeof_backend::{Claim, Geometry, OpenError, RbdClients, RbdRefusal};

use super::pool::{NamespaceStore, StoreState, WaitingStore};
use super::{Manager, State};
use crate::held::{Standby, Taken};
use crate::host_settings::{Admission, Former, Unreadable};
use crate::open::{self, open_error, unreadable};
use crate::waits::WaitReason;

/// How often it is checked whether reactors have closed their backing stores.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Images that are opened at the same time.
const AT_ONCE: usize = 8;

/// Result of opening one image and reading its record.
type Opened = (NamespaceStore, Result<Taken, OpenError>, Read);

/// What hosts set of the namespace, as its former owner stored it.
type Read = Result<Option<Admission>, Unreadable>;

impl Manager {
    /// Number of namespaces in the group.
    pub(crate) fn images_in(&self, group: u32) -> usize {
        let snapshot = self.snapshot();
        let stores = snapshot.stores.iter();
        stores.filter(|store| store.is_in(group)).count()
    }

    /// Opens and locks the images of the group through `clients`. Hosts see it as inaccessible.
    /// An image that cannot be served for a reason of its own waits, and does not keep the others.
    ///
    /// # Errors
    /// No image can be opened, or another client has the lock of one, or the cluster does not
    /// respond. [`close_group`](Self::close_group) closes the others.
    pub(crate) fn open_group(&self, group: u32, clients: &RbdClients) -> Result<(), String> {
        self.lock().pool.held_mut().hold(group, clients.clone());
        let stores = self.snapshot().stores;
        let closed = stores
            .into_iter()
            .filter(|it| it.is_in(group) && !it.is_held_by(clients));
        let opened = self.open_images(closed.collect());
        if let Some(error) = failure(&opened) {
            return Err(error.to_string());
        }
        let mut state = self.lock();
        let mut next = state.pool.stores().to_vec();
        let mut former = Former::default();
        for (before, taken, read) in opened {
            let same = |it: &NamespaceStore| {
                it.number == before.number && it.configured == before.configured
            };
            let at = next.iter().position(same);
            let Some((at, store)) = at.and_then(|at| Some((at, next.get_mut(at)?))) else {
                continue;
            };
            let taken = taken.map_err(|error| open_error(&state.config, at, &error));
            // What this gateway knew may be old.
            let ready = taken.and_then(|taken| {
                let adopted = read.and_then(|it| self.records.adopt(it));
                let its = adopted.map_err(|error| unreadable(&state.config, at, &error))?;
                former.append(its);
                Ok(taken)
            });
            let after = match ready {
                Ok(taken) => StoreState::Standby(taken.into_standby()),
                Err(error) => {
                    tracing::error!("{error}; its group is served without it");
                    store.waiting_for(WaitReason::of(&error))
                }
            };
            state.pool.set_closed(store, after);
        }
        self.reactors.poll_all();
        self.records.remove_former(former);
        state.pool.commit(next, BTreeMap::new());
        Ok(())
    }

    /// Opens images and reads their records, several at the same time. Without the lock: a cluster
    /// may be slow.
    fn open_images(&self, stores: Vec<NamespaceStore>) -> Vec<Opened> {
        let held = self.lock().pool.held().clone();
        let (left, opened) = (Mutex::new(stores), Mutex::new(Vec::new()));
        let next = || left.lock().unwrap_or_else(PoisonError::into_inner).pop();
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    while let Some(store) = next() {
                        let taken = open::take(&store.configured, &held);
                        if taken.as_ref().err().is_some_and(concerns_all) {
                            drop(left.lock().map(|mut left| left.clear()));
                        }
                        let claim = taken.as_ref().ok().and_then(Taken::claim);
                        let read = self.records.read(&store.configured, claim);
                        let mut opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
                        opened.push((store, taken, read));
                    }
                });
            }
        });
        opened.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves the images of the group that are open, in the present period of `clients`, as its
    /// owner in that epoch. Hosts see the group as configured for their port.
    ///
    /// # Errors
    /// A reactor cannot open one. Then nothing changes.
    pub(crate) fn serve_group(
        &self,
        (group, epoch): (u32, u64),
        clients: &RbdClients,
    ) -> Result<(), String> {
        let mut state = self.lock();
        state.pool.collect();
        let mut next = state.pool.stores().to_vec();
        let (mut fresh, mut old) = (Vec::new(), Vec::new());
        for store in next.iter_mut().filter(|store| store.is_in(group)) {
            let Some(claim) = store.held_claim().and_then(|it| it.in_period(clients)) else {
                continue;
            };
            old.extend(store.number_and_claim());
            let Some(number) = state.pool.number() else {
                state.pool.free(&fresh);
                return Err("too many backing stores are open".to_owned());
            };
            store.number = number;
            fresh.push((store.number, claim.clone()));
            store.state = StoreState::Open(claim);
        }
        state.pool.held_mut().set_serving(group, Some(epoch));
        let served = self.serve_next(&mut state, next, &fresh, &old);
        if served.is_err() {
            state.pool.held_mut().set_serving(group, None);
        }
        drop(state);
        self.remember();
        served
    }

    /// Hosts see the group as inaccessible. Its images stay open.
    pub(crate) fn suspend_group(&self, group: u32) {
        let mut state = self.lock();
        self.suspend(&mut state, group);
    }

    fn suspend(&self, state: &mut State, group: u32) {
        state.pool.collect();
        state.pool.held_mut().set_serving(group, None);
        let mut next = state.pool.stores().to_vec();
        let mut old: Vec<(u32, Claim)> = Vec::new();
        for store in next.iter_mut().filter(|store| store.is_in(group)) {
            let Some(claim) = store.claim().cloned() else {
                continue;
            };
            old.push((store.number, claim.clone()));
            let standby = Taken::Open(claim).into_standby();
            state.pool.set_closed(store, StoreState::Standby(standby));
        }
        // This opens nothing, so it cannot fail.
        let _ = self.serve_next(state, next, &[], &old);
    }

    /// Closes the images of the group: no operation of them is in flight any more, and no reactor
    /// uses them. They are closed when their clients are.
    ///
    /// # Errors
    /// A reactor did not close one within `timeout`, because commands did not end. The connections
    /// of hosts with such commands are closed.
    pub(crate) fn close_group(&self, group: u32, timeout: Duration) -> Result<(), String> {
        let until = Instant::now() + timeout;
        let mut state = self.lock();
        self.suspend(&mut state, group);
        state.pool.held_mut().release(group);
        let mut next = state.pool.stores().to_vec();
        for store in next.iter_mut().filter(|store| store.is_in(group)) {
            let geometry = store.geometry().clone();
            if store.is_known() {
                let claim = None;
                let standby = StoreState::Standby(Standby { geometry, claim });
                state.pool.set_closed(store, standby);
            }
        }
        let _ = self.serve_next(&mut state, next, &[], &[]);
        loop {
            state.pool.collect();
            let closing = state.pool.closing_in(group);
            if closing.is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                self.reactors.abandon(&closing);
                return Err(format!(
                    "commands of hosts did not end within {} s; their connections are closed",
                    timeout.as_secs()
                ));
            }
            drop(state);
            std::thread::sleep(POLL_INTERVAL);
            state = self.lock();
        }
    }

    /// Disconnects the hosts of all subsystems with a namespace in a group: no command that they
    /// have sent begins any more.
    pub(crate) fn disconnect_from_groups(&self) {
        let subsystems = self.ha().map(|ha| ha.subsystems().clone());
        let subsystems = subsystems.unwrap_or_default();
        let lost = self
            .target
            .disconnect_if(|one| subsystems.contains(&one.subnqn));
        self.reactors.poll_all();
        if !lost.is_empty() {
            tracing::warn!(
                "{} controllers disconnected: other gateways may have reported them as ended",
                lost.len()
            );
        }
    }

    /// Resets of controllers of other gateways have an outcome.
    pub(crate) fn report_resets(&self) {
        self.reactors.poll_all();
    }

    /// Examines one image on standby whose size may have changed at its owner, the next one after
    /// `last`. Returns its namespace.
    pub(crate) fn examine_standby(&self, last: Option<&(String, u32)>) -> Option<(String, u32)> {
        let stores = self.snapshot().stores;
        let closed = |it: &&NamespaceStore| {
            matches!(&it.state, StoreState::Standby(Standby { claim: None, .. }))
        };
        let key = |it: &NamespaceStore| (it.configured.nqn.clone(), it.configured.nsid);
        let mut closed: Vec<_> = stores.iter().filter(closed).collect();
        closed.sort_by_key(|it| key(it));
        let after = closed
            .iter()
            .find(|it| last.is_none_or(|last| key(it) > *last));
        let store = *after.or(closed.first())?;
        let configured = &store.configured;
        match Claim::examine(&configured.spec, configured.block_size) {
            Ok(geometry) if geometry.size != store.geometry().size => {
                self.adopt_standby(store, geometry);
            }
            Ok(_) => {}
            Err(error) => tracing::debug!("{error}; on standby"),
        }
        Some(key(store))
    }

    /// Reports the new size of an image on standby.
    fn adopt_standby(&self, before: &NamespaceStore, geometry: Geometry) {
        let mut state = self.lock();
        let mut next = state.pool.stores().to_vec();
        let same = |it: &&mut NamespaceStore| {
            it.number == before.number
                && matches!(&it.state, StoreState::Standby(Standby { claim: None, .. }))
        };
        if let Some(store) = next.iter_mut().find(same) {
            let claim = None;
            store.state = StoreState::Standby(Standby { geometry, claim });
            let _ = self.serve_next(&mut state, next, &[], &[]);
        }
        drop(state);
        self.remember();
    }

    /// Serves namespaces from `next`, with the ANA states that follow from the groups that are
    /// held: opens `fresh` and closes `old`.
    fn serve_next(
        &self,
        state: &mut State,
        next: Vec<NamespaceStore>,
        fresh: &[(u32, Claim)],
        old: &[(u32, Claim)],
    ) -> Result<(), String> {
        let stores = next.iter().map(NamespaceStore::served);
        let keys = self.target.model().authentication().clone();
        let ports = state.served_ports.specs();
        let model = open::model_of(&state.config, stores, &ports, state.pool.held(), keys);
        let opened = model.map_err(|error| error.to_string()).and_then(|model| {
            let opened = self.reactors.open(fresh);
            opened.map_err(|failed| failed.to_string())?;
            // The limits of the target did not change.
            drop(self.target.apply(model));
            Ok(())
        });
        if let Err(error) = opened {
            tracing::error!("cannot change what is served of a group: {error}");
            let closing = self.reactors.close(fresh);
            state.pool.retire(&next, closing);
            return Err(error);
        }
        self.reactors.poll_all();
        let closing = self.reactors.close(old);
        state.pool.commit(next, closing);
        Ok(())
    }
}

impl NamespaceStore {
    fn is_in(&self, group: u32) -> bool {
        self.configured.group == Some(group)
    }

    /// Its claim, if its image is open and locked.
    fn held_claim(&self) -> Option<&Claim> {
        match &self.state {
            StoreState::Open(claim) => Some(claim),
            StoreState::Standby(standby) => standby.claim.as_ref(),
            StoreState::Faulted(_) | StoreState::Waiting(_) => None,
        }
    }

    /// Whether its image is open and locked through `clients`.
    fn is_held_by(&self, clients: &RbdClients) -> bool {
        self.held_claim().is_some_and(|claim| claim.is_of(clients))
    }

    /// Whether hosts know its geometry.
    fn is_known(&self) -> bool {
        self.waiting().is_none_or(|awaited| awaited.is_known)
    }

    /// Its state while it waits, with the last geometry.
    fn waiting_for(&self, waits: WaitReason) -> StoreState {
        StoreState::Waiting(WaitingStore {
            geometry: self.geometry().clone(),
            is_known: self.is_known(),
            waits,
        })
    }
}

/// Why a group cannot be served, if that is so: the reason concerns all images, or all failed.
fn failure(opened: &[Opened]) -> Option<&OpenError> {
    let errors = || {
        opened
            .iter()
            .filter_map(|(_, taken, _)| taken.as_ref().err())
    };
    let has_all_failed = errors().count() == opened.len();
    let first = errors().next().filter(|_| has_all_failed);
    errors().find(|error| concerns_all(error)).or(first)
}

/// Whether a group cannot be served because of it, although other images can be opened.
fn concerns_all(error: &OpenError) -> bool {
    let OpenError::Rbd { why, .. } = error else {
        return false;
    };
    matches!(
        why,
        RbdRefusal::InUse { .. }
            | RbdRefusal::Blocklisted
            | RbdRefusal::Unresponsive(_)
            | RbdRefusal::NoMonitor { .. }
            | RbdRefusal::Denied { .. }
            | RbdRefusal::NoKey { .. }
            | RbdRefusal::Conf { .. }
            | RbdRefusal::NotInstalled(_)
            | RbdRefusal::TooOld(_)
    )
}
