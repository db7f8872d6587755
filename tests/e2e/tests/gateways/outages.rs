//! Takeovers while something else is missing too: the monitor, room in the cluster, or the gateway
//! that took over before.

use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvmeof_e2e::eventually;
use nvmeof_initiator::{ErrorKind, WriteOptions};

use crate::fleet::{Fleet, GROUPS, NAMES, TAKEOVER, group, report, serves, variable};
use crate::load::Load;
use crate::watch::Watch;
use crate::{SECOND, set_full, verify};

/// Calls without a takeover are shorter, also on a busy machine.
const PAUSE: Duration = Duration::from_secs(2);

/// A process of the cluster that does not respond until this is dropped.
struct Suspended(Pid);

impl Suspended {
    /// The process whose number the variable has.
    fn new(name: &str) -> Self {
        let process = Pid::from_raw(variable(name).parse().unwrap());
        kill(process, Signal::SIGSTOP).unwrap();
        Self(process)
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        // Of a process that still exists.
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

fn epochs(fleet: &Fleet, at: usize) -> [u64; 2] {
    GROUPS.map(|id| fleet.group(at, id)["epoch"].as_u64().unwrap())
}

/// Leases depend on the OSD only. A takeover must fence the former owner, which the monitor does.
#[test]
#[ignore = "slow: `cargo xtask test ceph --all`"]
fn takeover_waits_for_the_monitor() {
    let mut fleet = Fleet::started("monitor");
    let load = Load::start(&fleet);
    let watch = Watch::start(&fleet);
    let before = epochs(&fleet, 1);
    load.longest();
    let monitor = Suspended::new("NVMEOF_CEPH_MON_PID");
    sleep(7 * SECOND);
    load.wait_for_writes(500);
    let longest = load.longest();
    report(&format!(
        "monitor stopped for 7 s: longest calls {longest:.1?}"
    ));
    assert!(longest.iter().all(|it| *it < PAUSE), "{longest:?}");
    for (at, id) in GROUPS.into_iter().enumerate() {
        assert!(serves(&fleet.gateways[at].status().unwrap(), id));
    }
    assert_eq!(epochs(&fleet, 1), before);

    fleet.gateways[0].kill();
    fleet.wait_for(1, |status| group(status, 1).unwrap()["owner"] == NAMES[1]);
    let end = Instant::now() + 10 * SECOND;
    while Instant::now() < end {
        let status = fleet.gateways[1].status().unwrap();
        let taken = group(&status, 1).unwrap();
        assert!(!serves(&status, 1) && serves(&status, 2), "{status}");
        assert_ne!(taken["to_fence"].as_array().unwrap().len(), 0, "{status}");
        load.assert_runs();
        sleep(SECOND / 10);
    }
    let [_, second] = load.longest();
    assert!(second < PAUSE, "{second:?}");
    let state = fleet.group(1, 1);
    drop(monitor);
    let took = fleet.wait_until_serves(1, 1);
    report(&format!(
        "owner killed without the monitor: {} {}; served {took:.1?} after the monitor responds",
        state["phase"], state["error"]
    ));
    assert!(took < TAKEOVER, "{took:?}");
    let taken = fleet.group(1, 1);
    assert_eq!(taken["to_fence"].as_array().unwrap().len(), 0, "{taken}");
    load.wait_for_writes(500);
    fleet.start(0);
    fleet.wait_for_member(0);
    verify(&fleet, load, "monitor stopped");
    watch.assert_no_overlap();
    fleet.assert_no_errors(0);
    fleet.stop();
}

/// The second one is killed as soon as it owns the group of the first one, whose clients may not
/// be fenced yet.
#[test]
#[ignore = "slow: `cargo xtask test ceph --all`"]
fn last_of_three_gateways_serves_all_groups() {
    let mut fleet = Fleet::started_with("three", 3);
    let load = Load::start(&fleet);
    let watch = Watch::start(&fleet);
    load.longest();
    fleet.gateways[0].kill();
    let killed = Instant::now();
    let state = fleet.wait_for(2, |status| group(status, 1).unwrap()["owner"] == NAMES[1]);
    fleet.gateways[1].kill();
    let took = GROUPS.map(|id| {
        fleet.wait_until_serves(2, id);
        killed.elapsed()
    });
    report(&format!(
        "two of three gateways killed, the second one {}: groups served after {took:.1?}",
        group(&state, 1).unwrap()["phase"]
    ));
    assert!(took[1] < 2 * TAKEOVER, "{took:?}");
    load.wait_for_writes(500);
    for at in [0, 1] {
        fleet.start(at);
    }
    for at in [0, 1] {
        fleet.wait_for_member(at);
    }
    // Both, one after the other, while they serve.
    for (at, id) in GROUPS.into_iter().enumerate() {
        fleet.move_to(at, id);
    }
    load.wait_for_writes(500);
    for at in [0, 1] {
        fleet.gateways[at].kill();
        for id in &GROUPS[..=at] {
            fleet.wait_until_serves(at + 1, *id);
        }
        load.wait_for_writes(500);
    }
    let [first, second] = load.longest();
    let ended = load.end();
    for id in GROUPS {
        ended.client.verify_at(&fleet, 2, id, &ended.written);
    }
    report(&format!(
        "three gateways: {} writes; longest call of group 1: {first:.1?}, of group 2: {second:.1?}",
        ended.writes
    ));
    watch.assert_no_overlap();
    fleet.assert_no_errors(2);
    fleet.stop();
}

/// Fencing, the locks of images and the record need no room.
#[test]
#[ignore = "slow: `cargo xtask test ceph --all`"]
fn killed_owner_is_replaced_while_the_cluster_is_full() {
    let mut fleet = Fleet::started("full-kill");
    let load = Load::start(&fleet);
    let watch = Watch::start(&fleet);
    // All their blocks exist.
    load.wait_for_writes(500);
    let disk = load.disk(1);
    let mut lba = 16_384;
    let mut write_more = || {
        lba += 8;
        let buf = load.client().buffer(3);
        let write = disk.write(lba, buf, WriteOptions::default());
        let written = load.client().wait(write);
        written.map(drop).map_err(|failed| failed.error.kind())
    };
    let full = Full::new();
    let is_full = || (write_more() == Err(ErrorKind::NoSpace)).then_some(());
    assert!(eventually(is_full).is_some());
    fleet.gateways[0].kill();
    let took = fleet.wait_until_serves(1, 1);
    report(&format!(
        "owner killed while the cluster is full: takeover after {took:.1?}"
    ));
    assert!(took < TAKEOVER, "{took:?}");
    load.wait_for_writes(500);
    assert_eq!(write_more(), Err(ErrorKind::NoSpace));
    fleet.start(0);
    fleet.wait_for_member(0);
    let took = fleet.move_to(0, 1);
    report(&format!("full: move back {took:.1?}"));
    load.wait_for_writes(200);
    drop(full);
    assert!(eventually(|| write_more().ok()).is_some());
    drop(disk);
    verify(&fleet, load, "full");
    watch.assert_no_overlap();
    let errors = fleet.gateways[1].target().lines(&["ERROR"]);
    let is_of_room = |line: &String| line.contains("no space left");
    assert!(errors.iter().all(is_of_room), "{errors:#?}");
    fleet.stop();
}

/// A full cluster, until this is dropped.
struct Full;

impl Full {
    fn new() -> Self {
        set_full(["0.000001", "0.000002", "0.000003"]);
        Self
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        set_full(["0.85", "0.9", "0.95"]);
    }
}
