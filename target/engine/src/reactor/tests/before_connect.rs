//! A peer without a Connect can take next to nothing.

use std::time::Duration;

use nvmeof_rdma::QpId;
use nvmeof_target_core::{Limit, Limits};
use nvmeof_wire::Status;
use nvmeof_wire::admin::bare;
use nvmeof_wire::cm::{Reject, RejectStatus, Request};
use nvmeof_wire::fabrics::{Connect, ConnectData};
use nvmeof_wire::opcode::admin as opcode;
use nvmeof_wire::{Nqn, Sqe};
use zerocopy::IntoBytes;

use super::host::{Host, admin, establish, ready, run, try_connect};
use super::{Bench, NQN, few_buffers, limits};
use crate::{ReactorConfig, ReactorError};

fn send_connect(host: &mut Host, qp: QpId, sqe: Sqe) -> super::host::Sent {
    let name = |text| Nqn::new(text).unwrap();
    let hostnqn = name("nqn.2026-11.org.example:host");
    let data = ConnectData::new([7; 16], 0xffff, &name(NQN), &hostnqn);
    host.send_with(qp, sqe, data.as_bytes())
}

#[test]
fn connect_data_need_no_data_buffer() {
    let mut bench = Bench::new(1);
    let mut host = bench.host();
    let free = bench.reactor.free_buffers().0;
    let qp = establish(&mut bench, &mut host, &Request::new(0, 32));
    let sent = send_connect(&mut host, qp, Connect::new(0, 32, 0).to_sqe());
    let mut reply = None;
    bench.until(&mut [&mut host], |bench, hosts| {
        assert_eq!(bench.reactor.free_buffers().0, free);
        reply = hosts[0].take(sent);
        reply.is_some()
    });
    assert!(reply.unwrap().0.status().is_success());
}

#[test]
fn second_command_before_connect_response_closes_the_queue() {
    for second in [Connect::new(0, 32, 0).to_sqe(), bare(opcode::KEEP_ALIVE)] {
        let mut bench = Bench::new(2);
        let mut host = bench.host();
        let qp = establish(&mut bench, &mut host, &Request::new(0, 32));
        send_connect(&mut host, qp, Connect::new(0, 32, 0).to_sqe());
        send_connect(&mut host, qp, second);
        bench.until(&mut [&mut host], |bench, _| {
            bench.reactor.queue_pairs() == 0
        });
    }
}

#[test]
fn command_before_connect_fails_and_closes_the_queue() {
    let mut bench = Bench::new(3);
    let mut host = bench.host();
    let qp = establish(&mut bench, &mut host, &Request::new(0, 32));
    let sent = host.send(qp, bare(opcode::KEEP_ALIVE), &[]);
    let (cqe, _) = run(&mut bench, &mut host, sent);
    assert_eq!(cqe.status().kind(), Status::COMMAND_SEQUENCE_ERROR);
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.queue_pairs() == 0
    });
}

#[test]
fn receives_are_allocated_at_connect() {
    let mut bench = Bench::new(4);
    let all = bench.reactor.free_buffers().1;
    let mut host = bench.host();
    establish(&mut bench, &mut host, &Request::new(1, 128));
    assert_eq!(bench.reactor.free_buffers().1, all - 2);
    ready(&mut bench, &mut host);
    assert_eq!(bench.reactor.free_buffers().1, all - 2 - 32 - 128);
}

#[test]
fn connect_without_capsules_may_be_retried() {
    let config = ReactorConfig {
        capsules: 100,
        ..few_buffers()
    };
    let mut bench = Bench::with(5, config);
    let all = bench.reactor.free_buffers().1;
    let mut host = bench.host();
    let (_, cntlid) = admin(&mut bench, &mut host, 0);
    let qp = establish(&mut bench, &mut host, &Request::new(1, 128));
    let connect = Connect::new(1, 128, 0);
    let cqe = try_connect(&mut bench, &mut host, qp, &connect, cntlid);
    assert_eq!(cqe.status().kind(), Status::CONNECT_CONTROLLER_BUSY);
    assert!(!cqe.status().dnr());
    assert_eq!(bench.reactor.free_buffers().1, all - 32 - 2);
    let qp = establish(&mut bench, &mut host, &Request::new(2, 64));
    let connect = Connect::new(2, 64, 0);
    let cqe = try_connect(&mut bench, &mut host, qp, &connect, cntlid);
    assert!(cqe.status().is_success());
}

