//! Metrics of the time of threads and the end of connections, with a real target.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::thread::sleep;
use std::time::{Duration, Instant};

use nvmeof_e2e::{Peer, Setup, cpu_seconds, eventually, managed, over_socket, sample};

const MIB: usize = 1 << 20;

/// Work, polling and sleep of a thread: seconds of each, or counts.
fn of_states(setup: &Setup, name: &str) -> [f64; 3] {
    let (_, text) = over_socket(setup, "/metrics");
    ["working", "polling", "asleep"].map(|state| {
        let state = format!("state=\"{state}\"");
        let name = format!("nvmeof_target_reactor_{name}_total");
        sample(&text, &name, &[&state, "reactor=\"0\""])
    })
}

fn spent(setup: &Setup) -> [f64; 3] {
    of_states(setup, "time_seconds")
}

/// Two idle seconds of a target with this configuration of its only reactor: seconds working,
/// polling, asleep, and of CPU time.
fn idle(reactor: &str) -> ([f64; 3], f64, f64) {
    let setup = managed().head(reactor).file(MIB);
    let target = setup.start();
    target.write(1, 0, &[1; 4096]);
    let (began, before) = (Instant::now(), spent(&setup));
    let used = cpu_seconds(target.pid());
    // A polling thread works only after a host has connected.
    let (_host, _) = Peer::connected(target.address(), 0, 0xffff);
    sleep(Duration::from_secs(2));
    // The reported interval is within the measured one.
    let (after, used) = (spent(&setup), cpu_seconds(target.pid()) - used);
    let times = [0, 1, 2].map(|at| after[at] - before[at]);
    (times, used, began.elapsed().as_secs_f64())
}

#[test]
fn idle_thread_reports_sleep_time() {
    let ([working, polling, asleep], used, wall) = idle("[reactor]\npolling = \"efficiency\"\n");
    let times = format!("working {working}, polling {polling}, asleep {asleep} of {wall}");
    assert!(asleep > working + polling, "{times}");
    // Also on a busy machine: it cannot sleep longer than the interval, nor report less time
    // than the kernel measured.
    assert!(working + polling + asleep <= wall + 0.1, "{times}");
    assert!(used < wall / 2.0, "{used} s of CPU time: {times}");
}

#[test]
fn polling_thread_reports_poll_time() {
    // During a second after the host has connected.
    let ([working, polling, asleep], used, wall) =
        idle("[reactor]\npolling = \"latency\"\nspin_us = 1000000\n");
    let times = format!("working {working}, polling {polling}, asleep {asleep} of {wall}");
    assert!(polling > working, "{times}");
    assert!(polling + asleep + working <= wall + 0.1, "{times}");
    // The reported time awake is the CPU time, except for preemption.
    assert!(used > 0.0 && used <= wall + 0.1, "{used}: {times}");
    assert!(polling > 0.1, "{times}");
}

#[test]
fn reactor_iterations_are_counted_by_work() {
    let setup = managed().file(MIB);
    let target = setup.start();
    let before = of_states(&setup, "turns");
    target.write(1, 0, &[1; 4096]);
    let after = of_states(&setup, "turns");
    // Connecting and writing take several iterations, and it sleeps at least until the process
    // of the host has started.
    let [working, _, asleep] = [0, 1, 2].map(|at| after[at] - before[at]);
    assert!(working >= 2.0, "{before:?} {after:?}");
    assert!(asleep >= 1.0, "{before:?} {after:?}");
}

#[test]
fn connection_errors_are_counted_by_kind() {
    let setup = managed().file(MIB);
    let mut target = setup.start();
    let errors = |kind: &str| {
        let (_, text) = over_socket(&setup, "/metrics");
        let kind = format!("kind=\"{kind}\"");
        sample(&text, "nvmeof_target_rdma_errors_total", &[&kind])
    };
    for kind in ["timeout", "network", "peer_fault", "terminated"] {
        assert!(errors(kind).abs() < 0.5, "{kind}");
    }
    let counted = |kind: &str| {
        let once = eventually(|| (errors(kind) > 0.5).then_some(()));
        assert!(once.is_some(), "{kind} is not counted");
    };
    // A message for a queue that does not exist (RFC 5041, section 7.1): the target sends a
    // Terminate and closes the connection.
    let (mut liar, _) = Peer::connected(target.address(), 0, 0xffff);
    let mut frame = vec![0, 18 + 64, 0x41, 0x43, 0, 0, 0, 0];
    frame.extend([0, 0, 0, 9, 0, 0, 0, 1]);
    frame.resize(2 + 18 + 64 + 4, 0);
    liar.say(&frame);
    liar.receive_all();
    counted("peer_fault");
    // The peer sends a Terminate (RFC 5040, section 4.8).
    let (mut unhappy, _) = Peer::connected(target.address(), 0, 0xffff);
    let mut frame = vec![0, 22, 0x41, 0x47, 0, 0, 0, 0];
    frame.extend([0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0]);
    frame.extend([0; 4]);
    frame.extend([0; 4]);
    unhappy.say(&frame);
    unhappy.receive_all();
    counted("terminated");
    // An orderly disconnect is not an error.
    assert_eq!(target.read(1, 0, Some(1)).len(), 512);
    for (kind, count) in [("timeout", 0.0), ("peer_fault", 1.0), ("terminated", 1.0)] {
        assert!((errors(kind) - count).abs() < 0.5, "{kind}");
    }
    target.assert_healthy();
}
