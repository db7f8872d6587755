//! What threads do with their time, and how connections end, as the metrics tell it of a
//! target that really does it.
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

/// Of a thread that works, polls and sleeps: seconds of each, or how often it did.
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

/// What a target with these lines for its only thread does in two seconds in which
/// nobody asks for anything: seconds working, polling, asleep, and of a CPU.
fn idle(reactor: &str) -> ([f64; 3], f64, f64) {
    let setup = managed().head(reactor).file(MIB);
    let target = setup.start();
    target.write(1, 0, &[1; 4096]);
    let (began, before) = (Instant::now(), spent(&setup));
    let used = cpu_seconds(target.pid());
    // What a thread does that looks for work it does after somebody came.
    let (_host, _) = Peer::connected(target.address(), 0, 0xffff);
    sleep(Duration::from_secs(2));
    // What is told lies between the first and the last look at the clock.
    let (after, used) = (spent(&setup), cpu_seconds(target.pid()) - used);
    let times = [0, 1, 2].map(|at| after[at] - before[at]);
    (times, used, began.elapsed().as_secs_f64())
}

#[test]
fn a_thread_with_nothing_to_do_is_asleep_and_says_so() {
    let ([working, polling, asleep], used, wall) = idle("[reactor]\npolling = \"efficiency\"\n");
    let told = format!("working {working}, polling {polling}, asleep {asleep} of {wall}");
    assert!(asleep > working + polling, "{told}");
    // However busy the machine is: it cannot have slept longer than there was time, nor
    // told of less than the kernel saw it use.
    assert!(working + polling + asleep <= wall + 0.1, "{told}");
    assert!(used < wall / 2.0, "{used} s of a processor: {told}");
}

#[test]
fn a_thread_that_looks_for_work_says_so() {
    // For a second after the host came.
    let ([working, polling, asleep], used, wall) =
        idle("[reactor]\npolling = \"latency\"\nspin_us = 1000000\n");
    let told = format!("working {working}, polling {polling}, asleep {asleep} of {wall}");
    assert!(polling > working, "{told}");
    assert!(polling + asleep + working <= wall + 0.1, "{told}");
    // What it says that it was not asleep is what it used, but for what others took.
    assert!(used > 0.0 && used <= wall + 0.1, "{used}: {told}");
    assert!(polling > 0.1, "{told}");
}

#[test]
fn turns_are_counted_by_what_was_done_in_them() {
    let setup = managed().file(MIB);
    let target = setup.start();
    let before = of_states(&setup, "turns");
    target.write(1, 0, &[1; 4096]);
    let after = of_states(&setup, "turns");
    // To connect and to write takes several turns, and in between it sleeps at least
    // until the host's process is there.
    let [working, _, asleep] = [0, 1, 2].map(|at| after[at] - before[at]);
    assert!(working >= 2.0, "{before:?} {after:?}");
    assert!(asleep >= 1.0, "{before:?} {after:?}");
}

#[test]
fn connections_that_end_with_an_error_are_counted_by_its_kind() {
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
    // A message for a queue that there is not (RFC 5041, section 7.1): this side says
    // what is wrong in a Terminate, and ends the connection.
    let (mut liar, _) = Peer::connected(target.address(), 0, 0xffff);
    let mut frame = vec![0, 18 + 64, 0x41, 0x43, 0, 0, 0, 0];
    frame.extend([0, 0, 0, 9, 0, 0, 0, 1]);
    frame.resize(2 + 18 + 64 + 4, 0);
    liar.say(&frame);
    liar.hear_out();
    counted("peer_fault");
    // The peer says that something is wrong (RFC 5040, section 4.8).
    let (mut unhappy, _) = Peer::connected(target.address(), 0, 0xffff);
    let mut frame = vec![0, 22, 0x41, 0x47, 0, 0, 0, 0];
    frame.extend([0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0]);
    frame.extend([0; 4]);
    frame.extend([0; 4]);
    unhappy.say(&frame);
    unhappy.hear_out();
    counted("terminated");
    // Who goes as one should is no error.
    assert_eq!(target.read(1, 0, Some(1)).len(), 512);
    for (kind, count) in [("timeout", 0.0), ("peer_fault", 1.0), ("terminated", 1.0)] {
        assert!((errors(kind) - count).abs() < 0.5, "{kind}");
    }
    target.must_be_well();
}
