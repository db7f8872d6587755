//! Requests of the hosts of one port do not prevent those of another from being served.

use std::time::Duration;

use nvmeof_rdma::{Address, Provider, QpId};
use nvmeof_target_core::{Limit, Limits};
use nvmeof_wire::cm::Request;
use nvmeof_wire::fabrics::Connect;
use nvmeof_wire::opcode::io;

use super::fairness::command;
use super::host::{
    Host, Sent, admin, connect, enable, establish, ready, ready_with, run, show, try_connect,
};
use super::{Bench, few_buffers, limits};
use crate::ReactorConfig;

const PAUSE: Duration = Duration::from_millis(10);

/// A reactor with two ports, and the address of the second.
fn two_ports(seed: u64, config: ReactorConfig, limits: Limits) -> (Bench, Address) {
    let mut bench = Bench::limited(seed, config, limits);
    let second = bench.listen_on_second();
    (bench, second)
}

fn read(host: &mut Host, qp: QpId) -> Sent {
    host.send_with(qp, command(io::READ, 0, 8), &[0; 4096])
}

/// Sends so many reads, whose responses are ignored.
fn reads(host: &mut Host, qp: QpId, count: usize) {
    for _ in 0..count {
        read(host, qp);
    }
}

fn limit_counters(bench: &Bench) -> [u64; 2] {
    let limit_counters = bench.reactor.target.limit_counters();
    [Limit::PortMemory, Limit::HostMemory].map(|limit| limit_counters.get(limit))
}

/// However many hosts use one port, some buffers are reserved for hosts of other ports,
/// and those are served at once. While no host uses another port, they may have all.
#[test]
fn buffers_per_port_are_limited() {
    let limits = Limits {
        host_memory: 50,
        port_memory: 75,
        ..limits()
    };
    let (mut bench, second) = two_ports(1, few_buffers(), limits);
    let mut first = [(); 3].map(|()| bench.host());
    let queues = first
        .each_mut()
        .map(|host| ready_with(&mut bench, host, 32).1);
    let mut other = bench.host_by(second);
    let (_, its) = ready_with(&mut bench, &mut other, 32);
    for (host, queue) in first.iter_mut().zip(queues) {
        show(&mut bench, host, queue);
    }
    show(&mut bench, &mut other, its);
    bench.reactor.stores_mut().hold = true;
    let all = |first: &mut [Host; 3]| {
        for (host, qp) in first.iter_mut().zip(queues) {
            reads(host, qp, 30);
        }
    };
    let go_on = |bench: &mut Bench, first: &mut [Host; 3], other: &mut Host| {
        let [a, b, c] = first;
        bench.run_for(&mut [a, b, c, other], PAUSE);
    };
    all(&mut first);
    go_on(&mut bench, &mut first, &mut other);
    // Three quarters of 16, of which each host has no more than one half.
    assert_eq!(bench.reactor.stores_mut().in_flight(), 12);
    assert!(limit_counters(&bench)[0] > 0);
    let own: Vec<_> = (0..4).map(|_| read(&mut other, its)).collect();
    go_on(&mut bench, &mut first, &mut other);
    // With the short ones used up, the port gets its share of the longer ones as well.
    assert_eq!(bench.reactor.stores_mut().in_flight(), 12 + 4 + 3);
    bench.reactor.stores_mut().hold = false;
    for sent in own {
        assert!(run(&mut bench, &mut other, sent).0.status().is_success());
    }
    go_on(&mut bench, &mut first, &mut other);
    assert_eq!(
        bench.reactor.free_buffers().0,
        20,
        "what was counted came back"
    );
    // Without hosts of other ports, a port may have everything.
    drop(other);
    let [a, b, c] = &mut first;
    bench.run_for(&mut [a, b, c], Duration::from_secs(1));
    bench.reactor.stores_mut().hold = true;
    all(&mut first);
    let [a, b, c] = &mut first;
    bench.run_for(&mut [a, b, c], PAUSE);
    assert_eq!(bench.reactor.free_buffers().0, 0);
}

/// A host that holds buffers when hosts of another port connect still holds them: it does
/// not count as one without buffers.
#[test]
fn buffers_held_before_a_port_was_added_count() {
    let limits = Limits {
        host_memory: 75,
        port_memory: 75,
        ..limits()
    };
    let (mut bench, second) = two_ports(2, few_buffers(), limits);
    let mut first = [(); 2].map(|()| bench.host());
    let queues = first.each_mut().map(|host| ready(&mut bench, host).1);
    for (host, queue) in first.iter_mut().zip(queues) {
        show(&mut bench, host, queue);
    }
    bench.reactor.stores_mut().hold = true;
    let [a, b] = &mut first;
    reads(a, queues[0], 8);
    reads(b, queues[1], 4);
    bench.run_for(&mut [a, b], PAUSE);
    assert_eq!(bench.reactor.stores_mut().in_flight(), 12);
    let mut other = bench.host_by(second);
    let (_, its) = ready(&mut bench, &mut other);
    let [a, b] = &mut first;
    reads(a, queues[0], 8);
    bench.run_for(&mut [a, b, &mut other], PAUSE);
    assert_eq!(bench.reactor.stores_mut().in_flight(), 12);
    let sent = read(&mut other, its);
    let [a, b] = &mut first;
    bench.run_for(&mut [a, b, &mut other], PAUSE);
    assert_eq!(bench.reactor.stores_mut().in_flight(), 13);
    bench.reactor.stores_mut().hold = false;
    assert!(run(&mut bench, &mut other, sent).0.status().is_success());
}

