//! Commands that need one buffer after the other complete, whichever other hosts are
//! connected.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nvmeof_rdma::QpId;
use nvmeof_target_core::{Fabric, Model, PortSpec, SubsystemSpec};
use nvmeof_wire::Status;
use nvmeof_wire::fabrics::Connect;
use nvmeof_wire::nvm::{Copy, CopyRange};
use nvmeof_wire::opcode::io;
use zerocopy::IntoBytes;

use super::aborting::abort;
use super::host::{Host, Sent, admin, connect, ready, run, show};
use super::io::command;
use super::log::logged;
use super::orders::close;
use super::{Bench, NQN, few_buffers, limits};

/// More commands of several pieces than there are buffers, in flight before the first
/// piece of any is complete. Returns how many complete within ten seconds.
fn completed(bench: &mut Bench, send: impl Fn(&mut Host) -> Vec<Sent>, host: &mut Host) -> usize {
    bench.reactor.stores_mut().hold = true;
    let sent = send(host);
    bench.run_for(&mut [host], Duration::from_millis(10));
    bench.reactor.stores_mut().hold = false;
    bench.run_for(&mut [host], Duration::from_secs(10));
    let completed = sent.into_iter().filter_map(|sent| host.take(sent));
    completed
        .filter(|(cqe, _)| cqe.status().is_success())
        .count()
}

#[test]
fn long_verifies_beside_another_host_complete() {
    let mut bench = Bench::new(70);
    let (mut host, mut other) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut host);
    admin(&mut bench, &mut other, 0);
    let send = |host: &mut Host| -> Vec<Sent> {
        let verify = |_| host.send(qp, command(io::VERIFY, 0, 2048), &[]);
        (0..32).map(verify).collect()
    };
    assert_eq!(completed(&mut bench, send, &mut host), 32);
    assert_eq!(bench.reactor.free_buffers().0, 16 + 4);
}

#[test]
fn long_copies_beside_another_host_complete() {
    let mut config = few_buffers();
    config.data[0].count = 64;
    let mut bench = Bench::with(71, config);
    let (mut host, mut other) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut host);
    admin(&mut bench, &mut other, 0);
    let copy = Copy {
        nsid: 1,
        slba: 1024,
        ranges: 1,
        format: 0,
        protected: false,
        fua: false,
    };
    let source = CopyRange::new(0, 1024);
    let send = |host: &mut Host| -> Vec<Sent> {
        let copy = |_| host.send_with(qp, copy.to_sqe(), source.as_bytes());
        (0..32).map(copy).collect()
    };
    assert_eq!(completed(&mut bench, send, &mut host), 32);
    assert_eq!(bench.reactor.free_buffers().0, 64 + 4);
}

/// Between two pieces, the Copy commands hold the short buffers with their lists, all
/// that their host may have. A read that waits for a short one is queued before them.
#[test]
fn read_behind_copies_that_hold_all_short_buffers_completes() {
    let mut bench = Bench::new(75);
    let (mut host, mut other) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut host);
    admin(&mut bench, &mut other, 0);
    let copy = Copy {
        nsid: 1,
        slba: 1024,
        ranges: 1,
        format: 0,
        protected: false,
        fua: false,
    };
    let source = CopyRange::new(0, 1024);
    let send = |host: &mut Host| -> Vec<Sent> {
        let copies = (0..12).map(|_| (copy.to_sqe(), source.as_bytes().to_vec()));
        let reads = (0..4).map(|_| (command(io::READ, 0, 8), vec![0; 4096]));
        let all: Vec<_> = copies.chain(reads).collect();
        let all = all.into_iter();
        all.map(|(sqe, data)| host.send_with(qp, sqe, &data))
            .collect()
    };
    assert_eq!(completed(&mut bench, send, &mut host), 16);
    assert_eq!(bench.reactor.free_buffers().0, 16 + 4);
}

/// Completes the operations of the backing store, and none of those that follow.
fn complete_once(bench: &mut Bench, host: &mut Host) {
    bench.reactor.stores_mut().hold = false;
    bench.reactor.poll_once(bench.net.now()).unwrap();
    bench.reactor.stores_mut().hold = true;
    bench.run_for(&mut [host], Duration::from_millis(10));
}

