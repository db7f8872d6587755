//! A subsystem from one model to the next: what stays as long as its name is
//! served, and what queues keep of its present state.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_wire::Nqn;

use crate::health::Health;
use crate::sight::{Present, Sight, Viewer};

/// A subsystem over all models that have its name. Its controllers hold this,
/// so that they outlive a change of it.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) nqn: Nqn,
    pub(crate) health: Arc<Health>,
    /// Counts the changes of `current`.
    generation: AtomicU64,
    current: Mutex<Present>,
}

/// What one queue sees at present. Looking whether it is still that costs a
/// load of a word that is hardly ever written.
#[derive(Debug)]
pub(crate) struct View {
    live: Arc<Live>,
    seen: u64,
    sight: Sight,
    viewer: Arc<Viewer>,
}

impl Live {
    pub(crate) fn new(present: Present) -> Self {
        Self {
            nqn: present.subsystem.nqn,
            health: Arc::default(),
            generation: AtomicU64::new(0),
            current: Mutex::new(present),
        }
    }

    /// What it is now.
    pub(crate) fn current(&self) -> Present {
        self.lock().clone()
    }

    /// It is `present` from now on. Returns what it was.
    pub(crate) fn replace(&self, present: Present) -> Present {
        let mut current = self.lock();
        let before = std::mem::replace(&mut *current, present);
        self.generation.fetch_add(1, Ordering::Release);
        before
    }

    /// For a queue.
    pub(crate) fn view(self: &Arc<Self>, viewer: Arc<Viewer>) -> View {
        let (seen, sight) = self.look(&viewer);
        View {
            live: Arc::clone(self),
            seen,
            sight,
            viewer,
        }
    }

    /// What is seen, and its generation.
    fn look(&self, viewer: &Viewer) -> (u64, Sight) {
        let current = self.lock();
        let generation = self.generation.load(Ordering::Acquire);
        (generation, current.sight(viewer))
    }

    fn lock(&self) -> MutexGuard<'_, Present> {
        // Nothing is left half done when a holder panics.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl View {
    /// Becomes what is seen now. Call it for each command.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        if self.live.generation.load(Ordering::Acquire) != self.seen {
            self.renew();
        }
    }

    #[cold]
    fn renew(&mut self) {
        (self.seen, self.sight) = self.live.look(&self.viewer);
    }

    /// What was seen at the last [`refresh`](Self::refresh).
    #[inline]
    pub(crate) fn sight(&self) -> &Sight {
        &self.sight
    }
}
