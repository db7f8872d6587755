//! Backing stores that fail, become available again, or change their size.
//!
//! ```text
//!   open ── failed ──► faulted: Namespace Not Ready ── enable, apply ──► open
//!     └──── another size ──► open, with another number
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use nvmeof_backend::{Claim, IoError, IoErrorKind, OpenError};
use nvmeof_target_core::{Applied, Revision};
use nvmeof_wire::{Nqn, text};

use super::pool::{FaultedStore, NamespaceStore, StoreState};
use super::reactors::Failed;
use super::snapshot::Snapshot;
use super::{ApplyError, Changing, Manager, Report, State};
use crate::fault_counts::{Cause, FaultCounts};
use crate::open::{self, preferred};

/// A faulted namespace: its backing store is not available any more. Displays as cause and
/// remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "namespace {nsid} of {nqn} is faulted: {why}; restore {path}, then reload, or \
     `nvmeof-target ctl namespace enable --subsystem {} {nsid}`",
    text::ShellWord(.nqn)
)]
pub struct Faulted {
    /// NQN of the subsystem.
    pub nqn: String,
    /// NSID of the namespace.
    pub nsid: u32,
    /// Path of the backing store.
    pub path: String,
    /// The cause.
    pub why: String,
    /// When it was detected.
    pub since: SystemTime,
}

/// A change of a backing store: another size, or why it cannot be used any more.
enum StoreChange {
    Resized(Claim),
    Gone(Cause, String),
}

/// A device that cannot be read for this long is taken for failed.
const UNREADABLE_TIME: Duration = Duration::from_secs(1);
/// How long an open waits until reactors have closed a failed backing store.
const CLOSING: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

impl Manager {
    /// The namespaces that are faulted now.
    #[must_use]
    pub fn faults(&self) -> Vec<Faulted> {
        self.snapshot().stores.iter().filter_map(faulted).collect()
    }

    /// Number of faults since the start.
    #[must_use]
    pub fn faults_total(&self) -> u64 {
        self.fault_counts.total()
    }

    /// The same by namespace and cause.
    pub fn fault_counts(&self) -> &FaultCounts {
        &self.fault_counts
    }

    /// Whether a namespace is faulted.
    pub fn is_faulted(&self, nqn: &str, nsid: u32) -> bool {
        let snapshot = self.snapshot();
        let mut its = snapshot
            .stores
            .iter()
            .filter(|store| store.is_of(nqn, nsid));
        its.any(|store| store.failure().is_some())
    }

    /// Serves a faulted namespace again whose backing store is available again.
    ///
    /// # Errors
    /// [`ApplyError`] if the backing store is not available, or there is no such namespace.
    pub fn enable(&self, nqn: &str, nsid: u32) -> Result<Report, ApplyError> {
        let mut state = self.settled();
        let refused = |what: String| Err(ApplyError::Refused(what));
        let its = |store: &NamespaceStore| store.is_of(nqn, nsid);
        let Some(at) = state.pool.stores().iter().position(its) else {
            return refused(format!(
                "{nqn} has no namespace {nsid} that is enabled in the configuration; add it \
                 there with enabled = true, and apply the configuration"
            ));
        };
        let mut next = state.pool.stores().to_vec();
        let Some(store) = next.get_mut(at) else {
            return Ok(Report::default());
        };
        if let Some(awaited) = store.waiting() {
            return refused(format!(
                "namespace {nsid} of {nqn} waits, and is tried again: {}",
                awaited.waits.why
            ));
        }
        // It is not faulted.
        let Some(lost) = store.failure().cloned() else {
            return Ok(Report::default());
        };
        let taken = match open::take(&store.configured, state.pool.held()) {
            Ok(taken) => taken,
            Err(error) => return refused(format!("namespace {nsid} of {nqn}: {error}")),
        };
        if taken.geometry().block_size != lost.geometry.block_size {
            return refused(format!(
                "{} has a block size of {} bytes now, and the namespace of {}; remove the \
                 namespace, then add it again",
                store.configured.spec,
                taken.geometry().block_size.bytes(),
                lost.geometry.block_size.bytes()
            ));
        }
        // Another gateway may have served the image meanwhile.
        let admission = self.records.read(&store.configured, taken.claim());
        let former = match admission.and_then(|it| self.records.adopt(it)) {
            Ok(former) => former,
            Err(error) => return refused(format!("namespace {nsid} of {nqn}: {error}")),
        };
        let Some(number) = state.pool.number() else {
            return refused("too many backing stores are open".to_owned());
        };
        store.number = number;
        store.state = taken.into();
        let fresh = store.number_and_claim();
        let fresh = Vec::from_iter(fresh);
        let revision = revision(store);
        match self.replace(&mut state, next, &fresh, &[], revision.as_slice()) {
            Ok(applied) => {
                self.records.remove_former(former);
                Ok(applied.into())
            }
            Err(failed) => refused(failed.to_string()),
        }
    }

