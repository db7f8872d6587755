//! A subsystem from one model to the next: what stays as long as its name is
//! served, and what queues keep of its present state.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_wire::Nqn;

use crate::Subsystem;
use crate::health::Health;

/// A subsystem over all models that have its name. Its controllers hold this,
/// so that they outlive a change of it.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) nqn: Nqn,
    pub(crate) health: Arc<Health>,
    /// Counts the changes of `current`.
    generation: AtomicU64,
    current: Mutex<Arc<Subsystem>>,
}

/// One queue's copy of the present state. Looking whether it is still that
/// costs a load of a word that is hardly ever written.
#[derive(Debug)]
pub(crate) struct View {
    live: Arc<Live>,
    seen: u64,
    subsystem: Arc<Subsystem>,
}

impl Live {
    pub(crate) fn new(subsystem: Arc<Subsystem>) -> Self {
        Self {
            nqn: subsystem.nqn,
            health: Arc::default(),
            generation: AtomicU64::new(0),
            current: Mutex::new(subsystem),
        }
    }

    /// What it is now.
    pub(crate) fn current(&self) -> Arc<Subsystem> {
        Arc::clone(&self.lock())
    }

    /// It is `subsystem` from now on.
    pub(crate) fn replace(&self, subsystem: Arc<Subsystem>) {
        let mut current = self.lock();
        *current = subsystem;
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// For a queue.
    pub(crate) fn view(self: &Arc<Self>) -> View {
        let current = self.lock();
        View {
            seen: self.generation.load(Ordering::Acquire),
            subsystem: Arc::clone(&current),
            live: Arc::clone(self),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Subsystem>> {
        // Nothing is left half done when a holder panics.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl View {
    /// Becomes what the subsystem is now. Call it for each command.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        if self.live.generation.load(Ordering::Acquire) != self.seen {
            self.renew();
        }
    }

    #[cold]
    fn renew(&mut self) {
        *self = self.live.view();
    }

    /// The subsystem as it was at the last [`refresh`](Self::refresh).
    #[inline]
    pub(crate) fn subsystem(&self) -> &Subsystem {
        &self.subsystem
    }
}
