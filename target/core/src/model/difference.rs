//! Differences between two models.

use std::fmt;

use nvmeof_wire::Nqn;
use nvmeof_wire::log::ana::AnaState;

use super::authentication::REQUIRED;
use super::{Model, Namespace, Port, Subsystem, authentication, discovery};

/// One difference between two models. Displays as text: "namespace 7 is added".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The changed object.
    pub subject: Subject,
    /// The kind of change.
    pub kind: ChangeKind,
}

/// The object of a [`Change`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A port.
    Port {
        /// Its address, and its service where it has one.
        address: String,
    },
    /// The discovery subsystem.
    Discovery,
    /// A referral to another discovery subsystem.
    Referral {
        /// Its address and port.
        address: String,
        /// Its NQN.
        nqn: Nqn,
    },
    /// An ANA group on a port.
    AnaGroup {
        /// Address of the port, as of [`Subject::Port`].
        address: String,
        /// Identifier of the group.
        group: u32,
    },
    /// A subsystem.
    Subsystem {
        /// Its NQN.
        nqn: Nqn,
    },
    /// Permission of a host to connect to a subsystem.
    Host {
        /// The subsystem.
        nqn: Nqn,
        /// The host; `None` stands for every host.
        host: Option<Box<Nqn>>,
    },
    /// The key of a host, by which it proves who it is.
    HostKey {
        /// The host.
        host: Box<Nqn>,
    },
    /// A namespace.
    Namespace {
        /// Its subsystem.
        nqn: Nqn,
        /// Its NSID.
        nsid: u32,
    },
}

/// A kind of change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It was added, or is allowed now.
    Added,
    /// It was removed, or is no longer allowed.
    Removed,
    /// A namespace has another size.
    Resized {
        /// Previous size in bytes.
        from: u64,
        /// New size in bytes.
        to: u64,
    },
    /// The backing store of a namespace is gone.
    Faulted,
    /// The backing store of a namespace is available again.
    Recovered,
    /// A namespace was enabled.
    Enabled,
    /// A namespace was disabled.
    Disabled,
    /// An ANA group is in another state.
    State {
        /// Previous state.
        from: AnaState,
        /// New state.
        to: AnaState,
    },
    /// Another value changed.
    Changed {
        /// Its key.
        key: &'static str,
    },
}

impl Model {
    /// The changes from `self` to `to`: ports, discovery and keys of hosts first, then the
    /// subsystems in order.
    #[must_use]
    pub fn difference(&self, to: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        ports(&self.ports, &to.ports, &mut changes);
        discovery::difference(&self.discovery, &to.discovery, &mut changes);
        authentication::difference(&self.authentication, &to.authentication, &mut changes);
        for old in &self.subsystems {
            match to.subsystem(&old.nqn) {
                Some(new) => {
                    let required =
                        |model: &Self| model.authentication.subsystems.contains(&old.nqn);
                    let differs = required(self) != required(to);
                    keys(&whole(new), &[(REQUIRED, differs)], &mut changes);
                    subsystem(old, new, &mut changes);
                }
                None => push(&mut changes, whole(old), ChangeKind::Removed),
            }
        }
        for new in &to.subsystems {
            if self.subsystem(&new.nqn).is_none() {
                push(&mut changes, whole(new), ChangeKind::Added);
                hosts(None, new, &mut changes);
                namespaces(new.nqn, &[], &allocated(new), &mut changes);
            }
        }
        changes
    }
}

fn push(changes: &mut Vec<Change>, subject: Subject, kind: ChangeKind) {
    changes.push(Change { subject, kind });
}

fn whole(subsystem: &Subsystem) -> Subject {
    Subject::Subsystem { nqn: subsystem.nqn }
}

fn ports(old: &[Port], new: &[Port], changes: &mut Vec<Change>) {
    let subject = |port: &Port| Subject::Port {
        address: port.address().to_string(),
    };
    for before in old {
        match new.iter().find(|port| port.is_at(&before.address())) {
            None => push(changes, subject(before), ChangeKind::Removed),
            Some(after) => {
                keys(&subject(before), &port(before, after), changes);
                states(before, after, changes);
            }
        }
    }
    for port in new {
        if !old.iter().any(|other| other.is_at(&port.address())) {
            push(changes, subject(port), ChangeKind::Added);
        }
    }
}

