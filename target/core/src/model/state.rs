//! Whether a namespace can be used at the moment, and models that differ from
//! another in nothing but that and sizes.

use std::sync::Arc;

use nvmeof_wire::Nqn;

use super::{Model, Namespace, Preferred, Subsystem};

/// Whether hosts can use a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamespaceState {
    /// They can.
    #[default]
    Ready,
    /// What is behind it is gone: it stays active, and commands are answered
    /// Namespace Not Ready.
    Faulted,
    /// What is behind it was not there when the target started, but was before: it
    /// stays active with the size it had, and every port reaches it in ANA state
    /// Inaccessible until it opens.
    Absent,
    /// What is behind it was never there: allocated and not active until it opens.
    Awaited,
    /// An administrator switched it off: allocated and not active (Base 2.1,
    /// 3.2.1). Its size is not known, and it has no disk.
    Disabled,
}

impl NamespaceState {
    /// Whether the namespace is active (Base 2.1, 3.2.1).
    #[must_use]
    pub fn is_active(self) -> bool {
        !matches!(self, Self::Awaited | Self::Disabled)
    }
}

/// What became of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// Its subsystem.
    pub nqn: Nqn,
    /// Its number.
    pub nsid: u32,
    /// What the edge calls its disk from now on.
    pub disk: u32,
    /// Size in logical blocks from now on.
    pub blocks: u64,
    /// In which sizes its disk is written and freed best from now on.
    pub preferred: Preferred,
    /// Whether hosts can use it.
    pub state: NamespaceState,
}

impl Model {
    /// The same but for what `revisions` say. One of a namespace that is not
    /// there means nothing.
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
            namespace.disk = revision.disk;
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
    /// Whether what is behind it is there.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state == NamespaceState::Ready
    }
}
