//! The choice of a path for each command.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nvmeof_initiator_core::multipath::{Path, PathAccess, PathPolicy, PathSelector, Rotation};

use super::connection::{Connection, ConnectionId};
use crate::namespace::Namespace;

/// A path to a namespace.
pub(super) struct Usable {
    pub(super) connection: Arc<Connection>,
    pub(super) namespace: Arc<Namespace>,
    pub(super) access: PathAccess,
    /// When the path is preferred to others.
    pub(super) settled_at: Duration,
}

/// The paths as they were at the last change, and the choice among them. Without a change, a
/// choice allocates no memory; with a [`Rotation`] it reads no clock and looks at one path only.
pub(super) struct Choice {
    /// The change of which `paths` are the result.
    version: Option<u64>,
    paths: Vec<Arc<Usable>>,
    rotation: Option<Rotation>,
    described: Vec<Path>,
    policy: PathPolicy,
    selector: PathSelector,
}

impl Choice {
    pub(super) fn new(policy: PathPolicy) -> Self {
        Self {
            version: None,
            paths: Vec::new(),
            rotation: None,
            described: Vec::new(),
            policy,
            selector: PathSelector::new(policy),
        }
    }

    pub(super) fn is_of(&self, version: u64) -> bool {
        self.version == Some(version)
    }

    /// Takes the paths that are the result of change `version`.
    pub(super) fn replace(&mut self, version: u64, paths: Vec<Arc<Usable>>) {
        self.version = Some(version);
        self.paths = paths;
        self.rotation = None;
    }

    /// Forgets the paths, and returns them.
    pub(super) fn clear(&mut self) -> Vec<Arc<Usable>> {
        self.version = None;
        self.rotation = None;
        std::mem::take(&mut self.paths)
    }

    /// The path for the next command, another one than `avoid` if there is one.
    pub(super) fn choose(
        &mut self,
        avoid: Option<ConnectionId>,
        now: impl FnOnce() -> Duration,
    ) -> Option<Arc<Usable>> {
        if avoid.is_none()
            && let Some(rotation) = &mut self.rotation
            && let Some(usable) = rotation.take_turn().and_then(|at| self.paths.get(at))
            && !usable.connection.is_lost()
        {
            return Some(Arc::clone(usable));
        }
        let now = now();
        let other = avoid.and_then(|_| self.select(avoid, now));
        other.or_else(|| self.select(None, now))
    }

    #[cold]
    fn select(&mut self, without: Option<ConnectionId>, now: Duration) -> Option<Arc<Usable>> {
        let compares_latencies = self.policy == PathPolicy::Latency;
        let describe = |usable: &Arc<Usable>| {
            let connection = &usable.connection;
            let is_avoided = without == Some(connection.id);
            let access = match is_avoided || connection.is_lost() {
                true => PathAccess::None,
                false => usable.access,
            };
            Path {
                access,
                is_settled: now >= usable.settled_at,
                outstanding: connection.outstanding.load(Ordering::Relaxed),
                latency: match compares_latencies {
                    true => connection.latency(now),
                    false => None,
                },
                distance: connection.distance,
            }
        };
        self.described.clear();
        self.described.extend(self.paths.iter().map(describe));
        if without.is_none() {
            self.rotation = Rotation::of(self.policy, &self.described);
        }
        let at = self.selector.select(&self.described)?;
        self.paths.get(at).cloned()
    }
}
