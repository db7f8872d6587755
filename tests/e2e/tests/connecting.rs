//! Connect commands that fail, with status and field of each; and hosts that stop sending.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use nvmeof_e2e::{Peer, Setup, connect, connect_capsule, eventually, fds};
use nvmeof_wire::fabrics::{Connect, ConnectData, InvalidParameter};
use nvmeof_wire::{Cqe, Status};

const MIB: usize = 1 << 20;

fn ask(peer: &mut Peer, what: &(Connect, ConnectData)) -> Cqe {
    peer.capsule(&connect_capsule(what));
    peer.response()
}

/// A Connect of queue `qid` that is refused because of `field`.
#[track_caller]
fn refused(setup: &Setup, qid: u16, what: &(Connect, ConnectData), field: InvalidParameter) {
    // One target for each, because the log is rate-limited.
    let target = setup.start();
    let mut peer = Peer::queue(target.address(), qid);
    let response = ask(&mut peer, what);
    let status = response.status().kind();
    assert_eq!(status, Status::CONNECT_INVALID_PARAMETERS, "{response:?}");
    let named = InvalidParameter::from_result(response.result.get());
    assert_eq!(named, field);
    let address = peer.own_address().to_string();
    assert!(
        !target.lines(&[&address, "Connect refused"]).is_empty(),
        "{}",
        target.log()
    );
}

#[test]
fn every_refusal_names_its_field() {
    use InvalidParameter::{InCommand, InData};
    let setup = Setup::new().file(MIB);
    let good = connect(0, 0xffff);
    let data = |change: fn(&mut ConnectData)| {
        let mut bad = good;
        change(&mut bad.1);
        bad
    };
    let command = |change: fn(&mut Connect)| {
        let mut bad = good;
        change(&mut bad.0);
        bad
    };
    refused(&setup, 0, &data(|data| data.subnqn[5] = b'x'), InData(256));
    refused(&setup, 0, &data(|data| data.subnqn = [0; 256]), InData(256));
    refused(
        &setup,
        0,
        &data(|data| data.subnqn = [b'n'; 256]),
        InData(256),
    );
    refused(
        &setup,
        0,
        &data(|data| data.hostnqn = [0xff; 256]),
        InData(512),
    );
    refused(&setup, 0, &data(|data| data.hostid = [0; 16]), InData(0));
    refused(&setup, 0, &data(|data| data.cntlid = 7.into()), InData(16));
    refused(&setup, 0, &command(|c| c.qid = 1.into()), InCommand(42));
    refused(&setup, 0, &command(|c| c.sqsize = 0.into()), InCommand(44));
    refused(
        &setup,
        0,
        &command(|c| c.sqsize = 1000.into()),
        InCommand(44),
    );

    let target = setup.start();
    let mut peer = Peer::queue(target.address(), 0);
    let response = ask(&mut peer, &command(|connect| connect.recfmt = 1.into()));
    let status = response.status().kind();
    assert_eq!(status, Status::CONNECT_INCOMPATIBLE_FORMAT, "{response:?}");

    target.stop();

    // An I/O queue without its controller.
    refused(&setup, 1, &connect(1, 0xffff), InData(16));
    refused(&setup, 1, &connect(1, 9), InData(16));
}

#[test]
fn second_connect_of_queue_is_refused() {
    let target = Setup::new().file(MIB).start();
    let (_admin, cntlid) = Peer::connected(target.address(), 0, 0xffff);
    // The controller is not enabled yet.
    let mut early = Peer::queue(target.address(), 1);
    assert!(!ask(&mut early, &connect(1, cntlid)).status().is_success());
    drop(early);
    // Twice on one connection.
    let (mut admin, _) = Peer::connected(target.address(), 0, 0xffff);
    let again = ask(&mut admin, &connect(0, 0xffff));
    assert!(!again.status().is_success(), "{again:?}");
    target.stop();
}

#[test]
fn silent_host_is_disconnected() {
    let setup = Setup::new().file(MIB);
    let mut target = setup.start();
    let before = fds(target.pid());
    let mut peer = Peer::queue(target.address(), 0);
    let (mut command, data) = connect(0, 0xffff);
    command.kato = 1000.into();
    assert!(ask(&mut peer, &(command, data)).status().is_success());
    peer.receive_all();
    let line = target.wait_for_log("Keep Alive Timeout");
    assert!(line.contains(&peer.own_address().to_string()), "{line}");
    assert!(eventually(|| (fds(target.pid()) <= before).then_some(())).is_some());
    target.assert_healthy();
}

#[test]
fn connection_without_connect_is_closed() {
    let setup = Setup::new()
        .head("[limits]\nconnect_timeout_s = 1")
        .file(MIB);
    let mut target = setup.start();
    let mut peer = Peer::queue(target.address(), 0);
    peer.receive_all();
    let line = target.wait_for_log("no Connect");
    assert!(line.contains(&peer.own_address().to_string()), "{line}");
    target.assert_healthy();
}
