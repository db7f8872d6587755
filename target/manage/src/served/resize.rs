//! A namespace whose file is made another size on purpose.
//!
//! ```text
//!   larger:   the file ─► the namespace
//!   smaller:  the namespace ─► commands in flight end ─► the file
//! ```
//! So hosts never find a block that the file has not. It is the file that is
//! served which changes, by its descriptor, not what has its name by now.

use std::time::{Duration, Instant};

use nvmeof_backend::{Claim, ResizeError, Spec};
use nvmeof_target_core::Applied;

use super::faults::{faulted, revision};
use super::pool::Held;
use super::{ApplyError, Manager, Report, State};

/// What size a namespace is to have.
#[derive(Clone, Copy, Debug)]
pub struct NewSize<'a> {
    /// Its subsystem.
    pub nqn: &'a str,
    /// Its number.
    pub nsid: u32,
    /// Bytes that its file is to have; none: as many as it has.
    pub size: Option<u64>,
    /// Whether the end of the file may be cut off.
    pub shrink: bool,
}

/// A namespace keeps its size.
#[derive(Debug, thiserror::Error)]
pub enum NotResized {
    /// Not at present.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// What was asked for cannot be: a key, and what is wrong with it.
    #[error("{0}: {1}")]
    Unfit(&'static str, String),
}

const LOOK_AGAIN: Duration = Duration::from_millis(5);

impl Manager {
    /// Makes a namespace as large as its file or device is, which is made another
    /// size where one is given.
    ///
    /// # Errors
    /// [`NotResized`]; then what is served did not change. A file that was made
    /// larger may stay so.
    pub fn resize_one(&self, wanted: NewSize<'_>) -> Result<Report, NotResized> {
        let mut state = self.settled();
        state.drained.check()?;
        let (at, claim) = state.resizable(wanted)?;
        let Some(size) = wanted.size else {
            let resized = claim.resized().map_err(|error| wanted.refused(&error))?;
            let Some(resized) = resized else {
                return Ok(Report::default());
            };
            return Ok(self.swap(&mut state, at, &resized, wanted)?.into());
        };
        self.may_be_changed(&state, at, &claim, wanted)?;
        let before = claim.file_len().map_err(|error| unfit(&error))?;
        if size < before {
            wanted.check_shrink(size, before)?;
            return Ok(self.shrink(&mut state, at, &claim, size, wanted)?);
        }
        if size > before {
            let grown = claim.set_file_len(size);
            grown.map_err(|error| wanted.refused(&error))?;
        }
        if claim.geometry().size == size {
            return Ok(Report::default());
        }
        let grown = claim.with_size(size);
        let grown = grown.map_err(|error| wanted.refused(&error))?;
        Ok(self.swap(&mut state, at, &grown, wanted)?.into())
    }

    /// Whether the file of a namespace is one whose size can be changed.
    fn may_be_changed(
        &self,
        state: &State,
        at: usize,
        claim: &Claim,
        wanted: NewSize<'_>,
    ) -> Result<(), ApplyError> {
        let model = self.target.model();
        let mut subsystems = model.subsystems().iter();
        let its = subsystems.find(|one| one.nqn.as_str() == wanted.nqn);
        let namespace = its.and_then(|one| one.namespace(wanted.nsid));
        if namespace.is_some_and(|one| one.readonly) {
            return Err(wanted.refused(
                &"it is read only, so its file is not changed here; change the file by other \
                  means, then resize without a size",
            ));
        }
        let disk = state.pool.disks().get(at);
        if let Some(Spec::File { path, .. }) = disk.map(|disk| &disk.wanted.spec) {
            let remedy = "the file that is served was left as it is; rename it back, or save its \
                          data, then remove the namespace and add it again to serve what is \
                          there now";
            let named = match claim.is_at(path) {
                Ok(true) => Ok(()),
                Ok(false) => Err(format!(
                    "{}: another file has this name by now; {remedy}",
                    path.display()
                )),
                Err(error) => Err(format!("{}: {error}; {remedy}", path.display())),
            };
            return named.map_err(|what| wanted.refused(&what));
        }
        Ok(())
    }

