//! What differs between two models, one change at a time.

use std::fmt;

use nvmeof_wire::Nqn;
use nvmeof_wire::log::ana::AnaState;

use super::{Model, Namespace, NamespaceState, Port, Subsystem, discovery};

/// One difference between two models. Displays as a line for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What changed.
    pub subject: Subject,
    /// In which way.
    pub kind: ChangeKind,
}

/// What a [`Change`] is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A port.
    Port {
        /// Its address, and its service where it has one.
        address: String,
    },
    /// The discovery subsystem.
    Discovery,
    /// A discovery subsystem elsewhere.
    Referral {
        /// Its address and port.
        address: String,
        /// Its name.
        nqn: Nqn,
    },
    /// A group of namespaces as a port reaches it.
    AnaGroup {
        /// Address of the port, as of [`Subject::Port`].
        address: String,
        /// Number of the group.
        group: u32,
    },
    /// A subsystem.
    Subsystem {
        /// Its name.
        nqn: Nqn,
    },
    /// Who may connect to a subsystem.
    Host {
        /// The subsystem.
        nqn: Nqn,
        /// The host; `None` stands for every host.
        host: Option<Box<Nqn>>,
    },
    /// A namespace.
    Namespace {
        /// Its subsystem.
        nqn: Nqn,
        /// Its number.
        nsid: u32,
    },
}

/// In which way something changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It is new, or allowed.
    Added,
    /// It is gone, or not allowed any more.
    Removed,
    /// A namespace has another size.
    Resized {
        /// Bytes it had.
        from: u64,
        /// Bytes it has.
        to: u64,
    },
    /// What is behind a namespace is gone.
    Faulted,
    /// What is behind a namespace is there again.
    Recovered,
    /// A namespace is switched on.
    Enabled,
    /// A namespace is switched off.
    Disabled,
    /// A group of namespaces is in another state.
    State {
        /// State it was in.
        from: AnaState,
        /// State it is in.
        to: AnaState,
    },
    /// Anything else about it.
    Changed {
        /// Name of what changed first of its values.
        key: &'static str,
    },
}

impl Model {
    /// What makes `self` become `to`. Ports and sizes come first, then one
    /// subsystem after the other, by name.
    #[must_use]
    pub fn difference(&self, to: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        ports(&self.ports, &to.ports, &mut changes);
        discovery::difference(&self.discovery, &to.discovery, &mut changes);
        for old in &self.subsystems {
            match to.subsystem(&old.nqn) {
                Some(new) => subsystem(old, new, &mut changes),
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
                if let Some(key) = port(before, after) {
                    push(changes, subject(before), ChangeKind::Changed { key });
                }
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

fn port(old: &Port, new: &Port) -> Option<&'static str> {
    if old.carriers != new.carriers {
        return Some("provider");
    }
    if old.in_capsule != new.in_capsule {
        return Some("in_capsule");
    }
    if old.queue_depth != new.queue_depth {
        return Some("queue_depth");
    }
    if old.subsystems != new.subsystems {
        return Some("subsystems");
    }
    (old.id != new.id).then_some("id")
}

/// Groups of namespaces that a port reaches otherwise.
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
    let key = if old.serial != new.serial {
        Some("serial")
    } else if old.model_number != new.model_number {
        Some("model")
    } else if old.controller_ids.min() != new.controller_ids.min() {
        Some("cntlid_min")
    } else if old.controller_ids.max() != new.controller_ids.max() {
        Some("cntlid_max")
    } else if old.io_queues != new.io_queues {
        Some("io_queues")
    } else if old.firmware_revision != new.firmware_revision {
        Some("firmware_revision")
    } else if old.ieee_oui != new.ieee_oui {
        Some("ieee_oui")
    } else {
        None
    };
    if let Some(key) = key {
        push(changes, whole(new), ChangeKind::Changed { key });
    }
    hosts(Some(old), new, changes);
    namespaces(new.nqn, &allocated(old), &allocated(new), changes);
}

/// The namespaces, active or not.
fn allocated(subsystem: &Subsystem) -> Vec<Namespace> {
    let all = subsystem.namespaces().iter().chain(subsystem.disabled());
    all.cloned().collect()
}

/// Who may connect: `None` among the hosts stands for all.
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
        let kind = match (of(old, nsid), of(new, nsid)) {
            (None, _) => Some(ChangeKind::Added),
            (Some(_), None) => Some(ChangeKind::Removed),
            (Some(old), Some(new)) => namespace(&old, &new),
        };
        if let Some(kind) = kind {
            push(changes, Subject::Namespace { nqn, nsid }, kind);
        }
    }
}

fn namespace(old: &Namespace, new: &Namespace) -> Option<ChangeKind> {
    if old == new {
        return None;
    }
    let changed = |key| Some(ChangeKind::Changed { key });
    let disabled = |one: &Namespace| one.state == NamespaceState::Disabled;
    match (disabled(old), disabled(new)) {
        (false, true) => return Some(ChangeKind::Disabled),
        (true, false) => return Some(ChangeKind::Enabled),
        _ => {}
    }
    // A size of which hosts hear in any case, whatever else there is.
    if old.block_shift != new.block_shift {
        return changed("block_size");
    }
    if (old.uuid, old.nguid, old.eui64) != (new.uuid, new.nguid, new.eui64) {
        return changed("uuid, nguid or eui64");
    }
    if old.is_ready() != new.is_ready() {
        let kind = if new.is_ready() {
            ChangeKind::Recovered
        } else {
            ChangeKind::Faulted
        };
        return Some(kind).filter(|_| !disabled(new));
    }
    if old.blocks != new.blocks {
        return Some(ChangeKind::Resized {
            from: old.bytes(),
            to: new.bytes(),
        });
    }
    if old.readonly != new.readonly {
        return changed("readonly");
    }
    if old.preferred != new.preferred {
        return changed("preferred size");
    }
    if old.ana_group != new.ana_group {
        return changed("ana_group");
    }
    if old.hosts != new.hosts {
        return changed("hosts");
    }
    changed("path")
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, kind } = self;
        match (subject, kind) {
            (Subject::Host { .. }, ChangeKind::Added) => write!(f, "{subject} may connect"),
            (Subject::Host { .. }, _) => write!(f, "{subject} may not connect any more"),
            (_, ChangeKind::Added) => write!(f, "{subject} is added"),
            (_, ChangeKind::Removed) => write!(f, "{subject} is removed"),
            (_, ChangeKind::Resized { from, to }) => {
                write!(f, "{subject} has {to} bytes, {from} before")
            }
            (_, ChangeKind::Faulted) => write!(f, "{subject} is faulted: its storage is gone"),
            (_, ChangeKind::Recovered) => write!(f, "{subject} is there again"),
            (_, ChangeKind::Enabled) => write!(f, "{subject} is enabled"),
            (_, ChangeKind::Disabled) => write!(f, "{subject} is disabled"),
            (_, ChangeKind::State { from, to }) => {
                write!(f, "{subject} is {to}, {from} before")
            }
            (_, ChangeKind::Changed { key }) => write!(f, "{subject} has another {key}"),
        }
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
            Self::Namespace { nqn, nsid } => write!(f, "{nqn}: namespace {nsid}"),
        }
    }
}
