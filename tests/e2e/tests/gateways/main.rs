//! Gateways that share ANA groups over images of a real cluster: takeovers, hand-overs and
//! refusals, under verified I/O over both. `cargo xtask test ceph` starts a cluster.
//!
//! No acknowledged write is lost or undone, no call of a host fails while a gateway can serve, and
//! no two gateways serve a group at once. Times of takeovers are printed and hardly limited.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod fleet;
mod load;
mod network;
mod outages;
mod watch;

use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvmeof_e2e::{Traffic, eventually, fds, free_port};
use nvmeof_initiator::{
    Error, ErrorKind, Namespace, ReleaseAction, ReservationAcquire, ReservationRegister,
    ReservationRelease, ReservationType, WriteOptions,
};

use tokio::task::JoinHandle;

use fleet::{Fleet, GROUPS, Gateway, NAMES, Own, TAKEOVER, report, run, serves, variable};
use load::{Client, Ended, LEN, Load, check};
use watch::Watch;

const SECOND: Duration = Duration::from_secs(1);

/// Ends the load, verifies all data over both gateways, and prints the longest calls.
fn verify(fleet: &Fleet, load: Load, what: &str) -> Ended {
    let ended = load.end();
    ended.client.verify(fleet, &ended.written);
    let [first, second] = ended.longest;
    let writes = ended.writes;
    report(&format!(
        "{what}: {writes} writes; longest call of group 1: {first:.1?}, of group 2: {second:.1?}"
    ));
    ended
}

#[test]
fn groups_are_spread_by_priority() {
    let mut fleet = Fleet::new("spread");
    let start = Instant::now();
    fleet.start(0);
    fleet.start(1);
    for at in [0, 1] {
        fleet.wait_until_serves(at, GROUPS[at]);
    }
    report(&format!(
        "start: both groups served after {:.1?}",
        start.elapsed()
    ));
    fleet.wait_for_all();
    let shown = fleet.gateways[0].ctl("ha show").ok().text();
    for words in [
        "gw1 (this one): member",
        "alive   100-199",
        "alive   200-299",
    ] {
        let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.contains(&words), "{words}: {shown}");
    }
    let other = fleet.gateways[1].status().unwrap();
    for (name, id) in NAMES.iter().zip(GROUPS) {
        let group = fleet::group(&other, id).unwrap();
        assert_eq!(group["owner"], *name, "{other}");
        assert_eq!(group["epoch"], 1, "{other}");
    }
    let why = fleet.gateways[1].ctl("ha why 1").ok().text();
    assert!(
        why.contains("owner gw1") && why.contains("fenced no client"),
        "{why}"
    );
    fleet.assert_no_errors(0);
    fleet.assert_no_errors(1);
    fleet.stop();
}

#[test]
fn killed_owner_is_replaced_and_gets_its_group_back_by_a_move() {
    let mut fleet = Fleet::started("killed");
    let load = Load::start(&fleet);
    let watch = Watch::start(&fleet);
    load.wait_for_writes(200);
    load.longest();
    fleet.gateways[0].kill();
    let took = fleet.wait_until_serves(1, 1);
    report(&format!("killed owner: takeover after {took:.1?}"));
    assert!(took < TAKEOVER, "{took:?}");
    let group = fleet.group(1, 1);
    assert_eq!(group["last_takeover"]["from"], "gw1", "{group}");
    assert_eq!(group["to_fence"].as_array().unwrap().len(), 0, "{group}");
    assert_eq!(
        group["last_takeover"]["fenced"].as_array().unwrap().len(),
        1,
        "{group}"
    );
    load.wait_for_writes(500);
    fleet.start(0);
    fleet.wait_for_member(0);
    load.wait_for_writes(200);
    assert!(
        serves(&fleet.gateways[1].status().unwrap(), 1),
        "no fail-back"
    );
    let took = fleet.move_to(0, 1);
    report(&format!("move: {took:.1?}"));
    load.wait_for_writes(200);
    // Writes in flight did not wait for the quiesce time: the other gateway says that they ended.
    let longest = verify(&fleet, load, "killed owner").longest[0];
    assert!(longest < TAKEOVER, "{longest:?}");
    watch.assert_no_overlap();
    fleet.assert_no_errors(0);
    fleet.assert_no_errors(1);
    fleet.stop();
}

