//! Abort: commands that wait for a local resource are aborted, commands in execution are
//! not.

use std::sync::atomic::Ordering;

use nvmeof_rdma::Provider;
use nvmeof_wire::Status;
use nvmeof_wire::admin::Abort;
use nvmeof_wire::fabrics::Connect;
use nvmeof_wire::opcode::io;

use super::Bench;
use super::host::{Host, Sent, admin, connect, ready, run};
use super::io::command;
use crate::mailbox::Mail;

/// Aborts `sent` of queue 1; returns whether it was aborted.
pub(super) fn abort(
    bench: &mut Bench,
    host: &mut Host,
    admin: nvmeof_rdma::QpId,
    sent: Sent,
) -> bool {
    let abort = Abort {
        sqid: 1,
        cid: sent.cid,
    };
    let sent = host.send(admin, abort.to_sqe(), &[]);
    let (cqe, _) = run(bench, host, sent);
    assert!(cqe.status().is_success());
    cqe.dw0() & 1 == 0
}

/// All queues of the host are on this reactor: no other one has to search.
#[test]
fn abort_on_the_same_reactor_calls_no_other() {
    let mut bench = Bench::new(47);
    let mut host = bench.host();
    let (admin, qp) = ready(&mut bench, &mut host);
    bench.reactor.stores_mut().hold = true;
    let read = host.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
    settle(&mut bench, &mut host);
    let _ = bench.other.take();
    assert!(!abort(&mut bench, &mut host, admin, read), "it runs");
    assert_eq!(bench.other.take(), Mail::empty());
    bench.reactor.stores_mut().hold = false;
    assert!(run(&mut bench, &mut host, read).0.status().is_success());
}

fn settle(bench: &mut Bench, host: &mut Host) {
    bench.run_for(&mut [host], std::time::Duration::from_millis(100));
}

#[test]
fn command_awaiting_a_buffer_is_aborted_and_executing_one_is_not() {
    let mut bench = Bench::new(40);
    let mut host = bench.host();
    let (admin, qp) = ready(&mut bench, &mut host);
    let free = bench.reactor.free_buffers();
    bench.reactor.stores_mut().hold = true;
    let long = vec![0; 256 << 10];
    let mut reads: Vec<_> = (0..7)
        .map(|_| host.send_with(qp, command(io::READ, 0, 512), &long))
        .collect();
    settle(&mut bench, &mut host);
    assert_eq!(
        bench.reactor.stores_mut().in_flight(),
        4,
        "as many as buffers"
    );
    assert!(!abort(&mut bench, &mut host, admin, reads[3]));
    for waits in [reads.remove(5), reads.remove(4)] {
        assert!(abort(&mut bench, &mut host, admin, waits));
        let (cqe, _) = run(&mut bench, &mut host, waits);
        assert_eq!(cqe.status(), Status::ABORT_REQUESTED);
        assert!(!abort(&mut bench, &mut host, admin, waits), "it is over");
    }
    bench.reactor.stores_mut().hold = false;
    for read in reads {
        assert!(run(&mut bench, &mut host, read).0.status().is_success());
    }
    settle(&mut bench, &mut host);
    assert_eq!(bench.reactor.free_buffers(), free);
}

#[test]
fn write_awaiting_its_rdma_read_is_aborted() {
    let mut bench = Bench::new(41);
    let mut host = bench.host();
    // One RDMA Read at a time.
    host.reads_in = 1;
    let (admin, qp) = ready(&mut bench, &mut host);
    let free = bench.reactor.free_buffers();
    let data = vec![1; 4096];
    let write = |host: &mut Host, at: u64| host.send_with(qp, command(io::WRITE, at * 8, 8), &data);
    let writes: Vec<_> = (0..100).map(|at| write(&mut host, at)).collect();
    // The admin queue is another connection: the writes have arrived only now.
    let first = run(&mut bench, &mut host, writes[0]).0;
    let last = writes[99];
    let sqe = Abort {
        sqid: 1,
        cid: last.cid,
    };
    let abort = host.send(admin, sqe.to_sqe(), &[]);
    let (mut aborted, mut ended) = (None, vec![first.status()]);
    bench.until(&mut [&mut host], |_, hosts| {
        aborted = aborted.or(hosts[0].take(abort).map(|(cqe, _)| cqe.dw0() & 1 == 0));
        for sent in &writes[1..] {
            ended.extend(hosts[0].take(*sent).map(|(cqe, _)| cqe.status()));
        }
        aborted.is_some() && ended.len() == 100
    });
    assert_eq!(aborted, Some(true));
    let refused = ended
        .iter()
        .filter(|status| **status == Status::ABORT_REQUESTED);
    assert_eq!(refused.count(), 1);
    assert_eq!(
        bench.reactor.stores_mut().contents[0][99 * 4096],
        0,
        "not written"
    );
    settle(&mut bench, &mut host);
    assert_eq!(bench.reactor.free_buffers(), free);
}

