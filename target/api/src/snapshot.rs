//! The target at one moment, as it is told: plain numbers and names, which
//! `GET /snapshot` gives as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use nvmeof_target_core::metrics::{Operation, Totals};
use serde::{Deserialize, Serialize};

use crate::latency::Latency;

/// The target at one moment.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Snapshot {
    /// Version of the program.
    pub version: String,
    /// Since when it runs, in seconds since 1970. One that was started again within a
    /// second is told from the one before by the fraction.
    pub started: f64,
    /// For how long it runs, in seconds.
    pub uptime: f64,
    /// Controllers that hosts have connected.
    pub controllers: usize,
    /// Its threads.
    pub reactors: Vec<ReactorState>,
    /// Subsystems that are served, by name.
    pub subsystems: Vec<SubsystemState>,
    /// Namespaces that are served, by subsystem and number. 0 stands for
    /// commands that name none of the subsystem, or all of them.
    pub namespaces: Vec<NamespaceState>,
    /// Hosts that are connected, or were not long ago, by name and subsystem.
    pub hosts: Vec<HostState>,
    /// Queue pairs.
    pub queues: Vec<QueueState>,
    /// Groups of namespaces, by port and number.
    pub groups: Vec<GroupState>,
    /// Descriptors of the process.
    pub descriptors: Descriptors,
    /// How often peers ran into each limit, by configuration key.
    pub limits: BTreeMap<String, u64>,
    /// What is configured and not served yet.
    #[serde(default)]
    pub waiting: Vec<WaitingState>,
    /// Bytes of memory that hosts on this machine lend and that are mapped.
    #[serde(default)]
    pub lent_memory: usize,
}

/// Something that is configured and not served yet.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct WaitingState {
    /// `namespace`, `port` or `listener`.
    pub kind: String,
    /// What it is.
    pub name: String,
    /// Why it is not served, and what to do.
    pub reason: String,
}

/// One reactor.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ReactorState {
    /// Its number.
    pub reactor: usize,
    /// Whether it told how it is. If not, what is there at this moment is not
    /// known and said to be 0.
    pub answered: bool,
    /// What was done with its time, in seconds: working, polling, asleep.
    pub seconds: BTreeMap<String, f64>,
    /// How often: turns in which there was something to do, and nothing; sleeps.
    pub times: BTreeMap<String, u64>,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections that were rejected.
    pub rejected: u64,
    /// Commands that were outstanding for more than 10 seconds; the log names them.
    pub stalled: u64,
    /// Connections that ended, by the way they did.
    pub closed: BTreeMap<String, u64>,
    /// Those of them that are errors of RDMA or of the network.
    pub rdma_errors: BTreeMap<String, u64>,
    /// Queue pairs by provider.
    pub queues: BTreeMap<String, usize>,
    /// Commands in flight.
    pub commands: usize,
    /// Queues with commands that wait for a buffer.
    pub waiting_for_buffers: usize,
    /// Disk operations that wait for room.
    pub waiting_for_disks: usize,
    /// Buffers for data that nobody holds.
    pub free_buffers: usize,
    /// Buffers for capsules that nobody holds.
    pub free_capsules: usize,
    /// Commands it did.
    pub counts: Counts,
}

/// One subsystem.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SubsystemState {
    /// Its name.
    pub subsystem: String,
    /// Hosts that are connected.
    pub hosts: usize,
    /// Queue pairs.
    pub queues: usize,
    /// Commands in flight.
    pub commands: usize,
    /// Queue pairs that ended with an error of RDMA or of the network.
    pub rdma_errors: u64,
    /// Commands that were answered, also in namespaces that are gone.
    pub counts: Counts,
}

/// One namespace.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct NamespaceState {
    /// Name of its subsystem.
    pub subsystem: String,
    /// Its number.
    pub nsid: u32,
    /// Size in bytes; 0 when it is not known.
    pub bytes: u64,
    /// Whether hosts can use it: one of [`NamespaceState::STATES`], nothing for
    /// number 0.
    pub state: String,
    /// Its group for asymmetric namespace access, 0 for none.
    pub ana_group: u32,
    /// Whether its file lost its name.
    #[serde(default)]
    pub unlinked: bool,
    /// How often what is behind it was gone, by cause.
    pub faults: BTreeMap<String, u64>,
    /// Commands in flight.
    pub commands: usize,
    /// Commands that were answered.
    pub counts: Counts,
}

