//! Snapshots: the state and the counters of all reactors, combined.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nvmeof_rdma_shm::Borrowed;
use nvmeof_target_core::metrics::{MetricsRegistry, Subject};
use nvmeof_target_core::{
    AuthenticationCounts, AuthenticationReport, Connected, KeyState, Limit, Model, Namespace,
    Target,
};
use nvmeof_wire::Nqn;

use super::Health;
use super::joined::Joined;
use nvmeof_target_api::{
    Counts, Descriptors, GroupState, HaGroupState, HaState, HostAuthentications, HostState,
    NamespaceState, OutcomeCount, QueueState, ReactorState, Snapshot, SubsystemState, WaitingState,
};
use nvmeof_target_config::ProviderName;
use nvmeof_target_engine::{ConnectionEnd, Counters, ReactorSnapshot, ThreadState};
use nvmeof_target_engine::{Mailbox, Order};
use nvmeof_target_manage::ha::{HaStanding, HaStatus};
use nvmeof_target_manage::ports::Providers;
use nvmeof_target_manage::{FaultCounts, Manager, MetricsSources, Server};

/// Collects snapshots of the target. Safe to use from several threads.
#[derive(Debug)]
pub struct Watch {
    target: Target,
    reactors: Vec<Watched>,
    /// Counters of commands of all reactors.
    registry: MetricsRegistry,
    /// Faults of backing stores.
    faults: FaultCounts,
    /// The manager of the target; `None` in tests.
    manager: Option<Opaque>,
    /// Memory that hosts on this machine lend.
    borrowed: Borrowed,
    providers: Providers,
    started: Instant,
    started_at: SystemTime,
    timeout: Duration,
    /// The state of each reactor; `None` for those that did not respond.
    reactor_snapshots: Joined<Vec<Option<ReactorSnapshot>>>,
    snapshots: Joined<Snapshot>,
}

/// One reactor that is monitored.
#[derive(Debug)]
struct Watched {
    mailbox: Mailbox,
    counters: Arc<Counters>,
}

/// A reactor that does not report its state within this time is stalled.
const TIMEOUT: Duration = Duration::from_secs(2);

impl Watch {
    /// Monitors `server`.
    #[must_use]
    pub fn of(server: &Server) -> Self {
        let manager = Arc::clone(server.manager());
        Self {
            faults: manager.fault_counts().clone(),
            manager: Some(Opaque(manager)),
            ..Self::new(server.metrics_sources().clone())
        }
    }

    /// Without a manager.
    pub(super) fn new(sources: MetricsSources) -> Self {
        let reactors = sources.reactors.into_iter();
        let watched = |(mailbox, counters)| Watched { mailbox, counters };
        Self {
            target: sources.target,
            reactors: reactors.map(watched).collect(),
            registry: sources.registry,
            faults: FaultCounts::default(),
            manager: None,
            borrowed: sources.borrowed,
            providers: sources.providers,
            started: Instant::now(),
            started_at: SystemTime::now(),
            timeout: TIMEOUT,
            reactor_snapshots: Joined::default(),
            snapshots: Joined::default(),
        }
    }