#[test]
fn command_awaiting_a_store_slot_is_aborted() {
    let mut bench = Bench::new(42);
    bench.reactor.stores_mut().room = 1;
    let mut host = bench.host();
    let (admin, qp) = ready(&mut bench, &mut host);
    let free = bench.reactor.free_buffers();
    bench.reactor.stores_mut().hold = true;
    let data = vec![7; 4096];
    let first = host.send_with(qp, command(io::WRITE, 0, 8), &data);
    settle(&mut bench, &mut host);
    let second = host.send_with(qp, command(io::WRITE, 8, 8), &data);
    let third = host.send(qp, command(io::VERIFY, 0, 8), &[]);
    // The first of several pieces.
    let fourth = host.send(qp, command(io::VERIFY, 0, 1024), &[]);
    let fifth = host.send_with(qp, command(io::COMPARE, 0, 8), &data);
    settle(&mut bench, &mut host);
    assert!(!abort(&mut bench, &mut host, admin, first));
    for waits in [second, fourth, fifth] {
        assert!(abort(&mut bench, &mut host, admin, waits));
        let status = run(&mut bench, &mut host, waits).0.status();
        assert_eq!(status, Status::ABORT_REQUESTED);
    }
    bench.reactor.stores_mut().hold = false;
    for sent in [first, third] {
        assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    }
    let store = &bench.reactor.stores_mut().contents[0];
    assert_eq!((store[4095], store[4096]), (7, 0));
    settle(&mut bench, &mut host);
    assert_eq!(bench.reactor.free_buffers(), free);
}

/// The response to an Abort whose queue was closed says that nothing was aborted.
#[test]
fn abort_on_a_closed_queue_completes() {
    let mut bench = Bench::new(43);
    let mut host = bench.host();
    let (first, cntlid) = admin(&mut bench, &mut host, 0);
    let (qp, _) = connect(&mut bench, &mut host, &Connect::new(1, 128, 0), cntlid);
    host.provider.disconnect(qp);
    let gone = Sent { qp, cid: 1 };
    assert!(!abort(&mut bench, &mut host, first, gone));
}

/// Commands without a slot are aborted at once, and the host may send others. A host that
/// takes no responses gets no more pending responses than its queue has entries.
#[test]
fn responses_to_aborted_commands_are_bounded() {
    let (mut bench, withholds) = Bench::late(44);
    let mut host = bench.host();
    let (first, cntlid) = admin(&mut bench, &mut host, 0);
    let (qp, _) = connect(&mut bench, &mut host, &Connect::new(1, 4, 0), cntlid);
    let free = bench.reactor.free_buffers();
    let read = |host: &mut Host| host.send_with(qp, command(io::READ, 0, 1), &[0; 512]);
    withholds.store(true, Ordering::Relaxed);
    for _ in 0..4 {
        let taken = read(&mut host);
        assert!(run(&mut bench, &mut host, taken).0.status().is_success());
    }
    let mut aborted = Vec::new();
    for _ in 0..4 {
        let waits = read(&mut host);
        settle(&mut bench, &mut host);
        assert!(abort(&mut bench, &mut host, first, waits));
        aborted.push(waits);
    }
    let more: Vec<_> = (0..4).map(|_| read(&mut host)).collect();
    settle(&mut bench, &mut host);
    for waits in &more {
        assert!(!abort(&mut bench, &mut host, first, *waits), "a fifth");
    }
    withholds.store(false, Ordering::Relaxed);
    for sent in aborted {
        let status = run(&mut bench, &mut host, sent).0.status();
        assert_eq!(status, Status::ABORT_REQUESTED);
    }
    for sent in more {
        assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    }
    settle(&mut bench, &mut host);
    assert_eq!(bench.reactor.free_buffers(), free);
}