/// Writes of a host that is connected to the first gateway only, and later ones to the same blocks
/// of another host, which are acknowledged.
struct Late {
    pinned: Namespace,
    writes: Vec<JoinHandle<Result<(), Error>>>,
}

impl Late {
    const FIRST: u64 = 16_000;
    const COUNT: u64 = 16;

    fn new(fleet: &Fleet, load: &Load) -> Self {
        let pinned = load.client().pinned(fleet, 0, 1);
        let writes = Vec::new();
        Self { pinned, writes }
    }

    fn blocks() -> impl Iterator<Item = u64> {
        (0..Self::COUNT).map(|piece| Self::FIRST + piece * 8)
    }

    /// Sends the writes, without waiting for them.
    fn send(&mut self, load: &Load) {
        let send = |lba: u64| {
            let (pinned, buf) = (self.pinned.clone(), load.client().buffer(1));
            let write = async move {
                let done = pinned.write(lba, buf, WriteOptions::default()).await;
                done.map(drop).map_err(|failed| failed.error)
            };
            load.client().runtime.spawn(write)
        };
        self.writes = Self::blocks().map(send).collect();
    }

    /// Writes the same blocks over all paths, while the first writes may be in progress.
    fn overwrite(&self, load: &Load) {
        let disk = load.disk(1);
        load.client().wait(async {
            for lba in Self::blocks() {
                let buf = load.client().buffer(2);
                disk.write(lba, buf, WriteOptions::default()).await.unwrap();
            }
        });
    }

    /// The first writes are in progress.
    fn assert_pending(&self) {
        assert!(self.writes.iter().all(|write| !write.is_finished()));
    }

    /// The first writes have failed, and the blocks have the later data.
    fn assert_without_effect(self, load: &Load) {
        for write in self.writes {
            let error = load.client().wait(write).unwrap().unwrap_err();
            assert!(is_of_the_path(&error), "{error}");
        }
        load.wait_for_writes(500);
        let disk = load.disk(1);
        load.client().wait(async {
            for lba in Self::blocks() {
                let buf = load.client().host.buffer(LEN).unwrap();
                let buf = disk.read(lba, buf).await.unwrap();
                check(&buf, 1, lba, 2);
            }
        });
    }
}

/// A write that was sent to the suspended gateway is executed after it continues. It must not
/// replace a later write over the other gateway.
#[test]
fn late_writes_of_a_suspended_owner_do_not_take_effect() {
    let mut fleet = Fleet::started("suspended");
    let load = Load::start(&fleet);
    let watch = Watch::start(&fleet);
    let mut late = Late::new(&fleet, &load);
    fleet.signal(0, Signal::SIGSTOP);
    let suspended = Instant::now();
    late.send(&load);
    let took = fleet.wait_until_serves(1, 1);
    report(&format!("suspended owner: takeover after {took:.1?}"));
    assert!(took < TAKEOVER, "{took:?}");
    late.overwrite(&load);
    late.assert_pending();
    sleep((8 * SECOND).saturating_sub(suspended.elapsed()));
    fleet.signal(0, Signal::SIGCONT);
    late.assert_without_effect(&load);
    fleet.wait_for_member(0);
    let status = fleet.gateways[0].status().unwrap();
    assert!(!serves(&status, 1) && !serves(&status, 2), "{status}");
    verify(&fleet, load, "suspended owner");
    let overlaps = watch.end();
    report(&format!(
        "suspended owner: both reported the group for {overlaps:.1?}"
    ));
    assert!(
        overlaps.status < SECOND && overlaps.ana < SECOND,
        "{overlaps:?}"
    );
    // Its reactor may have continued before it knew that it must not.
    fleet.assert_late_errors(0);
    fleet.assert_no_errors(1);
    fleet.stop();
}

/// Whether hosts send the command again over another path.
fn is_of_the_path(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Path | ErrorKind::ConnectionLost | ErrorKind::UnknownOutcome
    )
}

/// The names of its threads, and its open files. Those that serve HTTP requests come and go.
fn resources(process: u32) -> (Vec<String>, usize) {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let name = |thread: &std::path::Path| std::fs::read_to_string(thread.join("comm"));
    let names = threads.filter_map(|thread| name(&thread.unwrap().path()).ok());
    let mut names: Vec<_> = names.map(|name| name.trim().to_owned()).collect();
    names.retain(|name| name != "tokio-rt-worker");
    names.sort();
    (names, fds(process))
}