    /// With another time that reactors have to respond.
    #[cfg(test)]
    pub(super) fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The present state of the target. Waits for each reactor, for a bounded time.
    ///
    /// Callers that wait while another snapshot is being collected share the next one, so
    /// many callers do not load the reactors more.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshots.get(|| self.collect())
    }

    /// Whether every reactor responds. Concurrent callers, also those of
    /// [`snapshot`](Self::snapshot), share one request to the reactors.
    #[must_use]
    pub fn health(&self) -> Health {
        let reactor_snapshots = self.reactor_snapshots.get(|| self.ask_reactors());
        Health::of(reactor_snapshots.iter().map(Option::is_some))
    }

    /// Requests the state of each reactor.
    fn ask_reactors(&self) -> Vec<Option<ReactorSnapshot>> {
        let until = Instant::now() + self.timeout;
        let asked: Vec<Receiver<ReactorSnapshot>> = self
            .reactors
            .iter()
            .map(|reactor| {
                let (reply, receiver) = channel();
                reactor.mailbox.order(Order::Snapshot { reply });
                receiver
            })
            .collect();
        let replies = asked.into_iter().map(|receiver| {
            let left = until.saturating_duration_since(Instant::now());
            receiver.recv_timeout(left).ok()
        });
        replies.collect()
    }

    fn collect(&self) -> Snapshot {
        let reactor_snapshots = self.reactor_snapshots.get(|| self.ask_reactors());
        let model = self.target.model();
        let now = self.started.elapsed();
        let reactors = self.reactors.iter().enumerate();
        let mut reactors: Vec<_> = reactors
            .map(|(number, reactor)| state_of(number, &reactor.counters))
            .collect();
        let mut sum = Sum::of(&model, &self.faults);
        let manager = self.manager.as_ref().map(|manager| &*manager.0);
        for key in manager.map(Manager::unlinked).unwrap_or_default().keys() {
            if let Some(one) = sum.namespaces.get_mut(key) {
                one.unlinked = true;
            }
        }
        for one in manager.map(Manager::reservations).unwrap_or_default() {
            let key = (one.subsystem.as_str().to_owned(), one.nsid);
            let its = &one.state.reservations;
            // Not of a former namespace with this NSID.
            let namespace = model.subsystem(&one.subsystem);
            let namespace = namespace.and_then(|it| it.namespace(one.nsid));
            if let Some(state) = sum.namespaces.get_mut(&key)
                && namespace.is_some_and(|namespace| namespace.uuid == one.uuid)
            {
                state.registrants = its.registrants().len();
                state.reservation = its.reservation().map_or(0, |held| held.kind.0);
            }
        }
        sum.count(&mut reactors, &self.registry, &model, now);
        for (state, reactor_snapshot) in reactors.iter_mut().zip(&*reactor_snapshots) {
            if let Some(reactor_snapshot) = reactor_snapshot {
                self.add_state(&mut sum, state, reactor_snapshot);
            }
        }
        let limit_counters = self.target.limit_counters();
        let limits = Limit::ALL.into_iter();
        let limits = limits.map(|limit| (limit.key().to_owned(), limit_counters.get(limit)));
        let lent = ("shm.lent_memory".to_owned(), self.borrowed.refused());
        let report = self.target.authentication_report();
        let since_1970 = self.started_at.duration_since(UNIX_EPOCH);
        Snapshot {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: since_1970.unwrap_or_default().as_secs_f64(),
            uptime: now.as_secs_f64(),
            controllers: self.target.controllers(),
            reactors,
            subsystems: sum.subsystems(),
            namespaces: sum.namespaces.into_values().collect(),
            hosts: sum.hosts.into_values().collect(),
            queues: sum.queues,
            groups: groups(&model),
            descriptors: descriptors(),
            limits: limits.chain([lent]).collect(),
            waiting: manager.map(waiting).unwrap_or_default(),
            lent_memory: self.borrowed.bytes(),
            authentications: by_outcome(report.all),
            host_authentications: host_authentications(&report),
            controllers_by_key: controllers_by_key(&self.target.connected()),
            ha: manager
                .and_then(Manager::ha)
                .map(|it| ha_state(&it.status())),
        }
    }

    /// Adds the present state of a reactor.
    fn add_state(
        &self,
        sum: &mut Sum,
        state: &mut ReactorState,
        reactor_snapshot: &ReactorSnapshot,
    ) {
        state.answered = true;
        state.waiting_for_buffers = reactor_snapshot.waiting_for_buffers;
        state.waiting_for_disks = reactor_snapshot.waiting_for_stores;
        state.free_buffers = reactor_snapshot.free_buffers;
        state.free_capsules = reactor_snapshot.free_capsules;
        let providers = self.providers.names();
        for queue in &reactor_snapshot.queues {
            let provider = providers.get(queue.provider).copied();
            let provider = provider.map_or("unknown", ProviderName::name).to_owned();
            *state.queues.entry(provider.clone()).or_default() += 1;
            state.commands += queue.commands;
            let member = queue.member.as_ref();
            if let Some(member) = member {
                let host = sum.host(&member.host, &member.subsystem);
                host.connected = true;
                host.queues += 1;
                host.commands += queue.commands;
                for (nsid, commands) in queue.namespaces.iter().filter(|_| queue.queue > 0) {
                    if let Some(namespace) = sum.namespace(&member.subsystem, *nsid) {
                        namespace.commands += commands;
                    }
                }
            }
            sum.queues.push(QueueState {
                reactor: state.reactor,
                provider,
                peer: queue.peer.to_string(),
                host: member.map(|member| member.host.clone()),
                subsystem: member.map(|member| member.subsystem.clone()),
                cntlid: member.map(|member| member.cntlid),
                queue: queue.queue,
                entries: queue.entries,
                commands: queue.commands,
            });
        }
    }
}

/// A manager with a `Debug` that prints its name only.
struct Opaque(Arc<Manager>);

impl std::fmt::Debug for Opaque {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Manager")
    }
}

/// Configured objects that are not served yet.
fn waiting(manager: &Manager) -> Vec<WaitingState> {
    let all = manager.waiting().into_iter();
    all.map(|one| WaitingState {
        kind: one.what.kind().to_owned(),
        name: one.what.to_string(),
        reason: one.waits.why,
    })
    .collect()
}

