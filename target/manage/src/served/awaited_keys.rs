//! Keys of hosts whose files could not be read at the start. Their hosts have to prove these keys
//! all the same, so that no other host can use their names.

use std::path::PathBuf;
use std::sync::Arc;

use nvmeof_target_config::{Config, ConfigError, HostKey, ReadKey, UnreadKey};
use nvmeof_target_core::AuthenticationSpec;
use nvmeof_wire::Nqn;

use super::snapshot::Snapshot;
use super::waiting::{Waiting, WaitingObject};
use super::{KeysToRead, State};
use crate::waits::WaitReason;

/// A key that is not known yet.
#[derive(Clone, Debug)]
pub(super) struct AwaitedKey {
    host: Nqn,
    key: HostKey,
    path: Option<PathBuf>,
    waits: WaitReason,
}

/// The results of attempts to read keys.
pub(super) struct ReadKeys {
    /// The configuration that names the files.
    config: Arc<Config>,
    read: Vec<((Nqn, HostKey), Attempt)>,
}

/// The result of an attempt to read a key. `None`: it is not accepted any more.
type Attempt = Result<Option<ReadKey>, ConfigError>;

impl AwaitedKey {
    pub(super) fn of(unread: UnreadKey) -> Self {
        Self {
            waits: WaitReason::of(&unread.error),
            host: unread.host,
            key: unread.key,
            path: unread.path,
        }
    }

    fn name(&self) -> (Nqn, HostKey) {
        (self.host, self.key)
    }

    fn object(&self) -> WaitingObject {
        WaitingObject::HostKey {
            host: self.host.as_str().to_owned(),
            key: self.key,
        }
    }

    pub(super) fn to_waiting(&self) -> Waiting {
        Waiting {
            what: self.object(),
            path: self.path.clone(),
            waits: self.waits.clone(),
        }
    }
}

impl Snapshot {
    /// Reads the keys that are `due`.
    pub(super) fn read_keys(&self, due: impl Fn(&WaitingObject) -> bool) -> ReadKeys {
        let all = self.awaited_keys.iter();
        let read = all.filter(|one| due(&one.object())).map(|one| {
            let read = self.config.host_key(&one.host, one.key);
            (one.name(), read)
        });
        ReadKeys {
            config: Arc::clone(&self.config),
            read: read.collect(),
        }
    }
}

impl State {
    /// Adds the keys that could be read to `keys`. Returns them.
    pub(super) fn settle_keys(
        &mut self,
        tried: ReadKeys,
        keys: &mut AuthenticationSpec,
    ) -> Vec<WaitingObject> {
        let mut served = Vec::new();
        if !Arc::ptr_eq(&self.config, &tried.config) {
            // Changed meanwhile: the next attempt reads the files that it names.
            return served;
        }
        for (name, read) in tried.read {
            let its = |one: &AwaitedKey| one.name() == name;
            let Some(at) = self.awaited_keys.iter().position(its) else {
                continue;
            };
            let read = match read {
                Ok(read) => read,
                Err(error) => {
                    if let Some(one) = self.awaited_keys.get_mut(at) {
                        let what = one.object();
                        one.waits.still(&what, error.what());
                    }
                    continue;
                }
            };
            let what = self.awaited_keys.remove(at).object();
            let Some(policy) = keys.hosts.get_mut(&name.0) else {
                continue;
            };
            let policy = Arc::make_mut(policy);
            let unknown = &mut policy.unknown;
            match name.1 {
                HostKey::Controller => unknown.controller = false,
                HostKey::Current | HostKey::Old => unknown.host = unknown.host.saturating_sub(1),
            }
            if let Some(read) = read {
                read.add_to(policy);
                served.push(what);
            }
        }
        served
    }

    /// Forgets the keys that the change to `config` read.
    pub(super) fn forget_awaited_keys(&mut self, config: &Config, files: &KeysToRead) {
        let before = &self.config;
        self.awaited_keys
            .retain(|one| !files.includes(before, config, &one.host));
    }
}
