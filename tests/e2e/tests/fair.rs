//! Limits of one host leave resources for others, and the log names the limit.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use nvmeof_e2e::{NQN, Peer, Run, Setup, Target, eventually, request};
use nvmeof_wire::cm::Request;
use zerocopy::IntoBytes;

const MIB: usize = 1 << 20;

/// `id-ctrl` as a host of another name.
fn as_another(target: &Target) -> Run {
    let at = target.address();
    let name = "nqn.2026-11.org.example:another";
    Run::nvmeof(&format!(
        "id-ctrl -t rdma -a {} -s {} -q {name} -n {NQN}",
        at.ip(),
        at.port()
    ))
}

fn assert_logged(target: &Target, words: &[&str]) {
    let found = eventually(|| (!target.lines(words).is_empty()).then_some(()));
    assert!(found.is_some(), "{words:?}:\n{}", target.log());
}

#[test]
fn controllers_and_queues_per_host_are_limited() {
    let setup = Setup::new()
        .head("[limits]\ncontrollers = 4\nhost_controllers = 1\nhost_queues = 2")
        .file(MIB);
    let mut target = setup.start();
    let bench = |queues: u32| {
        let args = format!("--rw randread --nr-io-queues {queues} --runtime 20");
        target.on(1, "bench").args(&args)
    };
    bench(3).fails(1, &["limit"]);
    assert_logged(&target, &["more than 2 I/O queues", "limits.host_queues"]);
    let mut busy = bench(2).start();
    assert_logged(&target, &["queue 2 of controller 2", "connected"]);
    target.nvmeof("id-ctrl").fails(1, &["limit"]);
    assert_logged(&target, &["1 controllers", "limits.host_controllers"]);
    as_another(&target).ok();
    assert!(busy.runs());
    busy.kill();
    target.assert_healthy();
    target.stop();
}

#[test]
fn commands_per_port_are_limited() {
    let setup = Setup::new()
        .head("[limits]\nqueue_depth = 64\nport_commands = 100")
        .file(MIB);
    let mut target = setup.start();
    let bench = |queues: u32| {
        let args = format!("--rw randread --nr-io-queues {queues} --iodepth 63 --runtime 20");
        target.on(1, "bench").args(&args)
    };
    bench(2).fails(1, &["limit"]);
    assert_logged(
        &target,
        &["port 127.0.0.1:", "100 commands", "limits.port_commands"],
    );
    let mut busy = bench(1).start();
    assert_logged(&target, &["queue 1 of controller 2", "connected"]);
    assert!(busy.runs());
    busy.kill();
    target.assert_healthy();
    target.stop();
}

/// Two targets that serve one subsystem must assign different controller IDs.
#[test]
fn targets_of_one_subsystem_assign_different_controller_ids() {
    let serving = |min: u16, max: u16| {
        let keys = format!("allow_any_host = true\ncntlid_min = {min}\ncntlid_max = {max}");
        Setup::new().access(&keys).file(MIB).start()
    };
    let mut targets = [serving(1, 2), serving(1000, 1999)];
    let mut peers = Vec::new();
    for (target, expected) in [(0, 1), (0, 2), (1, 1000), (1, 1001)] {
        let (peer, cntlid) = Peer::connected(targets[target].address(), 0, 0xffff);
        assert_eq!(cntlid, expected);
        peers.push(peer);
    }
    let [few, many] = &targets;
    few.nvmeof("id-ctrl").fails(1, &["limit"]);
    assert_logged(few, &["controller identifiers", "1 to 2", "cntlid_max"]);
    let seen = many.nvmeof("id-ctrl").json();
    assert_eq!(seen["cntlid"], 1002);
    drop(peers);
    let free = eventually(|| (few.nvmeof("id-ctrl").end().status == Some(0)).then_some(()));
    assert!(free.is_some(), "{}", few.log());
    targets.iter_mut().for_each(Target::assert_healthy);
    targets.into_iter().for_each(Target::stop);
}

#[test]
fn connections_per_port_are_limited() {
    let setup = Setup::new()
        .head("[limits]\nport_connections = 4")
        .file(MIB);
    let mut target = setup.start();
    let open = || {
        let mut peer = Peer::connect(target.address());
        peer.say(&request(Request::new(0, 32).as_bytes()));
        peer
    };
    let peers: Vec<_> = (0..4).map(|_| open()).collect();
    let refused = eventually(|| {
        let ended = target.nvmeof("id-ctrl").end();
        (ended.status != Some(0)).then_some(ended)
    });
    assert!(refused.is_some(), "{}", target.log());
    assert_logged(&target, &["has 4 connections", "limits.port_connections"]);
    drop(peers);
    let again = eventually(|| (target.nvmeof("id-ctrl").end().status == Some(0)).then_some(()));
    assert!(again.is_some(), "{}", target.log());
    target.assert_healthy();
    target.stop();
}
