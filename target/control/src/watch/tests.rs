//! Metrics text, snapshots and health.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod exposition;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use nvmeof_rdma_shm::Borrowed;
use nvmeof_target_core::metrics::MetricsRegistry;
use nvmeof_target_core::{Limit, Limits, Model, Target};
use nvmeof_wire::text::Escaped;

use super::openmetrics::to_openmetrics;
use super::*;
use exposition::{Family, parse};
use nvmeof_target_api::{
    Counts, Descriptors, Failed, GroupState, HaGroupState, HaState, HostAuthentications, HostState,
    Latency, NamespaceState, ReactorState, Snapshot, SubsystemState, WaitingState,
};
use nvmeof_target_config::Config;
use nvmeof_target_engine::ReactorSnapshot;
use nvmeof_target_engine::{Mailbox, Order};
use nvmeof_target_manage::ports::Providers;
use nvmeof_target_manage::{MetricsSources, Server};

const NQN: &str = "nqn.2026-11.org.example:disk";
/// A host name that tries to break out of a label.
const EVIL: &str = "nqn.2026-11.org.example:\"} 1\\n\\";

/// The counters of reactors with these mailboxes.
fn sources(target: Target, reactors: &[Mailbox]) -> MetricsSources {
    let reactors = reactors.iter().map(|one| (one.clone(), Arc::default()));
    MetricsSources {
        target,
        reactors: reactors.collect(),
        registry: MetricsRegistry::default(),
        providers: Providers::default(),
        borrowed: Borrowed::default(),
    }
}

/// A CPU that this process may use.
fn first_usable() -> usize {
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let is_usable = |core: &usize| set.is_set(*core).unwrap_or(false);
    (0..CpuSet::count()).find(is_usable).unwrap_or(0)
}

fn names<T: Clone>(all: &[(&str, T)]) -> BTreeMap<String, T> {
    let all = all
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()));
    all.collect()
}

fn counts() -> Counts {
    let times = Latency {
        sum_ns: 12_500,
        buckets: vec![(Some(1), 3), (Some(6), 2), (None, 1)],
    };
    Counts {
        operations: names(&[("read", 6), ("admin", 1)]),
        bytes_read: 4096,
        bytes_written: 1 << 53,
        errors: vec![Failed {
            status: 0x281,
            name: "Unrecovered Read Error".to_owned(),
            count: 2,
        }],
        latency: names(&[("read", times)]),
    }
}

/// A snapshot with a value in every part.
fn full() -> Snapshot {
    Snapshot {
        version: "1.2.3".to_owned(),
        started: 1_700_000_000.0,
        uptime: 12.5,
        controllers: 1,
        reactors: vec![ReactorState {
            reactor: 0,
            answered: true,
            seconds: names(&[("working", 1.5), ("polling", 0.25), ("asleep", 8.0)]),
            times: names(&[("working", 10), ("polling", 20), ("asleep", 3)]),
            accepted: 4,
            rejected: 1,
            stalled: 7,
            closed: names(&[("peer", 1), ("network", 2)]),
            rdma_errors: names(&[("network", 2)]),
            queues: names(&[("iwarp", 2)]),
            commands: 3,
            waiting_for_buffers: 1,
            waiting_for_disks: 2,
            free_buffers: 100,
            free_capsules: 50,
            counts: counts(),
        }],
        subsystems: vec![SubsystemState {
            subsystem: NQN.to_owned(),
            hosts: 1,
            queues: 2,
            commands: 3,
            rdma_errors: 5,
            counts: counts(),
        }],
        namespaces: vec![NamespaceState {
            subsystem: NQN.to_owned(),
            nsid: 1,
            bytes: 1 << 40,
            state: "faulted".to_owned(),
            ana_group: 7,
            unlinked: true,
            registrants: 3,
            reservation: 5,
            faults: names(&[("removed", 2), ("size", 0)]),
            commands: 2,
            counts: counts(),
        }],
        hosts: vec![HostState {
            host: EVIL.to_owned(),
            subsystem: NQN.to_owned(),
            connected: true,
            queues: 2,
            commands: 3,
            rdma_errors: 4,
            counts: counts(),
        }],
        queues: Vec::new(),
        groups: vec![GroupState {
            port: 1,
            group: 7,
            state: "inaccessible".to_owned(),
        }],
        descriptors: Descriptors {
            open: 40,
            limit: 1024,
        },
        limits: names(&[("limits.controllers", 7)]),
        waiting: vec![WaitingState {
            kind: "port".to_owned(),
            name: "port 10.0.0.1:4420".to_owned(),
            reason: "in \"use\"".to_owned(),
        }],
        lent_memory: 8192,
        authentications: names(&[("success", 5), ("wrong_key", 2)]),
        host_authentications: vec![HostAuthentications {
            host: EVIL.to_owned(),
            outcomes: names(&[("success", 4), ("wrong_key", 1)]),
        }],
        controllers_by_key: names(&[("current", 1), ("old", 2), ("removed", 3), ("none", 4)]),
        ha: Some(HaState {
            member: true,
            groups: vec![HaGroupState {
                group: 2,
                owned: true,
                served: false,
                epoch: 7,
            }],
        }),
    }
}