/// Five Verify commands, one of which waits between two pieces: there are four buffers.
fn one_between_pieces(bench: &mut Bench, host: &mut Host, qp: QpId) -> Vec<Sent> {
    bench.reactor.stores_mut().hold = true;
    let verify = |_| host.send(qp, command(io::VERIFY, 0, 2048), &[]);
    let verifies = (0..5).map(verify).collect();
    bench.run_for(&mut [host], Duration::from_millis(10));
    complete_once(bench, host);
    assert_eq!(bench.reactor.stores_mut().in_flight(), 4);
    verifies
}

#[test]
fn verify_that_waits_between_pieces_is_aborted() {
    let mut bench = Bench::new(72);
    let mut host = bench.host();
    let (admin, qp) = ready(&mut bench, &mut host);
    let mut verifies = one_between_pieces(&mut bench, &mut host, qp);
    // The fifth has a buffer by now: it was next.
    let aborted = |sent: &Sent| abort(&mut bench, &mut host, admin, *sent);
    let aborted: Vec<bool> = verifies.iter().map(aborted).collect();
    assert_eq!(aborted.iter().filter(|aborted| **aborted).count(), 1);
    assert!(!aborted[4], "{aborted:?}");
    let at = aborted.iter().position(|aborted| *aborted).unwrap();
    let aborted = verifies.remove(at);
    let (cqe, _) = run(&mut bench, &mut host, aborted);
    assert_eq!(cqe.status(), Status::ABORT_REQUESTED);
    bench.reactor.stores_mut().hold = false;
    for sent in verifies {
        assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    }
    assert_eq!(bench.reactor.free_buffers().0, 16 + 4);
}

/// The namespace is removed while one command waits for its first buffer and one between
/// two pieces, and the backing store completes nothing.
#[test]
fn removed_namespace_ends_commands_that_wait_for_buffers() {
    let mut bench = Bench::new(73);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let mut verifies = one_between_pieces(&mut bench, &mut host, qp);
    let read = host.send_with(qp, command(io::READ, 0, 512), &vec![0; 256 << 10]);
    bench.run_for(&mut [&mut host], Duration::from_millis(10));
    let target = bench.reactor.target.clone();
    let ports = [[10u8, 0, 0, 1], [10, 0, 1, 1]];
    let ports = ports.map(|ip| PortSpec::new(IpAddr::from(ip), 4420, vec![Fabric::Iwarp.into()]));
    let subsystem = SubsystemSpec {
        nqn: NQN.into(),
        allow_any_host: true,
        ..SubsystemSpec::default()
    };
    let model = Model::build(limits(), &ports, &[subsystem]).unwrap();
    let _ = target.apply(model).unwrap();
    let closed = close(&bench);
    bench.run_for(&mut [&mut host], Duration::from_millis(100));
    let (cqe, _) = host.take(read).expect("it waits for a buffer");
    assert!(!cqe.status().is_success());
    verifies.retain(|sent| match host.take(*sent) {
        Some((cqe, _)) => {
            assert!(!cqe.status().is_success());
            false
        }
        None => true,
    });
    assert_eq!(verifies.len(), 4, "those that the backing store has");
    // These end when their piece is complete.
    bench.reactor.stores_mut().hold = false;
    bench.run_for(&mut [&mut host], Duration::from_secs(1));
    assert!(verifies.iter().all(|sent| host.take(*sent).is_some()));
    assert_eq!(closed.try_recv(), Ok(0));
    assert_eq!(bench.reactor.free_buffers().0, 16 + 4);
}

/// Once each, whatever it waits for: its backing store, a buffer, or its host.
#[test]
fn commands_outstanding_for_ten_seconds_are_logged_once() {
    let mut bench = Bench::new(74);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    bench.reactor.stores_mut().hold = true;
    let lines = logged(|| {
        for _ in 0..5 {
            host.send_with(qp, command(io::READ, 0, 512), &vec![0; 256 << 10]);
        }
        bench.run_for(&mut [&mut host], Duration::from_millis(9_900));
        assert_eq!(bench.reactor.counters().all_stalled(), 0);
        bench.run_for(&mut [&mut host], Duration::from_secs(15));
    });
    assert_eq!(bench.reactor.counters().all_stalled(), 5);
    let stalled = "command outstanding for more than 10 s: waiting for";
    let of = |what: &str| {
        let words = format!("{stalled} {what}");
        let lines = lines.iter().filter(|line| line.contains(&words));
        lines.cloned().collect::<Vec<_>>()
    };
    assert_eq!(of("its backing store").len(), 4, "{lines:#?}");
    let buffer = of("a data buffer");
    assert_eq!(buffer.len(), 1, "{lines:#?}");
    let words = ["host=", "subsystem=", "queue=1", "cid=", "opcode=\"Read\""];
    for word in words.into_iter().chain([NQN, "nsid=1"]) {
        assert!(buffer[0].contains(word), "{word} is not in: {}", buffer[0]);
    }
}

