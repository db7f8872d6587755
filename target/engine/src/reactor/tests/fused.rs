//! Fused Compare and Write: no other write comes between the halves.

use std::sync::atomic::Ordering;

use nvmeof_rdma::{Provider, QpId};
use nvmeof_wire::admin::Abort;
use nvmeof_wire::fabrics::Connect;
use nvmeof_wire::nvm::{Copy, DatasetManagement};
use nvmeof_wire::opcode::{Opcode, io};
use nvmeof_wire::sqe::PSDT_SGL;
use nvmeof_wire::{Sgl, Sqe, Status};

use super::Bench;
use super::host::{Host, Sent, admin, connect, ready, run};
use super::io::command;

fn half(second: bool, slba: u64, blocks: u32) -> Sqe {
    let opcode: Opcode = if second { io::WRITE } else { io::COMPARE };
    let mut sqe = command(opcode, slba, blocks);
    sqe.flags = PSDT_SGL | if second { 2 } else { 1 };
    sqe
}

/// Sends both halves: the host expects `old` and writes `new`.
fn swap(host: &mut Host, qp: QpId, slba: u64, old: &[u8], new: &[u8], remote: bool) -> [Sent; 2] {
    let blocks = u32::try_from(old.len() / 512).unwrap();
    [(false, old), (true, new)].map(|(second, data)| {
        let mut sqe = half(second, slba, blocks);
        if remote {
            return host.send_with(qp, sqe, data);
        }
        // Not at the start of the data in the capsule.
        let len = u32::try_from(data.len()).unwrap();
        sqe.dptr = Sgl::InCapsule { offset: 3, len }.to_descriptor();
        host.send(qp, sqe, &[&[1, 2, 3], data].concat())
    })
}

fn statuses(bench: &mut Bench, host: &mut Host, sent: [Sent; 2]) -> [Status; 2] {
    sent.map(|sent| run(bench, host, sent).0.status().kind())
}

fn settle(bench: &mut Bench, hosts: &mut [&mut Host]) {
    bench.run_for(hosts, std::time::Duration::from_millis(100));
}

#[test]
fn fused_write_requires_equal_compare() {
    let mut bench = Bench::new(50);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let free = bench.reactor.free_buffers();
    for (round, remote) in [(1, true), (2, false)] {
        let (old, new) = ([round - 1; 2048], [round; 2048]);
        let sent = swap(&mut host, qp, 4, &old, &new, remote);
        assert_eq!(statuses(&mut bench, &mut host, sent), [Status::SUCCESS; 2]);
        // The second time the data differ.
        let sent = swap(&mut host, qp, 4, &old, &[9; 2048], remote);
        let expected = [Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED];
        assert_eq!(statuses(&mut bench, &mut host, sent), expected);
        let store = &bench.reactor.stores_mut().contents[0];
        assert_eq!(store[4 * 512..8 * 512], new);
    }
    settle(&mut bench, &mut [&mut host]);
    assert_eq!(bench.reactor.free_buffers(), free);
    assert!(bench.reactor.target.locks().join(0).is_idle());
}

/// A write that began before completes first, a later one waits, and one to another range
/// does not.
#[test]
fn fused_operation_excludes_writes_of_others() {
    let mut bench = Bench::new(51);
    let (mut host, mut other) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut host);
    let (_, qp2) = ready(&mut bench, &mut other);
    let free = bench.reactor.free_buffers();
    bench.reactor.stores_mut().hold = true;
    let before = other.send_with(qp2, command(io::WRITE, 4, 1), &[9; 512]);
    settle(&mut bench, &mut [&mut host, &mut other]);
    let pair = swap(&mut host, qp, 4, &[9; 512], &[5; 512], true);
    settle(&mut bench, &mut [&mut host, &mut other]);
    assert_eq!(bench.reactor.stores_mut().in_flight(), 1, "no compare yet");
    let after = other.send_with(qp2, command(io::WRITE, 3, 2), &[7; 1024]);
    let zeroes = other.send(qp2, command(io::WRITE_ZEROES, 4, 1), &[]);
    let elsewhere = other.send_with(qp2, command(io::WRITE, 5, 1), &[8; 512]);
    settle(&mut bench, &mut [&mut host, &mut other]);
    assert_eq!(bench.reactor.stores_mut().in_flight(), 2);
    bench.reactor.stores_mut().hold = false;
    let mut left = vec![before, after, zeroes, elsewhere];
    let mut statuses = Vec::new();
    bench.until(&mut [&mut host, &mut other], |_, hosts| {
        left.retain(|sent| match hosts[1].take(*sent) {
            Some((cqe, _)) => !cqe.status().is_success(),
            None => true,
        });
        for half in pair {
            statuses.extend(hosts[0].take(half).map(|(cqe, _)| cqe.status()));
        }
        left.is_empty() && statuses.len() == 2
    });
    assert_eq!(statuses, [Status::SUCCESS; 2]);
    let store = &bench.reactor.stores_mut().contents[0];
    assert_eq!((store[3 * 512], store[5 * 512]), (7, 8));
    assert_ne!(store[4 * 512], 5, "those that waited came after it");
    settle(&mut bench, &mut [&mut host, &mut other]);
    assert_eq!(bench.reactor.free_buffers(), free);
}