#[test]
fn io_queues_leave_capsules_to_admin_queues() {
    let config = ReactorConfig {
        capsules: 64,
        ..few_buffers()
    };
    let mut bench = Bench::with(6, config);
    let request = Request::new(1, 128);
    let all = bench.reactor.free_buffers().1;
    // 64 are 32 connections; admin queues have their own.
    let mut hosts: Vec<_> = (0..4).map(|_| bench.host()).collect();
    for host in &mut hosts {
        for _ in 0..8 {
            establish(&mut bench, host, &request);
        }
    }
    let mut more = bench.host();
    more.open(bench.net.now(), &request);
    bench.until(&mut [&mut more], |_, hosts| !hosts[0].rejected.is_empty());
    let reject = Reject::parse(&more.rejected[0].1).unwrap();
    assert_eq!(reject.status, RejectStatus::NO_RESOURCES);
    assert_eq!(bench.reactor.free_buffers().1, all - 64);
    assert_eq!(
        bench.reactor.target.limit_counters().get(Limit::Capsules),
        1
    );
    let mut admin = bench.host();
    establish(&mut bench, &mut admin, &Request::new(0, 32));
}

#[test]
fn oldest_connection_without_a_controller_is_replaced() {
    let limits = Limits {
        unconnected: 2,
        ..limits()
    };
    let mut bench = Bench::limited(7, few_buffers(), limits);
    let mut host = bench.host();
    let (connected, _) = admin(&mut bench, &mut host, 0);
    let request = Request::new(1, 128);
    let idle: Vec<_> = (0..3)
        .map(|_| establish(&mut bench, &mut host, &request))
        .collect();
    bench.until(&mut [&mut host], |_, hosts| !hosts[0].closed.is_empty());
    let closed: Vec<_> = host.closed.iter().map(|(qp, _)| *qp).collect();
    assert_eq!(closed, idle[..1]);
    assert!(!closed.contains(&connected));
    assert_eq!(bench.reactor.queue_pairs(), 3);
}

/// A peer with many connections displaces its own, not those of others.
#[test]
fn many_connections_of_one_peer_do_not_replace_another() {
    let limits = Limits {
        unconnected: 4,
        ..limits()
    };
    let mut bench = Bench::limited(10, few_buffers(), limits);
    let (mut honest, mut greedy) = (bench.host(), bench.host());
    let request = Request::new(0, 32);
    let first = establish(&mut bench, &mut honest, &request);
    for _ in 0..7 {
        establish(&mut bench, &mut greedy, &request);
    }
    bench.run_for(&mut [&mut honest, &mut greedy], Duration::from_secs(1));
    assert!(honest.closed.is_empty(), "the oldest of all");
    assert_eq!(greedy.closed.len(), 4);
    let connect = Connect::new(0, 32, 0);
    let cqe = try_connect(&mut bench, &mut honest, first, &connect, 0xffff);
    assert!(cqe.status().is_success());
    assert_eq!(
        bench
            .reactor
            .target
            .limit_counters()
            .get(Limit::Unconnected),
        4
    );
}

#[test]
fn host_without_rdma_reads_is_rejected() {
    let mut bench = Bench::new(8);
    let mut host = bench.host();
    host.reads_in = 0;
    host.open(bench.net.now(), &Request::new(0, 32));
    bench.until(&mut [&mut host], |_, hosts| !hosts[0].rejected.is_empty());
    let reject = Reject::parse(&host.rejected[0].1).unwrap();
    assert_eq!(reject.status, RejectStatus::INVALID_IRD);
}

#[test]
fn reactor_with_too_few_long_buffers_is_refused() {
    let mut config = few_buffers();
    config.data[1].count = 1;
    let bench = Bench::new(9);
    let mailbox = bench.reactor.mailbox().clone();
    let target = bench.reactor.target;
    let made = crate::Reactor::new(
        config,
        target,
        super::memory::MemoryStores::new(1, 512),
        mailbox.clone(),
        std::sync::Arc::from([mailbox]),
    );
    assert!(matches!(
        made.err(),
        Some(ReactorError::TooFewLongest { there: 1, .. })
    ));
}