    /// Checks the size of every backing store, and examines those that `failed`. Returns whether
    /// anything changed.
    pub fn check_stores(&self, failed: &BTreeMap<u32, IoError>) -> bool {
        // Without the lock: a device may be slow to respond.
        let Snapshot { stores, held, .. } = self.snapshot();
        let mut fenced = BTreeMap::new();
        let (mut gone, mut resized) = (BTreeMap::new(), BTreeMap::new());
        for store in &stores {
            let number = store.number;
            let found = store
                .claim()
                .map(|it| self.examine(number, it, failed.get(&number)));
            match found.flatten() {
                Some(StoreChange::Gone(cause, why)) => match (cause, store.configured.group) {
                    // All images of the group have the same clients.
                    (Cause::Fenced, Some(group)) => drop(fenced.insert(group, why)),
                    (cause, _) => drop(gone.insert(number, (cause, why))),
                },
                Some(StoreChange::Resized(claim)) => drop(resized.insert(number, claim)),
                None => {}
            }
        }
        let mut changed = self.check_names();
        for (group, why) in fenced {
            let epoch = held.get(group).and_then(|held| held.serving);
            if let (Some(ha), Some(epoch)) = (&self.ha, epoch) {
                ha.lost(group, epoch, why);
            }
        }
        if !gone.is_empty() {
            changed |= self.lose(&mut self.lock(), &gone);
        }
        if !resized.is_empty() {
            changed |= self.resize(&mut self.lock(), &resized);
            self.remember();
        }
        changed
    }

    /// Examines an open backing store; `None`: it is unchanged.
    fn examine(&self, store: u32, claim: &Claim, failed: Option<&IoError>) -> Option<StoreChange> {
        match claim.resized() {
            Ok(Some(resized)) => return Some(StoreChange::Resized(resized)),
            Ok(None) => {}
            // The file is still being extended; its final size may be whole blocks.
            Err(OpenError::NotWholeBlocks { size, .. }) if size > claim.geometry().size => {}
            // The check failed, or it could not be reopened: the backing store is unchanged.
            Err(error) if error.is_transient() => {
                tracing::warn!("{error}; checking the size of this backing store again");
            }
            Err(error) => {
                let cause = match error.is_gone() {
                    _ if error.is_fenced() => Cause::Fenced,
                    true => Cause::Removed,
                    false => Cause::Size,
                };
                return Some(StoreChange::Gone(cause, error.to_string()));
            }
        }
        let error = failed?;
        let cause = match error.kind {
            IoErrorKind::Removed => Some(Cause::Removed),
            IoErrorKind::Fenced => Some(Cause::Fenced),
            // A single bad block is not a failed device.
            IoErrorKind::Media | IoErrorKind::Other => {
                let is_unreadable = self.is_unreadable(store, claim);
                is_unreadable.then_some(Cause::Unreadable)
            }
            _ => None,
        };
        cause.map(|cause| StoreChange::Gone(cause, error.to_string()))
    }

    /// Whether not even one block could be read for [`UNREADABLE_TIME`].
    fn is_unreadable(&self, store: u32, claim: &Claim) -> bool {
        let is_readable = claim.is_readable();
        let mut unreadable_since = self
            .unreadable_since
            .lock()
            .unwrap_or_else(super::PoisonError::into_inner);
        if is_readable {
            unreadable_since.remove(&store);
            return false;
        }
        let since = *unreadable_since.entry(store).or_insert_with(Instant::now);
        let has_failed = since.elapsed() >= UNREADABLE_TIME;
        if has_failed {
            unreadable_since.remove(&store);
        }
        has_failed
    }

