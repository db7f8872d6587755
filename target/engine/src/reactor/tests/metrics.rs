//! Counters and snapshots of a reactor.

use std::sync::mpsc::channel;
use std::time::Duration;

use nvmeof_target_core::metrics::{Class, Operation, Subject, SubjectCounters};
use nvmeof_wire::Status;
use nvmeof_wire::admin::Abort;
use nvmeof_wire::cm::Request;
use nvmeof_wire::nvm::Io;
use nvmeof_wire::opcode::{Opcode, io};

use super::Bench;
use super::host::{Host, ready, run};
use crate::mailbox::Order;
use crate::snapshot::ReactorSnapshot;

fn counted(bench: &Bench) -> Vec<SubjectCounters> {
    bench
        .reactor
        .counters()
        .reactor_metrics
        .metrics_registry()
        .read(Duration::ZERO, &|_, _| true)
}

fn of_namespace(bench: &Bench) -> SubjectCounters {
    let all = counted(bench);
    let mut found = all
        .into_iter()
        .filter(|one| matches!(one.subject, Subject::Namespace { nsid: 1, .. }));
    found.next().unwrap()
}

fn snapshot(bench: &mut Bench, host: &mut Host) -> ReactorSnapshot {
    let (reply, receiver) = channel();
    bench.reactor.mailbox().order(Order::Snapshot { reply });
    let mut snapshot = None;
    bench.until(&mut [host], |_, _| {
        snapshot = receiver.try_recv().ok();
        snapshot.is_some()
    });
    snapshot.unwrap()
}

fn command(opcode: Opcode) -> nvmeof_wire::Sqe {
    Io::new(1, 0, 8).to_sqe(opcode)
}

#[test]
fn commands_are_counted_with_their_latency() {
    let mut bench = Bench::new(1);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let sent = host.send_with(qp, command(io::READ), &[0; 4096]);
    run(&mut bench, &mut host, sent);
    bench.reactor.stores_mut().hold = true;
    let sent = host.send_with(qp, command(io::WRITE), &[7; 4096]);
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.stores_mut().in_flight() == 1
    });
    bench.run_for(&mut [&mut host], Duration::from_millis(3));
    bench.reactor.stores_mut().hold = false;
    run(&mut bench, &mut host, sent);
    let SubjectCounters { totals, .. } = of_namespace(&bench);
    assert_eq!(totals.operations(Operation::Read), 1);
    assert_eq!(totals.operations(Operation::Write), 1);
    assert_eq!((totals.bytes_read, totals.bytes_written), (4096, 4096));
    let (_, writes) = totals
        .latency()
        .find(|(class, _)| *class == Class::Write)
        .unwrap();
    let ends: Vec<_> = writes.buckets().collect();
    let [(Some(end), 1)] = ends[..] else {
        panic!("{ends:?}");
    };
    assert!(end > 3000, "{end}");
}

#[test]
fn aborted_commands_are_counted_once_as_failed() {
    let mut bench = Bench::new(2);
    let mut host = bench.host();
    let (admin, qp) = ready(&mut bench, &mut host);
    bench.reactor.stores_mut().hold = true;
    // Four get a buffer, the fifth waits for one.
    let read = || Io::new(1, 0, 512).to_sqe(io::READ);
    let reads = [(); 5].map(|()| host.send_with(qp, read(), &[0; 256 << 10]));
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.stores_mut().in_flight() == 4
    });
    bench.run_for(&mut [&mut host], Duration::from_millis(100));
    let waiting = snapshot(&mut bench, &mut host).waiting_for_buffers;
    assert_eq!(waiting, 1, "queues");
    let abort = Abort {
        sqid: 1,
        cid: reads[4].cid,
    };
    let abort = host.send(admin, abort.to_sqe(), &[]);
    run(&mut bench, &mut host, abort);
    bench.reactor.stores_mut().hold = false;
    for sent in reads {
        run(&mut bench, &mut host, sent);
    }
    let SubjectCounters { totals, .. } = of_namespace(&bench);
    assert_eq!(totals.operations(Operation::Read), 5);
    assert_eq!(
        totals.failed().collect::<Vec<_>>(),
        [(Status::ABORT_REQUESTED, 1)]
    );
    assert_eq!(totals.bytes_read, 4 * (256 << 10));
    let all = counted(&bench);
    let host = all
        .iter()
        .find(|one| matches!(one.subject, Subject::Host { .. }))
        .unwrap();
    // The response to the Abort command itself follows later, by an order.
    assert_eq!(host.totals.operations(Operation::Admin), 0);
    assert_eq!(host.totals.operations(Operation::Read), 5);
}

#[test]
fn snapshot_reports_the_present_state() {
    let mut bench = Bench::new(3);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    bench.reactor.stores_mut().hold = true;
    for _ in 0..3 {
        host.send_with(qp, command(io::READ), &[0; 4096]);
    }
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.stores_mut().in_flight() == 3
    });
    let snapshot = snapshot(&mut bench, &mut host);
    assert_eq!(
        (snapshot.waiting_for_buffers, snapshot.waiting_for_stores),
        (0, 0)
    );
    assert_eq!(
        (snapshot.free_buffers, snapshot.free_capsules),
        // Of 512 capsules, without those of admin queues.
        (bench.reactor.free_buffers().0, 512 - 128)
    );
    let mut queues = snapshot.queues;
    queues.sort_by_key(|one| one.queue);
    let [admin, io] = &queues[..] else {
        panic!("{queues:?}");
    };
    assert_eq!(
        (admin.queue, admin.commands, io.queue, io.commands),
        (0, 0, 1, 3)
    );
    assert_eq!(io.namespaces.iter().collect::<Vec<_>>(), [(&1, &3)]);
    let member = io.member.as_ref().unwrap();
    assert_eq!((member.subsystem.as_str(), member.cntlid), (super::NQN, 1));
    assert!(
        member.host.starts_with("nqn.2026-11.org.example:host"),
        "{member:?}"
    );
    assert!(io.peer.to_string().starts_with("10.0.0.2"), "{}", io.peer);
}

#[test]
fn connections_are_counted() {
    let mut bench = Bench::new(4);
    let mut host = bench.host();
    let mut wrong = Request::new(1, 128);
    wrong.hsqsize = 1000.into();
    host.open(bench.net.now(), &wrong);
    bench.until(&mut [&mut host], |_, hosts| !hosts[0].closed.is_empty());
    ready(&mut bench, &mut host);
    let counters = std::sync::Arc::clone(bench.reactor.counters());
    assert_eq!(counters.connection_requests(), (2, 1));
    drop(host);
    let mut other = bench.host();
    bench.until(&mut [&mut other], |bench, _| {
        bench.reactor.queue_pairs() == 0
    });
    let ended = crate::counters::ConnectionEnd::ALL.map(|end| counters.ended(end));
    assert_eq!(ended.iter().sum::<u64>(), 2, "{ended:?}");
}
