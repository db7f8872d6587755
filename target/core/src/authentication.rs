//! Hosts that proved who they are, and counts of those that did not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_dhchap::{AuthFailure, Key, Policy, Proof};
use nvmeof_wire::Nqn;
use nvmeof_wire::auth::{GroupId, HashId};

/// How the host of a controller proved who it is, at the last time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authenticated {
    /// The key that it used.
    pub key: KeyState,
    /// The hash function of the responses.
    pub hash: HashId,
    /// The group of the key exchange.
    pub group: GroupId,
    /// Whether the controller proved who it is, too.
    pub is_mutual: bool,
}

/// What a key of a host is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// Its key.
    Current,
    /// The key that is being replaced.
    Old,
    /// None of its keys any more.
    Removed,
}

impl Authenticated {
    /// What the host proved, by the present policy for it.
    pub(crate) fn of(proof: &Proof, policy: Option<&Policy>) -> Self {
        Self {
            key: KeyState::of(&proof.key, policy),
            hash: proof.hash,
            group: proof.group,
            is_mutual: proof.is_mutual,
        }
    }
}

impl std::fmt::Display for Authenticated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (hash, group) = (self.hash.name(), self.group.name());
        write!(f, "{} key, hash {hash}, group {group}", self.key.name())?;
        match self.is_mutual {
            true => f.write_str(", both sides"),
            false => f.write_str(", host only"),
        }
    }
}

impl KeyState {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Current, Self::Old, Self::Removed];

    /// What `key` is by `policy`. Every key is compared, in constant time.
    fn of(key: &Key, policy: Option<&Policy>) -> Self {
        let is = |one: Option<&Arc<Key>>| one.is_some_and(|one| one.equals(key));
        let is_current = is(policy.and_then(Policy::current));
        let is_old = is(policy.and_then(Policy::old));
        match (is_current, is_old) {
            (true, _) => Self::Current,
            (false, true) => Self::Old,
            (false, false) => Self::Removed,
        }
    }

    /// Its name in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Old => "old",
            Self::Removed => "removed",
        }
    }
}

/// How an authentication ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuthenticationOutcome {
    /// The host proved that it has its key.
    Success,
    /// No key is configured for the host.
    NoKey,
    /// The response of the host matches none of its keys.
    WrongKey,
    /// The key of the host may be one that could not be read.
    UnknownKey,
    /// The host requires authentication of the controller, for which no key is configured.
    NoControllerKey,
    /// The host offers no usable hash function, group or protocol.
    NotUsable,
    /// A message was malformed, or came at the wrong time.
    Protocol,
    /// The host did not continue in time.
    Timeout,
    /// The host ended it: the response of the controller was wrong, for example.
    RefusedByHost,
    /// The target could not compute what it needs.
    Internal,
}

impl AuthenticationOutcome {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Success,
        Self::NoKey,
        Self::WrongKey,
        Self::UnknownKey,
        Self::NoControllerKey,
        Self::NotUsable,
        Self::Protocol,
        Self::Timeout,
        Self::RefusedByHost,
        Self::Internal,
    ];

    /// Its name in metrics and in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::NoKey => "no_key",
            Self::WrongKey => "wrong_key",
            Self::UnknownKey => "unknown_key",
            Self::NoControllerKey => "no_controller_key",
            Self::NotUsable => "not_usable",
            Self::Protocol => "protocol",
            Self::Timeout => "timeout",
            Self::RefusedByHost => "refused_by_host",
            Self::Internal => "internal",
        }
    }
}

impl From<&AuthFailure> for AuthenticationOutcome {
    fn from(failure: &AuthFailure) -> Self {
        match failure {
            AuthFailure::NoKey => Self::NoKey,
            AuthFailure::WrongResponse => Self::WrongKey,
            AuthFailure::UnknownKey => Self::UnknownKey,
            AuthFailure::NoControllerKey => Self::NoControllerKey,
            AuthFailure::NotUsable(_) | AuthFailure::Concatenation(_) => Self::NotUsable,
            AuthFailure::Unexpected(_)
            | AuthFailure::Payload { .. }
            | AuthFailure::Malformed(_) => Self::Protocol,
            AuthFailure::Timeout(_) => Self::Timeout,
            AuthFailure::ByHost(_) => Self::RefusedByHost,
            AuthFailure::Work(_) => Self::Internal,
        }
    }
}

/// How many authentications ended in each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuthenticationCounts([u64; AuthenticationOutcome::ALL.len()]);

impl AuthenticationCounts {
    /// How many ended with `outcome`.
    #[must_use]
    pub fn get(&self, outcome: AuthenticationOutcome) -> u64 {
        self.0.get(outcome as usize).copied().unwrap_or_default()
    }

    /// One ended with `outcome`.
    pub(crate) fn add(&mut self, outcome: AuthenticationOutcome) {
        if let Some(count) = self.0.get_mut(outcome as usize) {
            *count = count.saturating_add(1);
        }
    }
}

/// The authentications since the target started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthenticationReport {
    /// Of all hosts.
    pub all: AuthenticationCounts,
    /// Of each host that has a key, ordered by NQN.
    pub hosts: Vec<(Nqn, AuthenticationCounts)>,
}

/// Counts authentications, over all reactors. The lock is taken once per authentication.
#[derive(Debug, Default)]
pub(crate) struct Authentications(Mutex<AllCounts>);

#[derive(Debug, Default)]
struct AllCounts {
    all: AuthenticationCounts,
    /// Only of hosts with keys: peers can make up other names.
    hosts: BTreeMap<Nqn, AuthenticationCounts>,
}

impl Authentications {
    /// One ended with `outcome`, of `host` if it has a key.
    pub(crate) fn count(&self, outcome: AuthenticationOutcome, host: Option<&Nqn>) {
        let mut counts = self.lock();
        counts.all.add(outcome);
        if let Some(host) = host {
            counts.hosts.entry(*host).or_default().add(outcome);
        }
    }

    /// Forgets the hosts that have no key any more.
    pub(crate) fn retain(&self, has_key: impl Fn(&Nqn) -> bool) {
        self.lock().hosts.retain(|host, _| has_key(host));
    }

    /// The counts, of these hosts in this order.
    pub(crate) fn report<'a>(&self, hosts: impl Iterator<Item = &'a Nqn>) -> AuthenticationReport {
        let counts = self.lock();
        let of = |host: &Nqn| counts.hosts.get(host).copied().unwrap_or_default();
        AuthenticationReport {
            all: counts.all,
            hosts: hosts.map(|host| (*host, of(host))).collect(),
        }
    }

    /// Number of hosts that have counters.
    #[cfg(test)]
    pub(crate) fn hosts(&self) -> usize {
        self.lock().hosts.len()
    }

    fn lock(&self) -> MutexGuard<'_, AllCounts> {
        // A panic leaves no change half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