    /// Makes the namespaces of these backing stores faulted, each for a reason.
    fn lose(&self, state: &mut State, gone: &BTreeMap<u32, (Cause, String)>) -> bool {
        let mut next = state.pool.stores().to_vec();
        let (mut old, mut revisions) = (Vec::new(), Vec::new());
        for store in &mut next {
            let (Some((cause, why)), Some(claim)) = (gone.get(&store.number), store.claim()) else {
                continue;
            };
            old.push((store.number, claim.clone()));
            store.state = StoreState::Faulted(FaultedStore {
                geometry: claim.geometry().clone(),
                storage: claim.storage(),
                why: why.clone(),
                since: SystemTime::now(),
            });
            revisions.extend(revision(store));
            let configured = &store.configured;
            self.fault_counts
                .add(&configured.nqn, configured.nsid, *cause);
            if let Some(faulted) = faulted(store) {
                let Faulted {
                    nqn, nsid, path, ..
                } = &faulted;
                tracing::error!(subsystem = %nqn, nsid, path, "{faulted}");
            }
        }
        // This opens nothing, so it cannot fail.
        self.replace(state, next, &[], &old, &revisions).is_ok() && !old.is_empty()
    }

    /// Adopts the new sizes of these backing stores.
    fn resize(&self, state: &mut State, resized: &BTreeMap<u32, Claim>) -> bool {
        let mut next = state.pool.stores().to_vec();
        let (mut fresh, mut old, mut revisions) = (Vec::new(), Vec::new(), Vec::new());
        for store in &mut next {
            let (Some(resized), Some(claim)) = (resized.get(&store.number), store.claim()) else {
                continue;
            };
            let Some(number) = state.pool.number() else {
                continue;
            };
            old.push((store.number, claim.clone()));
            fresh.push((number, resized.clone()));
            store.number = number;
            store.state = StoreState::Open(resized.clone());
            revisions.extend(revision(store));
        }
        match self.replace(state, next, &fresh, &old, &revisions) {
            Ok(applied) => {
                for change in &applied.changes {
                    tracing::info!("detected: {change}");
                }
                !applied.changes.is_empty()
            }
            Err(failed) => {
                tracing::error!("cannot reopen a resized backing store: {failed}; retrying");
                false
            }
        }
    }

    /// Serves namespaces from `next` from now on: opens `fresh` and closes `old`.
    pub(super) fn replace(
        &self,
        state: &mut State,
        next: Vec<NamespaceStore>,
        fresh: &[(u32, Claim)],
        old: &[(u32, Claim)],
        revisions: &[Revision],
    ) -> Result<Applied, Failed> {
        state.pool.collect();
        if let Err(failed) = self.reactors.open(fresh) {
            let closing = self.reactors.close(fresh);
            state.pool.retire(&next, closing);
            return Err(failed);
        }
        let model = self.target.model().revised(revisions);
        // The limits of the target did not change.
        let applied = self.target.apply(model).unwrap_or_default();
        self.reactors.poll_all();
        let closing = self.reactors.close(old);
        state.pool.commit(next, closing);
        Ok(applied)
    }

    /// The state, once failed backing stores are closed: until then they hold the file lock that
    /// opening them again requires. The wait is limited, because one may be unresponsive.
    pub(super) fn settled(&self) -> Changing<'_> {
        let until = Instant::now() + CLOSING;
        loop {
            let mut state = self.lock();
            state.pool.collect();
            if !state.pool.is_closing_failed() || Instant::now() >= until {
                return state;
            }
            drop(state);
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

pub(super) fn faulted(store: &NamespaceStore) -> Option<Faulted> {
    let FaultedStore { why, since, .. } = store.failure()?;
    Some(Faulted {
        nqn: store.configured.nqn.clone(),
        nsid: store.configured.nsid,
        path: store.configured.spec.to_string(),
        why: why.clone(),
        since: *since,
    })
}

/// The change of the namespace in the model.
pub(super) fn revision(store: &NamespaceStore) -> Option<Revision> {
    let served = store.served();
    let block_size = u64::from(served.geometry.block_size.bytes());
    Some(Revision {
        nqn: Nqn::new(&store.configured.nqn).ok()?,
        nsid: store.configured.nsid,
        store: served.number,
        blocks: served.geometry.size / block_size,
        preferred: preferred(&served.geometry.hints),
        state: served.state,
    })
}

impl From<Applied> for Report {
    fn from(applied: Applied) -> Self {
        Self {
            changes: applied.changes,
            disconnected: applied.disconnected,
            remarks: Vec::new(),
        }
    }
}
