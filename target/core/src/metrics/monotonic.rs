//! Sums over all reactors increase, or restart from zero, while hosts connect,
//! leave and are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use nvmeof_wire::{Nqn, Status};
use proptest::prelude::*;

use super::histogram::LatencySample;
use super::reactor_metrics::{MetricsRegistry, Subject};
use super::tally::Tally;
use super::{Operation, ReactorMetrics, Totals};

const REACTORS: usize = 3;
const HOSTS: usize = 8;
/// Hosts without queues that are kept.
const FEW: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A host connects a queue on a reactor.
    Connect { host: usize, reactor: usize },
    /// One of the queues completes commands.
    Work { queue: usize, commands: u64 },
    /// It is closed.
    Leave { queue: usize },
    /// Counters are read later.
    Look { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..HOSTS, 0..REACTORS).prop_map(|(host, reactor)| Step::Connect { host, reactor }),
        4 => (any::<usize>(), 1..9_u64)
            .prop_map(|(queue, commands)| Step::Work { queue, commands }),
        3 => any::<usize>().prop_map(|queue| Step::Leave { queue }),
        2 => (0..700_u64).prop_map(|seconds| Step::Look { seconds }),
    ]
}

fn nqn(host: usize) -> Nqn {
    Nqn::new(&format!("nqn.2026-11.org.example:{host}")).unwrap()
}

struct Queue {
    host: usize,
    reactor: usize,
    reactor_metrics: ReactorMetrics,
    tally: Arc<Tally>,
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.reactor_metrics.left(nqn(self.host), nqn(0));
    }
}

fn hosts_of(queues: &[Queue]) -> BTreeSet<usize> {
    queues.iter().map(|queue| queue.host).collect()
}

/// The actual counts.
#[derive(Default)]
struct Expected {
    /// By host.
    done: BTreeMap<usize, u64>,
    /// The counts whenever the host had no queue: it may restart from there.
    away: BTreeMap<usize, BTreeSet<u64>>,
    /// By reactor.
    reactors: [u64; REACTORS],
    /// Maximum number of concurrent hosts.
    most: usize,
}

impl Expected {
    fn may_report(&self, host: usize, reported: u64) -> bool {
        let done = self.done.get(&host).copied().unwrap_or_default();
        let mut away = self.away.get(&host).into_iter().flatten();
        reported == done || away.any(|then| reported == done - then)
    }
}

fn look(metrics_registry: &MetricsRegistry, now: Duration, queues: &[Queue], truth: &Expected) {
    let of = |totals: &Totals| totals.operations(Operation::Admin);
    let (mut hosts, mut reactors) = (BTreeMap::<usize, u64>::new(), [0; REACTORS]);
    for one in metrics_registry.read(now, &|_, _| true) {
        reactors[one.reactor] += of(&one.totals);
        if let Subject::Host { host, .. } = one.subject {
            let host = (0..HOSTS).find(|it| nqn(*it) == host).unwrap();
            *hosts.entry(host).or_default() += of(&one.totals);
        }
    }
    assert_eq!(reactors, truth.reactors, "what a reactor did is never lost");
    for (host, reported) in &hosts {
        assert!(
            truth.may_report(*host, *reported),
            "{reported} of host {host}, a part of what it did"
        );
    }
    let there = hosts_of(queues);
    assert!(there.iter().all(|host| hosts.contains_key(host)));
    assert!(hosts.len() <= truth.most + FEW, "{hosts:?}");
}

proptest! {
    #[test]
    fn sums_over_reactors_never_decrease(steps in prop::collection::vec(step(), 1..120)) {
        let metrics_registry = MetricsRegistry::remembering(FEW);
        let of = |reactor| metrics_registry.reactor_metrics(reactor);
        let reactors: Vec<ReactorMetrics> = (0..REACTORS).map(of).collect();
        let (mut queues, mut truth) = (Vec::<Queue>::new(), Expected::default());
        let mut now = Duration::ZERO;
        for step in steps {
            match step {
                Step::Connect { host, reactor } => {
                    let reactor_metrics = reactors[reactor].clone();
                    let tally = reactor_metrics.host(nqn(host), nqn(0));
                    queues.push(Queue { host, reactor, reactor_metrics, tally });
                    truth.most = truth.most.max(hosts_of(&queues).len());
                }
                Step::Work { queue, commands } if !queues.is_empty() => {
                    let at = queue % queues.len();
                    let queue = &queues[at];
                    for _ in 0..commands {
                        let took = LatencySample::new(Duration::ZERO);
                        queue.tally.count(Operation::Admin, Status::SUCCESS, took);
                    }
                    *truth.done.entry(queue.host).or_default() += commands;
                    truth.reactors[queue.reactor] += commands;
                }
                Step::Leave { queue } if !queues.is_empty() => {
                    let host = queues.swap_remove(queue % queues.len()).host;
                    if queues.iter().all(|queue| queue.host != host) {
                        let done = truth.done.get(&host).copied().unwrap_or_default();
                        truth.away.entry(host).or_default().insert(done);
                    }
                }
                Step::Look { seconds } => {
                    now += Duration::from_secs(seconds);
                    look(&metrics_registry, now, &queues, &truth);
                }
                Step::Work { .. } | Step::Leave { .. } => {}
            }
        }
        look(&metrics_registry, now, &queues, &truth);
    }
}

#[test]
fn host_with_a_queue_on_any_reactor_is_kept() {
    let metrics_registry = MetricsRegistry::remembering(FEW);
    let (one, other) = (
        metrics_registry.reactor_metrics(0),
        metrics_registry.reactor_metrics(1),
    );
    let took = LatencySample::new(Duration::ZERO);
    let stays = one.host(nqn(1), nqn(0));
    let goes = other.host(nqn(1), nqn(0));
    goes.count(Operation::Admin, Status::SUCCESS, took);
    drop(goes);
    let reported = |seconds| {
        let all = metrics_registry.read(Duration::from_secs(seconds), &|_, _| true);
        let its = all
            .iter()
            .filter(|one| matches!(one.subject, Subject::Host { host, .. } if host == nqn(1)));
        its.map(|one| one.totals.operations(Operation::Admin))
            .sum::<u64>()
    };
    assert_eq!((reported(0), reported(5000)), (1, 1));
    // Nor because others connect and leave on its former reactor.
    for n in 2..8 {
        drop(other.host(nqn(n), nqn(0)));
    }
    assert_eq!(reported(5000), 1);
    drop(stays);
    assert_eq!((reported(6000), reported(7000)), (1, 0));
}

#[test]
fn host_that_left_first_is_forgotten_first() {
    let metrics_registry = MetricsRegistry::remembering(FEW);
    let reactor_metrics = metrics_registry.reactor_metrics(0);
    let come = |host| reactor_metrics.host(nqn(host), nqn(0));
    let leave = |host: usize, tally: Arc<Tally>| {
        reactor_metrics.left(nqn(host), nqn(0));
        drop(tally);
    };
    // It connected first, and left last.
    let first = come(1);
    (2..=FEW).for_each(|host| leave(host, come(host)));
    leave(1, first);
    let _comes = come(5);
    let there: BTreeSet<usize> = metrics_registry
        .read(Duration::ZERO, &|_, _| true)
        .iter()
        .filter_map(|one| match one.subject {
            Subject::Host { host, .. } => (0..HOSTS).find(|it| nqn(*it) == host),
            _ => None,
        })
        .collect();
    assert_eq!(there, BTreeSet::from([1, 3, 5]));
}
