//! Queues that use the shared receive queue of their device.

use std::time::Duration;

use nvmeof_rdma::{Provider, QpId};
use nvmeof_rdma_layers::{Faults, Faulty, Injected, Sharing};
use nvmeof_target_core::Limits;
use nvmeof_wire::admin::bare;
use nvmeof_wire::cm::Request;
use nvmeof_wire::fabrics::Connect;
use nvmeof_wire::opcode::{admin as opcode, io as op};

use super::host::{Host, Sent, admin, connect, establish, ready, run};
use super::io::command;
use super::{Bench, few_buffers, limits};
use crate::ReactorConfig;

/// A target whose queues share at most that many receives.
fn bench(seed: u64, shared_receives: u32) -> Bench {
    let config = ReactorConfig {
        shared_receives,
        ..few_buffers()
    };
    // Nothing is reserved for hosts of other ports.
    let limits = Limits {
        port_memory: 100,
        ..limits()
    };
    Bench::limited(seed, config, limits)
}

fn free(bench: &Bench) -> usize {
    bench.reactor.free_buffers().1
}

fn closed(bench: &mut Bench, host: &mut Host, queue_pairs: usize) {
    bench.until(&mut [host], |bench, _| {
        bench.reactor.queue_pairs() == queue_pairs
    });
}

/// Reads that do not complete while the backing stores are held.
fn held_reads(bench: &mut Bench, host: &mut Host, qp: QpId, count: u32) -> Vec<Sent> {
    bench.reactor.stores_mut().hold = true;
    (0..count)
        .map(|_| host.send_with(qp, command(op::READ, 0, 1), &[0; 512]))
        .collect()
}

#[test]
fn receives_follow_the_queues_up_to_a_limit() {
    let mut bench = bench(1, 100);
    let all = free(&bench);
    let mut host = bench.host();
    establish(&mut bench, &mut host, &Request::new(1, 128));
    assert_eq!(free(&bench), all - 2, "a stranger gets two");
    let (_, cntlid) = admin(&mut bench, &mut host, 0);
    assert_eq!(free(&bench), all - 2 - 32, "an admin queue has its own");
    connect(&mut bench, &mut host, &Connect::new(1, 128, 0), cntlid);
    assert_eq!(free(&bench), all - 32 - 100, "no more than the limit");
    connect(&mut bench, &mut host, &Connect::new(2, 128, 0), cntlid);
    assert_eq!(free(&bench), all - 32 - 100);
}

#[test]
fn shared_receives_leave_half_of_the_capsules() {
    let mut bench = bench(2, 4096);
    let all = free(&bench);
    let mut host = bench.host();
    let (_, cntlid) = admin(&mut bench, &mut host, 0);
    for qid in 1..5 {
        connect(&mut bench, &mut host, &Connect::new(qid, 128, 0), cntlid);
    }
    // Of 512; an admin queue has others.
    assert_eq!(free(&bench), all - 512 / 2 - 32);
}

#[test]
fn receives_are_freed_with_their_queues() {
    let mut bench = bench(3, 100);
    let all = free(&bench);
    let (mut small, mut large) = (bench.host(), bench.host());
    let (control, cntlid) = admin(&mut bench, &mut small, 0);
    let (qp, _) = connect(&mut bench, &mut small, &Connect::new(1, 32, 0), cntlid);
    let (admin, io) = ready(&mut bench, &mut large);
    assert_eq!(free(&bench), all - 2 * 32 - 100);
    for queue in [admin, io] {
        large.provider.disconnect(queue);
    }
    closed(&mut bench, &mut large, 2);
    // Posted receives return with commands, and are not posted again.
    for _ in 0..100 {
        let sent = small.send_with(qp, command(op::READ, 0, 1), &[0; 512]);
        run(&mut bench, &mut small, sent);
    }
    assert_eq!(free(&bench), all - 32 - 32);
    for queue in [qp, control] {
        small.provider.disconnect(queue);
    }
    closed(&mut bench, &mut small, 0);
    assert_eq!(free(&bench), all, "with the last queue all are back");
}

#[test]
fn receives_of_closed_queues_are_replaced() {
    let mut bench = bench(4, 100);
    let all = free(&bench);
    let (mut good, mut bad) = (bench.host(), bench.host());
    let (admin, io) = ready(&mut bench, &mut bad);
    let (_, qp) = ready(&mut bench, &mut good);
    held_reads(&mut bench, &mut bad, io, 90);
    bench.until(&mut [&mut bad], |bench, _| {
        // Commands that wait for a buffer count as well.
        bench.reactor.stores_mut().in_flight() > 0
    });
    bench.run_for(&mut [&mut bad], Duration::from_millis(100));
    for queue in [admin, io] {
        bad.provider.disconnect(queue);
    }
    closed(&mut bench, &mut bad, 2);
    bench.reactor.stores_mut().hold = false;
    bench.run_for(&mut [&mut good], Duration::from_millis(100));
    assert_eq!(free(&bench), all - 32 - 100, "as many as before");
    let sent = good.send_with(qp, command(op::READ, 0, 1), &[0; 512]);
    assert!(run(&mut bench, &mut good, sent).0.status().is_success());
}

