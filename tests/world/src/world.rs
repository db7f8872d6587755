//! The world: one target, its disks, its hosts and the network between them,
//! all in one thread and in virtual time.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use nvmeof_initiator::polled::Done;
use nvmeof_memory::{ClassSpec, Pages};
use nvmeof_rdma::{Address, Provider};
use nvmeof_rdma_layers::{Dice, Faults, Faulty, Sharing};
use nvmeof_rdma_sim::SimNet;
use nvmeof_target_core::{AnaGroup, Fabric, Model, NamespaceSpec, PortSpec, SubsystemSpec, Target};
use nvmeof_target_engine::ReactorConfig;
use nvmeof_wire::log::ana::AnaState;

use crate::disk::Disks;
use crate::host::{Host, SUBNQN};
use crate::imposter::Imposters;
use crate::keys::Keys;
use crate::medium::Medium;
use crate::oracle::{OpId, Oracle, Wrong};
use crate::plan::Plan;
use crate::trace::Trace;
use crate::workload::{ErrorCounts, Pending};
use crate::{Failure, Report};
use away::Away;
use keys::KeyChange;
pub(crate) use reactors::Reactors;
use reserving::Reserving;
use workers::Workers;

mod away;
mod calls;
mod ending;
mod keeper;
mod keys;
mod reactors;
mod reserving;
mod trouble;
mod waking;
mod workers;

/// The state of one run.
pub(crate) struct World {
    plan: Plan,
    /// The virtual clock, for any medium.
    net: SimNet,
    medium: Medium,
    disks: Disks,
    target: Target,
    /// Empty between two runs of the target.
    reactors: Reactors,
    hosts: Vec<Host>,
    oracle: Oracle,
    trace: Trace,
    dice: Dice,
    calls: BTreeMap<OpId, Pending>,
    /// Number of calls of each host.
    made: Vec<u64>,
    ended: u64,
    errors: ErrorCounts,
    losses: Losses,
    next_fault: usize,
    /// Namespaces that are removed and added.
    away: Away,
    /// Keys of the hosts, if they are authenticated.
    keys: Option<Keys>,
    workers: Workers,
    imposters: Imposters,
    /// Reservations of the hosts, if they have any.
    reserving: Option<Reserving>,
    /// Their changes that succeeded.
    reservations_changed: u64,
    /// Calls that reservations denied.
    denied: u64,
    /// Number of changes of keys that began.
    key_steps: usize,
    /// Steps of rotations, with their times.
    key_changes: BTreeMap<(Duration, u64), KeyChange>,
    authenticated: u64,
    /// When each host could make calls last.
    up_at: Vec<Duration>,
    /// Time of the last disturbance that may delay calls.
    disturbed: Duration,
    /// Turns since time advanced.
    still: u64,
    /// Faults to undo, with their times.
    later: BTreeMap<(Duration, u64), Undo>,
    undone: u64,
    cuts: usize,
    /// Number of times that connectivity between a host and the target was restored.
    heals: u64,
    draining: Option<Vec<OpId>>,
    /// Time of the last connect or disconnect of a host, and their count then.
    stable: (Duration, u64),
    phase: Phase,
    /// Empty between polls.
    done: Vec<Done>,
}

/// Completed writes that disks lost by failed flushes, not by crashes.
#[derive(Debug, Default)]
struct Losses {
    seen: u64,
    /// Flushes that may fail because of losses, in addition to those that a disk failed.
    expected: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Random calls and faults.
    Work,
    /// No more calls and faults, until nothing is in flight.
    Calm,
    /// Everything is read.
    Verify {
        ns: usize,
        block: u64,
    },
    /// Each host flushes each disk, one call after the other.
    Flush {
        host: usize,
        ns: usize,
    },
    Leave,
    Over,
}

/// An action that ends a fault.
#[derive(Clone, Copy, Debug)]
enum Undo {
    Heal(usize),
    /// A check: by now the target has disconnected its only host, unless connectivity was
    /// restored since this number of heals.
    MustBeForgotten {
        heals: u64,
    },
    CalmDisk,
    NoCorruption,
    StartTarget,
    /// A namespace is added again.
    AddNamespace(away::What),
}

/// An address of this host, as shared memory requires.
const TARGET_IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const PORT: u16 = 4420;
/// Maximum duration of a call, with any faults.
const LONGEST_CALL: Duration = Duration::from_secs(60);
/// Maximum duration of a call without disturbances.
const LONGEST_UNDISTURBED: Duration = Duration::from_secs(10);
/// Maximum duration of a run in virtual time.
const LONGEST_RUN: Duration = Duration::from_secs(600);
const MAX_ITERATIONS: u64 = 3_000_000;
/// Maximum number of iterations without progress and without time passing.
const MOST_STILL: u64 = 10_000;
/// Undisturbed time of hosts after which no work of earlier connections remains.
const SETTLED_AFTER: Duration = Duration::from_millis(60);

