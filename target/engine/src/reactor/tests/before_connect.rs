//! A peer without a Connect can take next to nothing.

use std::time::Duration;

use nvmeof_rdma::{Provider, QpId};
use nvmeof_target_core::{Limit, Limits};
use nvmeof_wire::Status;
use nvmeof_wire::admin::{SetFeatures, bare};
use nvmeof_wire::cm::{Reject, RejectStatus, Request};
use nvmeof_wire::fabrics::{Connect, ConnectData};
use nvmeof_wire::features::FeatureId;
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

/// A controller that was granted so many I/O queues, and the connections for them.
fn connections_of_queues(bench: &mut Bench, host: &mut Host, count: u16) -> (u16, Vec<QpId>) {
    let (qp, cntlid) = admin(bench, host, 0);
    let value = u32::from(count - 1) * 0x1_0001;
    let grant = SetFeatures::new(FeatureId::NUMBER_OF_QUEUES, value);
    let sent = host.send(qp, grant.to_sqe(), &[]);
    let (cqe, _) = run(bench, host, sent);
    assert_eq!(cqe.result.get(), value.into());
    let request = |qid| Request::new(qid, 32);
    let queues = (1..=count).map(|qid| establish(bench, host, &request(qid)));
    (cntlid, queues.collect())
}

fn few_unconnected(seed: u64) -> Bench {
    let limits = Limits {
        unconnected: 4,
        ..limits()
    };
    let mut config = few_buffers();
    config.capsules = 4096;
    Bench::limited(seed, config, limits)
}

/// Linux opens the connections of all queues before the first Connect. When a target starts, all of
/// its hosts do at once, perhaps beside peers that are no hosts.
#[test]
fn hosts_may_open_connections_for_all_queues_that_they_were_granted() {
    let mut bench = few_unconnected(11);
    let mut hosts: Vec<Host> = (0..4).map(|_| bench.host()).collect();
    let mut queues = Vec::new();
    for host in &mut hosts {
        queues.push(connections_of_queues(&mut bench, host, 2));
    }
    let mut strangers: Vec<Host> = (0..6).map(|_| bench.host()).collect();
    for stranger in &mut strangers {
        establish(&mut bench, stranger, &Request::new(1, 32));
    }
    for (host, (cntlid, queues)) in hosts.iter_mut().zip(queues) {
        for (qid, qp) in (1..).zip(queues) {
            let connect = Connect::new(qid, 32, 0);
            let cqe = try_connect(&mut bench, host, qp, &connect, cntlid);
            assert!(cqe.status().is_success(), "{:?}", cqe.status());
        }
        assert!(host.closed.is_empty());
    }
    let mut all: Vec<&mut Host> = strangers.iter_mut().collect();
    bench.run_for(&mut all, Duration::from_secs(1));
    let closed = strangers.iter().filter(|one| !one.closed.is_empty());
    assert_eq!(closed.count(), 2);
}

/// A host that was granted more queues than that displaces its own connections, not those of other
/// peers or of hosts that were granted fewer.
#[test]
fn connections_for_granted_queues_are_limited() {
    let mut bench = few_unconnected(12);
    let (mut greedy, mut modest, mut stranger) = (bench.host(), bench.host(), bench.host());
    establish(&mut bench, &mut stranger, &Request::new(0, 32));
    let (_, first) = connections_of_queues(&mut bench, &mut greedy, 16);
    let (_, others) = connections_of_queues(&mut bench, &mut modest, 3);
    let mut all = [&mut greedy, &mut modest, &mut stranger];
    bench.run_for(&mut all, Duration::from_secs(1));
    assert_eq!(greedy.closed.len(), first.len() + others.len() - 8);
    assert!(modest.closed.is_empty() && stranger.closed.is_empty());
    assert_eq!(bench.reactor.queue_pairs(), 2 + 8 + 1);
}

/// Connections that were for granted queues count when these are granted no more: they do not keep
/// other peers out.
#[test]
fn connections_for_withdrawn_queues_are_replaced() {
    let mut bench = few_unconnected(13);
    let (mut greedy, mut honest) = (bench.host(), bench.host());
    let (cntlid, queues) = connections_of_queues(&mut bench, &mut greedy, 8);
    assert_eq!(queues.len(), 8);
    assert!(
        bench
            .reactor
            .target
            .connected()
            .iter()
            .any(|one| one.cntlid == cntlid)
    );
    let admin_queue = greedy.established[0];
    greedy.provider.disconnect(admin_queue);
    bench.until(&mut [&mut greedy], |bench, _| {
        bench.reactor.target.connected().is_empty()
    });
    let qp = establish(&mut bench, &mut honest, &Request::new(0, 32));
    let connect = Connect::new(0, 32, 0);
    let cqe = try_connect(&mut bench, &mut honest, qp, &connect, 0xffff);
    assert!(cqe.status().is_success());
    bench.run_for(&mut [&mut greedy, &mut honest], Duration::from_secs(1));
    assert!(honest.closed.is_empty());
    assert!(greedy.closed.len() >= 8 - 3, "{}", greedy.closed.len());
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
