//! Run-time changes of single objects of the configuration.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One run-time change.
///
/// `subsystem` may be omitted if there is only one.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
#[serde(tag = "edit", rename_all = "snake_case", deny_unknown_fields)]
pub enum Edit {
    /// Adds a subsystem.
    SubsystemAdd {
        /// Its NQN.
        nqn: String,
        /// `serial`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        serial: Option<String>,
        /// `model`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
        /// `allowed_hosts`; `["any"]` allows every host, an empty list none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        hosts: Vec<String>,
    },
    /// Removes a subsystem with its namespaces and hosts.
    SubsystemRemove {
        /// Its NQN.
        nqn: String,
    },
    /// Adds a namespace.
    NamespaceAdd(NamespaceAdd),
    /// Removes a namespace.
    NamespaceRemove {
        /// NQN of its subsystem.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subsystem: Option<String>,
        /// Namespace ID.
        nsid: u32,
    },
    /// Enables or disables a namespace.
    NamespaceEnable {
        /// NQN of its subsystem.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subsystem: Option<String>,
        /// Namespace ID.
        nsid: u32,
        /// `enabled`.
        enabled: bool,
    },
    /// Sets or removes a key of a namespace.
    NamespaceSet {
        /// NQN of its subsystem.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subsystem: Option<String>,
        /// Namespace ID.
        nsid: u32,
        /// The key.
        key: String,
        /// The value as in the configuration file; strings need no quotes. Without a value
        /// the key is removed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<String>,
    },
    /// Sets or removes a key of a subsystem.
    SubsystemSet {
        /// Its NQN.
        nqn: String,
        /// The key.
        key: String,
        /// As in `namespace_set`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<String>,
    },
    /// Sets or removes a key of a port.
    PortSet {
        /// Its address and port.
        address: String,
        /// The key.
        key: String,
        /// As in `namespace_set`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<String>,
    },
    /// Allows a host to connect.
    HostAllow {
        /// NQN of the subsystem.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subsystem: Option<String>,
        /// NQN of the host, or `any`.
        host: String,
    },
    /// Denies a host to connect.
    HostDeny {
        /// NQN of the subsystem.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subsystem: Option<String>,
        /// NQN of the host, or `any`: then only hosts that are allowed later may connect.
        host: String,
    },
    /// Sets the keys with which a host is authenticated. What is left out has its default; an old
    /// key is removed. Refused while controllers use a key that the host would not have any more.
    HostSetKey(HostKeys),
    /// Gives a host another key and keeps the present one as the old key.
    HostRotateKey {
        /// NQN of the host.
        host: String,
        /// `key_file`: the file with the new key.
        key_file: String,
        /// `old_key_file`: the present `key_file`, which the target fills in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        old_key_file: Option<String>,
        /// `old_key_until`: a date or a date and time; without it, the old key is accepted until it
        /// is removed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        old_key_until: Option<String>,
        /// The files that it replaces, which the target fills in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replaces: Option<KeyFiles>,
    },
    /// Removes the old key of a host. Refused while controllers use it.
    HostRemoveOldKey {
        /// NQN of the host.
        host: String,
        /// The files that it removes, which the target fills in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replaces: Option<KeyFiles>,
        /// Whether to remove it in any case, and to disconnect the controllers that use it. It is
        /// not saved.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Removes all keys of a host, which is then not authenticated any more.
    HostRemoveKey {
        /// NQN of the host.
        host: String,
        /// The files that it removes, which the target fills in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replaces: Option<KeyFiles>,
    },
    /// Adds a port.
    PortAdd {
        /// Address and port, such as `10.0.0.1:4420`, or `unix:/path`.
        address: String,
        /// `provider`; an empty list is `auto`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        provider: Vec<String>,
        /// `id`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<u16>,
    },
    /// Removes a port.
    PortRemove {
        /// Its address and port.
        address: String,
    },
    /// Sets the state of an ANA group.
    AnaSet {
        /// Address of the port; without it, all ports.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<String>,
        /// ANA group ID.
        group: u32,
        /// `state`.
        state: String,
    },
    /// Adds a referral to another discovery service.
    ReferralAdd {
        /// Its address and port.
        address: String,
        /// `port_id`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port_id: Option<u16>,
        /// `nqn`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        nqn: Option<String>,
    },
    /// Removes a referral.
    ReferralRemove {
        /// Its address and port.
        address: String,
    },
}

/// A namespace to add.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamespaceAdd {
    /// NQN of its subsystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
    /// Namespace ID; without it, the first free one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nsid: Option<u32>,
    /// `path`.
    pub path: String,
    /// `block_size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// `uuid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// `nguid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nguid: Option<String>,
    /// `eui64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eui64: Option<String>,
    /// `readonly`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readonly: Option<bool>,
    /// `iopoll`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iopoll: Option<bool>,
    /// `ana_group`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ana_group: Option<u32>,
    /// `hosts`: NQNs of hosts that can access it; an empty list is every host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

/// The keys of a host, and how they are used.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostKeys {
    /// NQN of the host.
    pub host: String,
    /// `key_file`: an absolute path, or `credential:NAME`. Only the path is saved.
    pub key_file: String,
    /// `controller_key_file`, as `key_file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller_key_file: Option<String>,
    /// `hash`; an empty list is the default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hash: Vec<String>,
    /// `dh_groups`; an empty list is the default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dh_groups: Vec<String>,
    /// The files that it replaces, which the target fills in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<KeyFiles>,
    /// Whether to replace keys that controllers use, and to disconnect these controllers. It is not
    /// saved.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// The files with the keys of a host, as far as a change concerns them.
///
/// A saved change is deferred if the configuration has other files: its administrator changed the
/// keys since.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyFiles {
    /// `key_file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<String>,
    /// `old_key_file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_key_file: Option<String>,
    /// `controller_key_file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller_key_file: Option<String>,
}