impl World {
    pub(crate) fn new(seed: u64, print: bool) -> Self {
        let plan = Plan::new(seed);
        let mut dice = Dice::new(seed);
        let net = SimNet::new(dice.roll(), plan.net.clone());
        let temper = plan.temper.clone();
        let medium = match plan.by_memory {
            true => Medium::memory(),
            false => Medium::Net {
                net: net.clone(),
                crc: plan.crc,
            },
        };
        let disks = Disks::new(net.clone(), dice.roll(), &plan.disks, temper);
        let keys = plan.authentication.as_ref();
        let keys = keys.map(|keys| Keys::new(keys, plan.hosts.len()));
        let hosts: Vec<Host> = (0..)
            .zip(&plan.hosts)
            .map(|(at, shape)| {
                let addr = Address::from((TARGET_IP, PORT + port_of(&plan, at)));
                let mut host = Host::new(at, shape.clone(), &medium, addr, dice.roll());
                host.set_keys(keys.as_ref().map(|keys| keys.of(at)));
                host
            })
            .collect();
        let count = hosts.len();
        let authentication = plan.authentication.clone().unwrap_or_default();
        let imposters = Imposters::new(authentication.imposters, &medium, seed);
        let reserving = plan
            .reservations
            .map(|it| Reserving::new(it, plan.disks.len(), count, seed));
        let mut world = Self {
            oracle: Oracle::new(plan.disks.iter().map(|disk| disk.blocks)),
            target: Target::new(model(&plan, &Away::default(), keys.as_ref())),
            made: vec![0; count],
            plan,
            net,
            medium,
            disks,
            reactors: Reactors::default(),
            hosts,
            trace: Trace::new(print),
            dice,
            calls: BTreeMap::new(),
            ended: 0,
            errors: ErrorCounts::default(),
            losses: Losses::default(),
            next_fault: 0,
            away: Away::default(),
            keys,
            workers: Workers::new(seed, authentication.slowest),
            imposters,
            reserving,
            reservations_changed: 0,
            denied: 0,
            key_steps: 0,
            key_changes: BTreeMap::new(),
            authenticated: 0,
            up_at: vec![Duration::ZERO; count],
            disturbed: Duration::ZERO,
            still: 0,
            later: BTreeMap::new(),
            undone: 0,
            cuts: 0,
            heals: 0,
            draining: None,
            stable: (Duration::ZERO, 0),
            phase: Phase::Work,
            done: Vec::new(),
        };
        world.say(format_args!("{:?}", world.plan.clone()));
        world.start_target();
        world
    }

    /// Runs until the end.
    pub(crate) fn run(mut self) -> Result<Report, Failure> {
        let mut iterations = 0u64;
        let result = loop {
            iterations += 1;
            if iterations > MAX_ITERATIONS {
                break Err(Wrong(format!("no end after {iterations} iterations")));
            }
            match self.step() {
                Ok(()) if self.phase == Phase::Over => break Ok(()),
                Ok(()) => {}
                Err(wrong) => break Err(wrong),
            }
        };
        let seed = self.plan.seed;
        match result {
            Ok(()) => Ok(Report {
                seed,
                calls: self.ended,
                faults: self.plan.faults.len(),
                connections: self.hosts.iter().map(|host| host.changes).sum(),
                authenticated: self.authenticated,
                refused: self.imposters.refused,
                reserved: self.reservations_changed,
                denied: self.denied,
                virtual_time: self.net.now(),
                lines: self.trace.lines(),
                hash: self.trace.hash(),
            }),
            Err(Wrong(what)) => {
                for at in 0..self.hosts.len() {
                    let state = self.hosts[at].state();
                    self.say(format_args!("host {at}: {state}"));
                }
                Err(Failure {
                    seed,
                    what,
                    trace: self.trace.tail(),
                })
            }
        }
    }

    fn say(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.say(self.net.now(), what);
    }

