//! Snapshots: the state and counters of the target, which `GET /snapshot` returns as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use nvmeof_target_core::metrics::{Operation, Totals};
use serde::{Deserialize, Serialize};

use crate::latency::Latency;

/// State and counters of the target at one time.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Snapshot {
    /// Version of the target.
    pub version: String,
    /// Start time in seconds since 1970-01-01 UTC. The fraction distinguishes a restart within
    /// the same second.
    pub started: f64,
    /// Time since the start, in seconds.
    pub uptime: f64,
    /// Controllers that hosts have connected.
    pub controllers: usize,
    /// Reactors.
    pub reactors: Vec<ReactorState>,
    /// Subsystems, by NQN.
    pub subsystems: Vec<SubsystemState>,
    /// Namespaces, by subsystem and NSID. NSID 0 has the commands that name no namespace of the
    /// subsystem, or all of them.
    pub namespaces: Vec<NamespaceState>,
    /// Hosts that are or were recently connected, by NQN and subsystem.
    pub hosts: Vec<HostState>,
    /// Queue pairs.
    pub queues: Vec<QueueState>,
    /// ANA groups, by port and group ID.
    pub groups: Vec<GroupState>,
    /// File descriptors of the process.
    pub descriptors: Descriptors,
    /// Times that peers reached each limit, by configuration key.
    pub limits: BTreeMap<String, u64>,
    /// Configured objects that are not served yet.
    #[serde(default)]
    pub waiting: Vec<WaitingState>,
    /// Bytes of memory lent by hosts on this machine that the target has mapped.
    #[serde(default)]
    pub lent_memory: usize,
    /// Authentications of all hosts, by outcome.
    #[serde(default)]
    pub authentications: BTreeMap<String, u64>,
    /// Hosts that have a key.
    #[serde(default)]
    pub host_authentications: Vec<HostAuthentications>,
    /// Controllers by the key with which their host authenticated; `none`: it did not.
    #[serde(default)]
    pub controllers_by_key: BTreeMap<String, usize>,
    /// High availability, if it is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ha: Option<HaState>,
}

/// High availability as this gateway sees it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct HaState {
    /// Whether this gateway is a member.
    pub member: bool,
    /// The configured groups.
    pub groups: Vec<HaGroupState>,
}

/// An ANA group of high availability.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct HaGroupState {
    /// ANA group ID.
    pub group: u32,
    /// Whether this gateway owns it by the record.
    pub owned: bool,
    /// Whether this gateway serves it.
    pub served: bool,
    /// Grows with each takeover.
    pub epoch: u64,
}

/// Authentications of a host that has a key.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct HostAuthentications {
    /// NQN of the host.
    pub host: String,
    /// Their number by outcome.
    pub outcomes: BTreeMap<String, u64>,
}

/// A configured object that is not served yet.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct WaitingState {
    /// `namespace`, `port` or `listener`.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// The cause and the remedy.
    pub reason: String,
}

/// One reactor.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ReactorState {
    /// Its number.
    pub reactor: usize,
    /// Whether it reported its state. If not, its present values are unknown and reported as 0.
    pub answered: bool,
    /// Time by state, in seconds: working, polling, asleep.
    pub seconds: BTreeMap<String, f64>,
    /// Number of iterations with work (working) and without (polling), and of sleeps (asleep).
    pub times: BTreeMap<String, u64>,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections rejected.
    pub rejected: u64,
    /// Commands that were outstanding for more than 10 seconds; the log names them.
    pub stalled: u64,
    /// Connections that ended, by reason.
    pub closed: BTreeMap<String, u64>,
    /// Connections that ended with an RDMA or network error, by reason.
    pub rdma_errors: BTreeMap<String, u64>,
    /// Queue pairs by provider.
    pub queues: BTreeMap<String, usize>,
    /// Commands in flight.
    pub commands: usize,
    /// Queues with commands that wait for a buffer.
    pub waiting_for_buffers: usize,
    /// Backing store operations that wait for submission.
    pub waiting_for_disks: usize,
    /// Free buffers for data.
    pub free_buffers: usize,
    /// Free buffers for command capsules.
    pub free_capsules: usize,
    /// Completed commands.
    pub counts: Counts,
}

