//! Keys for in-band authentication: those that the target accepts of each host, and the one that
//! the host uses.

use std::sync::Arc;

use nvmeof_initiator::dhchap::{HostKeys, Key, Policy, Secret};
use nvmeof_target_core::AuthenticationSpec;
use nvmeof_wire::Nqn;
use nvmeof_wire::auth::{GroupId, HashId};

use crate::host::{SUBNQN, name_of};
use crate::plan::AuthenticationPlan;

/// The keys of all hosts.
pub(crate) struct Keys {
    hosts: Vec<HostState>,
    /// The key of the controller, if hosts require its proof.
    controller: Option<Arc<Key>>,
    /// Hash functions that the target accepts, the preferred first.
    hashes: Vec<HashId>,
    /// Whether the subsystem accepts only hosts with a key.
    is_required: bool,
}

struct HostState {
    /// Number of the current key.
    generation: u8,
    current: Arc<Key>,
    /// The key that is being replaced.
    old: Option<Arc<Key>>,
    /// The key that the host uses.
    used: Arc<Key>,
}

/// A key of no host.
const NOBODY: usize = 0xff;

/// Key number `generation` of a host. Some keys are transformed before use.
fn key(host: usize, generation: u8) -> Arc<Key> {
    let mut bytes = [0x5a; 32];
    bytes[0] = u8::try_from(host).unwrap();
    bytes[1] = generation;
    let transformation = [None, Some(HashId::SHA256), Some(HashId::SHA512)];
    let transformation = transformation[usize::from(generation) % 3];
    Arc::new(Key::of(Secret::take(&mut bytes).unwrap(), transformation).unwrap())
}

/// Without key exchange: exponentiations take real time, and the state machines are the same.
fn host_keys(key: &Arc<Key>, controller: Option<&Arc<Key>>) -> Arc<HostKeys> {
    Arc::new(HostKeys {
        groups: vec![GroupId::NULL],
        ..HostKeys::new(Arc::clone(key), controller.cloned())
    })
}

impl Keys {
    pub(crate) fn new(plan: &AuthenticationPlan, hosts: usize) -> Self {
        let hosts = (0..hosts).map(|at| {
            let first = key(at, 0);
            HostState {
                generation: 0,
                current: Arc::clone(&first),
                old: None,
                used: first,
            }
        });
        let mut hashes = vec![HashId::SHA256, HashId::SHA384, HashId::SHA512];
        hashes.rotate_left(plan.hash);
        Self {
            hosts: hosts.collect(),
            controller: plan.is_mutual.then(|| key(NOBODY, 0)),
            hashes,
            is_required: plan.is_required,
        }
    }

    /// What the target requires.
    pub(crate) fn spec(&self) -> AuthenticationSpec {
        let hosts = self.hosts.iter().enumerate().map(|(at, host)| {
            let policy = Policy {
                first_is_old: false,
                unknown: Default::default(),
                keys: [&host.current]
                    .into_iter()
                    .chain(&host.old)
                    .cloned()
                    .collect(),
                controller_key: self.controller.clone(),
                hashes: self.hashes.clone(),
                groups: vec![GroupId::NULL],
            };
            (name_of(at), Arc::new(policy))
        });
        let subsystems = self.is_required.then(|| Nqn::new(SUBNQN).unwrap());
        AuthenticationSpec {
            hosts: hosts.collect(),
            subsystems: subsystems.into_iter().collect(),
            discovery: false,
        }
    }

    /// What host number `at` uses.
    pub(crate) fn of(&self, at: usize) -> Arc<HostKeys> {
        host_keys(&self.hosts[at].used, self.controller.as_ref())
    }

    /// What an imposter uses.
    pub(crate) fn wrong() -> Arc<HostKeys> {
        host_keys(&key(NOBODY, 1), None)
    }

    /// Whether the target accepts two keys of the host.
    pub(crate) fn is_rotating(&self, at: usize) -> bool {
        self.hosts[at].old.is_some()
    }

    /// The target accepts a new key beside the current one.
    pub(crate) fn rotate(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        host.generation = host.generation.wrapping_add(1);
        let new = key(at, host.generation);
        host.old = Some(std::mem::replace(&mut host.current, new));
    }

    /// The host gets the new key.
    pub(crate) fn take(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        host.used = Arc::clone(&host.current);
    }

    /// The target accepts the old key no more.
    pub(crate) fn remove_old(&mut self, at: usize) {
        self.hosts[at].old = None;
    }
}
