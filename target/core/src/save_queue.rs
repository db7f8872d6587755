//! The queue of changes of what hosts set that are to be saved.
//!
//! ```text
//!  changes of a namespace, all in its next save ──► taken by the keeper, a namespace at a time
//!    ▲ changes during a save: the next one            │
//!    └─────────── all its requests get the outcome ◄──┘
//! ```
//! Nothing here blocks, except for a lock that is held briefly, however long the keeper
//! takes. The states themselves are what is saved, so pending requests need no memory. Namespaces
//! are saved in the order of their first change, so that a host that changes one all the time does
//! not keep those of others from being saved; and one whose save fails does not concern others.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_wire::Nqn;

use crate::persist::PendingSave;

/// Saves what hosts set of namespaces, across restarts of the target.
pub trait SettingsKeeper: fmt::Debug + Send + Sync {
    /// There are changes to save: a thread that may block has to call
    /// [`Target::next_save`](crate::Target::next_save) until it returns `None`, and save
    /// what it returns. Reactors call this with a lock held: it must not block or call
    /// the target.
    fn wake(&self);
}

/// A namespace: NQN of its subsystem, and NSID.
pub(crate) type Place = (Nqn, u32);

/// Changes that wait for the keeper, if there is one.
#[derive(Debug, Default)]
pub(crate) struct SaveQueue {
    inner: Mutex<Inner>,
    /// Separate, because callers may hold locks that rank after `inner`.
    has_keeper: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    keeper: Option<Arc<dyn SettingsKeeper>>,
    /// The next save of each namespace with changes.
    next: BTreeMap<Place, PendingSave>,
    /// These namespaces, in the order of their first change.
    order: VecDeque<Place>,
    /// The namespace whose save is in progress.
    saving: Option<Place>,
}

/// The locked queue. A thread that changes a state holds it from before the change until
/// the change is part of a save, so that it is in this save and in no earlier one. Lock
/// order: this lock, then the one of `Shared::served`, then those of subsystems.
pub(crate) struct SaveQueueGuard<'a>(MutexGuard<'a, Inner>);

impl SaveQueue {
    pub(crate) fn lock(&self) -> SaveQueueGuard<'_> {
        // A panic leaves no change half done.
        SaveQueueGuard(self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the keeper.
    pub(crate) fn set_keeper(&self, keeper: Arc<dyn SettingsKeeper>) {
        self.lock().0.keeper = Some(keeper);
        self.has_keeper.store(true, Ordering::Release);
    }

    /// Whether there is a keeper.
    pub(crate) fn has_keeper(&self) -> bool {
        self.has_keeper.load(Ordering::Acquire)
    }
}

impl SaveQueueGuard<'_> {
    /// Whether there is a keeper.
    pub(crate) fn has_keeper(&self) -> bool {
        self.0.keeper.is_some()
    }

    /// Queues the state of a namespace for its next save. `None` without a keeper.
    pub(crate) fn enqueue(&mut self, place: Place) -> Option<PendingSave> {
        let inner = &mut *self.0;
        let keeper = inner.keeper.as_ref()?;
        let pending = inner.next.entry(place).or_insert_with(|| {
            inner.order.push_back(place);
            PendingSave::default()
        });
        keeper.wake();
        Some(pending.clone())
    }

    /// Begins a save: returns the namespace, and what the requests hold. `None` if nothing
    /// changed, or while a save is in progress.
    pub(crate) fn begin_write(&mut self) -> Option<(Place, PendingSave)> {
        let inner = &mut *self.0;
        if inner.saving.is_some() {
            return None;
        }
        let place = inner.order.pop_front()?;
        let pending = inner.next.remove(&place)?;
        inner.saving = Some(place);
        Some((place, pending))
    }

    /// Whether a save of that namespace is in progress.
    pub(crate) fn is_saving(&self, place: &Place) -> bool {
        self.0.saving.as_ref() == Some(place)
    }

    /// Takes the changes of a namespace out of the queue. Their requests get `outcome`.
    pub(crate) fn cancel(&mut self, place: &Place, outcome: &io::Result<()>) {
        let inner = &mut *self.0;
        inner.order.retain(|one| one != place);
        if let Some(pending) = inner.next.remove(place) {
            pending.end(outcome);
        }
    }

    /// The save ended. Wakes the keeper again for changes that arrived meanwhile.
    pub(crate) fn end_write(&mut self) {
        let inner = &mut *self.0;
        inner.saving = None;
        if let Some(keeper) = inner.keeper.as_ref().filter(|_| !inner.order.is_empty()) {
            keeper.wake();
        }
    }
}