/// A key, and whether its value differs.
type Differs = (&'static str, bool);

/// Adds a change for each key that differs.
fn keys(subject: &Subject, all: &[Differs], changes: &mut Vec<Change>) {
    for (key, _) in all.iter().filter(|(_, differs)| *differs) {
        push(changes, subject.clone(), ChangeKind::Changed { key });
    }
}

fn port(old: &Port, new: &Port) -> [Differs; 5] {
    [
        ("provider", old.carriers != new.carriers),
        ("in_capsule", old.in_capsule != new.in_capsule),
        ("queue_depth", old.queue_depth != new.queue_depth),
        ("subsystems", old.subsystems != new.subsystems),
        ("id", old.id != new.id),
    ]
}

/// ANA groups with another state on a port.
fn states(old: &Port, new: &Port, changes: &mut Vec<Change>) {
    let groups = old.ana_groups.iter().chain(&new.ana_groups);
    let mut groups: Vec<u32> = groups.map(|group| group.id).collect();
    groups.sort_unstable();
    groups.dedup();
    for group in groups {
        let (from, to) = (old.ana_state(group), new.ana_state(group));
        if from != to {
            let address = new.address().to_string();
            let subject = Subject::AnaGroup { address, group };
            push(changes, subject, ChangeKind::State { from, to });
        }
    }
}

fn subsystem(old: &Subsystem, new: &Subsystem, changes: &mut Vec<Change>) {
    let (ids, new_ids) = (old.controller_ids, new.controller_ids);
    let differs = [
        ("serial", old.serial != new.serial),
        ("model", old.model_number != new.model_number),
        ("cntlid_min", ids.min() != new_ids.min()),
        ("cntlid_max", ids.max() != new_ids.max()),
        ("io_queues", old.io_queues != new.io_queues),
        (
            "firmware_revision",
            old.firmware_revision != new.firmware_revision,
        ),
        ("ieee_oui", old.ieee_oui != new.ieee_oui),
    ];
    keys(&whole(new), &differs, changes);
    hosts(Some(old), new, changes);
    namespaces(new.nqn, &allocated(old), &allocated(new), changes);
}

/// All namespaces, active or not.
fn allocated(subsystem: &Subsystem) -> Vec<Namespace> {
    let all = subsystem.namespaces().iter().chain(subsystem.disabled());
    all.cloned().collect()
}

/// Hosts that may connect; `None` stands for every host.
fn hosts(old: Option<&Subsystem>, new: &Subsystem, changes: &mut Vec<Change>) {
    let before = old.map(allowed).unwrap_or_default();
    let after = allowed(new);
    let subject = |host: &Option<Nqn>| Subject::Host {
        nqn: new.nqn,
        host: host.map(Box::new),
    };
    for host in before.iter().filter(|host| !after.contains(host)) {
        push(changes, subject(host), ChangeKind::Removed);
    }
    for host in after.iter().filter(|host| !before.contains(host)) {
        push(changes, subject(host), ChangeKind::Added);
    }
}

fn allowed(subsystem: &Subsystem) -> Vec<Option<Nqn>> {
    match &subsystem.allowed_hosts {
        None => vec![None],
        Some(hosts) => hosts.iter().copied().map(Some).collect(),
    }
}

fn namespaces(nqn: Nqn, old: &[Namespace], new: &[Namespace], changes: &mut Vec<Change>) {
    let of = |all: &[Namespace], nsid| all.iter().find(|one| one.nsid == nsid).cloned();
    let mut nsids: Vec<u32> = old.iter().chain(new).map(|one| one.nsid).collect();
    nsids.sort_unstable();
    nsids.dedup();
    for nsid in nsids {
        let kinds = match (of(old, nsid), of(new, nsid)) {
            (None, _) => vec![ChangeKind::Added],
            (Some(_), None) => vec![ChangeKind::Removed],
            (Some(old), Some(new)) => namespace(&old, &new),
        };
        for kind in kinds {
            push(changes, Subject::Namespace { nqn, nsid }, kind);
        }
    }
}

fn namespace(old: &Namespace, new: &Namespace) -> Vec<ChangeKind> {
    if old == new {
        return Vec::new();
    }
    let mut kinds = Vec::new();
    let is_disabled = |one: &Namespace| !one.state.is_active();
    match (is_disabled(old), is_disabled(new)) {
        (false, true) => kinds.push(ChangeKind::Disabled),
        (true, false) => kinds.push(ChangeKind::Enabled),
        (true, true) => {}
        (false, false) => kinds.extend(storage(old, new)),
    }
    // The backing store determines these, for enabled namespaces only.
    let comparable = is_disabled(old) == is_disabled(new);
    let block_size = comparable && old.block_shift != new.block_shift;
    let readonly = comparable && old.readonly != new.readonly;
    let differs = [
        ("path", old.storage != new.storage),
        ("block_size", block_size),
        ("uuid", old.uuid != new.uuid),
        ("nguid", old.nguid != new.nguid),
        ("eui64", old.eui64 != new.eui64),
        ("readonly", readonly),
        ("ana_group", old.group() != new.group()),
        ("hosts", old.hosts != new.hosts),
    ];
    let changed = differs.iter().filter(|(_, differs)| *differs);
    kinds.extend(changed.map(|(key, _)| ChangeKind::Changed { key }));
    if kinds.is_empty() {
        // The same file or device was opened again, or has another geometry.
        let is_geometry = old.preferred != new.preferred;
        let key = if is_geometry {
            "preferred size"
        } else {
            "backing store"
        };
        kinds.push(ChangeKind::Changed { key });
    }
    kinds
}

/// The change of the backing store of an enabled namespace.
fn storage(old: &Namespace, new: &Namespace) -> Option<ChangeKind> {
    match (old.is_ready(), new.is_ready()) {
        (true, false) => Some(ChangeKind::Faulted),
        (false, true) => Some(ChangeKind::Recovered),
        _ if old.bytes() != new.bytes() => Some(ChangeKind::Resized {
            from: old.bytes(),
            to: new.bytes(),
        }),
        _ => None,
    }
}

impl Change {
    /// Displays the change as planned: "namespace 7 would be added".
    #[must_use]
    pub fn planned(&self) -> impl fmt::Display + '_ {
        fmt::from_fn(|f| self.write(f, "would be"))
    }

    /// `be` is the verb between subject and change: "is" or "would be".
    fn write(&self, f: &mut fmt::Formatter<'_>, be: &str) -> fmt::Result {
        let Self { subject, kind } = self;
        match (subject, kind) {
            (Subject::Host { .. }, ChangeKind::Added) => {
                write!(f, "{subject} {be} allowed to connect")
            }
            (Subject::Host { .. }, _) => {
                let be = if be == "is" {
                    "is no longer"
                } else {
                    "would no longer be"
                };
                write!(f, "{subject} {be} allowed to connect")
            }
            (_, ChangeKind::Added) => write!(f, "{subject} {be} added"),
            (_, ChangeKind::Removed) => write!(f, "{subject} {be} removed"),
            (_, ChangeKind::Resized { from, to }) => {
                write!(f, "{subject} {be} resized from {from} to {to} bytes")
            }
            (_, ChangeKind::Faulted) => {
                write!(
                    f,
                    "{subject} {be} faulted: its backing store is not available"
                )
            }
            (_, ChangeKind::Recovered) => {
                write!(
                    f,
                    "{subject} {be} recovered: its backing store is available"
                )
            }
            (_, ChangeKind::Enabled) => write!(f, "{subject} {be} enabled"),
            (_, ChangeKind::Disabled) => write!(f, "{subject} {be} disabled"),
            (_, ChangeKind::State { from, to }) => {
                write!(f, "{subject} {be} changed from {from} to {to}")
            }
            (_, ChangeKind::Changed { key }) => write!(f, "{subject} {be} changed: {key}"),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, "is")
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port { address } => write!(f, "port {address}"),
            Self::Discovery => f.write_str("the discovery subsystem"),
            Self::Referral { address, .. } => write!(f, "the referral to {address}"),
            Self::AnaGroup { address, group } => write!(f, "port {address}: ANA group {group}"),
            Self::Subsystem { nqn } => write!(f, "subsystem {nqn}"),
            Self::Host { nqn, host: None } => write!(f, "{nqn}: every host"),
            Self::Host {
                nqn,
                host: Some(host),
            } => write!(f, "{nqn}: host {host}"),
            Self::HostKey { host } => write!(f, "the key of host {host}"),
            Self::Namespace { nqn, nsid } => write!(f, "{nqn}: namespace {nsid}"),
        }
    }
}