/// One subsystem.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SubsystemState {
    /// NQN.
    pub subsystem: String,
    /// Connected hosts.
    pub hosts: usize,
    /// Queue pairs.
    pub queues: usize,
    /// Commands in flight.
    pub commands: usize,
    /// Queue pairs that ended with an RDMA or network error.
    pub rdma_errors: u64,
    /// Completed commands, including those of removed namespaces.
    pub counts: Counts,
}

/// One namespace.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct NamespaceState {
    /// NQN of its subsystem.
    pub subsystem: String,
    /// Namespace ID.
    pub nsid: u32,
    /// Size in bytes; 0 if unknown.
    pub bytes: u64,
    /// One of [`NamespaceState::STATES`]; empty for NSID 0.
    pub state: String,
    /// ANA group ID; 0 for none.
    pub ana_group: u32,
    /// Whether its file was deleted, renamed or replaced.
    #[serde(default)]
    pub unlinked: bool,
    /// Hosts that are registered, for reservations.
    #[serde(default)]
    pub registrants: usize,
    /// Type of the reservation, 1 to 6; 0: none is held.
    #[serde(default)]
    pub reservation: u8,
    /// Times that its backing store became unavailable, by cause.
    pub faults: BTreeMap<String, u64>,
    /// Commands in flight.
    pub commands: usize,
    /// Completed commands.
    pub counts: Counts,
}

/// An ANA group on one port.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct GroupState {
    /// Port ID.
    pub port: u16,
    /// ANA group ID.
    pub group: u32,
    /// Its state: one of [`GroupState::STATES`].
    pub state: String,
}

/// File descriptors of the process.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Descriptors {
    /// Open ones.
    pub open: usize,
    /// The limit.
    pub limit: usize,
}

/// One host of one subsystem.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct HostState {
    /// NQN of the host.
    pub host: String,
    /// NQN of the subsystem.
    pub subsystem: String,
    /// Whether it is connected.
    pub connected: bool,
    /// Queue pairs.
    pub queues: usize,
    /// Commands in flight.
    pub commands: usize,
    /// Queue pairs that ended with an RDMA or network error.
    pub rdma_errors: u64,
    /// Completed commands.
    pub counts: Counts,
}

/// One queue pair.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct QueueState {
    /// Its reactor.
    pub reactor: usize,
    /// Its provider.
    pub provider: String,
    /// Address of the peer.
    pub peer: String,
    /// NQN of the host, after Connect.
    pub host: Option<String>,
    /// NQN of the subsystem, after Connect.
    pub subsystem: Option<String>,
    /// Controller ID, after Connect.
    pub cntlid: Option<u16>,
    /// Queue ID.
    pub queue: u16,
    /// Commands that the host may have outstanding.
    pub entries: u16,
    /// Commands in flight.
    pub commands: usize,
}

/// Completed commands.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Number by operation, including failed commands.
    pub operations: BTreeMap<String, u64>,
    /// Bytes that Read commands transferred to hosts.
    pub bytes_read: u64,
    /// Bytes that Write commands transferred from hosts.
    pub bytes_written: u64,
    /// Failed commands, by status.
    pub errors: Vec<Failed>,
    /// Latency by class: read, write, other.
    pub latency: BTreeMap<String, Latency>,
}

/// Commands that failed with one status.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Failed {
    /// Status code type (bits 10:8) and status code (bits 7:0).
    pub status: u16,
    /// Name of the status.
    pub name: String,
    /// Number of commands.
    pub count: u64,
}

