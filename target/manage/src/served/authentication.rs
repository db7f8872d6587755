//! Keys of hosts: which controllers use which key, and the end of old keys.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use nvmeof_target_config::{Config, HostKey, utc};
use nvmeof_target_core::{
    Authenticated, AuthenticationReport, AuthenticationSpec, Connected, Disconnected, KeyState,
    Model,
};
use nvmeof_wire::Nqn;

use super::{KeysToRead, Manager, State};

/// How long before the end of an old key its use is a warning.
pub const OLD_KEY_NOTICE: Duration = Duration::from_secs(7 * 24 * 3600);

/// The keys of one host, without the keys themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostKeyState {
    /// The host.
    pub host: Nqn,
    /// Whether an old key is accepted, too.
    pub has_old_key: bool,
    /// When it ceases to be accepted, in UTC; `None`: when it is removed.
    pub old_key_until: Option<String>,
    /// Whether the target proves to the host who it is, if the host requests it.
    pub has_controller_key: bool,
}

/// A controller, by subsystem and identifier.
pub type ControllerName = (Nqn, u16);

impl Manager {
    /// The authentications since the start.
    #[must_use]
    pub fn authentication_report(&self) -> AuthenticationReport {
        self.target.authentication_report()
    }

    /// The hosts that have keys, by NQN.
    #[must_use]
    pub fn host_keys(&self) -> Vec<HostKeyState> {
        let (model, ends) = (self.target.model(), self.old_key_ends());
        let hosts = model.authentication().hosts.iter();
        hosts
            .map(|(host, policy)| {
                let has_old_key = policy.old().is_some();
                let until = ends.iter().find(|(of, _)| of == host && has_old_key);
                HostKeyState {
                    host: *host,
                    has_old_key,
                    old_key_until: until.map(|(_, at)| utc(*at)),
                    has_controller_key: policy.controller_key.is_some(),
                }
            })
            .collect()
    }

    /// The controllers of `host` that authenticated with its old key.
    #[must_use]
    pub fn controllers_of_old_key(&self, host: &Nqn) -> Vec<Connected> {
        let mut all = self.controllers_with(KeyState::Old);
        all.retain(|one| one.hostnqn == *host);
        all
    }

    /// Whether the file of this key of `host` has another key than the one that is in effect.
    /// `false` if there is none, or it cannot be read.
    #[must_use]
    pub fn has_new_key(&self, host: &Nqn, key: HostKey) -> bool {
        let read = self.snapshot().config.host_key(host, key).ok().flatten();
        let model = self.target.model();
        let policy = model.authentication().hosts.get(host);
        policy.is_some_and(|policy| read.is_some_and(|read| read.differs_from(policy)))
    }

    /// Disconnects the controllers of `host` that authenticated with a key that is not one of its
    /// keys any more.
    #[must_use]
    pub fn disconnect_removed_key(&self, host: &Nqn) -> Vec<Disconnected> {
        let lost = self
            .target
            .disconnect_if(|one| one.hostnqn == *host && key_of(one) == Some(KeyState::Removed));
        self.reactors.poll_all();
        lost
    }

    /// Warnings about controllers whose host cannot connect again with the key that they use, or
    /// soon cannot.
    #[must_use]
    pub fn key_warnings(&self, now: SystemTime) -> Vec<String> {
        let locked_out = self.locked_out();
        let locked_out = locked_out.iter().map(self::locked_out);
        locked_out.chain(self.ending_key_warnings(now)).collect()
    }

    /// Warnings about controllers that use an old key which ends within [`OLD_KEY_NOTICE`].
    #[must_use]
    pub fn ending_key_warnings(&self, now: SystemTime) -> Vec<String> {
        let mut ends = self.old_key_ends();
        ends.retain(|(_, at)| *at <= now + OLD_KEY_NOTICE);
        if ends.is_empty() {
            return Vec::new();
        }
        let old = self.controllers_with(KeyState::Old);
        let ending = old.iter().filter_map(|one| {
            let (_, at) = ends.iter().find(|(host, _)| *host == one.hostnqn)?;
            Some(format!(
                "{} uses the old key, which is accepted until {}: give the host its new key before",
                named(one),
                utc(*at)
            ))
        });
        ending.collect()
    }