/// In place of an NQN: every host.
pub const ANY: &str = "any";

/// The object or key that an edit concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slot<'a> {
    /// A subsystem as a whole.
    Subsystem(&'a str),
    /// A namespace: subsystem and NSID.
    Namespace(&'a str, u32),
    /// Whether a namespace is enabled.
    Enabled(&'a str, u32),
    /// A key of a namespace.
    KeyOfNamespace(&'a str, u32, &'a str),
    /// A key of a subsystem.
    KeyOfSubsystem(&'a str, &'a str),
    /// A key of a port.
    KeyOfPort(&'a str, &'a str),
    /// A host that may connect to a subsystem.
    Host(&'a str, &'a str),
    /// All keys of a host.
    HostKeys(&'a str),
    /// The key and the old key of a host.
    HostKeyFiles(&'a str),
    /// The old key of a host.
    OldHostKey(&'a str),
    /// A port, by address.
    Port(&'a str),
    /// The state of an ANA group on one port or on all.
    Ana(Option<&'a str>, u32),
    /// A referral, by address.
    Referral(&'a str),
}

/// The NQN of the subsystem, or nothing if it is not known.
fn name(subsystem: &Option<String>) -> &str {
    subsystem.as_deref().unwrap_or_default()
}

impl Edit {
    /// The object or key that it concerns. Subsystem and NSID must be filled in.
    #[must_use]
    pub fn slot(&self) -> Slot<'_> {
        match self {
            Self::SubsystemAdd { nqn, .. } | Self::SubsystemRemove { nqn } => Slot::Subsystem(nqn),
            Self::NamespaceAdd(add) => {
                Slot::Namespace(name(&add.subsystem), add.nsid.unwrap_or_default())
            }
            Self::NamespaceRemove { subsystem, nsid } => Slot::Namespace(name(subsystem), *nsid),
            Self::NamespaceEnable {
                subsystem, nsid, ..
            } => Slot::Enabled(name(subsystem), *nsid),
            Self::NamespaceSet {
                subsystem,
                nsid,
                key,
                ..
            } => Slot::KeyOfNamespace(name(subsystem), *nsid, key),
            Self::SubsystemSet { nqn, key, .. } => Slot::KeyOfSubsystem(nqn, key),
            Self::PortSet { address, key, .. } => Slot::KeyOfPort(address, key),
            Self::HostAllow { subsystem, host } | Self::HostDeny { subsystem, host } => {
                Slot::Host(name(subsystem), host)
            }
            Self::HostSetKey(HostKeys { host, .. }) | Self::HostRemoveKey { host, .. } => {
                Slot::HostKeys(host)
            }
            Self::HostRotateKey { host, .. } => Slot::HostKeyFiles(host),
            Self::HostRemoveOldKey { host, .. } => Slot::OldHostKey(host),
            Self::PortAdd { address, .. } | Self::PortRemove { address } => Slot::Port(address),
            Self::AnaSet { address, group, .. } => Slot::Ana(address.as_deref(), *group),
            Self::ReferralAdd { address, .. } | Self::ReferralRemove { address } => {
                Slot::Referral(address)
            }
        }
    }

    /// Whether it overrides all earlier edits of its slot and of the slots in it.
    #[must_use]
    pub fn overrides(&self) -> bool {
        !matches!(
            self,
            Self::SubsystemAdd { .. }
                | Self::NamespaceAdd(_)
                | Self::PortAdd { .. }
                | Self::ReferralAdd { .. }
        )
    }

    /// Whether it only adds something and changes nothing else. Allowing `any` replaces a list,
    /// so it does not.
    #[must_use]
    pub fn only_adds(&self) -> bool {
        match self {
            Self::HostAllow { host, .. } => host != ANY,
            edit => !edit.overrides(),
        }
    }

    /// Whether a deferred edit is forgotten when this one is applied, because both concern the
    /// same object.
    #[must_use]
    pub fn displaces(&self, deferred: &Self) -> bool {
        let (its, other) = (self.slot(), deferred.slot());
        match (&its, &other) {
            // A new subsystem decides which hosts may connect, but has no namespaces.
            (
                Slot::Subsystem(_),
                Slot::Namespace(..) | Slot::Enabled(..) | Slot::KeyOfNamespace(..),
            ) if !self.overrides() => false,
            (Slot::Subsystem(_), Slot::Host(..)) if !self.overrides() => {
                its.holds(&other) && !deferred.only_adds()
            }
            _ => its.holds(&other),
        }
    }

    /// Whether it removes something that must exist.
    #[must_use]
    pub fn takes_away(&self) -> bool {
        matches!(
            self,
            Self::SubsystemRemove { .. }
                | Self::NamespaceRemove { .. }
                | Self::HostDeny { .. }
                | Self::HostRemoveOldKey { .. }
                | Self::HostRemoveKey { .. }
                | Self::PortRemove { .. }
                | Self::ReferralRemove { .. }
        )
    }

    /// The host whose keys it changes.
    #[must_use]
    pub fn host_of_keys(&self) -> Option<&str> {
        match self.slot() {
            Slot::HostKeys(host) | Slot::HostKeyFiles(host) | Slot::OldHostKey(host) => Some(host),
            _ => None,
        }
    }

    /// What a change of the keys of a host replaces or removes, if it is recorded.
    #[must_use]
    pub fn replaces(&self) -> Option<&KeyFiles> {
        match self {
            Self::HostSetKey(HostKeys { replaces, .. })
            | Self::HostRotateKey { replaces, .. }
            | Self::HostRemoveOldKey { replaces, .. }
            | Self::HostRemoveKey { replaces, .. } => replaces.as_ref(),
            _ => None,
        }
    }

    /// As [`replaces`](Self::replaces), to be recorded.
    pub fn replaces_mut(&mut self) -> Option<&mut Option<KeyFiles>> {
        match self {
            Self::HostSetKey(HostKeys { replaces, .. })
            | Self::HostRotateKey { replaces, .. }
            | Self::HostRemoveOldKey { replaces, .. }
            | Self::HostRemoveKey { replaces, .. } => Some(replaces),
            _ => None,
        }
    }

    /// The subsystem, if it may be omitted.
    pub fn subsystem_mut(&mut self) -> Option<&mut Option<String>> {
        match self {
            Self::NamespaceAdd(NamespaceAdd { subsystem, .. })
            | Self::NamespaceRemove { subsystem, .. }
            | Self::NamespaceEnable { subsystem, .. }
            | Self::NamespaceSet { subsystem, .. }
            | Self::HostAllow { subsystem, .. }
            | Self::HostDeny { subsystem, .. } => Some(subsystem),
            _ => None,
        }
    }
}

impl Slot<'_> {
    /// Whether a later overriding edit of `self` overrides an earlier one of `other`.
    #[must_use]
    pub fn holds(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Subsystem(nqn),
                Self::Subsystem(it)
                | Self::Namespace(it, _)
                | Self::Enabled(it, _)
                | Self::KeyOfNamespace(it, ..)
                | Self::KeyOfSubsystem(it, _)
                | Self::Host(it, _),
            ) => nqn == it,
            (
                Self::Namespace(nqn, nsid),
                Self::Namespace(it, number)
                | Self::Enabled(it, number)
                | Self::KeyOfNamespace(it, number, _),
            ) => (nqn, nsid) == (it, number),
            (Self::Host(nqn, host), Self::Host(it, other)) => {
                nqn == it && (*host == ANY || host == other)
            }
            (
                Self::HostKeys(host),
                Self::HostKeys(it) | Self::HostKeyFiles(it) | Self::OldHostKey(it),
            )
            | (Self::HostKeyFiles(host), Self::HostKeyFiles(it) | Self::OldHostKey(it)) => {
                host == it
            }
            (Self::Ana(None, group), Self::Ana(_, it)) => group == it,
            (
                Self::Port(address),
                Self::Port(it) | Self::Ana(Some(it), _) | Self::KeyOfPort(it, _),
            ) => address == it,
            _ => self == other,
        }
    }
}

/// The file of a key in parentheses; never a key.
fn in_file(path: &str) -> String {
    match path.contains(KEY_PREFIX) {
        true => String::new(),
        false => format!(" ({path})"),
    }
}

/// The NQN of a host; never a key, which somebody may give in its place.
fn named(host: &str) -> &str {
    match host.contains(KEY_PREFIX) {
        true => "(a key)",
        false => host,
    }
}

/// The beginning of a key, which somebody may give in place of the path of its file.
pub const KEY_PREFIX: &str = nvmeof_dhchap::Key::PREFIX;

/// The subsystem after its object, if it is given.
fn of(subsystem: &Option<String>) -> String {
    let name = subsystem.as_ref();
    name.map_or_else(String::new, |nqn| format!(" of {nqn}"))
}

impl fmt::Display for HostKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", named(&self.host), in_file(&self.key_file))
    }
}

impl Edit {
    /// Writes a change of a host.
    fn write_host(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostAllow { subsystem, host } => {
                write!(f, "host allow {}{}", named(host), of(subsystem))
            }
            Self::HostDeny { subsystem, host } => {
                write!(f, "host deny {}{}", named(host), of(subsystem))
            }
            Self::HostSetKey(keys) => write!(f, "host set-key {keys}"),
            Self::HostRotateKey { host, key_file, .. } => {
                write!(f, "host rotate-key {}{}", named(host), in_file(key_file))
            }
            Self::HostRemoveOldKey { host, .. } => {
                write!(f, "host remove-old-key {}", named(host))
            }
            Self::HostRemoveKey { host, .. } => write!(f, "host remove-key {}", named(host)),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is = |value: &Option<String>| value.clone().unwrap_or_default();
        match self {
            Self::SubsystemAdd { nqn, .. } => write!(f, "subsystem add {nqn}"),
            Self::SubsystemRemove { nqn } => write!(f, "subsystem remove {nqn}"),
            Self::NamespaceAdd(NamespaceAdd {
                subsystem,
                nsid,
                path,
                ..
            }) => {
                let nsid = nsid.map(|nsid| format!(" {nsid}")).unwrap_or_default();
                write!(f, "namespace add{nsid} ({path}){}", of(subsystem))
            }
            Self::NamespaceRemove { subsystem, nsid } => {
                write!(f, "namespace remove {nsid}{}", of(subsystem))
            }
            Self::NamespaceEnable {
                subsystem,
                nsid,
                enabled,
            } => {
                let verb = if *enabled { "enable" } else { "disable" };
                write!(f, "namespace {verb} {nsid}{}", of(subsystem))
            }
            Self::NamespaceSet {
                subsystem,
                nsid,
                key,
                value,
            } => write!(
                f,
                "namespace set {nsid} {key}={}{}",
                is(value),
                of(subsystem)
            ),
            Self::SubsystemSet { nqn, key, value } => {
                write!(f, "subsystem set {nqn} {key}={}", is(value))
            }
            Self::PortSet {
                address,
                key,
                value,
            } => write!(f, "port set {address} {key}={}", is(value)),
            Self::HostAllow { .. }
            | Self::HostDeny { .. }
            | Self::HostSetKey(_)
            | Self::HostRotateKey { .. }
            | Self::HostRemoveOldKey { .. }
            | Self::HostRemoveKey { .. } => self.write_host(f),
            Self::PortAdd { address, .. } => write!(f, "port add {address}"),
            Self::PortRemove { address } => write!(f, "port remove {address}"),
            Self::AnaSet {
                address,
                group,
                state,
            } => {
                let port = address.as_deref().unwrap_or("every port");
                write!(f, "ana set group {group} {state} on {port}")
            }
            Self::ReferralAdd { address, .. } => write!(f, "referral add {address}"),
            Self::ReferralRemove { address } => write!(f, "referral remove {address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_in_place_of_its_file_is_not_printed() {
        let keys = |key_file: &str| {
            Edit::HostSetKey(HostKeys {
                host: "nqn.h".to_owned(),
                key_file: key_file.to_owned(),
                ..HostKeys::default()
            })
        };
        assert_eq!(keys("/k").to_string(), "host set-key nqn.h (/k)");
        assert_eq!(
            keys("DHHC-1:00:c2VjcmV0:").to_string(),
            "host set-key nqn.h"
        );
        let swapped = Edit::HostRemoveKey {
            host: "DHHC-1:00:c2VjcmV0:".to_owned(),
            replaces: None,
        };
        assert_eq!(swapped.to_string(), "host remove-key (a key)");
    }
}