#[test]
fn planned_changes_fence_nothing() {
    let mut fleet = Fleet::started("planned");
    let load = Load::start(&fleet);
    let watch = Watch::start(&fleet);
    // All hosts are connected.
    sleep(SECOND);
    let process = fleet.gateways[0].target().pid();
    let before = resources(process);
    let lap = |what: &str, took: Duration| {
        load.wait_for_writes(200);
        let [first, second] = load.longest();
        report(&format!(
            "{what}: {took:.1?}; longest calls {first:.1?}, {second:.1?}"
        ));
    };
    load.longest();
    fleet.gateways[0].ctl("ha move 1 gw2").ok();
    lap("move away", Duration::ZERO);
    lap("move back", fleet.move_to(0, 1));
    let start = Instant::now();
    fleet.gateways[0].ctl("ha drain").ok();
    // The drain is done when this gateway owns no group; the other one may still open its images.
    let served = || serves(&fleet.gateways[1].status()?, 1).then_some(());
    assert!(eventually(served).is_some());
    lap("ha drain", start.elapsed());
    let refused = fleet.gateways[0].ctl("ha move 1 gw1").end();
    assert!(
        refused.status == Some(1) && refused.stderr.contains("drained"),
        "{refused}"
    );
    fleet.gateways[0].ctl("ha resume").ok();
    fleet.wait_for_member(0);
    lap("resume and move", fleet.move_to(0, 1));
    let after = eventually(|| {
        let after = resources(process);
        (after.0.len() <= before.0.len() && after.1 <= before.1).then_some(())
    });
    assert!(
        after.is_some(),
        "threads and files: {before:?}, then {:?}",
        resources(process)
    );
    let start = Instant::now();
    fleet.signal(0, Signal::SIGTERM);
    fleet.wait_until_serves(1, 1);
    let took = start.elapsed();
    let ended = fleet.gateways[0].target().wait();
    assert_eq!(
        ended.code(),
        Some(0),
        "{}",
        fleet.gateways[0].target().log()
    );
    lap("SIGTERM of the owner", took);
    assert!(start.elapsed() < 20 * SECOND);
    fleet.assert_no_errors(0);
    fleet.start(0);
    fleet.wait_for_member(0);
    lap("restart and move", fleet.move_to(0, 1));
    // It hands its groups over as well, before it disconnects its hosts.
    fleet.gateways[0].ctl("drain").ok();
    fleet.wait_until_serves(1, 1);
    sleep(SECOND);
    load.assert_runs();
    fleet.gateways[0].ctl("resume").ok();
    fleet.wait_for_member(0);
    lap("drain of the ports", Duration::ZERO);
    for at in [0, 1] {
        let why = fleet.gateways[at].ctl("ha why").ok().text();
        assert_eq!(why.matches("fenced no client").count(), 2, "{why}");
    }
    verify(&fleet, load, "planned changes");
    watch.assert_no_overlap();
    fleet.assert_no_errors(0);
    fleet.assert_no_errors(1);
    fleet.stop();
}

/// A cluster that does not respond: calls wait, and nothing is taken over that still runs.
#[test]
#[ignore = "slow: `cargo xtask test ceph --all`"]
fn calls_wait_for_a_cluster_that_does_not_respond() {
    let fleet = Fleet::started("stalled");
    let load = Load::start(&fleet);
    let watch = Watch::start(&fleet);
    let osd = Pid::from_raw(variable("NVMEOF_CEPH_OSD_PID").parse().unwrap());
    kill(osd, Signal::SIGSTOP).unwrap();
    sleep(5 * SECOND);
    for at in [0, 1] {
        let status = fleet.gateways[at].status();
        let serving = status.as_ref().map(|it| GROUPS.map(|id| serves(it, id)));
        if serving != Some([false; 2]) {
            kill(osd, Signal::SIGCONT).unwrap();
            panic!("{status:?}");
        }
    }
    load.assert_runs();
    sleep(2 * SECOND);
    kill(osd, Signal::SIGCONT).unwrap();
    let start = Instant::now();
    let of = |id: u32| {
        let each = [0, 1].map(|at| fleet.gateways[at].status());
        each.iter().flatten().any(|status| serves(status, id))
    };
    assert!(eventually(|| GROUPS.iter().all(|id| of(*id)).then_some(())).is_some());
    let epochs = GROUPS.map(|id| fleet.group(0, id)["epoch"].as_u64().unwrap());
    report(&format!(
        "OSD stopped for 7 s: served again after {:.1?}, epochs {epochs:?}",
        start.elapsed()
    ));
    load.wait_for_writes(500);
    verify(&fleet, load, "OSD stopped");
    watch.assert_no_overlap();
    fleet.stop();
}