#[test]
fn every_reactor_has_to_agree() {
    let mut bench = Bench::new(52);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let other = bench.reactor.target.locks().join(0);
    let pair = swap(&mut host, qp, 0, &[0; 512], &[1; 512], true);
    settle(&mut bench, &mut [&mut host]);
    assert!(host.take(pair[0]).is_none());
    assert!(!other.settle(|_, store, bytes| (store, bytes.clone()) != (0, 0..512)));
    assert_eq!(statuses(&mut bench, &mut host, pair), [Status::SUCCESS; 2]);
    assert!(other.is_idle());
}

#[test]
fn departed_host_leaves_no_lock() {
    let mut bench = Bench::new(53);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    bench.reactor.stores_mut().hold = true;
    swap(&mut host, qp, 0, &[0; 512], &[1; 512], true);
    settle(&mut bench, &mut [&mut host]);
    assert_eq!(bench.reactor.stores_mut().in_flight(), 1);
    let other = bench.reactor.target.locks().join(0);
    host.provider.disconnect(qp);
    settle(&mut bench, &mut [&mut host]);
    assert!(!other.is_idle(), "the backing store has a part of it");
    bench.reactor.stores_mut().hold = false;
    settle(&mut bench, &mut [&mut host]);
    assert!(other.is_idle());
}

#[test]
fn first_half_without_second_fails_at_next_command() {
    let mut bench = Bench::new(54);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let free = bench.reactor.free_buffers();
    for remote in [true, false] {
        let mut sqe = half(false, 0, 1);
        let first = if remote {
            host.send_with(qp, sqe, &[0; 512])
        } else {
            sqe.dptr = Sgl::InCapsule {
                offset: 0,
                len: 512,
            }
            .to_descriptor();
            host.send(qp, sqe, &[0; 512])
        };
        let read = host.send_with(qp, command(io::READ, 0, 1), &[1; 512]);
        assert!(run(&mut bench, &mut host, read).0.status().is_success());
        let status = run(&mut bench, &mut host, first).0.status().kind();
        assert_eq!(status, Status::ABORTED_MISSING_FUSED);
    }
    settle(&mut bench, &mut [&mut host]);
    assert_eq!(bench.reactor.free_buffers(), free);
}

/// The second half is the next command of the queue. If no command arrives at all, the
/// first half completes nevertheless, and releases its backing store.
#[test]
fn first_half_without_next_command_times_out() {
    let mut bench = Bench::new(55);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let free = bench.reactor.free_buffers();
    let first = host.send_with(qp, half(false, 0, 1), &[0; 512]);
    bench.run_for(&mut [&mut host], std::time::Duration::from_secs(4));
    assert!(host.take(first).is_none(), "the other may be on its way");
    assert!(bench.reactor.queues.use_store(0));
    bench.run_for(&mut [&mut host], std::time::Duration::from_secs(3));
    let status = host.take(first).unwrap().0.status().kind();
    assert_eq!(status, Status::ABORTED_MISSING_FUSED);
    assert!(!bench.reactor.queues.use_store(0));
    // A later one is not its partner.
    let second = host.send_with(qp, half(true, 0, 1), &[1; 512]);
    let status = run(&mut bench, &mut host, second).0.status().kind();
    assert_eq!(status, Status::ABORTED_MISSING_FUSED);
    settle(&mut bench, &mut [&mut host]);
    assert_eq!(bench.reactor.free_buffers(), free);
}

/// A file that has grown is another backing store for later commands. An earlier command
/// on the old one writes to the same bytes.
#[test]
fn lock_applies_to_the_storage_identity() {
    let mut bench = Bench::new(56);
    let (mut host, mut other) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut host);
    let (_, qp2) = ready(&mut bench, &mut other);
    let stores = bench.reactor.stores_mut();
    stores.contents.push(vec![0; 2048 * 512]);
    (stores.hold, stores.same) = (true, true);
    let before = other.send_with(qp2, command(io::WRITE, 4, 1), &[9; 512]);
    settle(&mut bench, &mut [&mut host, &mut other]);
    let revision = nvmeof_target_core::Revision {
        nqn: nvmeof_wire::Nqn::new(super::NQN).unwrap(),
        nsid: 1,
        store: 1,
        blocks: 2048,
        preferred: nvmeof_target_core::Preferred::default(),
        state: nvmeof_target_core::NamespaceState::Ready,
    };
    let target = &bench.reactor.target;
    let _ = target.apply(target.model().revised(&[revision])).unwrap();
    let pair = swap(&mut host, qp, 4, &[0; 512], &[5; 512], true);
    settle(&mut bench, &mut [&mut host, &mut other]);
    assert_eq!(bench.reactor.stores_mut().in_flight(), 1, "no compare yet");
    bench.reactor.stores_mut().hold = false;
    assert!(run(&mut bench, &mut other, before).0.status().is_success());
    assert_eq!(statuses(&mut bench, &mut host, pair), [Status::SUCCESS; 2]);
}

