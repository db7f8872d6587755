//! Resizing a namespace and its file on request.
//!
//! ```text
//!   larger:   the file ─► the namespace
//!   smaller:  the namespace ─► commands in flight end ─► the file
//! ```
//! In this order, hosts never see a block that the file does not have. The file that is served
//! is resized through its descriptor, even if its path names another file by now.

use std::time::{Duration, Instant};

use nvmeof_backend::{Claim, ResizeError, Spec};
use nvmeof_target_core::Applied;

use super::faults::{faulted, revision};
use super::pool::StoreState;
use super::{ApplyError, Manager, Report, State};

/// A request to resize a namespace.
#[derive(Clone, Copy, Debug)]
pub struct ResizeRequest<'a> {
    /// NQN of the subsystem.
    pub nqn: &'a str,
    /// NSID of the namespace.
    pub nsid: u32,
    /// New size of the file in bytes; `None`: adopt its current size.
    pub size: Option<u64>,
    /// Whether the file may be truncated.
    pub shrink: bool,
}

/// Why a namespace was not resized.
#[derive(Debug, thiserror::Error)]
pub enum ResizeNamespaceError {
    /// Not possible in the present state.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// An invalid request: a key, and the error.
    #[error("{0}: {1}")]
    Invalid(&'static str, String),
}

const POLL_INTERVAL: Duration = Duration::from_millis(5);

impl Manager {
    /// Resizes the file if a size is given, and adopts the size of the file or device.
    ///
    /// # Errors
    /// [`ResizeNamespaceError`]; then the namespace did not change. A file that was extended
    /// may stay so.
    pub fn resize_namespace(
        &self,
        request: ResizeRequest<'_>,
    ) -> Result<Report, ResizeNamespaceError> {
        let mut state = self.settled();
        state.drained.check()?;
        let (at, claim) = state.resizable(request)?;
        let Some(size) = request.size else {
            let resized = claim.resized().map_err(|error| request.refused(&error))?;
            let Some(resized) = resized else {
                return Ok(Report::default());
            };
            return Ok(self.swap(&mut state, at, &resized, request)?.into());
        };
        self.may_be_changed(&state, at, &claim, request)?;
        let before = claim.file_len().map_err(|error| invalid(&error))?;
        if size < before {
            request.check_shrink(size, before)?;
            return Ok(self.shrink(&mut state, at, &claim, size, request)?);
        }
        if size > before {
            let grown = claim.set_file_len(size);
            grown.map_err(|error| request.refused(&error))?;
        }
        if claim.geometry().size == size {
            return Ok(Report::default());
        }
        let grown = claim.with_size(size);
        let grown = grown.map_err(|error| request.refused(&error))?;
        Ok(self.swap(&mut state, at, &grown, request)?.into())
    }

    /// Checks that the file of a namespace can be resized.
    fn may_be_changed(
        &self,
        state: &State,
        at: usize,
        claim: &Claim,
        request: ResizeRequest<'_>,
    ) -> Result<(), ApplyError> {
        let model = self.target.model();
        let mut subsystems = model.subsystems().iter();
        let its = subsystems.find(|one| one.nqn.as_str() == request.nqn);
        let namespace = its.and_then(|one| one.namespace(request.nsid));
        if namespace.is_some_and(|one| one.readonly) {
            return Err(request.refused(
                &"it is read-only, so its file cannot be resized; resize the file by other \
                  means, then repeat the command without a size",
            ));
        }
        let store = state.pool.stores().get(at);
        if let Some(Spec::File { path, .. }) = store.map(|store| &store.configured.spec) {
            let remedy = "the file that is served is unchanged; rename it back, or save its \
                          data, then remove the namespace and add it again to serve the new file";
            let named = match claim.is_at(path) {
                Ok(true) => Ok(()),
                Ok(false) => Err(format!(
                    "{}: another file has this name now; {remedy}",
                    path.display()
                )),
                Err(error) => Err(format!("{}: {error}; {remedy}", path.display())),
            };
            return named.map_err(|what| request.refused(&what));
        }
        Ok(())
    }