fn value(families: &[Family], name: &str, labels: &[(&str, &str)]) -> f64 {
    let mut samples = families.iter().flat_map(|family| &family.samples);
    // Hidden characters of a name are escaped, and so is each backslash.
    let wanted = |(key, value): &(&str, &str), sample: &exposition::Sample| {
        let escaped = Escaped(value).to_string();
        sample.labels.get(*key) == Some(&escaped)
    };
    let found = samples.find(|one| one.name == name && labels.iter().all(|it| wanted(it, one)));
    found.unwrap_or_else(|| panic!("{name} {labels:?}")).value
}

#[test]
fn metrics_text_matches_the_snapshot() {
    let families = parse(&to_openmetrics(&full()));
    let of_namespace = [("subsystem", NQN), ("nsid", "1")];
    for (name, labels, expected) in [
        ("info", &[("version", "1.2.3")][..], 1.0),
        ("start_time_seconds", &[], 1.7e9),
        ("limit_hits_total", &[("limit", "limits.controllers")], 7.0),
        ("file_descriptors", &[("kind", "limit")], 1024.0),
        ("lent_memory_bytes", &[], 8192.0),
        (
            "ana_state",
            &[("port", "1"), ("group", "7"), ("state", "inaccessible")],
            1.0,
        ),
        ("ana_state", &[("group", "7"), ("state", "optimized")], 0.0),
        (
            "namespace_state",
            &[("nsid", "1"), ("state", "faulted")],
            1.0,
        ),
        ("namespace_state", &[("nsid", "1"), ("state", "ready")], 0.0),
        ("subsystem_hosts", &[("subsystem", NQN)], 1.0),
        ("subsystem_queues", &[("subsystem", NQN)], 2.0),
        ("subsystem_commands_outstanding", &[("subsystem", NQN)], 3.0),
        ("subsystem_rdma_errors_total", &[("subsystem", NQN)], 5.0),
        ("subsystem_read_bytes_total", &[("subsystem", NQN)], 4096.0),
        ("host_rdma_errors_total", &[("host", EVIL)], 4.0),
        ("namespace_ana_group", &of_namespace, 7.0),
        ("namespace_unlinked", &of_namespace, 1.0),
        ("namespace_registrants", &of_namespace, 3.0),
        ("namespace_reservation", &of_namespace, 5.0),
        (
            "waiting",
            &[("kind", "port"), ("name", "port 10.0.0.1:4420")],
            1.0,
        ),
        ("namespace_faults_total", &[("cause", "removed")], 2.0),
        ("namespace_size_bytes", &of_namespace, 1.099_511_627_776e12),
        ("namespace_commands_outstanding", &of_namespace, 2.0),
        ("namespace_read_bytes_total", &of_namespace, 4096.0),
        (
            "host_written_bytes_total",
            &[("host", EVIL)],
            9_007_199_254_740_992.0,
        ),
        ("host_connected", &[("host", EVIL), ("subsystem", NQN)], 1.0),
        (
            "host_commands_total",
            &[("host", EVIL), ("operation", "admin")],
            1.0,
        ),
        (
            "namespace_errors_total",
            &[("status", "0x281"), ("name", "Unrecovered Read Error")],
            2.0,
        ),
        (
            "reactor_time_seconds_total",
            &[("reactor", "0"), ("state", "polling")],
            0.25,
        ),
        ("reactor_turns_total", &[("state", "asleep")], 3.0),
        ("authentications_total", &[("outcome", "wrong_key")], 2.0),
        (
            "host_authentications_total",
            &[("host", EVIL), ("outcome", "wrong_key")],
            1.0,
        ),
        ("controllers_by_key", &[("key", "removed")], 3.0),
        ("ha_member", &[], 1.0),
        ("ha_group_owned", &[("group", "2")], 1.0),
        ("ha_group_served", &[("group", "2")], 0.0),
        ("ha_group_epoch", &[("group", "2")], 7.0),
        ("reactor_up", &[("reactor", "0")], 1.0),
        ("reactor_waiting", &[("for", "disk")], 2.0),
        ("connections", &[("provider", "iwarp")], 2.0),
        ("connections_closed_total", &[("reason", "network")], 2.0),
        ("rdma_errors_total", &[("kind", "network")], 2.0),
        (
            "reactor_command_duration_seconds_count",
            &[("class", "read")],
            6.0,
        ),
        (
            "reactor_command_duration_seconds_sum",
            &[("class", "read")],
            0.000_012_5,
        ),
    ] {
        let name = format!("nvmeof_target_{name}");
        let found = value(&families, &name, labels);
        assert!(
            (found - expected).abs() <= expected * 1e-12,
            "{name}: {found}"
        );
    }
}

