//! Which hosts have to prove who they are, and with which keys.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nvmeof_dhchap::{Key, Policy};
use nvmeof_wire::Nqn;

use super::{Change, ChangeKind, Model, Subject};

/// Which hosts have to prove who they are, and with which keys.
#[derive(Clone, Debug, Default)]
pub struct AuthenticationSpec {
    /// What each host has to prove, by its NQN. Such a host is authenticated by every subsystem, so
    /// that no other host can use its name. If its keys are not known, its policy has none: then it
    /// is told to try again.
    pub hosts: BTreeMap<Nqn, Arc<Policy>>,
    /// The subsystems that accept only hosts with a key.
    pub subsystems: BTreeSet<Nqn>,
    /// Whether the discovery subsystem accepts only hosts with a key. Otherwise, it
    /// authenticates no host.
    pub discovery: bool,
}

impl Model {
    /// The same model, in which hosts are authenticated as `spec` requires.
    #[must_use]
    pub fn with_authentication(mut self, spec: AuthenticationSpec) -> Self {
        self.authentication = Arc::new(spec);
        self
    }

    /// Which hosts are authenticated.
    #[must_use]
    pub fn authentication(&self) -> &AuthenticationSpec {
        &self.authentication
    }

    /// Whether `host` has to prove who it is to connect to `subsystem`.
    #[must_use]
    pub fn authenticates(&self, host: &Nqn, subsystem: &Nqn) -> bool {
        self.policy(host, subsystem).is_some()
    }

    /// What `host` has to prove to connect to `subsystem`; `None`: nothing. A host without a key
    /// that has to have one gets a policy that it cannot fulfil: its authentication fails, and
    /// counts as such.
    pub(crate) fn policy(&self, host: &Nqn, subsystem: &Nqn) -> Option<Arc<Policy>> {
        let spec = &self.authentication;
        let (applies, is_required) = match self.discovery.is_called(subsystem) {
            true => (spec.discovery, spec.discovery),
            false => (true, spec.subsystems.contains(subsystem)),
        };
        match spec.hosts.get(host).filter(|_| applies) {
            Some(policy) => Some(Arc::clone(policy)),
            None => is_required.then(|| Arc::new(no_key())),
        }
    }

    /// As [`policy`](Self::policy), for a host that authenticates itself in any case: without a
    /// key, it cannot.
    pub(crate) fn policy_or_none(&self, host: &Nqn, subsystem: &Nqn) -> Arc<Policy> {
        let policy = self.policy(host, subsystem);
        policy.unwrap_or_else(|| Arc::new(no_key()))
    }
}

/// The policy for a host without a key.
fn no_key() -> Policy {
    Policy {
        first_is_old: false,
        unknown: Default::default(),
        keys: Vec::new(),
        controller_key: None,
        hashes: Vec::new(),
        groups: Vec::new(),
    }
}

/// Adds the differences of hosts and of the discovery subsystem.
pub(super) fn difference(
    old: &AuthenticationSpec,
    new: &AuthenticationSpec,
    changes: &mut Vec<Change>,
) {
    let mut push = |subject, kind| changes.push(Change { subject, kind });
    if old.discovery != new.discovery {
        let key = REQUIRED;
        push(Subject::Discovery, ChangeKind::Changed { key });
    }
    let subject = |host: &Nqn| Subject::HostKey {
        host: Box::new(*host),
    };
    for (host, before) in &old.hosts {
        match new.hosts.get(host) {
            None => push(subject(host), ChangeKind::Removed),
            Some(after) => {
                for key in policy_keys(before, after) {
                    push(subject(host), ChangeKind::Changed { key });
                }
            }
        }
    }
    for host in new.hosts.keys() {
        if !old.hosts.contains_key(host) {
            push(subject(host), ChangeKind::Added);
        }
    }
}

/// The key of a subsystem that accepts only hosts with a key.
pub(super) const REQUIRED: &str = "require_authentication";

/// The keys of a host whose values differ.
fn policy_keys(old: &Policy, new: &Policy) -> impl Iterator<Item = &'static str> {
    let differs = |one: Option<&Arc<Key>>, other: Option<&Arc<Key>>| match (one, other) {
        (None, None) => false,
        (Some(one), Some(other)) => !one.equals(other),
        _ => true,
    };
    let (was, is) = (old.controller_key.as_ref(), new.controller_key.as_ref());
    [
        ("key_file", differs(old.current(), new.current())),
        ("old_key_file", differs(old.old(), new.old())),
        ("controller_key_file", differs(was, is)),
        ("hash", old.hashes != new.hashes),
        ("dh_groups", old.groups != new.groups),
    ]
    .into_iter()
    .filter_map(|(key, differs)| differs.then_some(key))
}