/// Aborting the command between two others does not make these a pair.
#[test]
fn command_between_fused_halves_is_not_aborted() {
    let (mut bench, withholds) = Bench::late(57);
    let mut host = bench.host();
    let (first, cntlid) = admin(&mut bench, &mut host, 0);
    let (qp, _) = connect(&mut bench, &mut host, &Connect::new(1, 4, 0), cntlid);
    withholds.store(true, Ordering::Relaxed);
    // As many as there are slots, one of which the first half uses.
    for _ in 0..3 {
        let read = host.send_with(qp, command(io::READ, 8, 1), &[0; 512]);
        assert!(run(&mut bench, &mut host, read).0.status().is_success());
    }
    let compare = host.send_with(qp, half(false, 0, 1), &[0; 512]);
    settle(&mut bench, &mut [&mut host]);
    let between = host.send_with(qp, command(io::READ, 9, 1), &[0; 512]);
    let write = host.send_with(qp, half(true, 0, 1), &[1; 512]);
    settle(&mut bench, &mut [&mut host]);
    let abort = Abort {
        sqid: 1,
        cid: between.cid,
    };
    let abort = host.send(first, abort.to_sqe(), &[]);
    let (cqe, _) = run(&mut bench, &mut host, abort);
    assert_eq!(cqe.dw0() & 1, 1, "it was not aborted");
    withholds.store(false, Ordering::Relaxed);
    assert!(run(&mut bench, &mut host, between).0.status().is_success());
    let missing = [Status::ABORTED_MISSING_FUSED; 2];
    assert_eq!(statuses(&mut bench, &mut host, [compare, write]), missing);
    assert_eq!(bench.reactor.stores_mut().contents[0][0], 0);
}

/// Every command that changes the blocks waits for the pair that locked them, not only a
/// write.
#[test]
fn changing_commands_wait_for_the_fused_pair() {
    let trim = DatasetManagement {
        nsid: 1,
        ranges: 1,
        deallocate: true,
    };
    let copy = Copy {
        nsid: 1,
        slba: 4,
        ranges: 1,
        format: 0,
        protected: false,
        fua: false,
    };
    let range = [&[0; 4][..], &1u32.to_le_bytes(), &4u64.to_le_bytes()].concat();
    let source = [&[0; 8][..], &1000u64.to_le_bytes(), &[0; 16]].concat();
    let rows: [(Sqe, &[u8]); 4] = [
        (command(io::WRITE, 4, 1), &[0; 512]),
        (command(io::WRITE_ZEROES, 4, 1), &[]),
        (trim.to_sqe(), &range),
        (copy.to_sqe(), &source),
    ];
    for (sqe, data) in rows {
        let mut bench = Bench::new(58);
        let (mut host, mut other) = (bench.host(), bench.host());
        let (_, qp) = ready(&mut bench, &mut host);
        let (_, its) = ready(&mut bench, &mut other);
        let stores = bench.reactor.stores_mut();
        stores.contents[0][4 * 512..5 * 512].fill(9);
        stores.hold = true;
        let pair = swap(&mut host, qp, 4, &[9; 512], &[5; 512], true);
        settle(&mut bench, &mut [&mut host, &mut other]);
        assert_eq!(bench.reactor.stores_mut().in_flight(), 1, "the compare");
        let change = match data {
            [] => other.send(its, sqe, &[]),
            data => other.send_with(its, sqe, data),
        };
        settle(&mut bench, &mut [&mut host, &mut other]);
        // Completes the operations of the backing store, again and again.
        for _ in 0..6 {
            bench.reactor.stores_mut().hold = false;
            bench.reactor.poll_once(bench.net.now()).unwrap();
            bench.reactor.stores_mut().hold = true;
            settle(&mut bench, &mut [&mut host, &mut other]);
        }
        assert_eq!(statuses(&mut bench, &mut host, pair), [Status::SUCCESS; 2]);
        assert!(other.take(change).unwrap().0.status().is_success());
        let store = &bench.reactor.stores_mut().contents[0];
        assert_eq!(store[4 * 512], 0, "{:?} came between", sqe.opcode);
    }
}
