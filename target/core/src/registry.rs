//! The controllers that are connected, over all reactors. The lock is taken
//! when queues connect and go, never for a command.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_wire::Nqn;

use crate::controller::Controller;
use crate::model::{Choice, ControllerIds, Port, PortAddress};
use crate::{Limit, Limits};

/// Ranges of identifiers of which it is known which one was given last. A target
/// has as many as its subsystems have; others are from before it was changed.
const RANGES: usize = 1024;

/// Discovery controllers that a host has by one port without being conspicuous: one that
/// stays, and one that somebody opens besides, to look.
const USUAL: usize = 2;

/// Controllers by their identifier.
#[derive(Debug)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Controllers that serve namespaces, at most, those of one host, and those by
    /// one port.
    nvm: usize,
    of_host: usize,
    of_port: usize,
    /// Discovery controllers, at most.
    discovery: usize,
    /// Those there are. No two have the same identifier, whatever subsystem they are
    /// of.
    controllers: BTreeMap<u16, Arc<Controller>>,
    /// Where in each range the search for a free identifier starts, so that one is
    /// not used again soon.
    next: BTreeMap<ControllerIds, u16>,
}

/// The way that a host came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way<'a> {
    /// Its port, if that is known.
    pub(crate) port: Option<&'a PortAddress>,
    /// All ports there are.
    pub(crate) ports: &'a [Port],
}

impl Registry {
    /// Room for as many controllers as `limits` say, and for discovery controllers
    /// besides.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            inner: Mutex::new(Inner {
                nvm: limits.controllers.into(),
                of_host: limits.host_controllers.into(),
                of_port: limits.port_controllers.into(),
                discovery: limits.discovery_controllers.into(),
                controllers: BTreeMap::new(),
                next: BTreeMap::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing is left half done when a holder panics.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what `make` makes of the identifier given to it, which is one of
    /// `choice`, for `host`, which came that way. The error says of what there are too
    /// many.
    pub(crate) fn add(
        &self,
        host: &Nqn,
        way: &Way<'_>,
        choice: &Choice<'_>,
        make: impl FnOnce(u16) -> Controller,
    ) -> Result<Arc<Controller>, Limit> {
        let mut inner = self.lock();
        let there = inner.controllers.values();
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
        if !inner.leaves_others_theirs(all, way) {
            return Err(Limit::PortControllers);
        }
        inner.add(choice, make).ok_or(Limit::ControllerIds)
    }

    /// Adds a discovery controller for `host`, which came by `port`. When there are as
    /// many as may be, one of them is lost; returns it as well.
    pub(crate) fn add_discovery(
        &self,
        host: &Nqn,
        port: Option<&PortAddress>,
        choice: &Choice<'_>,
        make: impl FnOnce(u16) -> Controller,
    ) -> (Option<Arc<Controller>>, Option<Arc<Controller>>) {
        let mut inner = self.lock();
        let lost = inner.gives_way(host, port);
        let lost = lost.and_then(|cntlid| inner.controllers.remove(&cntlid));
        let lost = lost.filter(|lost| lost.hot.lose());
        (inner.add(choice, make), lost)
    }

    /// The controller of that identifier.
    pub(crate) fn get(&self, cntlid: u16) -> Option<Arc<Controller>> {
        self.lock().controllers.get(&cntlid).cloned()
    }

    /// Forgets a controller and frees its identifier.
    pub(crate) fn remove(&self, controller: &Arc<Controller>) {
        let mut inner = self.lock();
        let there = inner.controllers.get(&controller.cntlid);
        if there.is_some_and(|there| Arc::ptr_eq(there, controller)) {
            inner.controllers.remove(&controller.cntlid);
        }
    }

    /// Controllers there are now.
    pub(crate) fn all(&self) -> Vec<Arc<Controller>> {
        self.lock().controllers.values().cloned().collect()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().controllers.len()
    }
}

impl Inner {
    /// Whether one more by that port, of `all` that there are, leaves those of other
    /// ports what is kept for them.
    fn leaves_others_theirs(&self, all: usize, way: &Way<'_>) -> bool {
        let Some(its) = way.port else {
            return true;
        };
        let others = way.ports.iter().filter(|port| !port.is_at(its));
        let others: Vec<_> = others.collect();
        if others.is_empty() {
            return true;
        }
        let kept = self.nvm.saturating_sub(self.of_port);
        // Where less is kept than there are ports, who comes first has it.
        let each = (kept / others.len()).max(1).min(self.of_port);
        let has = self.by_port(|at| at == its);
        let for_others = others.iter().map(|port| {
            let has = self.by_port(|at| port.is_at(at));
            each.saturating_sub(has)
        });
        let for_others = for_others.sum::<usize>().min(kept);
        // Its own share nobody takes from it, however many ports there are.
        has < self.of_port && (has < each || all + for_others < self.nvm)
    }

    /// Which discovery controller is lost when one more comes, of `host` by `port`: of
    /// whoever has most by one port, if that is more than hosts usually have, so that
    /// nobody drives out others by having many; else of those who came by the port with
    /// most, so that each port has its part and made-up names drive out nobody who came
    /// by another; of them, of whoever has most; the one that was silent longest. Two
    /// ports of a host count apart: a host with controllers by each does nothing
    /// unusual.
    fn gives_way(&self, host: &Nqn, port: Option<&PortAddress>) -> Option<u16> {
        let there = self.controllers.values().filter(|one| one.is_discovery());
        let all: Vec<_> = there.collect();
        if all.len() < self.discovery {
            return None;
        }
        let (mut by_port, mut by_host) = (BTreeMap::new(), BTreeMap::new());
        let whose = |one: &Arc<Controller>| (one.viewer.port.clone(), one.hostnqn);
        let newest = (port.cloned(), *host);
        for (port, host) in all.iter().map(|one| whose(one)).chain([newest]) {
            *by_port.entry(port.clone()).or_insert(0usize) += 1;
            *by_host.entry((port, host)).or_insert(0usize) += 1;
        }
        let longest = all.into_iter().min_by_key(|one| {
            let its = whose(one);
            let of_port = by_port.get(&its.0).copied();
            let of_host = by_host.get(&its).copied();
            let beyond = of_host.map(|has| has.saturating_sub(USUAL));
            let most = (Reverse(beyond), Reverse(of_port), Reverse(of_host));
            (most, one.hot.heard())
        });
        longest.map(|one| one.cntlid)
    }

    /// Controllers that serve namespaces by such a port.
    fn by_port(&self, is_it: impl Fn(&PortAddress) -> bool) -> usize {
        let nvm = self.controllers.values().filter(|one| !one.is_discovery());
        let its = |one: &&Arc<Controller>| one.viewer.port.as_ref().is_some_and(&is_it);
        nvm.filter(its).count()
    }

    fn add(
        &mut self,
        choice: &Choice<'_>,
        make: impl FnOnce(u16) -> Controller,
    ) -> Option<Arc<Controller>> {
        let start = self.next.get(&choice.ids).copied().unwrap_or_default();
        let taken = |cntlid| self.controllers.contains_key(&cntlid);
        let cntlid = choice.first_free(start, taken)?;
        let controller = Arc::new(make(cntlid));
        self.controllers.insert(cntlid, Arc::clone(&controller));
        if self.next.len() >= RANGES && !self.next.contains_key(&choice.ids) {
            self.next.clear();
        }
        self.next.insert(choice.ids, cntlid.saturating_add(1));
        Some(controller)
    }
}