/// An administrator blocklists the clients of the owner: it takes the group again with others.
#[test]
fn blocklisted_owner_serves_its_group_again() {
    let mut fleet = Fleet::started("blocklisted");
    let load = Load::start(&fleet);
    let watch = Watch::start(&fleet);
    let before = fleet.group(0, 1);
    let clients = before["clients"].as_array().unwrap();
    assert!(!clients.is_empty(), "{before}");
    for client in clients {
        run(
            "ceph",
            &format!("osd blocklist add {}", client.as_str().unwrap()),
        );
    }
    let start = Instant::now();
    let epoch = |at| fleet.group(at, 1)["epoch"].as_u64().unwrap();
    let first = before["epoch"].as_u64().unwrap();
    let is_served = |at: usize| serves(&fleet.gateways[at].status().unwrap(), 1);
    let next = || (epoch(0) > first && (is_served(0) || is_served(1))).then_some(());
    assert!(eventually(next).is_some(), "{}", fleet.group(0, 1));
    report(&format!(
        "blocklisted: served again after {:.1?}",
        start.elapsed()
    ));
    load.wait_for_writes(500);
    let why = fleet.gateways[1].ctl("ha why 1").ok().text();
    assert!(why.contains("blocklisted"), "{why}");
    verify(&fleet, load, "blocklisted");
    watch.assert_no_overlap();
    fleet.assert_no_errors(1);
    fleet.stop();
}

/// A gateway that conflicts with another one is refused, and the other one serves on.
#[test]
fn conflicting_gateways_are_refused() {
    let mut fleet = Fleet::started("refused");
    let load = Load::start(&fleet);
    let own = || Own::of(1);
    let shared = fleet.shared.clone();
    run("rbd", &format!("create --size 16M {}", shared.image(3)));
    // It leaves the record, so that only the first one can be in conflict.
    fleet.signal(1, Signal::SIGTERM);
    assert_eq!(fleet.gateways[1].target().wait().code(), Some(0));
    fleet.wait_until_serves(0, 2);
    let cases = [
        (
            Own {
                name: NAMES[0],
                ..own()
            },
            "gateway gw1: another process with this name is alive",
        ),
        (
            Own {
                cntlids: (150, 250),
                ..own()
            },
            "gateway gw2: controller identifiers 150-250 overlap with 100-199 of gateway gw1",
        ),
        (
            Own {
                serial: "HA2",
                ..own()
            },
            "differs from",
        ),
        (
            Own {
                second_image: 3,
                ..own()
            },
            "differs from",
        ),
    ];
    for (own, words) in cases {
        let port = free_port();
        let mut refused = Gateway::new(fleet.shared.setup(&own, port), port);
        let mut command = refused.setup.command();
        refused.run_as(&mut command);
        let line = refused.target().wait_for_log("ERROR high availability: ");
        assert!(line.contains(words) && line.contains("gw1"), "{line}");
        let status = eventually(|| refused.status().filter(|it| it["standing"] == "refused"));
        let status = status.unwrap_or_else(|| panic!("{:?}", refused.status()));
        let error = status["error"].as_str().unwrap();
        assert!(line.contains(error), "{line}: {error}");
        let shown = refused.ctl("ha").ok().text();
        assert!(shown.contains("refused"), "{shown}");
        assert!(GROUPS.iter().all(|id| !serves(&status, *id)), "{status}");
        load.wait_for_writes(200);
        assert_eq!(
            refused.target().lines(&["ERROR"]).len(),
            1,
            "{}",
            refused.target().log()
        );
        let start = Instant::now();
        refused.signal(Signal::SIGTERM);
        assert_eq!(refused.target().wait().code(), Some(0));
        assert!(start.elapsed() < 5 * SECOND, "{:?}", start.elapsed());
    }
    let status = fleet.gateways[0].status().unwrap();
    assert!(GROUPS.iter().all(|id| serves(&status, *id)), "{status}");
    fleet.start(1);
    fleet.wait_for_member(1);
    verify(&fleet, load, "refused gateways");
    fleet.assert_no_errors(0);
    fleet.stop();
}