fn ha_state(status: &HaStatus) -> HaState {
    let groups = status.groups.iter().map(|one| HaGroupState {
        group: one.id,
        owned: one.owner.as_ref() == Some(&status.gateway),
        served: one.is_served_here,
        epoch: one.epoch,
    });
    HaState {
        member: status.standing == HaStanding::Member,
        groups: groups.collect(),
    }
}

/// Sums over all reactors.
struct Sum {
    namespaces: BTreeMap<(String, u32), NamespaceState>,
    hosts: BTreeMap<(String, String), HostState>,
    subsystems: BTreeMap<String, SubsystemState>,
    queues: Vec<QueueState>,
}

impl Sum {
    /// With every configured namespace and subsystem, and no counts.
    fn of(model: &Model, faults: &FaultCounts) -> Self {
        let all = model.subsystems().iter().flat_map(|subsystem| {
            let nqn = subsystem.nqn.as_str().to_owned();
            let all = subsystem.namespaces().iter().chain(subsystem.disabled());
            all.map(move |one| NamespaceState {
                bytes: one.bytes(),
                state: NamespaceState::name_of(one.state).to_owned(),
                ana_group: one.group(),
                faults: faults
                    .of(&nqn, one.nsid)
                    .map(|(cause, times)| (cause.to_owned(), times))
                    .collect(),
                subsystem: nqn.clone(),
                nsid: one.nsid,
                ..NamespaceState::default()
            })
        });
        let subsystems = model.subsystems().iter().map(|one| {
            let subsystem = one.nqn.as_str().to_owned();
            let state = SubsystemState {
                subsystem: subsystem.clone(),
                ..SubsystemState::default()
            };
            (subsystem, state)
        });
        Self {
            namespaces: all
                .map(|one| ((one.subsystem.clone(), one.nsid), one))
                .collect(),
            hosts: BTreeMap::new(),
            subsystems: subsystems.collect(),
            queues: Vec::new(),
        }
    }

    /// All subsystems, with the sums of their hosts.
    fn subsystems(&mut self) -> Vec<SubsystemState> {
        for host in self.hosts.values() {
            if let Some(one) = self.subsystems.get_mut(&host.subsystem) {
                one.hosts += usize::from(host.connected);
                one.queues += host.queues;
                one.commands += host.commands;
            }
        }
        std::mem::take(&mut self.subsystems).into_values().collect()
    }

    /// Adds counts to a subsystem. One that is not served any more is not reported.
    fn add_to_subsystem(&mut self, subsystem: &Nqn, counts: &Counts, broken: u64) {
        if let Some(one) = self.subsystems.get_mut(subsystem.as_str()) {
            one.counts.add(counts);
            one.rdma_errors += broken;
        }
    }

    /// The namespace with this NSID, or else the entry of NSID 0; `None` if there is neither.
    fn namespace(&mut self, subsystem: &str, nsid: u32) -> Option<&mut NamespaceState> {
        let named = (subsystem.to_owned(), nsid);
        if self.namespaces.contains_key(&named) {
            return self.namespaces.get_mut(&named);
        }
        self.namespaces.get_mut(&(named.0, 0))
    }

    fn host(&mut self, host: &str, subsystem: &str) -> &mut HostState {
        let key = (host.to_owned(), subsystem.to_owned());
        self.hosts.entry(key).or_insert_with(|| HostState {
            host: host.to_owned(),
            subsystem: subsystem.to_owned(),
            ..HostState::default()
        })
    }

    /// Adds the counters of all reactors.
    fn count(
        &mut self,
        reactors: &mut [ReactorState],
        registry: &MetricsRegistry,
        model: &Model,
        now: Duration,
    ) {
        let serves = |subsystem: &Nqn, nsid| {
            let subsystem = model.subsystem(subsystem);
            subsystem.is_some_and(|it| {
                let disabled = || it.disabled().iter().any(|one| one.nsid == nsid);
                nsid == 0 || it.namespace(nsid).is_some() || disabled()
            })
        };
        for counters in registry.read(now, &serves) {
            let counts = Counts::from(&counters.totals);
            let broken = counters.totals.broken;
            let of_reactor = reactors.get_mut(counters.reactor);
            let of_reactor = of_reactor.map(|state| &mut state.counts);
            match counters.subject {
                Subject::Namespace { subsystem, nsid } => {
                    let subsystem = subsystem.as_str();
                    let key = (subsystem.to_owned(), nsid);
                    let state = self
                        .namespaces
                        .entry(key)
                        .or_insert_with(|| NamespaceState {
                            subsystem: subsystem.to_owned(),
                            nsid,
                            ..NamespaceState::default()
                        });
                    state.counts.add(&counts);
                }
                Subject::Host {
                    host,
                    subsystem,
                    connected,
                } => {
                    let host = self.host(host.as_str(), subsystem.as_str());
                    host.connected |= connected;
                    host.rdma_errors += broken;
                    host.counts.add(&counts);
                    self.add_to_subsystem(&subsystem, &counts, broken);
                    of_reactor.into_iter().for_each(|it| it.add(&counts));
                }
                Subject::Forgotten { subsystem } => {
                    if let Some(subsystem) = subsystem {
                        self.add_to_subsystem(&subsystem, &counts, broken);
                    }
                    of_reactor.into_iter().for_each(|it| it.add(&counts));
                }
            }
        }
    }
}

