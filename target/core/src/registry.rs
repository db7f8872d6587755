//! The controllers that are connected, over all reactors. The lock is taken
//! when queues connect and go, never for a command.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Limits;
use crate::controller::Controller;

const DISCOVERY: usize = Limits::DISCOVERY_CONTROLLERS as usize;

/// Controllers by their identifier.
#[derive(Debug)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Controllers that serve namespaces, at most.
    nvm: usize,
    /// Controller `cntlid` is at `cntlid - 1`.
    places: Vec<Option<Arc<Controller>>>,
    /// Where the search for a free place starts, so that an identifier is
    /// not used again soon.
    next: usize,
}

impl Registry {
    /// Room for `count` controllers, and for discovery controllers besides.
    pub(crate) fn new(count: u16) -> Self {
        Self {
            inner: Mutex::new(Inner {
                nvm: count.into(),
                places: vec![None; usize::from(count) + DISCOVERY],
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
        let there = inner.places.iter().flatten();
        if there.filter(|one| !one.is_discovery()).count() >= inner.nvm {
            return None;
        }
        inner.add(make)
    }

    /// Adds a discovery controller. When there are as many as may be, the one
    /// that was silent longest is lost. Says whether one was.
    pub(crate) fn add_discovery(
        &self,
        make: impl FnOnce(u16) -> Controller,
    ) -> (Option<Arc<Controller>>, bool) {
        let mut inner = self.lock();
        let discovery = inner.places.iter_mut().filter(|place| {
            let there = place.as_ref();
            there.is_some_and(|one| one.is_discovery())
        });
        let all: Vec<_> = discovery.collect();
        let mut gave_way = false;
        if all.len() >= DISCOVERY
            && let Some(longest) = all
                .into_iter()
                .min_by_key(|place| place.as_ref().map(|one| one.hot.heard()))
            && let Some(lost) = longest.take()
        {
            gave_way = lost.hot.lose();
        }
        (inner.add(make), gave_way)
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

impl Inner {
    fn add(&mut self, make: impl FnOnce(u16) -> Controller) -> Option<Arc<Controller>> {
        let count = self.places.len();
        let at = (self.next..count)
            .chain(0..self.next)
            .find(|at| self.places.get(*at).is_some_and(Option::is_none))?;
        let cntlid = u16::try_from(at + 1).ok()?;
        let controller = Arc::new(make(cntlid));
        *self.places.get_mut(at)? = Some(Arc::clone(&controller));
        self.next = (at + 1) % count;
        Some(controller)
    }
}
