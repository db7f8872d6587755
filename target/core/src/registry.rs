//! The controllers that are connected, over all reactors. The lock is taken
//! when queues connect and go, never for a command.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_target_reservations::HostId;
use nvmeof_wire::Nqn;
use nvmeof_wire::admin::CrossControllerReset;

use crate::controller::Controller;
use crate::controller::in_flight::InFlightCount;
use crate::controller::instance::Instance;
use crate::model::{Choice, ControllerIds, Port, PortAddress};
use crate::{Limit, Limits};

/// Ranges of identifiers whose last assigned identifier is remembered. Each subsystem
/// uses one; others remain from earlier models.
const RANGES: usize = 1024;

/// Discovery controllers that a host usually has on one port: a persistent one, and one
/// of a discovery command.
const USUAL: usize = 2;

/// Departed controllers that are remembered although they have nothing in flight: a reset of
/// one completes immediately.
const DEPARTED: usize = 256;

/// Controllers by their identifier.
#[derive(Debug)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
    proposals: Proposals,
}

/// How many queues each identifier is proposed to. At most as many as there are queues without a
/// controller.
type Proposals = Arc<Mutex<BTreeMap<u16, usize>>>;

/// An identifier that an admin queue gets when its host has authenticated itself, unless another
/// one has it by then: it is not reserved, so that a host that never authenticates itself keeps it
/// from none. It is withdrawn when this is dropped.
#[derive(Debug)]
pub(crate) struct Proposal {
    cntlid: u16,
    all: Proposals,
}

#[derive(Debug)]
struct Inner {
    /// Whether a host identifier belongs to one host.
    unique_host_ids: bool,
    /// Limits of I/O controllers: in total, of one host, and of one port.
    nvm: usize,
    of_host: usize,
    of_port: usize,
    /// Limit of discovery controllers.
    discovery: usize,
    /// All controllers. Identifiers are unique over all subsystems.
    controllers: BTreeMap<u16, Arc<Controller>>,
    /// Start of the search for a free identifier in each range, so that an identifier is
    /// not reused soon.
    next: BTreeMap<ControllerIds, u16>,
    /// Departed I/O controllers, oldest first: all with commands in flight, and some without.
    departed: VecDeque<RemovedController>,
}

/// A controller that is gone.
#[derive(Debug)]
struct RemovedController {
    cntlid: u16,
    hostnqn: Nqn,
    subnqn: Nqn,
    instance: Instance,
    in_flight: Arc<InFlightCount>,
}

/// What is left of an incarnation of a controller.
#[derive(Debug)]
pub(crate) enum Incarnation {
    /// All.
    Connected(Arc<Controller>),
    /// What is in flight.
    Departed(Arc<InFlightCount>),
}

/// The port that a host used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route<'a> {
    /// The port, if it is known.
    pub(crate) port: Option<&'a PortAddress>,
    /// All ports of the model.
    pub(crate) ports: &'a [Port],
}