fn set_full(ratios: [&str; 3]) {
    for (limit, ratio) in ["nearfull", "backfillfull", "full"].into_iter().zip(ratios) {
        run("ceph", &format!("osd set-{limit}-ratio {ratio}"));
    }
}

#[test]
#[ignore = "slow: `cargo xtask test ceph --all`"]
fn full_cluster_fails_writes_and_moves_no_group() {
    let fleet = Fleet::started("full");
    let load = Load::start(&fleet);
    let watch = Watch::start(&fleet);
    load.wait_for_writes(500);
    let disk = load.disk(1);
    set_full(["0.000001", "0.000002", "0.000003"]);
    // Blocks of objects that do not exist yet.
    let write = |lba: u64| {
        let buf = load.client().buffer(3);
        let written = load
            .client()
            .wait(disk.write(lba, buf, WriteOptions::default()));
        written.map(drop).map_err(|failed| failed.error)
    };
    let end = Instant::now() + TAKEOVER;
    let mut lba = 16_384;
    let error = loop {
        lba += 8;
        sleep(SECOND / 10);
        match write(lba) {
            Ok(()) if Instant::now() < end => {}
            other => break other,
        }
    };
    let state = || {
        let each = fleet.gateways.iter().map(Gateway::status);
        let each = each.map(|it| it.map(|it| GROUPS.map(|id| serves(&it, id))));
        let each: Vec<_> = each.collect();
        let epochs = GROUPS.map(|id| fleet.group(0, id)["epoch"].as_u64());
        (each, epochs)
    };
    let before = state();
    sleep(5 * SECOND);
    // The record can still be written.
    let after = state();
    let moved = [1, 0].map(|at| fleet.move_to(at, 1));
    report(&format!(
        "full: {before:?}, then {after:?}; moves {moved:.1?}"
    ));
    set_full(["0.85", "0.9", "0.95"]);
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(eventually(|| write(lba).ok()).is_some());
    assert_eq!(before, after);
    drop(disk);
    verify(&fleet, load, "full");
    watch.assert_no_overlap();
    fleet.stop();
}

/// Namespaces are added to and removed from a group that the gateway serves and one on standby,
/// and the owner's new size is seen over the other path.
#[test]
fn namespaces_of_both_groups_are_added_resized_and_removed() {
    let mut fleet = Fleet::started("reload");
    let load = Load::start(&fleet);
    let shared = fleet.shared.clone();
    let mut more = String::new();
    for (nsid, group) in [(3, 1), (4, 2)] {
        let image = shared.image(nsid);
        run("rbd", &format!("create --size 16M {image}"));
        more += &format!(
            "[[subsystem.namespace]]\nnsid = {nsid}\npath = 'rbd:{image}'\nana_group = {group}\n"
        );
    }
    fleet.reload(|text| format!("{text}\n{more}"));
    load.wait_for_writes(200);
    for (at, nsid) in [(0, 3), (1, 4)] {
        let pinned = load.client().pinned(&fleet, at, nsid);
        let buf = load.client().buffer(7);
        load.client()
            .wait(pinned.write(0, buf, WriteOptions::default()))
            .unwrap();
        fleet.move_to(1 - at, nsid - 2);
        let pinned = load.client().pinned(&fleet, 1 - at, nsid);
        let buf = load.client().host.buffer(LEN).unwrap();
        let buf = load.client().wait(pinned.read(0, buf)).unwrap();
        check(&buf, nsid, 0, 7);
        fleet.move_to(at, nsid - 2);
    }
    run(
        "rbd",
        &format!("resize --no-progress --size 32M {}", shared.image(1)),
    );
    let start = Instant::now();
    for at in [0, 1] {
        let mut pinned = load.client().pinned(&fleet, at, 1);
        let grown = || {
            load.client().wait(pinned.refresh()).unwrap();
            (pinned.blocks() == 65_536).then_some(())
        };
        assert!(eventually(grown).is_some());
        report(&format!(
            "new size at {}: {:.1?}",
            NAMES[at],
            start.elapsed()
        ));
    }
    assert!(
        start.elapsed() < 25 * SECOND,
        "one of two images on standby each 5 s"
    );
    fleet.reload(str::to_owned);
    for at in [0, 1] {
        let pinned = load.client().pinned(&fleet, at, 1);
        let all = load
            .client()
            .wait(pinned.controller().namespaces())
            .unwrap();
        assert_eq!(all, [1, 2]);
    }
    for nsid in [3, 4] {
        let free = || {
            let locks = run(
                "rbd",
                &format!("lock ls --format json {}", shared.image(nsid)),
            );
            (locks.trim() == "[]").then_some(())
        };
        assert!(eventually(free).is_some(), "namespace {nsid}");
    }
    load.wait_for_writes(200);
    verify(&fleet, load, "reload");
    for at in [0, 1] {
        let waiting = fleet.gateways[at].ctl("status").ok().text();
        assert!(!waiting.contains("waiting"), "{waiting}");
        fleet.assert_no_errors(at);
    }
    fleet.stop();
}

