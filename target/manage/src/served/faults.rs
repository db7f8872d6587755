//! Disks whose storage is gone, comes back, or has another size.
//!
//! ```text
//!   open ── gone ──► lost: Namespace Not Ready ── enable, apply ──► open
//!     └──── another size ──► open, with another number
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use nvmeof_backend::{Claim, IoError, IoErrorKind, OpenError};
use nvmeof_target_core::{Applied, Revision};
use nvmeof_wire::{Nqn, text};

use super::pool::{Disk, Held, Lost};
use super::reactors::Failed;
use super::{ApplyError, Changing, Manager, Report, State};
use crate::fault_counts::{Cause, FaultCounts};
use crate::open::{self, preferred};

/// A namespace whose storage is gone. Displays as cause and remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "namespace {nsid} of {nqn} is faulted: {why}; bring {path} back, then reload, or \
     `nvmeof-target ctl namespace enable --subsystem {} {nsid}`",
    text::ShellWord(.nqn)
)]
pub struct Faulted {
    /// Its subsystem.
    pub nqn: String,
    /// Its number.
    pub nsid: u32,
    /// What it is served from.
    pub path: String,
    /// What happened to that.
    pub why: String,
    /// When it was noticed.
    pub since: SystemTime,
}

/// Another size of a disk, or why it cannot be used any more.
enum Finding {
    Resized(Claim),
    Gone(Cause, String),
}

/// A device that answers nothing twice, with so much time in between, is gone.
const DOUBT: Duration = Duration::from_secs(1);
/// How long disks that are gone may take to be closed before they are opened
/// again.
const CLOSING: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

impl Manager {
    /// Namespaces whose storage is gone at this moment.
    #[must_use]
    pub fn faults(&self) -> Vec<Faulted> {
        self.seen().disks.iter().filter_map(faulted).collect()
    }

    /// How often storage was gone since the start.
    #[must_use]
    pub fn faults_total(&self) -> u64 {
        self.fault_counts.total()
    }

    /// The same by namespace and cause.
    pub fn fault_counts(&self) -> &FaultCounts {
        &self.fault_counts
    }

    /// Whether the storage of a namespace is gone.
    pub fn is_faulted(&self, nqn: &str, nsid: u32) -> bool {
        let seen = self.seen();
        let mut its = seen.disks.iter().filter(|disk| disk.is_of(nqn, nsid));
        its.any(|disk| disk.lost().is_some())
    }

    /// Serves a namespace again whose storage was gone and is back.
    ///
    /// # Errors
    /// [`ApplyError`] when it is not back, or there is no such namespace.
    pub fn enable(&self, nqn: &str, nsid: u32) -> Result<Report, ApplyError> {
        let mut state = self.settled();
        let refused = |what: String| Err(ApplyError::Refused(what));
        let its = |disk: &Disk| disk.is_of(nqn, nsid);
        let Some(at) = state.pool.disks().iter().position(its) else {
            return refused(format!(
                "{nqn} has no namespace {nsid} that is enabled in the configuration; write it \
                 there, with enabled = true, and apply that"
            ));
        };
        let mut next = state.pool.disks().to_vec();
        let Some(disk) = next.get_mut(at) else {
            return Ok(Report::default());
        };
        // What is there already need not come back.
        let Some(lost) = disk.lost().cloned() else {
            return Ok(Report::default());
        };
        let claim = match open::take(&disk.wanted) {
            Ok(claim) => claim,
            Err(error) => return refused(format!("namespace {nsid} of {nqn}: {error}")),
        };
        if claim.geometry().block_size != lost.geometry.block_size {
            return refused(format!(
                "{} has blocks of {} bytes now, and the namespace of {}; remove it, then add it \
                 again",
                claim.name(),
                claim.geometry().block_size.bytes(),
                lost.geometry.block_size.bytes()
            ));
        }
        let Some(number) = state.pool.number() else {
            return refused("there are too many disks".to_owned());
        };
        let fresh = vec![(number, claim.clone())];
        disk.number = number;
        disk.held = Held::Open(claim);
        let revision = revision(disk);
        match self.replace(&mut state, next, &fresh, &[], revision.as_slice()) {
            Ok(applied) => Ok(applied.into()),
            Err(failed) => refused(failed.to_string()),
        }
    }

    /// Looks at every disk: whether it has another size, and what became of those
    /// that `failed`. Says whether anything changed.
    pub fn look_after(&self, failed: &BTreeMap<u32, IoError>) -> bool {
        // Without the lock: a device may take its time to answer.
        let disks = self.seen().disks;
        let (mut gone, mut resized) = (BTreeMap::new(), BTreeMap::new());
        for disk in &disks {
            let number = disk.number;
            let found = disk
                .claim()
                .map(|it| self.examine(number, it, failed.get(&number)));
            match found.flatten() {
                Some(Finding::Gone(cause, why)) => drop(gone.insert(number, (cause, why))),
                Some(Finding::Resized(claim)) => drop(resized.insert(number, claim)),
                None => {}
            }
        }
        let mut changed = self.look_for_names();
        if !gone.is_empty() {
            changed |= self.lose(&mut self.lock(), &gone);
        }
        if !resized.is_empty() {
            changed |= self.resize(&mut self.lock(), &resized);
            self.remember();
        }
        changed
    }

