//! NVMe over stand-in devices that fail: a target and a host under verified load, with a fault at
//! each place and on each side.
//!
//! Each call completes once, within a bounded time. What was acknowledged is there, and nothing
//! else. No buffer returns while a device may still write to it ([`Watched`]).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod blocks;
mod host;
mod keeping;
mod log;
#[path = "../it/watched.rs"]
mod watched;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use nvmeof_guards::{Medium, Served};
use nvmeof_rdma::Provider;
use nvmeof_rdma_verbs::VerbsConfig;
use nvmeof_verbs_standin::{configure, counters, install, planned, violations};

use blocks::Ledger;
use host::{Host, Lost};
use keeping::Keeping;
use log::Log;
use watched::Watched;

/// The side whose device fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Host,
    Target,
}

/// How the target receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receives {
    Own,
    Shared,
}

/// The devices of both sides, and how the sides use them.
#[derive(Clone, Copy, Debug)]
struct Kind {
    settings: &'static str,
    receives: Receives,
    /// The host trusts the target with its buffers.
    trusts: bool,
    /// The target invalidates no keys of the host.
    keeps_keys: bool,
}

const fn kind(settings: &'static str) -> Kind {
    Kind {
        settings,
        receives: Receives::Own,
        trusts: false,
        keeps_keys: false,
    }
}

const fn trusting(settings: &'static str) -> Kind {
    Kind {
        trusts: true,
        ..kind(settings)
    }
}

const fn keeping(settings: &'static str) -> Kind {
    Kind {
        keeps_keys: true,
        ..kind(settings)
    }
}

/// A device for each side, and a target.
struct Stage {
    host: String,
    target: String,
    kind: Kind,
    addrs: [IpAddr; 2],
    served: Served,
}

fn provider() -> Box<dyn Provider> {
    let inner = nvmeof_rdma_verbs::new(VerbsConfig::default()).unwrap();
    Box::new(Watched { inner })
}

fn keeping_provider() -> Box<dyn Provider> {
    Box::new(Keeping { inner: provider() })
}

impl Stage {
    fn new(kind: Kind) -> Self {
        static NETWORK: AtomicU16 = AtomicU16::new(1);
        install();
        let network = NETWORK.fetch_add(1, Ordering::Relaxed);
        let [high, low] = network.to_be_bytes();
        let addrs = [1, 2].map(|end| IpAddr::V4(Ipv4Addr::new(10, 90 + high, low, end)));
        let names = ["t", "h"].map(|side| format!("nvme{network}{side}"));
        let [target, host] = names;
        let address = SocketAddr::new(addrs[0], 4420).into();
        add(&target, kind.settings, addrs[0]);
        add(&host, kind.settings, addrs[1]);
        configure(&format!("{target} from={host}")).unwrap();
        let medium = match kind.receives {
            Receives::Own if kind.trusts => Medium::Trusted(provider, address, 0),
            Receives::Own if kind.keeps_keys => Medium::Other(keeping_provider, address),
            Receives::Own => Medium::Other(provider, address),
            Receives::Shared => Medium::Shared(provider, address, 256),
        };
        let served = Served::on(&medium, &"ram:4G".parse().unwrap());
        Self {
            host,
            target,
            kind,
            addrs,
            served,
        }
    }

    fn device(&self, end: End) -> &str {
        match end {
            End::Host => &self.host,
            End::Target => &self.target,
        }
    }

    /// Adds the device of the host again, after its removal.
    fn replace_host(&self) {
        add(&self.host, self.kind.settings, self.addrs[1]);
    }

    fn connect(&mut self) -> Result<Host, Lost> {
        Host::connect(provider, &mut self.served, self.kind.trusts)
    }
}

fn add(name: &str, profile: &str, addr: IpAddr) {
    configure(&format!("{name} {profile} addr={addr} audit")).unwrap();
}

/// What a fault may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// It ends the connection.
    Ends,
    /// The connection may survive.
    Any,
}

