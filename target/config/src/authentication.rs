//! Which hosts the configuration requires to prove who they are, with the keys of their files.
//!
//! A start and a reload read all files, so that they apply a key that was replaced in its file. An
//! edit reads those of the hosts that it changes only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use nvmeof_dhchap::{Key, Policy};
use nvmeof_target_core::AuthenticationSpec;
use nvmeof_wire::Nqn;
use toml::Spanned;

use super::host::{HostKey, RawHost};
use super::key_file::{self, KeyFile};
use super::raw::RawSubsystem;
use super::{Config, ConfigError, names};

/// When and where keys are read.
pub(crate) struct Reading {
    pub(crate) now: SystemTime,
    /// The folder of service credentials.
    pub(crate) credentials: Option<PathBuf>,
}

impl Reading {
    /// Now, with the credentials of this process.
    fn here() -> Self {
        Self {
            now: SystemTime::now(),
            credentials: key_file::credentials(),
        }
    }
}

/// A key that was read.
#[derive(Clone, Debug)]
pub struct ReadKey {
    key: HostKey,
    secret: Arc<Key>,
}

/// A key that cannot be read at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadKey {
    /// The host.
    pub host: Nqn,
    /// Which of its keys.
    pub key: HostKey,
    /// The file, unless it is a credential of the service.
    pub path: Option<PathBuf>,
    /// Why, without any part of a key.
    pub error: ConfigError,
}

impl Config {
    /// The hosts that have to prove who they are. Reads all files with keys. An old key is not
    /// part of it after its `old_key_until`; see [`old_key_ends`](Self::old_key_ends).
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key of each file that has no valid key, or that others
    /// can access. It contains no part of a key.
    pub fn authentication(&self) -> Result<AuthenticationSpec, ConfigError> {
        self.authentication_of(&Reading::here())
    }

    /// As [`authentication`](Self::authentication), with the keys that can be read, and the others.
    /// A host of which none can be read has to prove a key, and cannot.
    ///
    /// # Errors
    /// None after the checks of the configuration.
    pub fn available_authentication(
        &self,
    ) -> Result<(AuthenticationSpec, Vec<UnreadKey>), ConfigError> {
        self.available_at(&Reading::here(), |_| None)
    }

    /// As [`authentication`](Self::authentication), but a host that `keeps` its keys has those of
    /// `served`, if it has any there: its files are not read.
    ///
    /// # Errors
    /// As [`authentication`](Self::authentication).
    pub fn authentication_with(
        &self,
        served: &AuthenticationSpec,
        keeps: impl Fn(&Nqn) -> bool,
    ) -> Result<AuthenticationSpec, ConfigError> {
        let policy = |host: &Nqn| served.hosts.get(host).filter(|_| keeps(host));
        whole(self.available_at(&Reading::here(), |host| policy(host).cloned())?)
    }

    /// Whether the `[[host]]` of `host` is the same as in `before`.
    #[must_use]
    pub fn has_same(&self, before: &Self, host: &Nqn) -> bool {
        let here = self.host(host);
        here.is_some() && here == before.host(host)
    }

    /// Reads one key. `None`: there is none, or it is not accepted any more.
    ///
    /// # Errors
    /// As [`authentication`](Self::authentication).
    pub fn host_key(&self, host: &Nqn, key: HostKey) -> Result<Option<ReadKey>, ConfigError> {
        let (reading, Some(host)) = (Reading::here(), self.host(host)) else {
            return Ok(None);
        };
        let mut files = self.files_of(host, reading.now);
        let file = files.find(|(one, _)| *one == key);
        file.map(|(key, file)| self.key(key, file, &reading))
            .transpose()
    }

    /// Reads all files with keys, as a start or reload would. Credentials of the service are not
    /// read if this process has none; the remarks name them.
    ///
    /// # Errors
    /// As [`authentication`](Self::authentication).
    pub fn check_keys(&self) -> Result<Vec<String>, ConfigError> {
        self.check_keys_of(&Reading::here())
    }

