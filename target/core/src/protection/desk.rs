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
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_wire::Nqn;

use crate::persist::Keeping;

/// Has it kept which namespaces hosts write protected, for when the target is started
/// again.
pub trait KeepProtections: fmt::Debug + Send + Sync {
    /// There is something to be kept: somebody who may wait has to call
    /// [`Target::to_keep`](crate::Target::to_keep) until it gives nothing, and write
    /// what it gives. Called by reactors with a lock held: it neither waits nor calls
    /// the target.
    fn wake(&self);
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
    pub(crate) fn is_kept_by(&self, keeper: Arc<dyn KeepProtections>) {
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

    /// Begins the write of what changed: the subsystems of which something is to be kept,
    /// and what those who asked hold. `None` when nothing changed, and while the write
    /// before that is in progress.
    pub(crate) fn begin_write(&mut self) -> Option<(BTreeSet<Nqn>, Keeping)> {
        let row = &mut *self.0;
        if row.writes || row.changed.is_empty() {
            return None;
        }
        row.writes = true;
        Some((
            std::mem::take(&mut row.changed),
            std::mem::take(&mut row.next),
        ))
    }

    /// The write ended. The keeper is called again for what changed meanwhile.
    pub(crate) fn end_write(&mut self) {
        let row = &mut *self.0;
        row.writes = false;
        if let Some(keeper) = row.keeper.as_ref().filter(|_| !row.changed.is_empty()) {
            keeper.wake();
        }
    }
}