/// One more host of the first port, with as many I/O queues as it gets. Returns whether
/// it gets none.
fn one_more(bench: &mut Bench, all: &mut Vec<(Host, Vec<QpId>)>) -> bool {
    let mut host = bench.host();
    let queue = establish(bench, &mut host, &Request::new(0, 32));
    let cqe = try_connect(bench, &mut host, queue, &Connect::new(0, 32, 0), 0xffff);
    // Admin queues have capsules of their own.
    assert!(cqe.status().is_success(), "{:?}", cqe.status());
    enable(bench, &mut host, queue);
    let cntlid = u16::try_from(cqe.dw0() & 0xffff).unwrap();
    let mut queues = Vec::new();
    // As many as the memory of such a host allows.
    for qid in 1..=8 {
        let queue = establish(bench, &mut host, &Request::new(qid, 32));
        let cqe = try_connect(bench, &mut host, queue, &Connect::new(qid, 32, 0), cntlid);
        if !cqe.status().is_success() {
            host.provider.disconnect(queue);
            break;
        }
        queues.push(queue);
    }
    bench.run_for(&mut [&mut host], PAUSE);
    let none = queues.is_empty();
    all.push((host, queues));
    none
}

/// The hosts of one port have all queues that they can get, with commands on all of them.
/// A host of another port connects, its Keep Alive is served, and so are its commands.
#[test]
fn host_connects_while_another_port_holds_all_resources() {
    let limits = Limits {
        queue_depth: 32,
        ..limits()
    };
    let config = ReactorConfig {
        capsules: 1024,
        ..few_buffers()
    };
    let (mut bench, second) = two_ports(3, config, limits);
    let mut first = Vec::new();
    while !one_more(&mut bench, &mut first) {
        assert!(first.len() < 40, "they get whatever they want");
    }
    assert!(first.len() > 2, "several hosts: {}", first.len());
    assert!(limit_counters(&bench)[0] > 0);
    for (host, queues) in &mut first {
        if let Some(queue) = queues.first() {
            show(&mut bench, host, *queue);
        }
    }
    bench.reactor.stores_mut().hold = true;
    for (host, queues) in &mut first {
        for queue in queues.iter() {
            reads(host, *queue, 16);
        }
        bench.run_for(&mut [host], PAUSE);
    }
    assert_eq!(bench.reactor.free_buffers().0, 0, "they have them all");
    let mut other = bench.host_by(second);
    let (control, cntlid) = admin(&mut bench, &mut other, 5000);
    let alive = nvmeof_wire::admin::bare(nvmeof_wire::opcode::admin::KEEP_ALIVE);
    let sent = other.send(control, alive, &[]);
    assert!(run(&mut bench, &mut other, sent).0.status().is_success());
    let (qp, _) = connect(&mut bench, &mut other, &Connect::new(1, 32, 0), cntlid);
    let sent = read(&mut other, qp);
    bench.run_for(&mut [&mut other], PAUSE);
    bench.reactor.stores_mut().hold = false;
    assert!(run(&mut bench, &mut other, sent).0.status().is_success());
    // Every port has its share now: nothing is reserved for others any more.
    let mut late = bench.host();
    admin(&mut bench, &mut late, 0);
}

/// The only port with hosts leaves one queue to another, whichever hosts use it.
#[test]
fn hosts_of_a_lone_port_leave_room_for_another_queue() {
    let limits = Limits {
        queue_depth: 32,
        host_memory: 100,
        port_memory: 50,
        ..limits()
    };
    let config = ReactorConfig {
        capsules: 230,
        ..few_buffers()
    };
    for (port_memory, expected) in [(50, 5), (100, 7)] {
        let limits = Limits {
            port_memory,
            ..limits.clone()
        };
        let mut bench = Bench::limited(4, config.clone(), limits);
        let mut first = Vec::new();
        assert!(!one_more(&mut bench, &mut first));
        // Of 230 capsules 64 are reserved for another port; admin queues have their own.
        let (_, queues) = &first[0];
        assert_eq!(queues.len(), expected);
    }
}