/// At each port, the ANA groups that are configured there or used by a namespace.
fn groups(model: &Model) -> Vec<GroupState> {
    let subsystems = model.subsystems().iter();
    let namespaces = subsystems.flat_map(|one| one.namespaces().iter().chain(one.disabled()));
    let used: BTreeSet<u32> = namespaces.map(Namespace::group).collect();
    let ports = model.ports().iter().flat_map(|port| {
        let configured = port.ana_groups.iter().map(|group| group.id);
        let all: BTreeSet<u32> = configured.chain(used.iter().copied()).collect();
        all.into_iter().map(|group| GroupState {
            port: port.id,
            group,
            state: port.ana_state(group).name().to_owned(),
        })
    });
    ports.collect()
}

fn host_authentications(report: &AuthenticationReport) -> Vec<HostAuthentications> {
    let hosts = report.hosts.iter();
    hosts
        .map(|(host, counts)| HostAuthentications {
            host: host.as_str().to_owned(),
            outcomes: by_outcome(*counts),
        })
        .collect()
}

/// The number of authentications of each outcome.
fn by_outcome(counts: AuthenticationCounts) -> BTreeMap<String, u64> {
    let all = OutcomeCount::of(counts).into_iter();
    all.map(|one| (one.outcome, one.count)).collect()
}

/// The number of controllers for each key with which their host authenticated, or `none`.
fn controllers_by_key(connected: &[Connected]) -> BTreeMap<String, usize> {
    let keys = KeyState::ALL
        .map(KeyState::name)
        .into_iter()
        .chain([NO_KEY]);
    let mut counts: BTreeMap<String, usize> = keys.map(|key| (key.to_owned(), 0)).collect();
    for one in connected {
        let key = one.authentication.map_or(NO_KEY, |it| it.key.name());
        *counts.entry(key.to_owned()).or_default() += 1;
    }
    counts
}

/// In place of the key of a host that did not authenticate.
const NO_KEY: &str = "none";

/// The counters of a reactor, without its present state and without commands.
fn state_of(reactor: usize, counters: &Counters) -> ReactorState {
    let mut state = ReactorState {
        reactor,
        ..ReactorState::default()
    };
    for thread_state in ThreadState::ALL {
        let (time, times) = counters.time(thread_state);
        let name = thread_state.name().to_owned();
        state.seconds.insert(name.clone(), time.as_secs_f64());
        state.times.insert(name, times);
    }
    (state.accepted, state.rejected) = counters.connection_requests();
    state.stalled = counters.all_stalled();
    for end in ConnectionEnd::ALL {
        let ended = counters.ended(end);
        let name = end.name().to_owned();
        if end.is_error() {
            state.rdma_errors.insert(name.clone(), ended);
        }
        state.closed.insert(name, ended);
    }
    state
}

/// File descriptors of this process.
fn descriptors() -> Descriptors {
    // Includes the one that reads the folder.
    let open = std::fs::read_dir("/proc/self/fd").map(Iterator::count);
    Descriptors {
        open: open.unwrap_or_default(),
        limit: nvmeof_target_manage::files::limit(),
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_target_manage::ha::HaGroup;

    use super::*;

    #[test]
    fn group_is_owned_by_the_record_and_served_by_the_gateway() {
        let group = |id, owner: Option<&str>, is_served_here| HaGroup {
            id,
            owner: owner.map(str::to_owned),
            is_served_here,
            epoch: 7,
            ..HaGroup::default()
        };
        let status = HaStatus {
            gateway: "gw1".to_owned(),
            standing: HaStanding::Member,
            groups: vec![
                group(1, Some("gw1"), true),
                group(2, Some("gw1"), false),
                group(3, Some("gw2"), false),
                group(4, None, false),
            ],
            ..HaStatus::default()
        };
        let state = ha_state(&status);
        let groups = state.groups.iter();
        let groups: Vec<_> = groups.map(|one| (one.owned, one.served)).collect();
        assert!(state.member);
        assert_eq!(
            groups,
            [(true, true), (true, false), (false, false), (false, false)]
        );
        assert!(!ha_state(&HaStatus::default()).member);
    }
}