    pub(crate) fn check_keys_of(&self, reading: &Reading) -> Result<Vec<String>, ConfigError> {
        let mut remarks = self.remarks_at(reading.now);
        if reading.credentials.is_some() {
            self.authentication_of(reading)?;
            return Ok(remarks);
        }
        let mut errors = Vec::new();
        let mut unread = BTreeSet::new();
        for host in self.hosts() {
            for (key, file) in self.files_of(host, reading.now) {
                match KeyFile::parse(file.get_ref()) {
                    Ok(KeyFile::Credential(name)) => {
                        unread.insert(name);
                    }
                    _ => errors.extend(self.key(key, file, reading).err()),
                }
            }
        }
        if !unread.is_empty() {
            remarks.push(format!(
                "not checked: credentials {}: $CREDENTIALS_DIRECTORY is not set; the service has \
                 them",
                names::listed(unread)
            ));
        }
        ConfigError::joined(errors).map_or(Ok(remarks), Err)
    }

    /// When old keys cease to be accepted, by the NQN of their host. Then
    /// [`authentication`](Self::authentication) has another result.
    #[must_use]
    pub fn old_key_ends(&self) -> Vec<(Nqn, SystemTime)> {
        let hosts = self.hosts();
        let ends = hosts.filter_map(|host| Some((host.name().ok()?, host.old_key_until()?)));
        ends.collect()
    }

    /// Warnings about hosts that cannot connect for want of a key, and about old keys that are not
    /// accepted any more.
    #[must_use]
    pub fn authentication_remarks(&self) -> Vec<String> {
        self.remarks_at(SystemTime::now())
    }

    fn remarks_at(&self, now: SystemTime) -> Vec<String> {
        let known: BTreeSet<&str> = self
            .hosts()
            .map(|host| host.nqn.get_ref().as_str())
            .collect();
        let mut remarks = Vec::new();
        for subsystem in self.required_subsystems() {
            let nqn = subsystem.nqn.get_ref();
            let without: BTreeSet<&str> = subsystem
                .hosts()
                .map(|host| host.get_ref().as_str())
                .filter(|host| !known.contains(host))
                .collect();
            if !without.is_empty() {
                remarks.push(format!(
                    "subsystem {} requires authentication, but these of its allowed_hosts have no \
                     key: {}; they cannot connect: add a [[host]] for each",
                    names::listed([nqn.as_str()]),
                    names::listed(without)
                ));
            } else if known.is_empty() {
                remarks.push(format!(
                    "subsystem {} requires authentication, but no [[host]] is configured: no host \
                     can connect",
                    names::listed([nqn.as_str()])
                ));
            }
        }
        if self.raw.discovery.require_authentication() && known.is_empty() {
            remarks.push(
                "discovery.require_authentication is true, but no [[host]] is configured: no host \
                 can connect to the discovery subsystem"
                    .to_owned(),
            );
        }
        let expired = self
            .hosts()
            .filter(|host| host.old_key_until().is_some_and(|it| it <= now));
        let expired: BTreeSet<&str> = expired.map(|host| host.nqn.get_ref().as_str()).collect();
        if !expired.is_empty() {
            remarks.push(format!(
                "old_key_until has passed: the old keys of these hosts are not accepted any more: \
                 {}; remove old_key_file and old_key_until",
                names::listed(expired)
            ));
        }
        remarks
    }

    pub(crate) fn authentication_of(
        &self,
        reading: &Reading,
    ) -> Result<AuthenticationSpec, ConfigError> {
        whole(self.available_at(reading, |_| None)?)
    }

    /// The keys that can be read, and the others. Hosts that have a policy `in_use` keep it.
    pub(crate) fn available_at(
        &self,
        reading: &Reading,
        in_use: impl Fn(&Nqn) -> Option<Arc<Policy>>,
    ) -> Result<(AuthenticationSpec, Vec<UnreadKey>), ConfigError> {
        let (mut hosts, mut unread) = (BTreeMap::new(), Vec::new());
        for host in self.hosts() {
            let name = host.name().map_err(|wrong| self.wrong(&wrong))?;
            let policy = match in_use(&name) {
                Some(policy) => policy,
                None => Arc::new(self.policy(&name, host, reading, &mut unread)?),
            };
            hosts.insert(name, policy);
        }
        let subsystems = self.required_subsystems();
        // Their names were checked with the model.
        let subsystems = subsystems.filter_map(|one| Nqn::new(one.nqn.get_ref()).ok());
        let spec = AuthenticationSpec {
            hosts,
            subsystems: subsystems.collect(),
            discovery: self.raw.discovery.require_authentication(),
        };
        Ok((spec, unread))
    }