    /// Stops accepting the old keys that end by `now`, without reading files, and logs them.
    /// Disconnects no host. Returns whether there were any.
    pub fn end_old_keys(&self, now: SystemTime) -> bool {
        let is_due = |spec: &AuthenticationSpec, (host, at): &(Nqn, SystemTime)| {
            let policy = spec.hosts.get(host);
            *at <= now && policy.is_some_and(|policy| policy.old().is_some())
        };
        // Without the lock, which a change may hold for long.
        let (ends, model) = (self.old_key_ends(), self.target.model());
        if !ends.iter().any(|end| is_due(model.authentication(), end)) {
            return false;
        }
        let state = self.lock();
        let (ends, model) = (state.config.old_key_ends(), self.target.model());
        let mut spec = model.authentication().clone();
        let before = self.controllers_of_removed_keys();
        for (host, at) in ends {
            if !is_due(&spec, &(host, at)) {
                continue;
            }
            if let Some(policy) = spec.hosts.get_mut(&host) {
                let policy = Arc::make_mut(policy);
                policy.keys.truncate(usize::from(!policy.first_is_old));
            }
            tracing::warn!(%host, "old key ended: host {host}: accepted until {}", utc(at));
        }
        // The limits of the target did not change.
        let model = Arc::unwrap_or_clone(model).with_authentication(spec);
        let _ = self.target.apply(model);
        for remark in self.remarks_on_removed_keys(&before) {
            tracing::warn!("old key ended: {remark}");
        }
        drop(state);
        true
    }

    /// The controllers whose host cannot connect again as it did: with its key, or without one.
    #[must_use]
    pub fn controllers_of_removed_keys(&self) -> Vec<ControllerName> {
        let all = self.locked_out();
        all.iter().map(|one| (one.subnqn, one.cntlid)).collect()
    }

    /// Remarks on such controllers that are not among `known`: a change made them such.
    #[must_use]
    pub fn remarks_on_removed_keys(&self, known: &[ControllerName]) -> Vec<String> {
        let all = self.locked_out();
        let new = all
            .iter()
            .filter(|one| !known.contains(&(one.subnqn, one.cntlid)));
        new.map(locked_out).collect()
    }

    /// Remarks on the controllers that `next` would make such.
    pub(super) fn remarks_on_keys_of(&self, next: &Model) -> Vec<String> {
        let (present, mut all) = (self.target.model(), self.target.connected());
        all.retain(|one| !is_locked_out(one, &present) && loses_key(one, &present, next));
        all.iter().map(locked_out).collect()
    }

    /// The controllers whose host needs a key, and used none, or one that is none of its keys any
    /// more. A host without keys connects again without a proof.
    fn locked_out(&self) -> Vec<Connected> {
        let (model, mut all) = (self.target.model(), self.target.connected());
        all.retain(|one| is_locked_out(one, &model));
        all
    }

    /// When old keys cease to be accepted, by host, after the last change. Does not wait for a
    /// change in progress.
    fn old_key_ends(&self) -> Vec<(Nqn, SystemTime)> {
        let snapshot = self.snapshot.lock();
        let snapshot = snapshot.unwrap_or_else(PoisonError::into_inner);
        let config = Arc::clone(&snapshot.config);
        drop(snapshot);
        config.old_key_ends()
    }

    fn controllers_with(&self, key: KeyState) -> Vec<Connected> {
        let mut all = self.target.connected();
        all.retain(|one| key_of(one) == Some(key));
        all
    }
}

impl State {
    /// Remarks on hosts that cannot connect by `config`: all of them, or those that are new.
    pub(super) fn remarks_on_hosts(&self, config: &Config, files: &KeysToRead) -> Vec<String> {
        let mut remarks = config.authentication_remarks();
        if *files != KeysToRead::All {
            let known = self.config.authentication_remarks();
            remarks.retain(|one| !known.contains(one));
        }
        remarks
    }
}

/// The key that a controller used.
fn key_of(one: &Connected) -> Option<KeyState> {
    one.authentication.map(|Authenticated { key, .. }| key)
}

fn named(one: &Connected) -> String {
    let Connected {
        cntlid,
        hostnqn,
        subnqn,
        ..
    } = one;
    format!("controller {cntlid} of {subnqn}, host {hostnqn}")
}