impl NamespaceState {
    /// All states.
    pub const STATES: [&'static str; 5] = ["ready", "standby", "faulted", "waiting", "disabled"];

    /// Whether hosts can use it; also true for NSID 0, which is not a namespace.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state.is_empty() || self.state == "ready"
    }

    /// Whether its backing store became unavailable.
    #[must_use]
    pub fn is_faulted(&self) -> bool {
        self.state == "faulted"
    }

    /// The name of `state`.
    #[must_use]
    pub fn name_of(state: nvmeof_target_core::NamespaceState) -> &'static str {
        match state {
            nvmeof_target_core::NamespaceState::Ready => "ready",
            nvmeof_target_core::NamespaceState::Standby => "standby",
            nvmeof_target_core::NamespaceState::Faulted => "faulted",
            nvmeof_target_core::NamespaceState::Absent
            | nvmeof_target_core::NamespaceState::Awaited => "waiting",
            nvmeof_target_core::NamespaceState::Disabled => "disabled",
        }
    }
}

impl GroupState {
    /// All states.
    pub const STATES: [&'static str; 5] = [
        "optimized",
        "non-optimized",
        "inaccessible",
        "persistent-loss",
        "change",
    ];
}

impl From<&Totals> for Counts {
    fn from(totals: &Totals) -> Self {
        let operations = Operation::ALL.into_iter();
        let operations = operations
            .map(|one| (one.name().to_owned(), totals.operations(one)))
            .filter(|(_, count)| *count > 0);
        let errors = totals.failed().map(|(status, count)| Failed {
            status: status.kind().to_field(),
            name: status.name().to_owned(),
            count,
        });
        let latency = totals
            .latency()
            .map(|(class, counted)| (class.name().to_owned(), Latency::from(counted)))
            .filter(|(_, latency)| !latency.buckets.is_empty());
        Self {
            operations: operations.collect(),
            bytes_read: totals.bytes_read,
            bytes_written: totals.bytes_written,
            errors: errors.collect(),
            latency: latency.collect(),
        }
    }
}

impl Counts {
    /// Adds the commands of `other`.
    pub fn add(&mut self, other: &Self) {
        for (name, count) in &other.operations {
            *self.operations.entry(name.clone()).or_default() += count;
        }
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        for failed in &other.errors {
            let mut known = self.errors.iter_mut();
            match known.find(|one| one.status == failed.status) {
                Some(one) => one.count += failed.count,
                None => self.errors.push(failed.clone()),
            }
        }
        self.errors.sort_by_key(|one| one.status);
        for (class, latency) in &other.latency {
            self.latency.entry(class.clone()).or_default().add(latency);
        }
    }

    /// Number of commands of I/O queues.
    #[must_use]
    pub fn io(&self) -> u64 {
        let not_io = [Operation::Admin.name(), Operation::Fabrics.name()];
        let io = self
            .operations
            .iter()
            .filter(|(name, _)| !not_io.contains(&name.as_str()));
        io.map(|(_, count)| count).sum()
    }

    /// Number of failed commands.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.errors.iter().map(|one| one.count).sum()
    }

    /// The latency of all classes.
    #[must_use]
    pub fn all_times(&self) -> Latency {
        let mut all = Latency::default();
        self.latency.values().for_each(|one| all.add(one));
        all
    }
}

impl Snapshot {
    /// Completed commands of all reactors.
    #[must_use]
    pub fn totals(&self) -> Counts {
        let mut all = Counts::default();
        self.reactors.iter().for_each(|one| all.add(&one.counts));
        all
    }

    /// Whether the target was not restarted since the snapshot `before`.
    #[must_use]
    pub fn is_same_run_as(&self, before: &Self) -> bool {
        self.started.total_cmp(&before.started).is_eq() && self.uptime >= before.uptime
    }

    /// Time since the start.
    #[must_use]
    pub fn ran(&self) -> Duration {
        Duration::try_from_secs_f64(self.uptime).unwrap_or_default()
    }
}
