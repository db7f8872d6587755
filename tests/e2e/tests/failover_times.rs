//! How long reads and writes wait when a path of two fails under load: the table of
//! docs/performance.md. It has no limits, because times depend on the machine.
//!
//! NVMEOF_FAILOVER_ROUNDS is the number of rounds; `cargo xtask bench failover` runs many.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nvmeof_e2e::{HOST, NQN, Proxy, Setup, TIMEOUT, Target, Traffic, free_port, managed};
use nvmeof_initiator::multipath::{Multipath, MultipathOptions};
use nvmeof_initiator::{
    ConnectOptions, Host, HostConfig, Identity, MultipathNamespace, Nqn, Transport, WriteOptions,
};

const LEN: usize = 4096;
/// Concurrent reads, and concurrent writes.
const DEPTH: u64 = 4;
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Load before a fault.
const BEFORE: Duration = Duration::from_millis(300);

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    PathReset,
    PathSilent,
    TargetKilled,
}

impl Fault {
    const ALL: [Self; 3] = [Self::PathReset, Self::PathSilent, Self::TargetKilled];

    fn name(self) -> &'static str {
        match self {
            Self::PathReset => "connections of one path reset",
            Self::PathSilent => "one path silent",
            Self::TargetKilled => "target killed and started again",
        }
    }
}

/// A call from its begin to its end.
#[derive(Clone, Copy, Debug)]
struct Call {
    is_write: bool,
    began: Instant,
    ended: Instant,
}

/// What was measured in one round.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// From the fault to the first completed read, and the longest read that ended after the
    /// fault.
    reads: [Duration; 2],
    /// The same of writes.
    writes: [Duration; 2],
}

/// A target with two ports, and a proxy before each.
struct Scene {
    setup: Setup,
    target: Target,
    proxies: [Proxy; 2],
}

impl Scene {
    fn start() -> Self {
        let ports = [free_port(), free_port()];
        let head = format!(
            "[limits]\nquiesce_time_s = 2\n\
             [[port]]\nid = 7\ntraddr = \"127.0.0.1\"\ntrsvcid = {}\nprovider = \"iwarp\"\n",
            ports[1]
        );
        let setup = managed().head(&head).port(ports[0]).file(1 << 20);
        let target = setup.start();
        let proxies = ports.map(|port| Proxy::start((Ipv4Addr::LOCALHOST, port).into()));
        Self {
            setup,
            target,
            proxies,
        }
    }

    /// A fault that lasts until the end of the round, except that a killed target is started.
    fn fail(&mut self, fault: Fault) {
        match fault {
            Fault::PathReset => self.proxies[0].set(Traffic::Reset),
            Fault::PathSilent => self.proxies[0].set(Traffic::Silent {
                to_target: true,
                to_host: true,
            }),
            Fault::TargetKilled => {
                self.target.kill();
                self.target = self.setup.start();
            }
        }
    }
}

/// Reads or writes blocks of its own until `is_over`.
async fn load(
    host: Host,
    disk: MultipathNamespace,
    (is_write, own): (bool, u64),
    is_over: Arc<AtomicBool>,
) -> Vec<Call> {
    let mut calls = Vec::new();
    let lba = (own + if is_write { DEPTH } else { 0 }) * 8;
    let mut buf = host.buffer(LEN).unwrap();
    while !is_over.load(Ordering::Relaxed) {
        let began = Instant::now();
        let back = match is_write {
            true => disk.write(lba, buf, WriteOptions::default()).await,
            false => disk.read(lba, buf).await,
        };
        buf = back.unwrap();
        calls.push(Call {
            is_write,
            began,
            ended: Instant::now(),
        });
    }
    calls
}

async fn connect(scene: &Scene) -> (Host, Multipath) {
    let mut config = HostConfig::new(Identity::of_name(Nqn::new(HOST).unwrap()));
    config.transport = Transport::Iwarp;
    let host = Host::new(config).unwrap();
    let paths: Vec<_> = scene
        .proxies
        .iter()
        .map(|proxy| {
            let mut path = ConnectOptions::new(proxy.address().into(), Nqn::new(NQN).unwrap());
            path.keep_alive = KEEP_ALIVE;
            path.connect_timeout = KEEP_ALIVE;
            path
        })
        .collect();
    let options = MultipathOptions::default();
    let multipath = Multipath::connect(&host, &paths, options).await.unwrap();
    (host, multipath)
}