    /// The namespace becomes smaller, then its file.
    fn shrink(
        &self,
        state: &mut State,
        at: usize,
        claim: &Claim,
        size: u64,
        wanted: NewSize<'_>,
    ) -> Result<Report, ApplyError> {
        let smaller = claim.with_size(size);
        let smaller = smaller.map_err(|error| wanted.refused(&error))?;
        let mut report = Report::from(self.swap(state, at, &smaller, wanted)?);
        let cut = if self.wait_closed(state, claim.identity()) {
            smaller
                .set_file_len(size)
                .map_err(|error| error.to_string())
        } else {
            Err(format!(
                "commands in flight on it did not complete within {} s; try again under less load",
                self.reactors.patience().as_secs()
            ))
        };
        let Err(why) = cut else {
            return Ok(report);
        };
        match smaller.resized() {
            // As large as the file is, which hosts may have all of.
            Ok(Some(back)) => {
                let _ = self.swap(state, at, &back, wanted)?;
                Err(wanted.refused(&format!("{why}; nothing was cut off")))
            }
            // It is cut, but may not be so after a crash.
            Ok(None) => {
                report.remarks.push(why);
                Ok(report)
            }
            Err(error) => Err(wanted.refused(&format!("{why}; {error}"))),
        }
    }

    /// Waits until reactors have closed every disk of that claim that nobody is
    /// served from any more, which they do when no command has it. There may be
    /// several: one that an earlier try left behind as well.
    fn wait_closed(&self, state: &mut State, identity: u64) -> bool {
        let until = Instant::now() + self.reactors.patience();
        loop {
            state.pool.collect();
            if !state.pool.is_closing(identity) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Serves namespace number `at` from `claim`, the same with another size.
    fn swap(
        &self,
        state: &mut State,
        at: usize,
        claim: &Claim,
        wanted: NewSize<'_>,
    ) -> Result<Applied, ApplyError> {
        let number = state.pool.number();
        let number = number.ok_or_else(|| wanted.refused(&"there are too many disks"))?;
        let mut next = state.pool.disks().to_vec();
        let (mut old, mut revisions) = (Vec::new(), Vec::new());
        if let Some(disk) = next.get_mut(at) {
            old.extend(disk.claim().cloned().map(|was| (disk.number, was)));
            disk.number = number;
            disk.held = Held::Open(claim.clone());
            revisions.extend(revision(disk));
        }
        let fresh = [(number, claim.clone())];
        let applied = self.replace(state, next, &fresh, &old, &revisions);
        applied.map_err(|failed| wanted.refused(&failed))
    }
}

impl State {
    /// The place of the namespace's disk, which is open.
    fn resizable(&self, wanted: NewSize<'_>) -> Result<(usize, Claim), ApplyError> {
        let disks = self.pool.disks();
        let its = disks
            .iter()
            .position(|disk| disk.is_of(wanted.nqn, wanted.nsid));
        let Some((at, disk)) = its.and_then(|at| Some((at, disks.get(at)?))) else {
            return Err(
                wanted.refused(&"it is disabled, so nothing is known of its file; enable it first")
            );
        };
        match disk.claim() {
            Some(claim) => Ok((at, claim.clone())),
            None => {
                let faulted = faulted(disk).map(|one| one.to_string());
                let awaited = || disk.awaited().map(|one| one.waits.why.clone());
                let why = faulted.or_else(awaited).unwrap_or_default();
                Err(wanted.refused(&why))
            }
        }
    }
}

impl NewSize<'_> {
    fn refused(&self, why: &dyn std::fmt::Display) -> ApplyError {
        let Self { nqn, nsid, .. } = self;
        ApplyError::Refused(format!("namespace {nsid} of {nqn}: {why}"))
    }

    fn check_shrink(&self, size: u64, before: u64) -> Result<(), NotResized> {
        if self.shrink {
            return Ok(());
        }
        let what = format!(
            "{size} is less than the {before} bytes that its file has, whose end would be lost; \
             give {before} or more, or --shrink to cut it off"
        );
        Err(NotResized::Unfit("size", what))
    }
}

/// What has no size that can be changed.
fn unfit(error: &ResizeError) -> NotResized {
    NotResized::Unfit("path", error.to_string())
}