#[test]
fn sends_wait_for_a_shared_receive() {
    let mut bench = bench(5, 64);
    let mut hosts = [bench.host(), bench.host()];
    let mut sent = Vec::new();
    for host in &mut hosts {
        let (_, io) = ready(&mut bench, host);
        sent.push(held_reads(&mut bench, host, io, 60));
        bench.run_for(&mut [host], Duration::from_millis(100));
    }
    bench.reactor.stores_mut().hold = false;
    for (host, sent) in hosts.iter_mut().zip(sent) {
        for sent in sent {
            assert!(run(&mut bench, host, sent).0.status().is_success());
        }
    }
}

#[test]
fn host_over_its_share_is_disconnected() {
    let mut bench = bench(6, 512);
    let (mut good, mut bad) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut good);
    let (_, cntlid) = admin(&mut bench, &mut bad, 0);
    let (io, _) = connect(&mut bench, &mut bad, &Connect::new(1, 16, 0), cntlid);
    held_reads(&mut bench, &mut bad, io, 16);
    bench.run_for(&mut [&mut bad], Duration::from_millis(100));
    assert_eq!(bench.reactor.queue_pairs(), 4, "16 are allowed");
    held_reads(&mut bench, &mut bad, io, 1);
    closed(&mut bench, &mut bad, 3);
    bench.until(&mut [&mut bad], |_, hosts| {
        hosts[0].closed.iter().any(|(qp, _)| *qp == io)
    });
    bench.reactor.stores_mut().hold = false;
    let sent = good.send_with(qp, command(op::READ, 0, 1), &[0; 512]);
    assert!(run(&mut bench, &mut good, sent).0.status().is_success());
}

#[test]
fn rejected_connection_leaves_no_resources() {
    let config = ReactorConfig {
        shared_receives: 64,
        ..few_buffers()
    };
    let registers = 5;
    let mut bench = Bench::over(7, config, limits(), |sim| {
        let faults = Faults {
            script: vec![(registers, Injected::Refuse)],
            ..Faults::default()
        };
        let sharing = Sharing::new(sim, 1024, 8192).unwrap();
        Box::new(Faulty::new(sharing, faults))
    });
    let all = free(&bench);
    let mut host = bench.host();
    host.open(bench.net.now(), &Request::new(1, 128));
    bench.until(&mut [&mut host], |_, hosts| !hosts[0].rejected.is_empty());
    closed(&mut bench, &mut host, 0);
    assert_eq!(free(&bench), all);
    let (admin, io) = ready(&mut bench, &mut host);
    assert_eq!(free(&bench), all - 32 - 64);
    for queue in [admin, io] {
        host.provider.disconnect(queue);
    }
    closed(&mut bench, &mut host, 0);
    assert_eq!(free(&bench), all);
}

#[test]
fn keep_alive_does_not_wait_for_shared_receives() {
    let mut bench = bench(8, 64);
    let mut hosts = [bench.host(), bench.host()];
    let queues = hosts.each_mut().map(|host| ready(&mut bench, host));
    for (host, (_, io)) in hosts.iter_mut().zip(queues) {
        held_reads(&mut bench, host, io, 64);
        bench.run_for(&mut [host], Duration::from_millis(100));
    }
    for (host, (control, _)) in hosts.iter_mut().zip(queues) {
        let sent = host.send(control, bare(opcode::KEEP_ALIVE), &[]);
        // They have no Keep Alive, and get an error.
        run(&mut bench, host, sent);
    }
}

#[test]
fn lone_queue_waits_for_its_own_receives() {
    let mut bench = bench(9, 512);
    let mut host = bench.host();
    let (_, cntlid) = admin(&mut bench, &mut host, 0);
    let (io, _) = connect(&mut bench, &mut host, &Connect::new(1, 16, 0), cntlid);
    let sent = held_reads(&mut bench, &mut host, io, 18);
    bench.run_for(&mut [&mut host], Duration::from_millis(100));
    assert_eq!(bench.reactor.queue_pairs(), 2, "it takes nothing of others");
    bench.reactor.stores_mut().hold = false;
    for sent in sent {
        assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    }
}
