//! A subsystem as one controller sees it: the namespaces that are there for its
//! host, in the states in which its port reaches them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use nvmeof_wire::Nqn;
use nvmeof_wire::log::ana::AnaState;

use crate::model::{ABSENT_GROUP, PortAddress};
use crate::{Namespace, Port, Subsystem};

/// What is served of a subsystem at one moment: itself, and the ports it is
/// reached by.
#[derive(Clone, Debug)]
pub(crate) struct Present {
    pub(crate) subsystem: Arc<Subsystem>,
    pub(crate) ports: Arc<[Port]>,
}

/// Who looks: one controller, with all its queues.
#[derive(Debug)]
pub(crate) struct Viewer {
    pub(crate) hostnqn: Nqn,
    /// The port that the host came by; `None` when it is not known: then all is
    /// optimized.
    pub(crate) port: Option<PortAddress>,
    /// What was seen last, and the generation of the subsystem that it is of.
    last: Mutex<Option<(u64, Arc<NamespaceView>)>>,
}

/// The namespaces that one controller can access, and their ANA states.
#[derive(Clone, Debug)]
pub(crate) struct NamespaceView {
    subsystem: Arc<Subsystem>,
    /// Ordered by namespace identifier.
    seen: Vec<VisibleNamespace>,
    /// Groups of the namespaces.
    groups: BTreeMap<u32, AnaState>,
    highest: u32,
}

/// Highest namespace id that is valid at least, whether there are namespaces or
/// not: some hosts read it once, and never look at one beyond it that comes later.
/// It is what Linux' own target says.
const NAMESPACES: u32 = 1024;

/// A namespace that is there for the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VisibleNamespace {
    /// Without the names of the hosts that it is there for: who sees it does
    /// not see that change.
    pub(crate) namespace: Namespace,
    /// How its group is reached.
    pub(crate) state: AnaState,
}

/// How a view differs from the one before, as far as hosts notice it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Differing {
    /// Namespaces that changed, came or went.
    pub(crate) namespaces: Vec<u32>,
    /// Groups that are in another state or have other namespaces, came or went.
    pub(crate) groups: Vec<u32>,
    /// Whether the host is to hear of asymmetric namespace access.
    pub(crate) access: bool,
}

impl Viewer {
    pub(crate) fn new(hostnqn: Nqn, port: Option<PortAddress>) -> Self {
        Self {
            hostnqn,
            port,
            last: Mutex::default(),
        }
    }

    /// What it sees of `present`, which is of that generation. All queues have the
    /// same one, since each namespace takes room in it.
    pub(crate) fn look(&self, generation: u64, present: &Present) -> Arc<NamespaceView> {
        // Nothing is left half done when a holder panics.
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
    /// What `viewer` sees.
    pub(crate) fn namespace_view(&self, viewer: &Viewer) -> NamespaceView {
        let port = viewer.port.as_ref().map(|at| {
            let mut ports = self.ports.iter();
            ports.find(|port| port.is_at(at))
        });
        let state = |group| match port {
            _ if group == ABSENT_GROUP => AnaState::INACCESSIBLE,
            None => AnaState::OPTIMIZED,
            Some(Some(port)) => port.ana_state(group),
            // The port is gone, and what came by it is about to be closed.
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
            })
            .collect();
        // Those without a namespace are none of the host's: Linux resets a
        // controller that has a group in state Change for too long, empty or not.
        let groups = seen.iter();
        let groups = groups.map(|one| (one.namespace.ana_group, one.state));
        let groups = groups.collect();
        let namespace_view = NamespaceView {
            subsystem: Arc::clone(&self.subsystem),
            seen,
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

    /// Whether everybody sees what they saw in `before`.
    pub(crate) fn looks_like(&self, before: &Self) -> bool {
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
    /// The subsystem as a whole, with what is not there for this host.
    pub(crate) fn subsystem(&self) -> &Subsystem {
        &self.subsystem
    }

    /// The namespaces, lowest number first.
    pub(crate) fn seen(&self) -> &[VisibleNamespace] {
        &self.seen
    }

    /// Namespaces that are switched off and would be there for that host.
    pub(crate) fn disabled(&self, hostnqn: &Nqn) -> impl Iterator<Item = &Namespace> {
        let all = self.subsystem.disabled().iter();
        all.filter(|one| one.is_for(hostnqn))
    }

    /// The highest namespace identifier that is valid (NN). It says nothing of namespaces
    /// that are there for other hosts alone.
    pub(crate) fn highest(&self) -> u32 {
        self.highest
    }

    /// The namespace of that number.
    #[inline]
    pub(crate) fn get(&self, nsid: u32) -> Option<&VisibleNamespace> {
        let at = self
            .seen
            .binary_search_by_key(&nsid, |one| one.namespace.nsid)
            .ok()?;
        self.seen.get(at)
    }

    /// Whether that namespace is there, and not another one with its number.
    pub(crate) fn has(&self, namespace: &Namespace) -> bool {
        let its = self.get(namespace.nsid);
        its.is_some_and(|one| one.namespace.uuid == namespace.uuid)
    }

    /// The groups, lowest number first.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (u32, AnaState)> {
        self.groups.iter().map(|(group, state)| (*group, *state))
    }

    /// Numbers of the namespaces of a group, ascending.
    pub(crate) fn members(&self, group: u32) -> impl Iterator<Item = u32> {
        let its = self
            .seen
            .iter()
            .filter(move |one| one.namespace.ana_group == group);
        its.map(|one| one.namespace.nsid)
    }

    /// How it differs from what was seen `before`.
    pub(crate) fn since(&self, before: &Self) -> Differing {
        let namespaces = numbers(before.nsids(), self.nsids());
        let namespaces = namespaces.into_iter().filter(|nsid| {
            let of =
                |namespace_view: &Self| namespace_view.get(*nsid).map(|one| one.namespace.clone());
            of(before) != of(self)
        });
        let groups = numbers(before.groups.keys(), self.groups.keys());
        let groups = groups.into_iter().filter(|group| {
            before.groups.get(group) != self.groups.get(group)
                || !before.members(*group).eq(self.members(*group))
        });
        Differing {
            namespaces: namespaces.collect(),
            groups: groups.collect(),
            access: self.is_reached_otherwise(before),
        }
    }

    /// Base 2.2, 8.1.1.9: a notice is due when the identifier of a group changes
    /// and when a group enters a state, "unless the state entry is a result of a
    /// namespace attachment".
    fn is_reached_otherwise(&self, before: &Self) -> bool {
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

/// The numbers of both, ascending, each once.
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
    fn numbers_of_both_come_once_and_in_order() {
        assert_eq!(numbers([2, 3].iter(), [1, 3].iter()), [1, 2, 3]);
    }
}