/// Loads a target while the fault happens at its `number`-th place. Returns whether the fault
/// happened.
fn load(kind: Kind, end: End, (fault, number): (&str, u32), effect: Effect) -> bool {
    println!("{kind:?}: {fault} {number} at {end:?}");
    let mut stage = Stage::new(kind);
    let mut ledger = Ledger::default();
    let mut host = stage.connect().expect("nothing fails yet");
    host.run(&mut stage.served, &mut ledger, host::ROUNDS / 4)
        .expect("nothing fails yet");
    let (place, value) = fault.split_once('=').unwrap_or((fault, ""));
    let value = if value.is_empty() {
        String::new()
    } else {
        format!(":{value}")
    };
    let device = stage.device(end).to_owned();
    configure(&format!("{device} fault={place}:{number}{value}")).unwrap();
    let log = Log::new();
    let result = host.run(&mut stage.served, &mut ledger, host::ROUNDS);
    let happened = planned(&device) == 0;
    if happened && effect == Effect::Ends {
        let Lost { reason } = result.as_ref().expect_err("the connection ends");
        assert!(!reason.is_empty());
    }
    host.finish(&mut stage.served);
    if happened && effect == Effect::Ends {
        if end == End::Target {
            // The target may have to wait for its device.
            let mut steps = 0..host::STEPS;
            let said = || !log.with(&["connection lost: ", "queue=1"]).is_empty();
            while !said() && steps.next().is_some() {
                host::step(&mut stage.served, &mut Duration::default());
            }
        }
        check_log(&log, end);
    }
    if fault.starts_with("removal") && happened {
        if end == End::Target {
            return true;
        }
        stage.replace_host();
    }
    // The fault may be left, and hit the next connection.
    let mut again = None;
    for _ in 0..4 {
        match stage.connect() {
            Ok(host) => {
                again = Some(host);
                break;
            }
            Err(Lost { reason }) => println!("not connected: {reason}"),
        }
    }
    let mut host = again.expect("a host connects again");
    if let Err(Lost { reason }) = host.run(&mut stage.served, &mut ledger, host::ROUNDS / 4) {
        println!("lost: {reason}");
        host.finish(&mut stage.served);
        host = stage.connect().expect("there is one fault only");
    }
    host.verify(&mut stage.served, &mut ledger);
    host.finish(&mut stage.served);
    assert_eq!(violations(), [""; 0]);
    planned(&device) == 0
}

/// The log says why, and no more than once for each queue. The target knows its own reason.
#[track_caller]
fn check_log(log: &Log, end: End) {
    let all = log.with(&[]);
    let of = |queue: &str| {
        let ends = ["disconnected: ", "connection lost: "].map(|words| log.with(&[words, queue]));
        ends.concat()
    };
    let (admin, io) = (of("queue=0"), of("queue=1"));
    assert!(admin.len() <= 1 && io.len() <= 1, "{all:#?}");
    let knows = |line: &String| line.contains("connection lost: ");
    match end {
        End::Host => assert!(!all.is_empty()),
        End::Target => assert!(io.iter().any(knows), "{all:#?}"),
    }
}

const KINDS: [Kind; 9] = [
    kind("profile=roce"),
    kind("profile=roce delay=2 read_delay=3 local_delay=2"),
    kind("profile=no-windows read_delay=2"),
    kind("profile=iwarp read_delay=2"),
    trusting("profile=roce delay=2 read_delay=3"),
    trusting("profile=no-windows"),
    trusting("profile=iwarp read_delay=2"),
    keeping("profile=roce"),
    keeping("profile=roce delay=2 read_delay=3 local_delay=5"),
];

/// At some of the first passages of a place, on both sides. The fault must happen at one of them
/// at least, unless the side never gets there.
fn each(fault: &str, effect: Effect) {
    let mut happened = 0;
    for kind in KINDS {
        for end in [End::Host, End::Target] {
            for number in [1, 2, 5, 11] {
                happened += u32::from(load(kind, end, (fault, number), effect));
            }
        }
    }
    assert!(happened > 0, "{fault} never happens");
}

#[test]
fn refused_posts() {
    each("post-send", Effect::Ends);
    each("post-recv", Effect::Ends);
}

