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
                | Self::PortRemove { .. }
                | Self::ReferralRemove { .. }
        )
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
            (Self::Ana(None, group), Self::Ana(_, it)) => group == it,
            (
                Self::Port(address),
                Self::Port(it) | Self::Ana(Some(it), _) | Self::KeyOfPort(it, _),
            ) => address == it,
            _ => self == other,
        }
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |subsystem: &Option<String>| match subsystem {
            Some(nqn) => format!(" of {nqn}"),
            None => String::new(),
        };
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
            Self::HostAllow { subsystem, host } => write!(f, "host allow {host}{}", of(subsystem)),
            Self::HostDeny { subsystem, host } => write!(f, "host deny {host}{}", of(subsystem)),
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