#[test]
fn histogram_buckets_are_cumulative_and_end_with_infinity() {
    let families = parse(&to_openmetrics(&full()));
    let name = "nvmeof_target_host_command_duration_seconds";
    let family = families.iter().find(|family| family.name == name).unwrap();
    let buckets: Vec<(f64, f64)> = family
        .samples
        .iter()
        .filter(|sample| sample.name.ends_with("_bucket"))
        .map(|sample| (sample.labels["le"].parse().unwrap(), sample.value))
        .collect();
    assert_eq!(
        buckets[..5],
        [
            (1e-6, 3.0),
            (2e-6, 3.0),
            (4e-6, 3.0),
            (8e-6, 5.0),
            (1.6e-5, 5.0)
        ]
    );
    assert!(buckets.is_sorted_by(|one, two| one.0 < two.0 && one.1 <= two.1));
    assert_eq!(buckets[buckets.len() - 2].1, 5.0);
    assert_eq!(buckets.last(), Some(&(f64::INFINITY, 6.0)));
}

/// The table of docs/monitoring.md.
fn table(families: &[Family]) -> String {
    let rows = families.iter().map(|family| {
        let labels: BTreeSet<&str> = family
            .samples
            .iter()
            .flat_map(|sample| sample.labels.keys())
            .map(String::as_str)
            .filter(|label| *label != "le")
            .collect();
        let labels: Vec<&str> = labels.into_iter().collect();
        let suffix = if family.kind == "counter" {
            "_total"
        } else {
            ""
        };
        let (name, kind, help) = (&family.name, &family.kind, &family.help);
        format!(
            "| `{name}{suffix}` | {kind} | {} | {help} |\n",
            labels.join(", ")
        )
    });
    let head = "| name | type | labels | meaning |\n| --- | --- | --- | --- |\n";
    format!("{head}{}", rows.collect::<String>())
}

