//! Latency of a host while another one connects 64 queues at once, each of which is authenticated:
//! the table of docs/performance.md. It has no limits, because times depend on the machine.
//!
//! NVMEOF_RECONNECT_ROUNDS is the number of rounds; `cargo xtask bench reconnect` runs many.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nvmeof_e2e::{HOST, NQN, Setup, Target};
use nvmeof_initiator::dhchap::{HostKeys, Key};
use nvmeof_initiator::{ConnectOptions, Host, HostConfig, Identity, Nqn, Transport};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

/// The host that connects many queues.
const MANY: &str = "nqn.2026-11.org.example:many";
const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const LEN: usize = 4096;
/// Reads of the other host in flight.
const DEPTH: u64 = 4;
/// Controllers that the first host connects at once, and I/O queues of each: with the admin queues,
/// 64 queues.
const CONTROLLERS: usize = 8;
const IO_QUEUES: u16 = 7;
/// Duration of the measurement without them.
const QUIET: Duration = Duration::from_secs(1);
/// For 64 authentications with the largest group, on a machine with other load.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

fn target(group: &str) -> (Setup, Target) {
    let setup = Setup::new().file(1 << 20);
    let file = setup.path("key");
    fs::write(&file, KEY).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let file = file.display();
    let setup = setup.head(&format!(
        "[[host]]\nnqn = \"{MANY}\"\nkey_file = \"{file}\"\ndh_groups = [\"{group}\"]\n"
    ));
    let target = setup.start();
    (setup, target)
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn host(name: &str) -> Host {
    let mut config = HostConfig::new(Identity::of_name(Nqn::new(name).unwrap()));
    config.transport = Transport::Iwarp;
    Host::new(config).unwrap()
}

/// Connects all queues at once and disconnects them. Returns how long connecting took.
fn connect_many(addr: SocketAddr) -> Duration {
    runtime().block_on(async {
        let host = host(MANY);
        let key = Arc::new(Key::parse(KEY).unwrap());
        let keys = Arc::new(HostKeys::new(key, None));
        let begin = Instant::now();
        let mut connecting = JoinSet::new();
        for _ in 0..CONTROLLERS {
            let mut options = ConnectOptions::new(addr.into(), Nqn::new(NQN).unwrap());
            options.io_queues = IO_QUEUES;
            // The default configuration has buffers for so many queues of this depth.
            options.queue_size = 16;
            options.keys = Some(Arc::clone(&keys));
            options.connect_timeout = CONNECT_TIMEOUT;
            options.keep_alive = CONNECT_TIMEOUT;
            let host = host.clone();
            connecting.spawn(async move { host.connect(options).await.unwrap() });
        }
        let controllers = connecting.join_all().await;
        let took = begin.elapsed();
        for controller in controllers {
            assert_eq!(controller.info().io_queues, IO_QUEUES);
            controller.disconnect().await;
        }
        took
    })
}

/// Reads until `is_over`. Returns the latencies in order of length.
fn read_until(addr: SocketAddr, is_over: &Arc<AtomicBool>) -> Vec<Duration> {
    runtime().block_on(async {
        let host = host(HOST);
        let options = ConnectOptions::new(addr.into(), Nqn::new(NQN).unwrap());
        let controller = host.connect(options).await.unwrap();
        let disk = controller.namespace(1).await.unwrap();
        let mut lanes = JoinSet::new();
        for lane in 0..DEPTH {
            let (disk, is_over) = (disk.clone(), Arc::clone(is_over));
            let mut buf = host.buffer(LEN).unwrap();
            lanes.spawn(async move {
                let mut latencies = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let begin = Instant::now();
                    buf = disk.read(lane * 8, buf).await.unwrap();
                    latencies.push(begin.elapsed());
                }
                latencies
            });
        }
        let mut latencies: Vec<_> = lanes.join_all().await.into_iter().flatten().collect();
        controller.disconnect().await;
        latencies.sort_unstable();
        latencies
    })
}

/// Latencies of reads during `work`, and its result.
fn beside<R>(addr: SocketAddr, work: impl FnOnce() -> R) -> (Vec<Duration>, R) {
    let is_over = Arc::new(AtomicBool::new(false));
    let reads = {
        let is_over = Arc::clone(&is_over);
        thread::spawn(move || read_until(addr, &is_over))
    };
    let result = work();
    is_over.store(true, Ordering::Relaxed);
    (reads.join().unwrap(), result)
}

fn p99(latencies: &[Duration]) -> Duration {
    latencies[latencies.len() * 99 / 100]
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn rounds() -> usize {
    let rounds = std::env::var("NVMEOF_RECONNECT_ROUNDS");
    rounds.map_or(1, |rounds| rounds.parse().unwrap())
}

#[test]
fn latency_beside_reconnecting_queues_is_reported_by_group() {
    let mut table =
        "| group | p99 quiet | p99 beside | ratio | longest beside | 64 queues connect \
                     in |\n| --- | --- | --- | --- | --- | --- |\n"
            .to_owned();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    for group in ["null", "ffdhe2048", "ffdhe8192"] {
        let (_setup, target) = target(group);
        let mut columns: [Vec<f64>; 5] = Default::default();
        for _ in 0..rounds() {
            let (quiet, ()) = beside(target.address(), || thread::sleep(QUIET));
            let (loud, took) = beside(target.address(), || connect_many(target.address()));
            let ratio = ms(p99(&loud)) / ms(p99(&quiet));
            let longest = loud.last().copied().unwrap_or_default();
            let row = [
                ms(p99(&quiet)),
                ms(p99(&loud)),
                ratio,
                ms(longest),
                ms(took),
            ];
            for (column, value) in columns.iter_mut().zip(row) {
                column.push(value);
            }
        }
        let [quiet, loud, ratio, longest, took] = columns.map(median);
        writeln!(
            table,
            "| {group} | {quiet:.2} ms | {loud:.2} ms | {ratio:.1} | {longest:.1} ms | \
             {took:.0} ms |"
        )
        .unwrap();
    }
    println!("\n{table}");
}
