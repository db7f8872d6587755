//! The controllers that are connected, over all reactors. The lock is taken
//! when queues connect and go, never for a command.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_wire::Nqn;

use crate::controller::Controller;
use crate::{Limit, Limits};

const DISCOVERY: usize = Limits::DISCOVERY_CONTROLLERS as usize;

/// Controllers by their identifier.
#[derive(Debug)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Controllers that serve namespaces, at most, and those of one host.
    nvm: usize,
    of_host: usize,
    /// Controller `cntlid` is at `cntlid - 1`.
    places: Vec<Option<Arc<Controller>>>,
    /// Where the search for a free place starts, so that an identifier is
    /// not used again soon.
    next: usize,
}

impl Registry {
    /// Room for `count` controllers, of which one host has `of_host`, and for
    /// discovery controllers besides.
    pub(crate) fn new(count: u16, of_host: u16) -> Self {
        Self {
            inner: Mutex::new(Inner {
                nvm: count.into(),
                of_host: of_host.into(),
                places: vec![None; usize::from(count) + DISCOVERY],
                next: 0,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing is left half done when a holder panics.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what `make` makes of the identifier given to it, for `host`. The error
    /// says of what there are too many.
    pub(crate) fn add(
        &self,
        host: &Nqn,
        make: impl FnOnce(u16) -> Controller,
    ) -> Result<Arc<Controller>, Limit> {
        let mut inner = self.lock();
        let there = inner.places.iter().flatten();
        let (mut all, mut its) = (0, 0);
        for one in there.filter(|one| !one.is_discovery()) {
            all += 1;
            its += usize::from(one.hostnqn == *host);
        }
        if all >= inner.nvm {
            return Err(Limit::Controllers);
        }
        if its >= inner.of_host {
            return Err(Limit::HostControllers);
        }
        inner.add(make).ok_or(Limit::Controllers)
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