#[test]
fn every_metric_is_documented() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/monitoring.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let expected = table(&parse(&to_openmetrics(&full())));
    let is_current = text.contains(&expected);
    assert!(
        is_current,
        "the table in docs/monitoring.md must be:\n{expected}"
    );
    // An idle target reports the same families.
    let nothing = parse(&to_openmetrics(&Snapshot::default()));
    let names = |families: &[Family]| {
        families
            .iter()
            .map(|it| it.name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&nothing), names(&parse(&to_openmetrics(&full()))));
}

#[test]
fn host_names_with_special_characters_are_escaped_in_labels() {
    let mut snapshot = full();
    let hosts = [EVIL, "ä €", "a\\", "\\n", "}\n# EOF", "", "a=\"b\",c=\"d\""];
    let named = |host: &&str| HostState {
        host: (*host).to_owned(),
        ..snapshot.hosts[0].clone()
    };
    snapshot.hosts = hosts.iter().map(named).collect();
    let families = parse(&to_openmetrics(&snapshot));
    for host in hosts {
        let queues = value(&families, "nvmeof_target_host_queues", &[("host", host)]);
        assert!((queues - 2.0).abs() < 0.5, "{host:?}");
    }
}

#[test]
fn snapshot_survives_a_json_round_trip() {
    let json = serde_json::to_string(&full()).unwrap();
    assert_eq!(serde_json::from_str::<Snapshot>(&json).unwrap(), full());
}

fn config(reactors: &str) -> Config {
    let text = format!(
        "[reactor]\ncores = {reactors}\n[[port]]\ntraddr = \"127.0.0.1\"\ntrsvcid = 0\n\
         provider = \"iwarp\"\n[[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnsid = 1\npath = \"null:1M\"\n"
    );
    Config::parse(Path::new("target.toml"), text).unwrap()
}

#[test]
fn new_server_reports_reactors_and_namespaces() {
    let core = first_usable();
    let server = Server::start(&config(&format!("[{core}, {core}]"))).unwrap();
    let watch = Arc::new(Watch::of(&server));
    // On a busy machine reactors may not respond within their time limit.
    let mut snapshots = (0..60).map(|_| watch.snapshot());
    let snapshot = snapshots.find(|all| all.reactors.iter().all(|one| one.answered));
    let snapshot = snapshot.unwrap();
    let numbers = snapshot.reactors.iter().map(|one| one.reactor);
    assert_eq!(numbers.collect::<Vec<_>>(), [0, 1]);
    let [namespace] = &snapshot.namespaces[..] else {
        panic!("{:?}", snapshot.namespaces);
    };
    assert_eq!((namespace.nsid, namespace.bytes), (1, 1 << 20));
    assert_eq!(namespace.subsystem, NQN);
    assert!(snapshot.hosts.is_empty() && snapshot.queues.is_empty());
    // A reactor may respond in its first iteration, whose time is counted at its end.
    let counted = |_| {
        std::thread::sleep(Duration::from_millis(5));
        let snapshot = watch.snapshot();
        let mut reactors = snapshot.reactors.iter();
        reactors.any(|one| one.times.values().any(|time| *time > 0))
    };
    assert!((0..12_000).any(counted));
    assert!((0..60).any(|_| watch.health().healthy));
    server.stop();
    server.join().unwrap();
    let ended = watch.health();
    assert_eq!((ended.healthy, ended.stalled), (false, vec![0, 1]));
}

#[test]
fn limit_hits_are_reported_by_configuration_key() {
    let target = idle_target();
    target.limit_counters().add(Limit::HostQueues);
    target.limit_counters().add(Limit::HostQueues);
    let snapshot = Watch::new(sources(target, &[])).snapshot();
    assert_eq!(snapshot.limits["limits.host_queues"], 2);
    let families = parse(&to_openmetrics(&snapshot));
    let name = "nvmeof_target_limit_hits_total";
    let of = |key| value(&families, name, &[("limit", key)]);
    assert_eq!(
        (of("limits.host_queues"), of("limits.controllers")),
        (2.0, 0.0)
    );
}

