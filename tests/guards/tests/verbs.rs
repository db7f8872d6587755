//! What a command costs over RDMA devices, in calls and work requests: exact numbers, compared
//! with `tests/guards/verbs.txt`.
//!
//! Both sides run over the stand-in of `tests/verbs-standin`, each with a device of its own that
//! counts. `NVMEOF_UPDATE_DOCS=1 cargo test -p nvmeof-guards --test verbs` writes the file.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use nvmeof_guards::{Medium, Stage};
use nvmeof_initiator::Operation;
use nvmeof_rdma::Provider;
use nvmeof_rdma_verbs::VerbsConfig;
use nvmeof_verbs_standin::{Counters, configure, counters, install, violations};

/// Commands of each case.
const COMMANDS: usize = 1024;
/// Rounds before the count.
const WARM_UP: usize = 64;

const HEAD: &str = "\
# Work of 1024 reads or writes of 4 KiB over RDMA devices, on each side; in the cases `pull`
# the target reads the data of writes instead of getting them in capsules; in the cases `trusted`
# the initiator trusts the target with its buffers. Both sides poll in turn and never sleep; the
# devices are those of tests/verbs-standin. In the cases `idle`, each side polls four times in its
# turn, so that it runs out of work. Columns:
#   wr         work requests of send queues: sends + writes + reads + binds + invalidations
#   post       calls of post_send (doorbells)
#   signalled  work requests with a completion of their own
#   inline     bytes of inline data
#   sge        segments
#   recv       receives posted, and calls that post them
#   cqe        completions
#   poll       calls of poll_cq: with completions, and without
#   arm        calls of req_notify_cq, and events raised
#   reg        registrations of memory
# NVMEOF_UPDATE_DOCS=1 cargo test -p nvmeof-guards --test verbs writes this file.
";

fn provider() -> Box<dyn Provider> {
    Box::new(nvmeof_rdma_verbs::new(VerbsConfig::default()).unwrap())
}

/// One kind of device, and how the target receives.
struct Kind {
    name: &'static str,
    profile: &'static str,
    shared: u32,
    /// The initiator trusts the target.
    trusts: bool,
}

const KINDS: [Kind; 7] = [
    Kind {
        name: "roce",
        profile: "roce",
        shared: 0,
        trusts: false,
    },
    Kind {
        name: "roce-shared",
        profile: "roce",
        shared: 256,
        trusts: false,
    },
    Kind {
        name: "no-windows",
        profile: "no-windows",
        shared: 0,
        trusts: false,
    },
    Kind {
        name: "iwarp",
        profile: "iwarp",
        shared: 0,
        trusts: false,
    },
    Kind {
        name: "roce-trusted",
        profile: "roce",
        shared: 0,
        trusts: true,
    },
    Kind {
        name: "no-windows-trusted",
        profile: "no-windows",
        shared: 0,
        trusts: true,
    },
    Kind {
        name: "iwarp-trusted",
        profile: "iwarp",
        shared: 0,
        trusts: true,
    },
];

/// A load on both sides.
#[derive(Clone, Copy)]
struct Load {
    operation: Operation,
    /// The target reads the data of writes.
    pulls: bool,
    depth: usize,
    /// Each side runs out of work in its turn.
    idle: bool,
}

/// What both sides did, the target first.
fn count(kind: &Kind, load: Load, network: u8) -> [Counters; 2] {
    let Load {
        operation,
        pulls,
        depth,
        idle,
    } = load;
    let name = |side: &str| format!("{}{side}", kind.name);
    let (target, host) = (name("-t"), name("-i"));
    let ip = |end: u8| IpAddr::V4(Ipv4Addr::new(10, 76, network, end));
    let profile = kind.profile;
    configure(&format!(
        "{host} profile={profile} addr={}; {target} profile={profile} addr={} from={host}",
        ip(2),
        ip(1),
    ))
    .unwrap();
    let address = SocketAddr::new(ip(1), 4420).into();
    let in_capsule = if pulls { 0 } else { 4096 };
    let medium = match (kind.shared, pulls) {
        _ if kind.trusts => Medium::Trusted(provider, address, in_capsule),
        (0, false) => Medium::Other(provider, address),
        (0, true) => Medium::Pulled(provider, address),
        (count, _) => Medium::Shared(provider, address, count),
    };
    let mut stage = Stage::on(&medium, &Stage::null());
    let mut rounds = |rounds: usize| {
        for _ in 0..rounds {
            // The initiator submits in its first iteration.
            let mut submits = true;
            let again = |step: &mut dyn FnMut(), idle: bool| {
                let polls = if idle { 4 } else { 1 };
                (0..polls).for_each(|_| step());
            };
            stage.round(
                operation,
                depth,
                |step| again(step, idle),
                |step| again(step, idle && !std::mem::take(&mut submits)),
            );
        }
    };
    rounds(WARM_UP);
    let now = || [&target, &host].map(|name| counters(name).unwrap());
    let before = now();
    rounds(COMMANDS / depth);
    let after = now();
    [0, 1].map(|side: usize| {
        let pair = (after.get(side), before.get(side));
        pair.0
            .zip(pair.1)
            .map(|(after, before)| after.since(before))
            .unwrap()
    })
}