/// The gateway keeps its groups; an administrator moves them. Late commands fail.
#[test]
#[ignore = "slow: `cargo xtask test ceph --all`"]
fn owner_without_its_hosts_is_replaced_by_a_move() {
    let mut fleet = Fleet::started("hosts");
    let link = fleet.gateways[0].behind_a_link();
    let load = Load::start(&fleet);
    let watch = Watch::start(&fleet);
    load.longest();
    link.set(network::CUT);
    sleep(5 * SECOND);
    load.assert_runs();
    assert!(serves(&fleet.gateways[0].status().unwrap(), 1));
    report(&format!(
        "link to hosts cut: move {:.1?}",
        fleet.move_to(1, 1)
    ));
    load.wait_for_writes(500);
    link.set(Traffic::Forward);
    load.wait_for_writes(500);
    verify(&fleet, load, "link to hosts cut");
    watch.assert_no_overlap();
    fleet.assert_no_errors(0);
    fleet.stop();
}

/// Both gateways, and the links of the first one to the cluster. `None` where links cannot be cut.
fn with_links(test: &str) -> Option<(Fleet, network::Links)> {
    let mut fleet = Fleet::new(test);
    match network::Links::start(&mut fleet) {
        Ok(links) => {
            fleet.start(1);
            fleet.wait_for_all();
            Some((fleet, links))
        }
        Err(why) => {
            report(&format!("link to the cluster: skipped: {why}"));
            None
        }
    }
}

/// Commands that wait for the cluster at the first gateway continue over the other one, although
/// the link stays cut. Their writes reach the cluster when it works again.
#[test]
#[ignore = "slow: `cargo xtask test ceph --all`"]
fn owner_without_its_cluster_gives_its_commands_up() {
    let Some((mut fleet, links)) = with_links("give-up") else {
        return;
    };
    let load = Load::start(&fleet);
    let mut late = Late::new(&fleet, &load);
    load.longest();
    links.cut(true);
    let start = Instant::now();
    late.send(&load);
    fleet.wait_until_serves(1, 1);
    late.overwrite(&load);
    load.wait_for_longest(0, 4 * SECOND);
    let took = start.elapsed();
    report(&format!("commands given up after {took:.1?}"));
    assert!(took < 2 * TAKEOVER);
    load.assert_runs();
    links.cut(false);
    late.assert_without_effect(&load);
    fleet.wait_for_member(0);
    verify(&fleet, load, "commands given up");
    for at in [0, 1] {
        fleet.assert_no_errors(at);
    }
    fleet.stop();
}

/// Commands that wait for the cluster at the first gateway continue over the other one when the
/// first one ends, which does not depend on the cluster.
#[test]
#[ignore = "slow: `cargo xtask test ceph --all`"]
fn owner_without_its_cluster_can_be_ended() {
    let Some((mut fleet, links)) = with_links("lost") else {
        return;
    };
    let load = Load::start(&fleet);
    load.longest();
    links.cut(true);
    fleet.wait_until_serves(1, 1);
    load.assert_runs();
    let start = Instant::now();
    fleet.signal(0, Signal::SIGTERM);
    let status = fleet.gateways[0].target().wait();
    let took = start.elapsed();
    report(&format!(
        "SIGTERM without the cluster: {status} after {took:.1?}"
    ));
    load.wait_for_longest(0, 2 * SECOND);
    let [first, second] = load.longest();
    report(&format!("longest calls: {first:.1?}, {second:.1?}"));
    let ended = load.end();
    for group in GROUPS {
        ended.client.verify_at(&fleet, 1, group, &ended.written);
    }
    fleet.gateways[1].target().assert_healthy();
}