    /// The policy of `host` with the keys that can be read. Adds the others to `unread`.
    fn policy(
        &self,
        name: &Nqn,
        host: &RawHost,
        reading: &Reading,
        unread: &mut Vec<UnreadKey>,
    ) -> Result<Policy, ConfigError> {
        let wrong = |wrong| self.wrong(&wrong);
        let mut policy = Policy {
            keys: Vec::new(),
            // Until the current one is added.
            first_is_old: true,
            unknown: Default::default(),
            controller_key: None,
            hashes: host.hashes().map_err(wrong)?,
            groups: host.groups().map_err(wrong)?,
        };
        for (key, file) in self.files_of(host, reading.now) {
            match self.key(key, file, reading) {
                Ok(read) => read.add_to(&mut policy),
                Err(error) => {
                    match key {
                        HostKey::Controller => policy.unknown.controller = true,
                        HostKey::Current | HostKey::Old => policy.unknown.host += 1,
                    }
                    unread.push(UnreadKey {
                        host: *name,
                        key,
                        path: match KeyFile::parse(file.get_ref()) {
                            Ok(KeyFile::Path(path)) => Some(path.to_path_buf()),
                            Ok(KeyFile::Credential(_)) | Err(_) => None,
                        },
                        error,
                    });
                }
            }
        }
        Ok(policy)
    }

    /// The files with keys of `host` that are valid at `now`, the current one first.
    fn files_of<'a>(
        &self,
        host: &'a RawHost,
        now: SystemTime,
    ) -> impl Iterator<Item = (HostKey, &'a Spanned<String>)> {
        let is_over = host.old_key_until().is_some_and(|until| until <= now);
        host.files()
            .filter(move |(key, _)| !(is_over && *key == HostKey::Old))
    }

    /// Reads the key of the file `file`.
    fn key(
        &self,
        key: HostKey,
        file: &Spanned<String>,
        reading: &Reading,
    ) -> Result<ReadKey, ConfigError> {
        let refused = |what: &str| {
            let what = format!("{}: {what}", key.name());
            self.error_at(Some(file.span().start), &what)
        };
        let place = KeyFile::parse(file.get_ref()).map_err(|what| refused(&what))?;
        let read = place.read(reading.credentials.as_deref());
        let read = read.map_err(|what| refused(&format!("{place}: {what}")));
        let secret = read.map(Arc::new)?;
        Ok(ReadKey { key, secret })
    }

    pub(crate) fn hosts(&self) -> impl Iterator<Item = &RawHost> {
        self.raw.host.iter().map(Spanned::get_ref)
    }

    fn host(&self, name: &Nqn) -> Option<&RawHost> {
        self.hosts()
            .find(|host| host.nqn.get_ref() == name.as_str())
    }

    fn required_subsystems(&self) -> impl Iterator<Item = &RawSubsystem> {
        let all = self.raw.subsystem.iter().map(Spanned::get_ref);
        all.filter(|subsystem| subsystem.require_authentication)
    }
}

impl ReadKey {
    /// Adds the key to a policy that lacks it.
    pub fn add_to(self, policy: &mut Policy) {
        match self.key {
            HostKey::Current => {
                policy.keys.insert(0, self.secret);
                policy.first_is_old = false;
            }
            HostKey::Old => policy.keys.push(self.secret),
            HostKey::Controller => policy.controller_key = Some(self.secret),
        }
    }

    /// Whether `policy` has another key in its place, or none.
    #[must_use]
    pub fn differs_from(&self, policy: &Policy) -> bool {
        let present = match self.key {
            HostKey::Current => policy.current(),
            HostKey::Old => policy.old(),
            HostKey::Controller => policy.controller_key.as_ref(),
        };
        !present.is_some_and(|present| present.equals(&self.secret))
    }
}

/// The keys if all of them could be read.
fn whole(
    (spec, unread): (AuthenticationSpec, Vec<UnreadKey>),
) -> Result<AuthenticationSpec, ConfigError> {
    let errors = unread.into_iter().map(|one| one.error).collect();
    ConfigError::joined(errors).map_or(Ok(spec), Err)
}