/// Waits until both paths are connected.
async fn settled(multipath: &Multipath) {
    let mut changes = multipath.changes();
    while !multipath.paths().iter().all(|path| path.is_live) {
        changes.changed().await;
    }
}

/// One fault under load. Returns its times, and how many controllers were fenced by which method.
async fn round(fault: Fault) -> (Times, Vec<String>) {
    let mut scene = Scene::start();
    let (host, multipath) = connect(&scene).await;
    let disk = multipath.namespace(1).await.unwrap();
    settled(&multipath).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..2 * DEPTH)
        .map(|task| {
            let kind = (task % 2 == 1, task / 2);
            let (host, disk, is_over) = (host.clone(), disk.clone(), Arc::clone(&is_over));
            tokio::spawn(load(host, disk, kind, is_over))
        })
        .collect();
    tokio::time::sleep(BEFORE).await;
    let at = Instant::now();
    scene.fail(fault);
    // Each controller that was lost is fenced.
    let expected = if fault == Fault::TargetKilled { 2 } else { 1 };
    let fenced = loop {
        let paths = multipath.paths();
        let fenced = paths.iter().flat_map(|path| path.fenced.clone());
        let fenced: Vec<_> = fenced.collect();
        if fenced.iter().map(|(_, count)| count).sum::<u64>() >= expected {
            break fenced;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    tokio::time::sleep(BEFORE).await;
    is_over.store(true, Ordering::Relaxed);
    let mut calls = Vec::new();
    for task in tasks {
        calls.extend(task.await.unwrap());
    }
    multipath.disconnect().await;
    let fenced = fenced.iter().map(|(method, _)| format!("{method:?}"));
    (times(&calls, at), fenced.collect())
}

/// The times after the fault at `at`.
fn times(calls: &[Call], at: Instant) -> Times {
    let of = |is_write| {
        let after = || {
            let calls = calls.iter().filter(move |call| call.is_write == is_write);
            calls.filter(move |call| call.ended > at)
        };
        let first = after().map(|call| call.ended - at).min().unwrap();
        // A call that began after the fault may wait for its detection as well.
        let longest = after().map(|call| call.ended - call.began).max().unwrap();
        [first, longest]
    };
    Times {
        reads: of(false),
        writes: of(true),
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn rounds() -> usize {
    let rounds = std::env::var("NVMEOF_FAILOVER_ROUNDS");
    rounds.map_or(1, |rounds| rounds.parse().unwrap())
}

#[test]
fn failover_times_are_reported_by_fault() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().worker_threads(2).build().unwrap();
    let mut table = "| fault | first read | longest read | longest write | fenced by |\n\
                     | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for fault in Fault::ALL {
        let mut all = Vec::new();
        let mut methods = BTreeMap::<String, usize>::new();
        for _ in 0..rounds() {
            let round = async { tokio::time::timeout(TIMEOUT, round(fault)).await.unwrap() };
            let (times, fenced) = runtime.block_on(round);
            all.push(times);
            for method in fenced {
                *methods.entry(method).or_default() += 1;
            }
        }
        let cell = |pick: fn(&Times) -> Duration| {
            let times: Vec<_> = all.iter().map(pick).collect();
            let most = *times.iter().max().unwrap();
            let ms = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e3);
            format!("{} ms (at most {})", ms(median(times)), ms(most))
        };
        let (first, read) = (cell(|one| one.reads[0]), cell(|one| one.reads[1]));
        let write = cell(|one| one.writes[1]);
        let methods: Vec<_> = methods
            .iter()
            .map(|(method, count)| format!("{method} {count}"))
            .collect();
        let (name, methods) = (fault.name(), methods.join(", "));
        table.push_str(&format!(
            "| {name} | {first} | {read} | {write} | {methods} |\n"
        ));
    }
    println!("\n{table}");
}