fn idle_target() -> Target {
    Target::new(Model::build(Limits::default(), &[], &[]).unwrap())
}

/// Responds to the orders in a mailbox as a reactor does; returns how many there were.
fn respond(mailbox: &Mailbox) -> usize {
    let mut asked = 0;
    for order in mailbox.take_orders() {
        if let Order::Snapshot { reply } = order {
            asked += 1;
            let reactor_snapshot = ReactorSnapshot {
                queues: Vec::new(),
                waiting_for_buffers: 5,
                waiting_for_stores: 0,
                free_buffers: 0,
                free_capsules: 0,
            };
            let _ = reply.send(reactor_snapshot);
        }
    }
    asked
}

#[test]
fn stalled_thread_is_named_and_does_not_block_others() {
    let boxes = [(); 3].map(|()| Mailbox::new().unwrap());
    let watch = Watch::new(sources(idle_target(), &boxes));
    // Long enough for the others to respond on a busy machine.
    let watch = watch.with_timeout(Duration::from_secs(3));
    let (health, snapshot) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| (watch.health(), watch.snapshot()));
        while !watching.is_finished() {
            respond(&boxes[0]);
            respond(&boxes[2]);
            std::thread::sleep(Duration::from_millis(1));
        }
        watching.join().unwrap()
    });
    assert_eq!((health.healthy, health.stalled), (false, vec![1]));
    let reported = snapshot
        .reactors
        .iter()
        .map(|one| (one.answered, one.waiting_for_buffers));
    assert_eq!(
        reported.collect::<Vec<_>>(),
        [(true, 5), (false, 0), (true, 5)]
    );
    let families = parse(&to_openmetrics(&snapshot));
    assert_eq!(
        value(&families, "nvmeof_target_reactor_up", &[("reactor", "1")]),
        0.0
    );
}

/// How often a reactor is asked if several further calls of `ask` begin while the first one
/// waits for its response.
fn requests_for_many(ask: impl Fn(usize, &Watch) + Sync) -> usize {
    const OTHERS: usize = 8;
    let mailbox = Mailbox::new().unwrap();
    let watch = Watch::new(sources(idle_target(), std::slice::from_ref(&mailbox)));
    let watch = watch.with_timeout(Duration::from_secs(60));
    std::thread::scope(|scope| {
        let (ask, watch) = (&ask, &watch);
        let first = scope.spawn(move || ask(0, watch));
        while !mailbox.holds(nvmeof_target_engine::Mail::ORDERS) {
            std::thread::yield_now();
        }
        let (ready, begun) = std::sync::mpsc::channel();
        let others: Vec<_> = (1..=OTHERS)
            .map(|at| {
                let ready = ready.clone();
                scope.spawn(move || {
                    ready.send(()).unwrap();
                    ask(at, watch);
                })
            })
            .collect();
        (0..OTHERS).for_each(|_| begun.recv().unwrap());
        std::thread::sleep(Duration::from_millis(100));
        let mut asked = 0;
        while !first.is_finished() || others.iter().any(|one| !one.is_finished()) {
            asked += respond(&mailbox);
            std::thread::yield_now();
        }
        asked
    })
}

#[test]
fn concurrent_health_requests_share_one_query() {
    let snapshots = requests_for_many(|_, watch| drop(watch.snapshot()));
    let healths = requests_for_many(|_, watch| drop(watch.health()));
    let both = requests_for_many(|at, watch| match at % 2 {
        0 => drop(watch.snapshot()),
        _ => drop(watch.health()),
    });
    // One for the first, one for the others; a thread that began late may need one more. Calls
    // of both kinds have a first one each.
    for (asked, most) in [(snapshots, 4), (healths, 4), (both, 5)] {
        assert!((2..=most).contains(&asked), "{asked}");
    }
}
