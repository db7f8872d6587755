//! What one host may have, so that there is something left for others.

use nvmeof_wire::Status;
use nvmeof_wire::fabrics::{Connect, ConnectData};
use nvmeof_wire::registers::Cc;

use crate::testing::{Host, connect_data, target_with};
use crate::{Limit, Limits, Model, Target};

const OTHER: &[u8] = b"nqn.2026-11.org.example:other";

/// What a host of another name sends.
fn of_other(cntlid: u16) -> ConnectData {
    let mut data = connect_data(cntlid);
    data.hostnqn = [0; 256];
    data.hostnqn[..OTHER.len()].copy_from_slice(OTHER);
    data
}

fn limits() -> Limits {
    Limits {
        queue_depth: 128,
        io_queues: 4,
        controllers: 3,
        host_controllers: 2,
        host_queues: 3,
        host_commands: 300,
        ..Limits::default()
    }
}

/// A new controller, enabled: its queue and its identifier.
fn admin(target: &Target, data: &ConnectData) -> (Host, Status, u16) {
    let mut host = Host::open(target, 0, 32);
    let answer = host.connect(&Connect::new(0, 32, 0), data);
    let cntlid = u16::try_from(answer.result() & 0xffff).unwrap();
    if answer.status().is_success() {
        assert_eq!(host.set_cc(Cc::ENABLE.0).status(), Status::SUCCESS);
    }
    (host, answer.status(), cntlid)
}

fn queue(target: &Target, qid: u16, entries: u16, data: &ConnectData) -> (Host, Status) {
    let mut host = Host::open(target, qid, entries);
    let status = host.connect(&Connect::new(qid, entries, 0), data).status();
    (host, status)
}

#[test]
fn one_host_does_not_get_every_controller() {
    let target = target_with(limits());
    let [first, _second] = [(); 2].map(|()| {
        let (host, status, _) = admin(&target, &connect_data(0xffff));
        assert_eq!(status, Status::SUCCESS);
        host
    });
    // And may try again: without DNR.
    let (mut third, status, _) = admin(&target, &connect_data(0xffff));
    assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY);
    let remark = third.queue.take_remark().unwrap();
    assert!(remark.contains("raise limits.host_controllers"), "{remark}");
    let (_other, status, _) = admin(&target, &of_other(0xffff));
    assert_eq!(status, Status::SUCCESS, "there is one left for others");
    let (_, status, _) = admin(&target, &of_other(0xffff));
    assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY);
    let hits = target.hits();
    assert_eq!(hits.get(Limit::HostControllers), 1);
    assert_eq!(hits.get(Limit::Controllers), 1);
    drop(first);
    let (_, status, _) = admin(&target, &connect_data(0xffff));
    assert_eq!(status, Status::SUCCESS);
}

#[test]
fn one_host_does_not_get_every_queue_and_command() {
    let target = target_with(limits());
    let (_first, _, one) = admin(&target, &connect_data(0xffff));
    let (_second, _, two) = admin(&target, &connect_data(0xffff));
    let data = |cntlid| connect_data(cntlid);
    let (_a, status) = queue(&target, 1, 128, &data(one));
    assert_eq!(status, Status::SUCCESS);
    let (b, status) = queue(&target, 1, 128, &data(two));
    assert_eq!(status, Status::SUCCESS);
    // 44 more commands, whatever controller they are of.
    let (mut c, status) = queue(&target, 2, 45, &data(two));
    assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY);
    let remark = c.queue.take_remark().unwrap();
    assert!(remark.contains("raise limits.host_commands"), "{remark}");
    // The same connection may ask for less, and the number was not kept.
    let fewer = Connect::new(2, 44, 0);
    assert_eq!(c.connect(&fewer, &data(two)).status(), Status::SUCCESS);
    let (_d, status) = queue(&target, 2, 2, &data(one));
    assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY, "a fourth");
    let hits = [Limit::HostQueues, Limit::HostCommands].map(|limit| target.hits().get(limit));
    assert_eq!(hits, [1, 1]);
    // Another host is not concerned.
    let (_other, _, its) = admin(&target, &of_other(0xffff));
    let (_e, status) = queue(&target, 1, 128, &of_other(its));
    assert_eq!(status, Status::SUCCESS);
    drop(b);
    let (_f, status) = queue(&target, 1, 128, &data(two));
    assert_eq!(status, Status::SUCCESS);
}

#[test]
fn a_port_has_so_many_connections() {
    let limits = Limits {
        port_connections: 2,
        ..Limits::default()
    };
    let model = Model::build(limits, &[], &[]).unwrap();
    let target = Target::new(model);
    let seats = [(); 2].map(|()| target.port_seat("10.0.0.1:4420").unwrap());
    let refused = target.port_seat("10.0.0.1:4420").unwrap_err();
    assert!(refused.cause.contains("raise limits.port_connections"));
    assert!(target.port_seat("10.0.0.2:4420").is_ok());
    assert_eq!(target.hits().get(Limit::PortConnections), 1);
    drop(seats);
    assert!(target.port_seat("10.0.0.1:4420").is_ok());
}