#[test]
fn failed_work_requests() {
    for status in [4, 10, 12, 21] {
        each(&format!("send={status}"), Effect::Ends);
    }
}

#[test]
fn failed_receives() {
    each("receive=1", Effect::Ends);
    each("receive=21", Effect::Ends);
}

#[test]
fn fatal_events() {
    each("qp-fatal", Effect::Ends);
    each("cq-error", Effect::Ends);
    each("removal", Effect::Ends);
}

#[test]
fn refused_memory() {
    each("register", Effect::Any);
    each("deregister", Effect::Any);
    each("alloc-window", Effect::Any);
}

#[test]
fn refused_queues() {
    each("create-qp", Effect::Any);
    each("create-cq", Effect::Any);
}

/// The places that only a target with shared receives reaches.
#[test]
fn shared_receives() {
    for (fault, effect) in [
        ("post-srq-recv", Effect::Any),
        ("receive=21", Effect::Ends),
        ("create-srq", Effect::Any),
        ("last-receive", Effect::Any),
    ] {
        let once = [1, 2, 5].into_iter().filter(|number| {
            let kind = Kind {
                receives: Receives::Shared,
                ..kind("profile=roce delay=1")
            };
            load(kind, End::Target, (fault, *number), effect)
        });
        assert!(once.count() > 0, "{fault} never happens");
    }
}

#[test]
fn lost_connection_management() {
    each("connect", Effect::Any);
    each("establish", Effect::Any);
}

/// A trusted target costs the host no work for keys, and no fault of the target is needed to see
/// what that means: nothing but the end of the queue pair ends its access.
#[test]
fn trusted_target_needs_no_keys_for_commands() {
    for profile in ["profile=roce", "profile=no-windows", "profile=iwarp"] {
        let mut stage = Stage::new(trusting(profile));
        let mut ledger = Ledger::default();
        let mut host = stage.connect().expect("nothing fails");
        let before = counters(&stage.host).unwrap();
        host.run(&mut stage.served, &mut ledger, host::ROUNDS)
            .expect("nothing fails");
        host.verify(&mut stage.served, &mut ledger);
        let counted = counters(&stage.host).unwrap().since(&before);
        let of_keys = [
            counted.binds,
            counted.local_invalidates,
            counted.registrations,
            counted.deregistrations,
        ];
        assert_eq!(of_keys, [0; 4], "{profile}");
        host.finish(&mut stage.served);
        assert_eq!(violations(), [""; 0]);
    }
}

/// The host invalidates each key itself. Its calls complete when that is done.
#[test]
fn host_invalidates_keys_that_target_keeps() {
    for profile in ["profile=roce", "profile=roce delay=2 local_delay=20"] {
        let mut stage = Stage::new(keeping(profile));
        let mut ledger = Ledger::default();
        let mut host = stage.connect().expect("nothing fails");
        let before = [&stage.host, &stage.target].map(|name| counters(name).unwrap());
        host.run(&mut stage.served, &mut ledger, host::ROUNDS)
            .expect("nothing fails");
        host.verify(&mut stage.served, &mut ledger);
        let after = [&stage.host, &stage.target].map(|name| counters(name).unwrap());
        let [own, target] = [0, 1].map(|side: usize| after[side].since(&before[side]));
        assert_eq!(target.sends_with_invalidate, 0);
        assert_eq!(own.local_invalidates, own.binds, "{profile}");
        assert!(own.binds > host::ROUNDS, "{profile}");
        host.finish(&mut stage.served);
        assert_eq!(violations(), [""; 0]);
    }
}

/// Buffers of calls that the host gives up return when no device accesses them any more.
#[test]
fn calls_without_response_end_with_queue_pair() {
    for kind in KINDS {
        let mut stage = Stage::new(kind);
        let mut ledger = Ledger::default();
        let mut host = stage.connect().expect("nothing fails");
        let Lost { reason } = host.run_without_response(&mut ledger);
        assert!(reason.contains("did not"), "{reason}");
        host.finish(&mut stage.served);
        assert_eq!(violations(), [""; 0]);
    }
}

/// Time until everything ends, in steps of the caller.
pub(crate) const STEP: Duration = Duration::from_micros(50);