/// One buffer is returned at a time, and other hosts take one each as long as they can.
#[test]
fn compare_beside_continuous_reads_completes() {
    let mut bench = Bench::new(76);
    let mut hosts = [bench.host(), bench.host(), bench.host()];
    let qps = hosts.each_mut().map(|host| {
        let (_, qp) = ready(&mut bench, host);
        show(&mut bench, host, qp);
        qp
    });
    bench.reactor.stores_mut().hold = true;
    let data = vec![0; 256 << 10];
    let read = |host: &mut Host, qp| host.send_with(qp, command(io::READ, 0, 512), &data);
    let mut reads: Vec<Sent> = Vec::new();
    for (host, qp) in hosts.iter_mut().zip(qps).skip(1) {
        reads.extend((0..4).map(|_| read(host, qp)));
    }
    let [host, one, other] = &mut hosts;
    bench.run_for(&mut [host, one, other], Duration::from_millis(10));
    assert_eq!(bench.reactor.free_buffers().0, 16);
    let compare = host.send_with(qps[0], command(io::COMPARE, 0, 512), &data);
    let mut iterations = 0;
    let cqe = loop {
        iterations += 1;
        assert!(iterations < 32, "it waits for ever");
        bench.reactor.stores_mut().completes = 1;
        bench.run_for(&mut [host, one, other], Duration::from_millis(10));
        if let Some((cqe, _)) = host.take(compare) {
            break cqe;
        }
        let others = [&mut *one, &mut *other].into_iter().zip(&qps[1..]);
        for ((host, qp), sent) in others.zip(reads.chunks_mut(4)) {
            for sent in sent {
                if host.take(*sent).is_some() {
                    *sent = read(host, *qp);
                }
            }
        }
    };
    assert!(cqe.status().is_success());
    bench.reactor.stores_mut().hold = false;
    bench.run_for(&mut [host, one, other], Duration::from_secs(1));
    assert_eq!(bench.reactor.free_buffers().0, 16 + 4);
}

/// Each has its first buffer, and the only second one is the reserve.
#[test]
fn compares_that_hold_all_buffers_complete() {
    let mut bench = Bench::new(77);
    let (mut host, mut other) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut host);
    admin(&mut bench, &mut other, 0);
    show(&mut bench, &mut host, qp);
    let send = |host: &mut Host| -> Vec<Sent> {
        let data = vec![0; 256 << 10];
        let compare = |_| host.send_with(qp, command(io::COMPARE, 0, 512), &data);
        (0..16).map(compare).collect()
    };
    assert_eq!(completed(&mut bench, send, &mut host), 16);
    assert_eq!(bench.reactor.free_buffers().0, 16 + 4);
}

/// Its responses are not acknowledged, so that no slot is free for the next command.
#[test]
fn command_not_started_for_ten_seconds_is_logged() {
    let (mut bench, withholds) = Bench::late(78);
    let mut host = bench.host();
    let (_, cntlid) = admin(&mut bench, &mut host, 0);
    let (qp, _) = connect(&mut bench, &mut host, &Connect::new(1, 4, 0), cntlid);
    withholds.store(true, Ordering::Relaxed);
    let lines = logged(|| {
        for _ in 0..2 {
            for _ in 0..4 {
                host.send(qp, command(io::WRITE_ZEROES, 0, 8), &[]);
            }
            bench.run_for(&mut [&mut host], Duration::from_secs(1));
        }
        bench.run_for(&mut [&mut host], Duration::from_secs(12));
    });
    let words = "waiting for commands of its queue or host that arrived before it";
    let its = lines.iter().filter(|line| line.contains(words));
    assert_eq!(its.count(), 4, "{lines:#?}");
}
