//! States of namespaces, and models that differ only in states and sizes.

use std::sync::Arc;

use nvmeof_wire::Nqn;

use super::{Model, Namespace, Preferred, Subsystem};

/// Whether hosts can use a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamespaceState {
    /// They can.
    #[default]
    Ready,
    /// Its backing store is gone. It stays active, and commands fail with Namespace Not
    /// Ready.
    Faulted,
    /// Its backing store was not available when the target started, but was before. It
    /// stays active with its last size, in ANA state Inaccessible on every port until the
    /// store opens.
    Absent,
    /// Its backing store was never available: allocated and not active until it opens.
    Awaited,
    /// Another gateway serves it. It stays active with the size that it has there, and its ANA
    /// group is Inaccessible on every port of this target.
    Standby,
    /// An administrator disabled it: allocated and not active (Base 2.1, 3.2.1). Its
    /// size is not known, and it has no backing store.
    Disabled,
}

impl NamespaceState {
    /// Whether the namespace is active (Base 2.1, 3.2.1).
    #[must_use]
    pub fn is_active(self) -> bool {
        !matches!(self, Self::Awaited | Self::Disabled)
    }
}

/// A new state or size of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// Its subsystem.
    pub nqn: Nqn,
    /// Its NSID.
    pub nsid: u32,
    /// The new number of its backing store.
    pub store: u32,
    /// The new size in logical blocks.
    pub blocks: u64,
    /// The new preferred sizes.
    pub preferred: Preferred,
    /// The new state.
    pub state: NamespaceState,
}

impl Model {
    /// The same model with `revisions`. Revisions of namespaces that do not exist are
    /// ignored.
    #[must_use]
    pub fn revised(&self, revisions: &[Revision]) -> Self {
        let subsystems = self.subsystems.iter().map(|one| {
            let mut own = revisions.iter().filter(|it| it.nqn == one.nqn).peekable();
            if own.peek().is_none() {
                return Arc::clone(one);
            }
            let mut revised = Subsystem::clone(one);
            for revision in own {
                revised.revise(revision);
            }
            Arc::new(revised)
        });
        Self {
            subsystems: subsystems.collect(),
            ..self.clone()
        }
    }
}

impl Subsystem {
    fn revise(&mut self, revision: &Revision) {
        let mut namespaces = self.namespaces.iter_mut();
        if let Some(namespace) = namespaces.find(|one| one.nsid == revision.nsid) {
            namespace.store = revision.store;
            // Hosts divide by it, and shifts of it must not overflow.
            if revision.blocks > 0 && revision.blocks <= i64::MAX as u64 >> namespace.block_shift {
                namespace.blocks = revision.blocks;
            }
            namespace.preferred = revision.preferred;
            namespace.state = revision.state;
        }
    }
}

impl Namespace {
    /// Whether its backing store is available.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state == NamespaceState::Ready
    }
}