/// It stops serving before the other gateway takes over. Its late writes reach the cluster when the
/// link works again, and do not take effect.
#[test]
fn owner_without_its_cluster_stops_serving() {
    let Some((mut fleet, links)) = with_links("cut") else {
        return;
    };
    let load = Load::start(&fleet);
    let watch = Watch::start(&fleet);
    let mut late = Late::new(&fleet, &load);
    load.longest();
    links.cut(true);
    let start = Instant::now();
    // Before its lease lapses: they reach librbd.
    late.send(&load);
    let stopped = fleet.wait_for(0, |status| !serves(status, 1));
    let stopped_after = start.elapsed();
    fleet.wait_until_serves(1, 1);
    report(&format!(
        "link to the cluster cut: stopped after {stopped_after:.1?}, takeover after {:.1?}",
        start.elapsed()
    ));
    assert!(stopped_after < 3 * SECOND, "{stopped}");
    assert!(start.elapsed() < TAKEOVER);
    late.overwrite(&load);
    load.assert_runs();
    links.cut(false);
    late.assert_without_effect(&load);
    fleet.wait_for_member(0);
    assert!(!serves(&fleet.gateways[0].status().unwrap(), 1));
    verify(&fleet, load, "link to the cluster cut");
    watch.assert_no_overlap();
    // It disconnects its hosts before it knows of most of them.
    fleet.assert_late_errors(0);
    fleet.assert_no_errors(1);
    fleet.stop();
}

/// The record of a reservation moves with the group, also from a gateway that was killed.
#[test]
#[ignore = "slow: `cargo xtask test ceph --all`"]
fn reservation_survives_a_takeover() {
    const KEY: u64 = 0xa1;
    const TYPE: ReservationType = ReservationType::WRITE_EXCLUSIVE_REGISTRANTS;
    let mut fleet = Fleet::started("reserved");
    let load = Load::start(&fleet);
    let disk = load.disk(1);
    load.client().wait(async {
        let registration = ReservationRegister::register(KEY);
        disk.reservation_register(registration).await.unwrap();
        let acquisition = ReservationAcquire::acquire(TYPE, KEY);
        disk.reservation_acquire(acquisition).await.unwrap();
    });
    let other = Client::named("nqn.2026-11.org.example:other");
    let assert_reserved = |fleet: &Fleet, at: usize| {
        let report = load.client().wait(disk.reservation_report()).unwrap();
        assert_eq!(report.kind, TYPE);
        let [one] = &report.registrants[..] else {
            panic!("{report:?}");
        };
        assert!(one.holds && one.key == KEY, "{report:?}");
        let pinned = other.pinned(fleet, at, 1);
        let write = pinned.write(20_000, other.buffer(1), WriteOptions::default());
        let error = other.wait(write).unwrap_err().error;
        assert_eq!(error.kind(), ErrorKind::ReservationConflict, "{error}");
        load.wait_for_writes(200);
    };
    assert_reserved(&fleet, 0);
    fleet.gateways[0].kill();
    fleet.wait_until_serves(1, 1);
    assert_reserved(&fleet, 1);
    fleet.start(0);
    fleet.wait_for_member(0);
    fleet.move_to(0, 1);
    assert_reserved(&fleet, 0);
    fleet.move_to(1, 1);
    load.client().wait(async {
        let release = ReservationRelease {
            action: ReleaseAction::RELEASE,
            kind: TYPE,
            current: KEY,
        };
        disk.reservation_release(release).await.unwrap();
        // Other tests have the same subsystem, and so the same record.
        let registration = ReservationRegister::unregister(KEY);
        disk.reservation_register(registration).await.unwrap();
    });
    fleet.move_to(0, 1);
    let pinned = other.pinned(&fleet, 0, 1);
    let write = pinned.write(20_000, other.buffer(1), WriteOptions::default());
    other.wait(write).unwrap();
    drop(disk);
    verify(&fleet, load, "reservation");
    fleet.assert_no_errors(0);
    fleet.assert_no_errors(1);
    fleet.stop();
}