impl Registry {
    /// An empty registry with the limits of controllers and discovery controllers.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            inner: Mutex::new(Inner {
                unique_host_ids: limits.unique_host_ids,
                nvm: limits.controllers.into(),
                of_host: limits.host_controllers.into(),
                of_port: limits.port_controllers.into(),
                discovery: limits.discovery_controllers.into(),
                controllers: BTreeMap::new(),
                next: BTreeMap::new(),
                departed: VecDeque::new(),
            }),
            proposals: Proposals::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic leaves no change half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Proposes an identifier of `choice`; if possible, one that no other queue is proposed.
    /// `None` if all are in use.
    pub(crate) fn propose(&self, choice: &Choice<'_>) -> Option<Proposal> {
        let inner = self.lock();
        let mut proposals = lock(&self.proposals);
        let cntlid = inner.free(choice, &proposals)?;
        *proposals.entry(cntlid).or_default() += 1;
        drop(proposals);
        Some(Proposal {
            cntlid,
            all: Arc::clone(&self.proposals),
        })
    }

    /// Adds the controller that `make` returns, for `host` on the port of `route`: with the
    /// identifier that was proposed, or any of `choice`. The error is the limit that is reached.
    pub(crate) fn add(
        &self,
        (host, id): (&Nqn, &HostId),
        route: &Route<'_>,
        (choice, proposed): (&Choice<'_>, Option<&Proposal>),
        make: impl FnOnce(u16) -> Controller,
    ) -> Result<Arc<Controller>, Limit> {
        let mut inner = self.lock();
        let there = inner.controllers.values();
        let (mut all, mut its) = (0, 0);
        for one in there.filter(|one| !one.is_discovery()) {
            if inner.unique_host_ids && one.hostid == *id && one.hostnqn != *host {
                return Err(Limit::UniqueHostIds);
            }
            all += 1;
            its += usize::from(one.hostnqn == *host);
        }
        if all >= inner.nvm {
            return Err(Limit::Controllers);
        }
        if its >= inner.of_host {
            return Err(Limit::HostControllers);
        }
        if !inner.leaves_reserved(all, route) {
            return Err(Limit::PortControllers);
        }
        let cntlid = self.identifier(&inner, choice, proposed);
        let added = cntlid.map(|cntlid| inner.add(choice.ids, cntlid, make));
        added.ok_or(Limit::ControllerIds)
    }

    /// Adds a discovery controller for `host` on `port`. At the limit, it replaces another
    /// one, which is returned as well.
    pub(crate) fn add_discovery(
        &self,
        host: &Nqn,
        port: Option<&PortAddress>,
        (choice, proposed): (&Choice<'_>, Option<&Proposal>),
        make: impl FnOnce(u16) -> Controller,
    ) -> (Option<Arc<Controller>>, Option<Arc<Controller>>) {
        let mut inner = self.lock();
        let replaced = inner.to_replace(host, port);
        // Nothing is replaced for a controller that cannot be added.
        if let Some(proposed) = proposed
            && replaced != Some(proposed.cntlid)
            && self.identifier(&inner, choice, Some(proposed)).is_none()
        {
            return (None, None);
        }
        let lost = replaced.and_then(|cntlid| inner.controllers.remove(&cntlid));
        let lost = lost.filter(|lost| lost.hot.lose());
        let cntlid = self.identifier(&inner, choice, proposed);
        let added = cntlid.map(|cntlid| inner.add(choice.ids, cntlid, make));
        (added, lost)
    }

    /// The identifier of a new controller: what was proposed, if it is still free, or a free one.
    fn identifier(
        &self,
        inner: &Inner,
        choice: &Choice<'_>,
        proposed: Option<&Proposal>,
    ) -> Option<u16> {
        match proposed {
            Some(Proposal { cntlid, .. }) => {
                let is_free = !inner.controllers.contains_key(cntlid);
                (is_free && choice.ids.contains(*cntlid)).then_some(*cntlid)
            }
            None => inner.free(choice, &lock(&self.proposals)),
        }
    }

    /// The controller with this identifier.
    pub(crate) fn get(&self, cntlid: u16) -> Option<Arc<Controller>> {
        self.lock().controllers.get(&cntlid).cloned()
    }

    /// Removes a controller and frees its identifier.
    pub(crate) fn remove(&self, controller: &Arc<Controller>) {
        let mut inner = self.lock();
        let there = inner.controllers.get(&controller.cntlid);
        if there.is_some_and(|there| Arc::ptr_eq(there, controller)) {
            inner.controllers.remove(&controller.cntlid);
            // A discovery controller cannot be reset, and any host may have them.
            if !controller.is_discovery() {
                inner.depart(controller);
            }
        }
    }

    /// The incarnation of a controller that `named` names, of the same host and subsystem as
    /// `sibling`. `None` when there is none such, or none that is known any more.
    pub(crate) fn incarnation(
        &self,
        sibling: &Controller,
        named: &CrossControllerReset,
    ) -> Option<Incarnation> {
        let instance = Instance {
            ciu: named.ciu,
            cirn: named.cirn,
        };
        let inner = self.lock();
        let connected = inner.controllers.get(&named.icid).filter(|one| {
            one.hostnqn == sibling.hostnqn
                && one.subnqn() == sibling.subnqn()
                && one.lock().instances.current() == Some(instance)
        });
        if let Some(connected) = connected {
            return Some(Incarnation::Connected(Arc::clone(connected)));
        }
        let departed = inner.departed.iter().find(|one| {
            (one.cntlid, one.instance) == (named.icid, instance)
                && one.hostnqn == sibling.hostnqn
                && one.subnqn == sibling.subnqn()
        })?;
        Some(Incarnation::Departed(Arc::clone(&departed.in_flight)))
    }

    /// All controllers.
    pub(crate) fn all(&self) -> Vec<Arc<Controller>> {
        self.lock().controllers.values().cloned().collect()
    }

    /// Number of controllers.
    pub(crate) fn len(&self) -> usize {
        self.lock().controllers.len()
    }

    /// Number of proposals.
    #[cfg(test)]
    pub(crate) fn proposals(&self) -> usize {
        lock(&self.proposals).values().sum()
    }
}

impl Inner {
    /// Remembers a controller that departs. Those with commands in flight are at most as many
    /// as the queues whose operations backing stores still execute.
    fn depart(&mut self, controller: &Controller) {
        let Some(instance) = controller.lock().instances.current() else {
            return;
        };
        while self.departed.len() >= DEPARTED
            && let Some(quiet) = self
                .departed
                .iter()
                .position(|one| one.in_flight.is_quiet())
        {
            self.departed.remove(quiet);
        }
        self.departed.push_back(RemovedController {
            cntlid: controller.cntlid,
            hostnqn: controller.hostnqn,
            subnqn: controller.subnqn(),
            instance,
            in_flight: Arc::clone(&controller.in_flight),
        });
    }

    /// Whether one more controller on this port, with `all` in use, leaves the
    /// controllers that are reserved for other ports.
    fn leaves_reserved(&self, all: usize, route: &Route<'_>) -> bool {
        let Some(its) = route.port else {
            return true;
        };
        let others = route.ports.iter().filter(|port| !port.is_at(its));
        let others: Vec<_> = others.collect();
        if others.is_empty() {
            return true;
        }
        let kept = self.nvm.saturating_sub(self.of_port);
        // If fewer are reserved than there are ports, the first to connect get them.
        let each = (kept / others.len()).max(1).min(self.of_port);
        let has = self.by_port(|at| at == its);
        let for_others = others.iter().map(|port| {
            let has = self.by_port(|at| port.is_at(at));
            each.saturating_sub(has)
        });
        let for_others = for_others.sum::<usize>().min(kept);
        // The reservation of the port itself is always available to it.
        has < self.of_port && (has < each || all + for_others < self.nvm)
    }

    /// The discovery controller that a new one of `host` on `port` replaces:
    ///
    /// 1. one of the host with the most on one port, if that is more than usual, so that
    ///    a host cannot replace others by opening many;
    /// 2. else one of the port with the most, so that made-up names on one port replace
    ///    none of another, and of the host with the most there;
    /// 3. among these, the one that was idle longest.
    ///
    /// A host counts separately on each port: one controller on each is usual.
    fn to_replace(&self, host: &Nqn, port: Option<&PortAddress>) -> Option<u16> {
        let there = self.controllers.values().filter(|one| one.is_discovery());
        let all: Vec<_> = there.collect();
        if all.len() < self.discovery {
            return None;
        }
        let (mut by_port, mut by_host) = (BTreeMap::new(), BTreeMap::new());
        let port_and_host = |one: &Arc<Controller>| (one.viewer.port.clone(), one.hostnqn);
        let newest = (port.cloned(), *host);
        for (port, host) in all.iter().map(|one| port_and_host(one)).chain([newest]) {
            *by_port.entry(port.clone()).or_insert(0usize) += 1;
            *by_host.entry((port, host)).or_insert(0usize) += 1;
        }
        let longest = all.into_iter().min_by_key(|one| {
            let its = port_and_host(one);
            let of_port = by_port.get(&its.0).copied();
            let of_host = by_host.get(&its).copied();
            let beyond = of_host.map(|has| has.saturating_sub(USUAL));
            let most = (Reverse(beyond), Reverse(of_port), Reverse(of_host));
            (most, one.hot.last_active())
        });
        longest.map(|one| one.cntlid)
    }

    /// Number of I/O controllers on ports for which `is_it` returns true.
    fn by_port(&self, is_it: impl Fn(&PortAddress) -> bool) -> usize {
        let nvm = self.controllers.values().filter(|one| !one.is_discovery());
        let its = |one: &&Arc<Controller>| one.viewer.port.as_ref().is_some_and(&is_it);
        nvm.filter(its).count()
    }

    /// A free identifier; if possible, one that is proposed to no queue.
    fn free(&self, choice: &Choice<'_>, proposals: &BTreeMap<u16, usize>) -> Option<u16> {
        let start = self.next.get(&choice.ids).copied().unwrap_or_default();
        let taken = |cntlid| self.controllers.contains_key(&cntlid);
        let wanted = |cntlid| taken(cntlid) || proposals.contains_key(&cntlid);
        choice
            .first_free(start, wanted)
            .or_else(|| choice.first_free(start, taken))
    }

    fn add(
        &mut self,
        ids: ControllerIds,
        cntlid: u16,
        make: impl FnOnce(u16) -> Controller,
    ) -> Arc<Controller> {
        let controller = Arc::new(make(cntlid));
        self.controllers.insert(cntlid, Arc::clone(&controller));
        if self.next.len() >= RANGES && !self.next.contains_key(&ids) {
            self.next.clear();
        }
        self.next.insert(ids, cntlid.saturating_add(1));
        controller
    }
}

impl Proposal {
    pub(crate) fn cntlid(&self) -> u16 {
        self.cntlid
    }
}

impl Drop for Proposal {
    fn drop(&mut self) {
        let mut proposals = lock(&self.all);
        if let Some(count) = proposals.get_mut(&self.cntlid) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                proposals.remove(&self.cntlid);
            }
        }
    }
}

/// Locked after the controllers, if both are.
fn lock(proposals: &Proposals) -> MutexGuard<'_, BTreeMap<u16, usize>> {
    // A panic leaves no change half done.
    proposals.lock().unwrap_or_else(PoisonError::into_inner)
}