/// Whether the host needs a key, and used none of its keys.
fn is_locked_out(one: &Connected, model: &Model) -> bool {
    let is_valid = matches!(key_of(one), Some(KeyState::Current | KeyState::Old));
    !is_valid && model.authenticates(&one.hostnqn, &one.subnqn)
}

/// Whether the host needs a key by `next`, and used none of those that it has there.
fn loses_key(one: &Connected, present: &Model, next: &Model) -> bool {
    if !next.authenticates(&one.hostnqn, &one.subnqn) {
        return false;
    }
    let of = |model: &Model| model.authentication().hosts.get(&one.hostnqn).cloned();
    let (Some(present), Some(next)) = (of(present), of(next)) else {
        return true;
    };
    let used = match key_of(one) {
        Some(KeyState::Current) => present.current(),
        Some(KeyState::Old) => present.old(),
        Some(KeyState::Removed) | None => None,
    };
    !used.is_some_and(|used| next.keys.iter().any(|key| key.equals(used)))
}

fn locked_out(one: &Connected) -> String {
    let named = named(one);
    match one.authentication {
        Some(_) => format!(
            "{named} stays connected with a key that is not accepted any more: give the host its \
             present key, or it loses the namespaces when it reconnects"
        ),
        None => format!(
            "{named} stays connected without a key, which it needs from now on: give the host its \
             key, or it loses the namespaces when it reconnects"
        ),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use nvmeof_wire::auth::{GroupId, HashId};

    use super::*;

    const HOST: &str = "nqn.2026-11.org.example:host";
    const SUBNQN: &str = "nqn.2026-11.org.example:disk";
    /// Keys of bytes 00h to 1Fh, and 00h to 2Fh.
    const ONE: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    const OTHER: &str =
        "DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:";

    /// The model of a configuration with a port that does not listen.
    fn model(text: &str) -> Model {
        let text = format!("[[port]]\ntraddr = \"127.0.0.1\"\n{text}");
        let config = Config::parse(Path::new("target.toml"), text).unwrap();
        let keys = config.authentication().unwrap();
        config.model_of(|_| {}, &[], &[], keys).unwrap()
    }

    fn controller(key: Option<KeyState>) -> Connected {
        Connected {
            cntlid: 1,
            hostnqn: Nqn::new(HOST).unwrap(),
            subnqn: Nqn::new(SUBNQN).unwrap(),
            peer: "peer".into(),
            io_queues: 0,
            authentication: key.map(|key| Authenticated {
                key,
                hash: HashId::SHA256,
                group: GroupId::NULL,
                is_mutual: false,
            }),
        }
    }

    #[test]
    fn host_that_is_connected_without_a_key_which_it_will_need_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, key: &str| {
            let path = folder.path().join(name);
            fs::write(&path, key).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            path
        };
        let (one, other) = (file("one", ONE), file("other", OTHER));
        let host = format!("[[host]]\nnqn = {HOST:?}\nkey_file = {one:?}\n");
        let required = format!(
            "[[subsystem]]\nnqn = {SUBNQN:?}\nallow_any_host = true\n\
             require_authentication = true\n"
        );
        let none = model("");
        let (keyed, required) = (model(&host), model(&required));
        let both = model(&format!("{host}old_key_file = {other:?}\n"));
        let plain = controller(None);
        assert!(!is_locked_out(&plain, &none) && !loses_key(&plain, &none, &none));
        for next in [&keyed, &required] {
            assert!(loses_key(&plain, &none, next));
            assert!(is_locked_out(&plain, next));
        }
        assert!(locked_out(&plain).contains("stays connected without a key"));
        let (current, old) = (KeyState::Current, KeyState::Old);
        for (key, next, loses) in [
            (current, &keyed, false),
            (old, &keyed, true),
            (current, &required, true),
            (old, &none, false),
        ] {
            assert_eq!(
                loses_key(&controller(Some(key)), &both, next),
                loses,
                "{key:?}"
            );
        }
        let removed = controller(Some(KeyState::Removed));
        assert!(is_locked_out(&removed, &keyed) && !is_locked_out(&removed, &none));
        assert!(locked_out(&removed).contains("with a key that is not accepted"));
    }
}