    /// Shrinks the namespace, then its file.
    fn shrink(
        &self,
        state: &mut State,
        at: usize,
        claim: &Claim,
        size: u64,
        request: ResizeRequest<'_>,
    ) -> Result<Report, ApplyError> {
        let smaller = claim.with_size(size);
        let smaller = smaller.map_err(|error| request.refused(&error))?;
        let mut report = Report::from(self.swap(state, at, &smaller, request)?);
        let cut = if self.wait_closed(state, claim.identity()) {
            smaller
                .set_file_len(size)
                .map_err(|error| error.to_string())
        } else {
            Err(format!(
                "commands in flight on it did not complete within {} s; try again under less load",
                self.reactors.timeout().as_secs()
            ))
        };
        let Err(why) = cut else {
            return Ok(report);
        };
        match smaller.resized() {
            // The file was not truncated: the namespace gets the size of the file again.
            Ok(Some(back)) => {
                let _ = self.swap(state, at, &back, request)?;
                Err(request.refused(&format!("{why}; the file was not truncated")))
            }
            // The file was truncated, but may have the old size after a crash.
            Ok(None) => {
                report.remarks.push(why);
                Ok(report)
            }
            Err(error) => Err(request.refused(&format!("{why}; {error}"))),
        }
    }

    /// Waits until reactors have closed every retired backing store of that claim, which they do
    /// when no command uses it. There may be several: also one of an earlier attempt.
    fn wait_closed(&self, state: &mut State, identity: u64) -> bool {
        let until = Instant::now() + self.reactors.timeout();
        loop {
            state.pool.collect();
            if !state.pool.is_closing(identity) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Serves the namespace at index `at` from `claim`, the same backing store with another size.
    fn swap(
        &self,
        state: &mut State,
        at: usize,
        claim: &Claim,
        request: ResizeRequest<'_>,
    ) -> Result<Applied, ApplyError> {
        let number = state.pool.number();
        let number = number.ok_or_else(|| request.refused(&"too many backing stores are open"))?;
        let mut next = state.pool.stores().to_vec();
        let (mut old, mut revisions) = (Vec::new(), Vec::new());
        if let Some(store) = next.get_mut(at) {
            old.extend(store.claim().cloned().map(|was| (store.number, was)));
            store.number = number;
            store.state = StoreState::Open(claim.clone());
            revisions.extend(revision(store));
        }
        let fresh = [(number, claim.clone())];
        let applied = self.replace(state, next, &fresh, &old, &revisions);
        applied.map_err(|failed| request.refused(&failed))
    }
}

impl State {
    /// Index and claim of the backing store of the namespace, which must be open.
    fn resizable(&self, request: ResizeRequest<'_>) -> Result<(usize, Claim), ApplyError> {
        let stores = self.pool.stores();
        let its = stores
            .iter()
            .position(|store| store.is_of(request.nqn, request.nsid));
        let Some((at, store)) = its.and_then(|at| Some((at, stores.get(at)?))) else {
            return Err(
                request.refused(&"it is disabled, so its file is not open; enable it first")
            );
        };
        match store.claim() {
            Some(claim) => Ok((at, claim.clone())),
            None => {
                let faulted = faulted(store).map(|one| one.to_string());
                let awaited = || store.waiting().map(|one| one.waits.why.clone());
                let why = faulted.or_else(awaited).unwrap_or_default();
                Err(request.refused(&why))
            }
        }
    }
}

impl ResizeRequest<'_> {
    fn refused(&self, why: &dyn std::fmt::Display) -> ApplyError {
        let Self { nqn, nsid, .. } = self;
        ApplyError::Refused(format!("namespace {nsid} of {nqn}: {why}"))
    }

    fn check_shrink(&self, size: u64, before: u64) -> Result<(), ResizeNamespaceError> {
        if self.shrink {
            return Ok(());
        }
        let what = format!(
            "{size} is less than the {before} bytes of the file, and data beyond it would be \
             lost; give {before} or more, or --shrink to truncate the file"
        );
        Err(ResizeNamespaceError::Invalid("size", what))
    }
}

/// The error for a backing store that cannot be resized.
fn invalid(error: &ResizeError) -> ResizeNamespaceError {
    ResizeNamespaceError::Invalid("path", error.to_string())
}