/// A group of namespaces at one port.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct GroupState {
    /// Number of the port.
    pub port: u16,
    /// Number of the group.
    pub group: u32,
    /// In which state the port reaches it: one of [`GroupState::STATES`].
    pub state: String,
}

/// Descriptors of the process.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Descriptors {
    /// Those that are open.
    pub open: usize,
    /// Those that it may have.
    pub limit: usize,
}

/// One host of one subsystem.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct HostState {
    /// Its name.
    pub host: String,
    /// Name of the subsystem.
    pub subsystem: String,
    /// Whether it is connected.
    pub connected: bool,
    /// Queue pairs.
    pub queues: usize,
    /// Commands in flight.
    pub commands: usize,
    /// Queue pairs that ended with an error of RDMA or of the network.
    pub rdma_errors: u64,
    /// Commands that were answered.
    pub counts: Counts,
}

/// One queue pair.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct QueueState {
    /// Its reactor.
    pub reactor: usize,
    /// What carries it.
    pub provider: String,
    /// The peer's address.
    pub peer: String,
    /// Name of the host, when it is connected to a controller.
    pub host: Option<String>,
    /// Name of the subsystem.
    pub subsystem: Option<String>,
    /// The controller.
    pub cntlid: Option<u16>,
    /// Its number.
    pub queue: u16,
    /// Commands that the host may have outstanding.
    pub entries: u16,
    /// Commands in flight.
    pub commands: usize,
}

/// Commands that were answered.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// How many, by what they were; also those that failed.
    pub operations: BTreeMap<String, u64>,
    /// Bytes that Read commands gave to hosts.
    pub bytes_read: u64,
    /// Bytes that Write commands took from hosts.
    pub bytes_written: u64,
    /// How many failed, by the number of their status and its name.
    pub errors: Vec<Failed>,
    /// How long they took: read, write, other.
    pub latency: BTreeMap<String, Latency>,
}

/// Commands that failed with one status.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Failed {
    /// Type and code: bits 10:8 and 7:0.
    pub status: u16,
    /// Its name.
    pub name: String,
    /// How many.
    pub count: u64,
}

impl NamespaceState {
    /// Each state there is.
    pub const STATES: [&'static str; 4] = ["ready", "faulted", "waiting", "disabled"];

    /// Whether hosts can use it; also of number 0, which is none.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state.is_empty() || self.state == "ready"
    }

    /// Whether what is behind it is gone.
    #[must_use]
    pub fn is_faulted(&self) -> bool {
        self.state == "faulted"
    }

    /// A word for `state`.
    #[must_use]
    pub fn name_of(state: nvmeof_target_core::NamespaceState) -> &'static str {
        match state {
            nvmeof_target_core::NamespaceState::Ready => "ready",
            nvmeof_target_core::NamespaceState::Faulted => "faulted",
            nvmeof_target_core::NamespaceState::Absent
            | nvmeof_target_core::NamespaceState::Awaited => "waiting",
            nvmeof_target_core::NamespaceState::Disabled => "disabled",
        }
    }
}

impl GroupState {
    /// Each state there is.
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
    /// Adds those of `other`.
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

    /// Commands of I/O queues.
    #[must_use]
    pub fn io(&self) -> u64 {
        let not_io = [Operation::Admin.name(), Operation::Fabrics.name()];
        let io = self
            .operations
            .iter()
            .filter(|(name, _)| !not_io.contains(&name.as_str()));
        io.map(|(_, count)| count).sum()
    }

    /// Commands that failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.errors.iter().map(|one| one.count).sum()
    }

    /// The times of all classes.
    #[must_use]
    pub fn all_times(&self) -> Latency {
        let mut all = Latency::default();
        self.latency.values().for_each(|one| all.add(one));
        all
    }
}

impl Snapshot {
    /// Everything that was done.
    #[must_use]
    pub fn totals(&self) -> Counts {
        let mut all = Counts::default();
        self.reactors.iter().for_each(|one| all.add(&one.counts));
        all
    }

    /// Whether it is the run of before, not one that was started since.
    #[must_use]
    pub fn goes_on(&self, before: &Self) -> bool {
        self.started.total_cmp(&before.started).is_eq() && self.uptime >= before.uptime
    }

    /// How long it ran.
    #[must_use]
    pub fn ran(&self) -> Duration {
        Duration::try_from_secs_f64(self.uptime).unwrap_or_default()
    }
}
