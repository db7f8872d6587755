//! The controllers that are connected, over all reactors. The lock is taken
//! when queues connect and go, never for a command.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::controller::Controller;

/// Controllers by their identifier.
#[derive(Debug)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Controller `cntlid` is at `cntlid - 1`.
    places: Vec<Option<Arc<Controller>>>,
    /// Where the search for a free place starts, so that an identifier is
    /// not used again soon.
    next: usize,
}

impl Registry {
    /// Room for `count` controllers.
    pub(crate) fn new(count: u16) -> Self {
        Self {
            inner: Mutex::new(Inner {
                places: vec![None; count.into()],
                next: 0,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing is left half done when a holder panics.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what `make` makes of the identifier given to it. `None` when there
    /// is no room.
    pub(crate) fn add(&self, make: impl FnOnce(u16) -> Controller) -> Option<Arc<Controller>> {
        let mut inner = self.lock();
        let count = inner.places.len();
        let at = (inner.next..count)
            .chain(0..inner.next)
            .find(|at| inner.places.get(*at).is_some_and(Option::is_none))?;
        let cntlid = u16::try_from(at + 1).ok()?;
        let controller = Arc::new(make(cntlid));
        *inner.places.get_mut(at)? = Some(Arc::clone(&controller));
        inner.next = (at + 1) % count;
        Some(controller)
    }

    /// The controller of that identifier.
    pub(crate) fn get(&self, cntlid: u16) -> Option<Arc<Controller>> {
        let at = usize::from(cntlid).checked_sub(1)?;
        self.lock().places.get(at)?.clone()
    }

    /// Forgets a controller and frees its identifier.
    pub(crate) fn remove(&self, controller: &Arc<Controller>) {
        let Some(at) = usize::from(controller.cntlid).checked_sub(1) else {
            return;
        };
        if let Some(place) = self.lock().places.get_mut(at)
            && place
                .as_ref()
                .is_some_and(|there| Arc::ptr_eq(there, controller))
        {
            *place = None;
        }
    }

    /// Controllers there are now.
    pub(crate) fn all(&self) -> Vec<Arc<Controller>> {
        self.lock().places.iter().flatten().cloned().collect()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().places.iter().flatten().count()
    }
}