    /// Does all work that is due now, then advances time.
    fn step(&mut self) -> Result<(), Wrong> {
        let now = self.net.now();
        let mut progress = self.undo_due(now)?;
        progress |= self.continue_rotations(now)?;
        progress |= self.workers.run_due(now);
        progress |= self.keep_settings(now)?;
        progress |= self.step_target(now)?;
        self.count_losses();
        for at in 0..self.hosts.len() {
            progress |= self.poll_host(at, now)?;
        }
        progress |= self.imposters.poll(&self.hosts, now)?;
        self.watch(now)?;
        progress |= self.advance_phase(now)?;
        if progress {
            return Ok(());
        }
        let hosts = self.hosts.iter().filter_map(|host| host.next_deadline(now));
        let undo = self.later.keys().next().map(|(at, _)| *at);
        let settle = (self.oracle.unsettled() > 0 || self.has_lost_requests())
            .then_some(self.stable.0 + SETTLED_AFTER)
            .filter(|at| *at > now);
        let target = self.reactors.next_at(now);
        let until = hosts
            .chain(undo)
            .chain(self.key_changes.keys().next().map(|(at, _)| *at))
            .chain(self.workers.next_at())
            .chain(self.next_save_at())
            .chain(self.imposters.next_deadline(now))
            .chain(settle)
            .chain(target)
            .chain(self.disks.next_at())
            .min();
        self.check_work_in_progress(until, now)?;
        if !self.net.advance_to_next(until) {
            return Err(Wrong(
                "deadlock: no event and no deadline is pending".to_owned(),
            ));
        }
        self.still = if self.net.now() > now {
            0
        } else {
            self.still + 1
        };
        if self.still > MOST_STILL {
            return Err(Wrong(format!(
                "livelock: immediate wake-ups without progress: \
                 target {target:?}, disks {:?}, hosts {:?}",
                self.disks.next_at(),
                self.hosts
                    .iter()
                    .map(|host| host.next_deadline(now))
                    .collect::<Vec<_>>()
            )));
        }
        Ok(())
    }

    fn step_target(&mut self, now: Duration) -> Result<bool, Wrong> {
        self.disks.advance();
        let polled = self.reactors.poll_once(now, &self.disks)?;
        if polled.worked {
            self.check_controllers()?;
        }
        if polled.drained {
            self.drained()?;
        }
        Ok(polled.worked)
    }

    /// Invariants, checked in each iteration.
    fn watch(&mut self, now: Duration) -> Result<(), Wrong> {
        if let Some(wrong) = self.disks.wrong() {
            return Err(Wrong(wrong));
        }
        let late = |call: &&Pending| now > call.since + LONGEST_CALL;
        if let Some(call) = self.calls.values().find(late) {
            return Err(Wrong(format!("a call does not complete: {call:?}")));
        }
        if self.is_disturbed(now) {
            self.disturbed = now;
        }
        let due = |call: &Pending| call.since.max(self.disturbed) + LONGEST_UNDISTURBED;
        if let Some(call) = self.calls.values().find(|call| now > due(call)) {
            return Err(Wrong(format!(
                "a call stalls without a disturbance: {call:?}"
            )));
        }
        let blocked = |at: &&Duration| now > self.disturbed.max(**at) + LONGEST_UNDISTURBED;
        if self.keys.is_some()
            && self.phase != Phase::Leave
            && let Some(at) = self.up_at.iter().find(blocked)
        {
            return Err(Wrong(format!(
                "a host cannot connect since {at:?} without a disturbance"
            )));
        }
        if now > LONGEST_RUN {
            return Err(Wrong(format!("no end after {LONGEST_RUN:?}")));
        }
        self.check_excluded()?;
        self.follow_lost_writes();
        self.settle_requests(now);
        self.settle(now);
        Ok(())
    }

    /// Whether a disturbance may delay calls now.
    fn is_disturbed(&self, now: Duration) -> bool {
        let stalled = self.hosts.iter().any(|host| now < host.stalled_until);
        stalled || !self.later.is_empty() || self.draining.is_some() || !self.reactors.run()
    }

    /// Once the target has only the queue pairs that hosts have, operations that it starts
    /// take effect after those of earlier queue pairs.
    fn follow_lost_writes(&mut self) {
        if self.oracle.has_unreleased() && self.has_only_settled_queue_pairs() {
            self.say(format_args!(
                "the target has released the queues of lost writes"
            ));
            self.oracle.release();
        }
    }

    /// Whether no host is connecting or closing, and the target has exactly their queue
    /// pairs.
    fn has_only_settled_queue_pairs(&self) -> bool {
        let pairs: Option<usize> = self.hosts.iter().map(Host::settled_queue_pairs).sum();
        self.reactors.run() && pairs == Some(self.reactors.queue_pairs())
    }

    /// Writes without a response cannot take effect any more once all queue pairs are new,
    /// and disks have completed all earlier operations.
    fn settle(&mut self, now: Duration) {
        let changes = self.hosts.iter().map(|host| host.changes).sum();
        if self.stable.1 != changes || self.cuts > 0 {
            self.stable = (now, changes);
        }
        if self.oracle.unsettled() == 0 || now < self.stable.0 + SETTLED_AFTER {
            return;
        }
        let old = self.disks.oldest().is_some_and(|at| at <= self.stable.0);
        if self.has_only_settled_queue_pairs() && !old {
            let unsettled = self.oracle.unsettled();
            self.say(format_args!("{unsettled} lost writes are settled"));
            self.oracle.settle();
        }
        // Otherwise check again later.
        self.stable.0 = now;
    }

