//! The view that one controller has of a subsystem: the namespaces that its host can
//! access, with their ANA states on its port.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use nvmeof_target_reservations::{Access, Accesses, HostId};
use nvmeof_wire::Nqn;
use nvmeof_wire::log::ana::AnaState;

use crate::model::{ABSENT_GROUP, PortAddress};
use crate::reservations::InForce;
use crate::{Namespace, NamespaceState, Port, Subsystem};

/// A snapshot of a subsystem and of the ports.
#[derive(Clone, Debug)]
pub(crate) struct Present {
    pub(crate) subsystem: Arc<Subsystem>,
    pub(crate) ports: Arc<[Port]>,
    pub(crate) reservations: Arc<InForce>,
}

/// The viewer of a subsystem: one controller, with all its queues.
#[derive(Debug)]
pub(crate) struct Viewer {
    pub(crate) hostnqn: Nqn,
    pub(crate) hostid: HostId,
    /// The port that the host used; `None` if it is not known: then all groups are
    /// optimized.
    pub(crate) port: Option<PortAddress>,
    /// The last view, and the generation of the subsystem.
    last: Mutex<Option<(u64, Arc<NamespaceView>)>>,
}

/// The namespaces that one controller can access, and their ANA states.
#[derive(Clone, Debug)]
pub(crate) struct NamespaceView {
    subsystem: Arc<Subsystem>,
    /// Ordered by namespace identifier.
    seen: Vec<VisibleNamespace>,
    hostid: HostId,
    /// Whether a reservation denies the host anything, also of a namespace that was removed.
    is_restricted: bool,
    reservations: Arc<InForce>,
    /// Groups of the namespaces.
    groups: BTreeMap<u32, AnaState>,
    highest: u32,
}

/// Lower bound of the highest valid namespace identifier (NN). Some hosts read NN once, and
/// ignore namespaces beyond it that are added later. Linux' target reports the same.
const NAMESPACES: u32 = 1024;

/// A namespace that the host can access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VisibleNamespace {
    /// Without the list of hosts: hosts are not notified when it changes.
    pub(crate) namespace: Namespace,
    /// The state of its group on the port.
    pub(crate) state: AnaState,
    /// What reservations let the host do.
    pub(crate) accesses: Accesses,
}

/// Differences between two views that concern hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ViewChanges {
    /// Namespaces that were changed, added or removed.
    pub(crate) namespaces: Vec<u32>,
    /// Groups with another state or other namespaces, and added or removed ones.
    pub(crate) groups: Vec<u32>,
    /// Whether an Asymmetric Namespace Access Change event is due.
    pub(crate) access: bool,
}

impl Viewer {
    pub(crate) fn new(hostnqn: Nqn, hostid: HostId, port: Option<PortAddress>) -> Self {
        Self {
            hostnqn,
            hostid,
            port,
            last: Mutex::default(),
        }
    }

    /// The view of `present`, which has this generation. All queues share it, because each
    /// namespace takes memory in it.
    pub(crate) fn current_view(&self, generation: u64, present: &Present) -> Arc<NamespaceView> {
        // A panic leaves no change half done.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((seen, namespace_view)) if *seen == generation => Arc::clone(namespace_view),
            _ => {
                let namespace_view = Arc::new(present.namespace_view(self));
                *last = Some((generation, Arc::clone(&namespace_view)));
                namespace_view
            }
        }
    }
}

impl Present {
    /// The view of `viewer`.
    pub(crate) fn namespace_view(&self, viewer: &Viewer) -> NamespaceView {
        let port = viewer.port.as_ref().map(|at| {
            let mut ports = self.ports.iter();
            ports.find(|port| port.is_at(at))
        });
        let state = |group| match port {
            _ if group == ABSENT_GROUP => AnaState::INACCESSIBLE,
            None => AnaState::OPTIMIZED,
            Some(Some(port)) => port.ana_state(group),
            // The port was removed, and its connections are about to be closed.
            Some(None) => AnaState::INACCESSIBLE,
        };
        let namespaces = self.subsystem.namespaces().iter();
        let seen: Vec<_> = namespaces
            .filter(|namespace| namespace.is_for(&viewer.hostnqn))
            .map(|namespace| VisibleNamespace {
                namespace: Namespace {
                    hosts: None,
                    storage: Arc::default(),
                    ana_group: namespace.group(),
                    ..namespace.clone()
                },
                state: state(namespace.group()),
                accesses: self.reservations.accesses(namespace, &viewer.hostid),
            })
            .collect();
        // Without empty groups: Linux resets a controller that has a group in state Change
        // for too long, empty or not.
        let groups = seen.iter();
        let groups = groups.map(|one| (one.namespace.ana_group, one.state));
        let groups = groups.collect();
        let namespace_view = NamespaceView {
            subsystem: Arc::clone(&self.subsystem),
            is_restricted: self.reservations.restrict(&viewer.hostid),
            hostid: viewer.hostid,
            seen,
            reservations: Arc::clone(&self.reservations),
            groups,
            highest: NAMESPACES,
        };
        let disabled = namespace_view.disabled(&viewer.hostnqn);
        let all = disabled.chain(namespace_view.seen.iter().map(|one| &one.namespace));
        let highest = all.map(|one| one.nsid).fold(NAMESPACES, u32::max);
        NamespaceView {
            highest,
            ..namespace_view
        }
    }

    /// Whether all views are the same as in `before`.
    pub(crate) fn is_same_view(&self, before: &Self) -> bool {
        let groups = |present: &Self| -> Vec<_> {
            let ports = present.ports.iter();
            ports
                .map(|port| (port.address(), port.ana_groups.clone()))
                .collect()
        };
        self.subsystem.namespaces() == before.subsystem.namespaces()
            && groups(self) == groups(before)
    }
}