    /// What is to be said of an open disk, if anything is.
    fn examine(&self, disk: u32, claim: &Claim, failed: Option<&IoError>) -> Option<Finding> {
        match claim.resized() {
            Ok(Some(resized)) => return Some(Finding::Resized(resized)),
            Ok(None) => {}
            // Somebody is making it longer: it will be whole blocks in the end.
            Err(OpenError::NotWholeBlocks { size, .. }) if size > claim.geometry().size => {}
            // The disk is as it was: we could not look, or not open it once more.
            Err(error) if error.is_passing() => {
                tracing::warn!("{error}; checking the size of this backing store again");
            }
            Err(error) => {
                let cause = match error.is_gone() {
                    true => Cause::Removed,
                    false => Cause::Size,
                };
                return Some(Finding::Gone(cause, error.to_string()));
            }
        }
        let error = failed?;
        let cause = match error.kind {
            IoErrorKind::Removed => Some(Cause::Removed),
            // A bad block is not the whole disk.
            IoErrorKind::Media | IoErrorKind::Other => {
                let is_gone = self.answers_no_more(disk, claim);
                is_gone.then_some(Cause::Unreadable)
            }
            _ => None,
        };
        cause.map(|cause| Finding::Gone(cause, error.to_string()))
    }

    /// Whether nothing of it could be read for a while.
    fn answers_no_more(&self, disk: u32, claim: &Claim) -> bool {
        let answers = claim.answers();
        let mut doubts = self
            .doubts
            .lock()
            .unwrap_or_else(super::PoisonError::into_inner);
        if answers {
            doubts.remove(&disk);
            return false;
        }
        let since = *doubts.entry(disk).or_insert_with(Instant::now);
        let sure = since.elapsed() >= DOUBT;
        if sure {
            doubts.remove(&disk);
        }
        sure
    }

    /// These disks are gone, each for a reason.
    fn lose(&self, state: &mut State, gone: &BTreeMap<u32, (Cause, String)>) -> bool {
        let mut next = state.pool.disks().to_vec();
        let (mut old, mut revisions) = (Vec::new(), Vec::new());
        for disk in &mut next {
            let (Some((cause, why)), Some(claim)) = (gone.get(&disk.number), disk.claim()) else {
                continue;
            };
            old.push((disk.number, claim.clone()));
            disk.held = Held::Lost(Lost {
                geometry: claim.geometry().clone(),
                storage: claim.storage(),
                why: why.clone(),
                since: SystemTime::now(),
            });
            revisions.extend(revision(disk));
            let wanted = &disk.wanted;
            self.fault_counts.add(&wanted.nqn, wanted.nsid, *cause);
            if let Some(faulted) = faulted(disk) {
                let Faulted {
                    nqn, nsid, path, ..
                } = &faulted;
                tracing::error!(subsystem = %nqn, nsid, path, "{faulted}");
            }
        }
        // Nothing is opened that could fail.
        self.replace(state, next, &[], &old, &revisions).is_ok() && !old.is_empty()
    }

    /// These disks have another size.
    fn resize(&self, state: &mut State, resized: &BTreeMap<u32, Claim>) -> bool {
        let mut next = state.pool.disks().to_vec();
        let (mut fresh, mut old, mut revisions) = (Vec::new(), Vec::new(), Vec::new());
        for disk in &mut next {
            let (Some(resized), Some(claim)) = (resized.get(&disk.number), disk.claim()) else {
                continue;
            };
            let Some(number) = state.pool.number() else {
                continue;
            };
            old.push((disk.number, claim.clone()));
            fresh.push((number, resized.clone()));
            disk.number = number;
            disk.held = Held::Open(resized.clone());
            revisions.extend(revision(disk));
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

    /// Serves namespaces from `next` from now on: `fresh` is opened, `old` closed.
    pub(super) fn replace(
        &self,
        state: &mut State,
        next: Vec<Disk>,
        fresh: &[(u32, Claim)],
        old: &[(u32, Claim)],
        revisions: &[Revision],
    ) -> Result<Applied, Failed> {
        state.pool.collect();
        if let Err(failed) = self.reactors.open(fresh) {
            let closing = self.reactors.close(fresh);
            state.pool.leave(&next, closing);
            return Err(failed);
        }
        let model = self.target.model().revised(revisions);
        // Sizes of the target are those that it has.
        let applied = self.target.apply(model).unwrap_or_default();
        self.reactors.poll_all();
        let closing = self.reactors.close(old);
        state.pool.becomes(next, closing);
        Ok(applied)
    }

    /// What is served, once disks that are gone are closed: until then they have
    /// the lock that whoever opens them again wants. One that hangs is not waited
    /// for.
    pub(super) fn settled(&self) -> Changing<'_> {
        let until = Instant::now() + CLOSING;
        loop {
            let mut state = self.lock();
            state.pool.collect();
            if !state.pool.is_losing() || Instant::now() >= until {
                return state;
            }
            drop(state);
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

pub(super) fn faulted(disk: &Disk) -> Option<Faulted> {
    let Lost { why, since, .. } = disk.lost()?;
    Some(Faulted {
        nqn: disk.wanted.nqn.clone(),
        nsid: disk.wanted.nsid,
        path: disk.wanted.spec.to_string(),
        why: why.clone(),
        since: *since,
    })
}

/// What the model has to know of the disk's namespace.
pub(super) fn revision(disk: &Disk) -> Option<Revision> {
    let served = disk.served();
    let block_size = u64::from(served.geometry.block_size.bytes());
    Some(Revision {
        nqn: Nqn::new(&disk.wanted.nqn).ok()?,
        nsid: disk.wanted.nsid,
        disk: served.number,
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
