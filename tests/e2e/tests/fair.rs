//! What one host has leaves something for others, and the log says which limit
//! it ran into.
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

fn told(target: &Target, words: &[&str]) {
    let found = eventually(|| (!target.lines(words).is_empty()).then_some(()));
    assert!(found.is_some(), "{words:?}:\n{}", target.log());
}

#[test]
fn one_host_has_so_many_controllers_and_queues() {
    let setup = Setup::new()
        .head("[limits]\ncontrollers = 4\nhost_controllers = 1\nhost_queues = 2")
        .file(MIB);
    let mut target = setup.start();
    let bench = |queues: u32| {
        let args = format!("--rw randread --io-queues {queues} --runtime 20");
        target.on(1, "bench").args(&args)
    };
    bench(3).fails(1, &["limit"]);
    told(&target, &["more than 2 I/O queues", "limits.host_queues"]);
    let mut busy = bench(2).start();
    told(&target, &["queue 2 of controller 2", "connected"]);
    target.nvmeof("id-ctrl").fails(1, &["limit"]);
    told(&target, &["1 controllers", "limits.host_controllers"]);
    as_another(&target).ok();
    assert!(busy.runs());
    busy.kill();
    target.must_be_well();
    target.stop();
}

#[test]
fn a_port_has_so_many_connections() {
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
    told(
        &target,
        &["4 connections came by", "limits.port_connections"],
    );
    drop(peers);
    let again = eventually(|| (target.nvmeof("id-ctrl").end().status == Some(0)).then_some(()));
    assert!(again.is_some(), "{}", target.log());
    target.must_be_well();
    target.stop();
}