fn line(text: &mut String, name: &str, side: &str, counted: &Counters) {
    let pair = |one: u64, other: u64| format!("{one}/{other}");
    let Counters {
        sends,
        writes,
        reads,
        binds,
        local_invalidates,
        ..
    } = *counted;
    let kinds = format!("{sends}+{writes}+{reads}+{binds}+{local_invalidates}");
    writeln!(
        text,
        "{name:27} {side:9} {:>5} {kinds:24} {:>5} {:>9} {:>6} {:>5} {:>10} {:>5} {:>11} {:>10} \
         {:>5}",
        counted.work_requests(),
        counted.post_send,
        counted.signalled,
        counted.inline_bytes,
        counted.segments,
        pair(counted.receives, counted.post_recv + counted.post_srq_recv),
        counted.completions,
        pair(counted.polls, counted.empty_polls),
        pair(counted.arms, counted.events),
        counted.registrations,
    )
    .unwrap();
    assert_eq!(counted.receiver_not_ready, 0, "{name} {side}");
}

#[test]
fn work_of_each_command_is_as_recorded() {
    install();
    let mut text = HEAD.to_owned();
    writeln!(
        text,
        "{:27} {:9} {:>5} {:24} {:>5} {:>9} {:>6} {:>5} {:>10} {:>5} {:>11} {:>10} {:>5}",
        "case",
        "side",
        "wr",
        "of",
        "post",
        "signalled",
        "inline",
        "sge",
        "recv",
        "cqe",
        "poll",
        "arm",
        "reg",
    )
    .unwrap();
    let mut network = 0;
    for kind in &KINDS {
        let loads = [
            ("read", Operation::Read, false),
            ("write", Operation::Write, false),
            ("pull", Operation::Write, true),
        ];
        // Shared receives make no difference to what is pulled, and trust none to what is not.
        let differs = |load: &&(&str, Operation, bool)| match (load.1, load.2) {
            (Operation::Write, false) => !kind.trusts,
            (_, pulls) => !pulls || kind.shared == 0,
        };
        let loads = loads.iter().filter(differs);
        for &(verb, operation, pulls) in loads {
            for (depth, idle) in [(1, false), (1, true), (16, false), (16, true)] {
                let load = Load {
                    operation,
                    pulls,
                    depth,
                    idle,
                };
                let [target, host] = count(kind, load, network);
                network += 1;
                let idle = if idle { "-idle" } else { "" };
                let name = format!("{}-{verb}-qd{depth}{idle}", kind.name);
                if kind.trusts {
                    let of_keys = host.binds + host.local_invalidates + host.registrations;
                    assert_eq!(of_keys + target.sends_with_invalidate, 0, "{name}");
                }
                line(&mut text, &name, "target", &target);
                line(&mut text, &name, "initiator", &host);
            }
        }
    }
    assert_eq!(violations(), [""; 0]);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("verbs.txt");
    if std::env::var_os("NVMEOF_UPDATE_DOCS").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let recorded = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        recorded == text,
        "{} has other numbers. A better one is accepted, and a worse one with its reason in the \
         commit, with\n    NVMEOF_UPDATE_DOCS=1 cargo test -p nvmeof-guards --test verbs\n{text}",
        file.display()
    );
}

/// System calls of the program, without those of the allocator: other tests count allocations,
/// and those of the stand-in do not matter.
fn system_calls(setup: &str, kind: &str, rounds: &str) -> u64 {
    let summary = tempfile::NamedTempFile::new().unwrap();
    let mut strace = Command::new("strace");
    strace.args(["-f", "-c", "-o"]).arg(summary.path());
    strace.arg(env!("CARGO_BIN_EXE_nvmeof-guards-verbs"));
    strace.args([setup, kind, "16", rounds]);
    let status = strace.status().expect("install the package `strace`");
    assert!(status.success(), "{status}");
    let text = std::fs::read_to_string(summary.path()).unwrap();
    // % time, seconds, usecs/call, calls, errors if any, name.
    let rows = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let of_others = rows.filter(|row| {
        let name = row.last().copied().unwrap_or_default();
        !["brk", "mmap", "munmap", "total"].contains(&name)
    });
    let calls = of_others.filter_map(|row| row.get(3)?.parse::<u64>().ok());
    let calls: u64 = calls.sum();
    assert!(calls > 0, "{text}");
    calls
}

/// Sides that poll make no system calls for a command: programs with 128 and 1024 commands make as
/// many. Descriptors are looked at by time, of which little passes.
#[test]
fn commands_make_no_system_calls() {
    for (setup, kind) in [
        ("own", "read"),
        ("own", "write"),
        ("shared", "read"),
        ("pulled", "write"),
        ("trusted", "read"),
    ] {
        let few = system_calls(setup, kind, "8");
        let many = system_calls(setup, kind, "64");
        assert_eq!(many, few, "{setup} {kind}");
    }
}

/// The program that is counted runs.
#[test]
fn counted_program_runs_over_devices() {
    for setup in ["own", "shared", "pulled", "trusted", "trusted-pulled"] {
        for kind in ["read", "write"] {
            let mut program = Command::new(env!("CARGO_BIN_EXE_nvmeof-guards-verbs"));
            let status = program.args([setup, kind, "16", "2"]).status().unwrap();
            assert!(status.success(), "{setup} {kind}: {status}");
        }
    }
}