    /// Starts the target, as after a power loss or an upgrade.
    fn start_target(&mut self) {
        self.target = Target::new(model(&self.plan, &self.away, self.keys.as_ref()));
        if let Some(reserving) = &mut self.reserving {
            reserving.keeper.serve(&self.target);
        }
        let data = vec![
            ClassSpec {
                len: 4096,
                count: 4 + self.plan.target_buffers,
            },
            ClassSpec {
                len: usize::try_from(self.plan.limits.max_transfer)
                    .unwrap()
                    .max(8192),
                count: 2 + self.plan.target_buffers,
            },
        ];
        let config = ReactorConfig {
            shared_receives: self.plan.shared_receives,
            // A controller and four queues of each host, and the same number that is closing.
            // Imposters have queues of 32 entries.
            capsules: 350 * self.hosts.len().max(2) + 32 * self.plan.imposter_queues(),
            data,
            pages: Pages::Normal,
            stall: Duration::from_secs(3),
            drain: Duration::from_secs(2),
        };
        let providers = self.medium.providers(TARGET_IP, self.plan.reactors);
        let providers = providers.into_iter().map(|one| self.with_layers(one));
        let ports = 0..self.plan.ports;
        let addrs: Vec<_> = ports
            .map(|port| Address::from((TARGET_IP, PORT + port)))
            .collect();
        let (providers, now) = (providers.collect(), self.net.now());
        let (target, disks) = (&self.target, &self.disks);
        let workers = self.keys.is_some().then_some(&self.workers);
        let ends = (providers, &addrs[..]);
        self.reactors = Reactors::with_workers(&config, target, disks, ends, workers, now);
        self.say(format_args!("target starts"));
    }

    fn with_layers(&self, mut endpoint: Box<dyn Provider>) -> Box<dyn Provider> {
        if self.plan.shared_receives > 0 {
            // More entries than hosts may send.
            let sharing = Sharing::new(endpoint, 2048, 3 * 4096).unwrap();
            endpoint = Box::new(sharing);
        }
        if self.phase != Phase::Work || self.plan.target_faults == Faults::default() {
            return endpoint;
        }
        let faults = self.plan.target_faults.clone();
        Box::new(Faulty::new(endpoint, faults))
    }
}

/// The port that host number `host` uses.
fn port_of(plan: &Plan, host: usize) -> u16 {
    u16::try_from(host).unwrap() % plan.ports
}

/// A port of the target. Each namespace has an ANA group of its own, with its number.
fn port(plan: &Plan, away: &Away, number: u16) -> PortSpec {
    let namespaces = (0..plan.disks.len()).map(Some).chain([None]);
    let groups = (1..).zip(namespaces).filter_map(|(id, ns)| {
        let state = AnaState::INACCESSIBLE;
        let away = away.is_away((ns, Some(number)));
        away.then_some(AnaGroup { id, state })
    });
    PortSpec {
        ana_groups: groups.collect(),
        ..PortSpec::new(TARGET_IP, PORT + number, vec![Fabric::Iwarp.into()])
    }
}

/// The model of the target, without removed namespaces.
fn model(plan: &Plan, away: &Away, keys: Option<&Keys>) -> Model {
    let ports: Vec<_> = (0..plan.ports).map(|at| port(plan, away, at)).collect();
    let used = plan.disks.iter().enumerate();
    let used = used.map(|(ns, shape)| (Some(ns), ns, shape));
    // A namespace that hosts do not use shares its disk with another one.
    let all = used.chain(plan.disks.first().map(|shape| (None, 0, shape)));
    let there = (1..)
        .zip(all)
        .filter(|(_, (ns, ..))| !away.is_away((*ns, None)));
    let namespaces = there.map(|(nsid, (_, disk, shape))| NamespaceSpec {
        nsid,
        blocks: shape.blocks,
        block_size: u32::try_from(shape.block_size).unwrap(),
        store: u32::try_from(disk).unwrap(),
        deallocate: shape.deallocate,
        volatile_cache: shape.volatile,
        ana_group: nsid,
        ..NamespaceSpec::default()
    });
    let subsystem = SubsystemSpec {
        nqn: SUBNQN.to_owned(),
        allow_any_host: true,
        namespaces: namespaces.collect(),
        ..SubsystemSpec::default()
    };
    let model = Model::build(plan.limits.clone(), &ports, &[subsystem]).unwrap();
    model.with_authentication(keys.map(Keys::spec).unwrap_or_default())
}
