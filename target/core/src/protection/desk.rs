//! What is to be kept of what hosts set, on its way to whoever writes it.
//!
//! ```text
//!  changes, each with a place in the next write ──► taken by the keeper, all at once
//!    ▲ as many as come meanwhile: one write             │
//!    └──────────── all who have a place in it hear ◄────┘ what came of it
//! ```
//! Nothing here waits but for a lock that nobody has for long, however long the keeper
//! takes. What is to be kept is not written down anywhere but in the states themselves,
//! so there is not more of it when requests pile up.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use nvmeof_wire::Nqn;

use super::KeptProtection;
use crate::target::Shared;

/// Has it kept which namespaces hosts write protected, for when the target is started
/// again.
pub trait KeepProtections: fmt::Debug + Send + Sync {
    /// There is something to be kept: somebody who may wait has to call
    /// [`Target::to_keep`](crate::Target::to_keep) until it gives nothing, and write
    /// what it gives. Called by reactors with a lock held: it neither waits nor calls
    /// the target.
    fn wake(&self);
}

/// What is to be kept could not be. Displays as the cause.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotKept(Arc<str>);

/// A place in a write: says what came of it. Clones have the same place.
#[derive(Clone, Debug, Default)]
pub struct Keeping {
    write: Arc<Write>,
}

#[derive(Debug, Default)]
struct Write {
    outcome: Mutex<Option<Result<(), NotKept>>>,
    over: Condvar,
}

impl Keeping {
    /// What came of it; `None` as long as it is not known. By the time it is, the
    /// namespaces are in the states that follow from it.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<(), NotKept>> {
        self.write.lock().clone()
    }

    /// Whether it is known.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.write.lock().is_some()
    }

    /// What came of it, for which it waits for that long at most. Not for reactors.
    #[must_use]
    pub fn wait(&self, most: Duration) -> Option<Result<(), NotKept>> {
        let outcome = self.write.lock();
        let waited = self
            .write
            .over
            .wait_timeout_while(outcome, most, |outcome| outcome.is_none());
        let (outcome, _) = waited.unwrap_or_else(PoisonError::into_inner);
        outcome.clone()
    }

    fn end(&self, result: Result<(), NotKept>) {
        *self.write.lock() = Some(result);
        self.write.over.notify_all();
    }
}

impl Write {
    fn lock(&self) -> MutexGuard<'_, Option<Result<(), NotKept>>> {
        // It is replaced as a whole.
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where changes wait for the keeper, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    row: Mutex<Row>,
    /// Of its own: who asks may have locks that come after this one's.
    has_keeper: AtomicBool,
}

#[derive(Debug, Default)]
struct Row {
    keeper: Option<Arc<dyn KeepProtections>>,
    /// Subsystems of which something is to be kept.
    changed: BTreeSet<Nqn>,
    /// The write that keeps it.
    next: Keeping,
    /// Whether one before that has not ended.
    writes: bool,
}

/// The desk, at which nobody else is. Who changes a state that is to be kept is there
/// from before until it has its place in a write, so that it is in that write and in
/// none before. It comes before the lock of what is served, and that before those of
/// subsystems.
pub(crate) struct Open<'a>(MutexGuard<'a, Row>);

impl Desk {
    pub(crate) fn open(&self) -> Open<'_> {
        // Nothing is left half done when a holder panics.
        Open(self.row.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has that keeper from now on.
    pub(super) fn is_kept_by(&self, keeper: Arc<dyn KeepProtections>) {
        self.open().0.keeper = Some(keeper);
        self.has_keeper.store(true, Ordering::Release);
    }

    /// Whether there is one.
    pub(crate) fn has_keeper(&self) -> bool {
        self.has_keeper.load(Ordering::Acquire)
    }
}

impl Open<'_> {
    /// What hosts set of that subsystem is to be kept. `None` when nobody does that.
    pub(crate) fn keep(&mut self, subsystem: &Nqn) -> Option<Keeping> {
        let row = &mut *self.0;
        let keeper = row.keeper.as_ref()?;
        row.changed.insert(*subsystem);
        keeper.wake();
        Some(row.next.clone())
    }
}

/// What is to be written at once. Whoever is dropped with it did not write it.
#[derive(Debug)]
#[must_use]
pub struct ToKeep {
    shared: Arc<Shared>,
    changes: Vec<(Nqn, Vec<KeptProtection>)>,
    /// Until it ended.
    keeping: Option<Keeping>,
}

impl ToKeep {
    pub(super) fn take(shared: &Arc<Shared>) -> Option<Self> {
        let mut desk = shared.desk.open();
        let row = &mut *desk.0;
        if row.writes || row.changed.is_empty() {
            return None;
        }
        row.writes = true;
        let keeping = std::mem::take(&mut row.next);
        let changed = std::mem::take(&mut row.changed);
        let mut served = shared.served();
        let changes = changed.into_iter().map(|subsystem| {
            let all = match served.live(&subsystem) {
                Some(live) => live.begin_write(),
                None => {
                    let waiting = served.waiting.get_mut(&subsystem);
                    waiting
                        .map(super::Protections::begin_write)
                        .unwrap_or_default()
                }
            };
            (subsystem, all)
        });
        let changes = changes.collect();
        drop(served);
        Some(Self {
            shared: Arc::clone(shared),
            changes,
            keeping: Some(keeping),
        })
    }

    /// Of each of these subsystems those namespaces are in the state Write Protect,
    /// and no others.
    #[must_use]
    pub fn changes(&self) -> &[(Nqn, Vec<KeptProtection>)] {
        &self.changes
    }

    /// It is kept, or cannot be. Afterwards every reactor has to poll its queues:
    /// commands wait for it, and hosts are told.
    pub fn end(mut self, result: io::Result<()>) {
        self.ended(result);
    }

    fn ended(&mut self, result: io::Result<()>) {
        let Some(keeping) = self.keeping.take() else {
            return;
        };
        let result = result.map_err(|error| NotKept(error.to_string().into()));
        let mut desk = self.shared.desk.open();
        let mut served = self.shared.served();
        for (subsystem, _) in &self.changes {
            if let Some(live) = served.live(subsystem) {
                if let Some(before) = live.kept(result.is_ok()) {
                    self.shared.tell_all(subsystem, &before);
                }
            } else if let Some(mut waiting) = served.waiting.remove(subsystem) {
                let _ = waiting.kept(result.is_ok());
                served.wait_for(*subsystem, waiting);
            }
        }
        let row = &mut *desk.0;
        row.writes = false;
        if let Some(keeper) = row.keeper.as_ref().filter(|_| !row.changed.is_empty()) {
            keeper.wake();
        }
        keeping.end(result);
    }
}

impl Drop for ToKeep {
    fn drop(&mut self) {
        self.ended(Err(io::Error::other("whoever wrote it ended")));
    }
}