impl NamespaceView {
    /// The subsystem as a whole, including what the host cannot access.
    pub(crate) fn subsystem(&self) -> &Subsystem {
        &self.subsystem
    }

    /// The reservations of its namespaces.
    pub(crate) fn reservations(&self) -> &InForce {
        &self.reservations
    }

    /// The namespaces, ordered by NSID.
    pub(crate) fn list(&self) -> &[VisibleNamespace] {
        &self.seen
    }

    /// Disabled namespaces that this host could access.
    pub(crate) fn disabled(&self, hostnqn: &Nqn) -> impl Iterator<Item = &Namespace> {
        let all = self.subsystem.disabled().iter();
        all.filter(|one| one.is_for(hostnqn))
    }

    /// Whether a reservation denies the host anything, also of a namespace that was removed.
    #[inline]
    pub(crate) fn is_restricted(&self) -> bool {
        self.is_restricted
    }

    /// Whether reservations permit the host this access. A namespace that was removed since its
    /// command began keeps its reservations.
    pub(crate) fn permits(&self, nsid: u32, access: Access) -> bool {
        match self.get(nsid) {
            Some(seen) => seen.accesses.has(access),
            None => self.reservations.permit(nsid, &self.hostid, access),
        }
    }

    /// The highest valid namespace identifier (NN). It reveals nothing about namespaces
    /// of other hosts.
    pub(crate) fn highest(&self) -> u32 {
        self.highest
    }

    /// The namespace with this NSID.
    #[inline]
    pub(crate) fn get(&self, nsid: u32) -> Option<&VisibleNamespace> {
        let at = self
            .seen
            .binary_search_by_key(&nsid, |one| one.namespace.nsid)
            .ok()?;
        self.seen.get(at)
    }

    /// Whether it has this namespace, and not another one with the same NSID.
    pub(crate) fn has(&self, namespace: &Namespace) -> bool {
        let its = self.get(namespace.nsid);
        its.is_some_and(|one| one.namespace.uuid == namespace.uuid)
    }

    /// The groups, lowest number first.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (u32, AnaState)> {
        self.groups.iter().map(|(group, state)| (*group, *state))
    }

    /// NSIDs of the namespaces of a group, ascending.
    pub(crate) fn members(&self, group: u32) -> impl Iterator<Item = u32> {
        let its = self
            .seen
            .iter()
            .filter(move |one| one.namespace.ana_group == group);
        its.map(|one| one.namespace.nsid)
    }

    /// The changes since `before`.
    pub(crate) fn since(&self, before: &Self) -> ViewChanges {
        let namespaces = numbers(before.nsids(), self.nsids());
        let namespaces = namespaces.into_iter().filter(|nsid| {
            let of = |view: &Self| view.get(*nsid).map(|one| one.namespace.clone());
            match (of(before), of(self)) {
                (Some(before), Some(now)) => is_changed(before, &now),
                (before, now) => before != now,
            }
        });
        let groups = numbers(before.groups.keys(), self.groups.keys());
        let groups = groups.into_iter().filter(|group| {
            before.groups.get(group) != self.groups.get(group)
                || !before.members(*group).eq(self.members(*group))
        });
        ViewChanges {
            namespaces: namespaces.collect(),
            groups: groups.collect(),
            access: self.access_changed(before),
        }
    }

    /// Base 2.2, 8.1.1.9: a notice is due when the identifier of a group changes
    /// and when a group enters a state, "unless the state entry is a result of a
    /// namespace attachment".
    fn access_changed(&self, before: &Self) -> bool {
        let mut groups = self.groups.iter();
        let mut seen = self.seen.iter();
        let state = |(group, state): (&u32, &AnaState)| {
            let was = before.groups.get(group);
            was.is_some_and(|was| was != state)
        };
        let group = |one: &VisibleNamespace| {
            let was = before.get(one.namespace.nsid);
            was.is_some_and(|was| was.namespace.ana_group != one.namespace.ana_group)
        };
        groups.any(state) || seen.any(group)
    }

    fn nsids(&self) -> impl Iterator<Item = &u32> {
        self.seen.iter().map(|one| &one.namespace.nsid)
    }
}

/// Whether a Namespace Attribute Changed event is due.
///
/// A takeover by another gateway changes the ANA state only. Linux freezes the queues of a
/// namespace that it scans, and requests that wait for a path at that moment fail with EAGAIN if
/// they are not permitted to wait (`REQ_NOWAIT`, as by io_uring).
fn is_changed(before: Namespace, now: &Namespace) -> bool {
    let is_standby = |namespace: &Namespace| namespace.state == NamespaceState::Standby;
    let is_ready = |namespace: &Namespace| namespace.state == NamespaceState::Ready;
    let is_taken_over =
        is_standby(&before) && is_ready(now) || is_ready(&before) && is_standby(now);
    let before = match is_taken_over {
        true => Namespace {
            state: now.state,
            store: now.store,
            ..before
        },
        false => before,
    };
    before != *now
}

/// The union of both, ascending.
fn numbers<'a>(
    some: impl Iterator<Item = &'a u32>,
    others: impl Iterator<Item = &'a u32>,
) -> Vec<u32> {
    let mut all: Vec<u32> = some.chain(others).copied().collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn union_is_sorted_and_unique() {
        assert_eq!(numbers([2, 3].iter(), [1, 3].iter()), [1, 2, 3]);
    }
}
