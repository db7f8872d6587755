//! Write protection of a namespace: earlier writes complete, later ones are rejected.

use std::time::Duration;

use nvmeof_rdma::{Provider, QpId};
use nvmeof_target_core::{BarrierScope, LockMember};
use nvmeof_wire::admin::SetFeatures;
use nvmeof_wire::features::{FeatureId, WriteProtection};
use nvmeof_wire::opcode::io;
use nvmeof_wire::{Sqe, Status};

use super::Bench;
use super::host::{Host, Sent, ready, run};
use super::io::command;

fn protect(host: &mut Host, admin: QpId) -> Sent {
    set(host, admin, WriteProtection::PROTECTED)
}

pub(super) fn set(host: &mut Host, admin: QpId, to: WriteProtection) -> Sent {
    let fid = FeatureId::NAMESPACE_WRITE_PROTECTION;
    let command = SetFeatures {
        nsid: 1,
        ..SetFeatures::new(fid, to.to_dword())
    };
    host.send(admin, command.to_sqe(), &[])
}

pub(super) fn settle(bench: &mut Bench, hosts: &mut [&mut Host]) {
    bench.run_for(hosts, Duration::from_millis(100));
}

/// Sends `sqe`, then requests protection while nothing completes.
fn protect_behind(bench: &mut Bench, hosts: &mut [Host; 2], sqe: Sqe, data: &[u8]) -> [Sent; 2] {
    let [host, other] = hosts;
    let (admin, _) = ready(bench, host);
    let (_, qp) = ready(bench, other);
    bench.reactor.stores_mut().hold = true;
    let before = match data {
        [] => other.send(qp, sqe, &[]),
        data => other.send_with(qp, sqe, data),
    };
    settle(bench, &mut [host, other]);
    let asked = protect(host, admin);
    settle(bench, &mut [host, other]);
    [before, asked]
}

/// A bench with a host, and a reactor that acknowledges nothing by itself.
fn with_another_reactor(seed: u64) -> (Bench, Host, LockMember) {
    let mut bench = Bench::new(seed);
    let host = bench.host();
    let other = bench.reactor.target.locks().join(0);
    (bench, host, other)
}

/// Requests protection, which is not granted while the other reactor is silent.
fn protect_alone(bench: &mut Bench, host: &mut Host) -> (QpId, Sent) {
    let (admin, _) = ready(bench, host);
    let asked = protect(host, admin);
    settle(bench, &mut [host]);
    assert!(host.take(asked).is_none());
    (admin, asked)
}

#[test]
fn writes_in_flight_complete_before_protection() {
    let ranges: Vec<u8> = [(0u64, 8u32), (64, 8)]
        .iter()
        .flat_map(|(slba, blocks)| {
            [&[0; 4], &blocks.to_le_bytes()[..], &slba.to_le_bytes()].concat()
        })
        .collect();
    let trim = nvmeof_wire::nvm::DatasetManagement {
        nsid: 1,
        ranges: 2,
        deallocate: true,
    };
    let copy = nvmeof_wire::nvm::Copy {
        nsid: 1,
        slba: 1000,
        ranges: 1,
        format: 0,
        protected: false,
        fua: false,
    };
    let source = [&[0; 16][..], &[255, 1, 0, 0], &[0; 12]].concat();
    let rows: [(Sqe, &[u8]); 4] = [
        (command(io::WRITE, 4, 1), &[9; 512]),
        (command(io::WRITE_ZEROES, 4, 1), &[]),
        (trim.to_sqe(), &ranges),
        (copy.to_sqe(), &source),
    ];
    for (sqe, data) in rows {
        let mut bench = Bench::new(70);
        let mut hosts = [bench.host(), bench.host()];
        let free = bench.reactor.free_buffers();
        let [before, asked] = protect_behind(&mut bench, &mut hosts, sqe, data);
        let [host, other] = &mut hosts;
        assert!(host.take(asked).is_none(), "{:?}", sqe.opcode);
        assert_eq!(bench.reactor.stores_mut().flushes, 0);
        // Later writes do not start.
        let late = Sent {
            qp: before.qp,
            ..other.send_with(before.qp, command(io::WRITE, 4, 1), &[7; 512])
        };
        let (cqe, _) = run(&mut bench, other, late);
        assert_eq!(cqe.status().kind(), Status::NAMESPACE_WRITE_PROTECTED);
        // The pieces of long commands, one after the other.
        let mut pieces = 0;
        while host.take(asked).is_none() {
            let done = other.take(before);
            assert!(done.is_none() || pieces > 0);
            bench.reactor.stores_mut().hold = false;
            bench.reactor.poll_once(bench.net.now()).unwrap();
            bench.reactor.stores_mut().hold = true;
            settle(&mut bench, &mut [host, other]);
            pieces += 1;
            assert!(pieces < 20);
        }
        assert_eq!(bench.reactor.stores_mut().flushes, 1);
        let _ = free;
    }
}

/// Its data may arrive late and are written late: the protection waits for that.
#[test]
fn protection_waits_for_write_with_data_in_flight() {
    let mut bench = Bench::new(71);
    let (mut host, mut other) = (bench.host(), bench.host());
    let (admin, _) = ready(&mut bench, &mut host);
    let (_, qp) = ready(&mut bench, &mut other);
    let write = other.send_with(qp, command(io::WRITE, 4, 1), &[9; 512]);
    other.provider.submit(bench.net.now());
    // It sends that and serves no RDMA Read.
    settle(&mut bench, &mut [&mut host]);
    let asked = protect(&mut host, admin);
    settle(&mut bench, &mut [&mut host]);
    assert!(host.take(asked).is_none());
    assert!(run(&mut bench, &mut other, write).0.status().is_success());
    assert!(run(&mut bench, &mut host, asked).0.status().is_success());
    assert_eq!(bench.reactor.stores_mut().contents[0][4 * 512], 9);
}

#[test]
fn every_reactor_has_to_agree() {
    let (mut bench, mut host, other) = with_another_reactor(72);
    let (_, asked) = protect_alone(&mut bench, &mut host);
    let now = bench.net.now();
    assert!(other.settle_barriers(now, |storage, _| (storage == 0).then_some(now)));
    settle(&mut bench, &mut [&mut host]);
    assert!(host.take(asked).is_none());
    assert!(!other.settle_barriers(now, |_, _| None));
    assert!(run(&mut bench, &mut host, asked).0.status().is_success());
}

/// Other commands do not wait for a host that disconnects with operations in a backing
/// store, nor for one that disconnects before its response.
#[test]
fn departed_hosts_do_not_block_protection() {
    let mut bench = Bench::new(73);
    let mut hosts = [bench.host(), bench.host()];
    let write = command(io::WRITE, 4, 1);
    let [before, asked] = protect_behind(&mut bench, &mut hosts, write, &[9; 512]);
    let [mut host, mut other] = hosts;
    other.provider.disconnect(before.qp);
    settle(&mut bench, &mut [&mut host, &mut other]);
    assert!(host.take(asked).is_none(), "the backing store still has it");
    host.provider.disconnect(asked.qp);
    settle(&mut bench, &mut [&mut host, &mut other]);
    bench.reactor.stores_mut().hold = false;
    settle(&mut bench, &mut [&mut host, &mut other]);
    let mut third = bench.host();
    let (admin, _) = ready(&mut bench, &mut third);
    let asked = protect(&mut third, admin);
    assert!(run(&mut bench, &mut third, asked).0.status().is_success());
    assert_eq!(bench.reactor.stores_mut().flushes, 1);
}

/// A backing store may stall. A request for another one, or for the same one without
/// writes, does not wait for closed queues.
#[test]
fn only_writes_of_closed_queues_delay_protection() {
    for (opcode, writes) in [(io::READ, false), (io::WRITE, true)] {
        let mut bench = Bench::new(74);
        let mut host = bench.host();
        let (_, qp) = ready(&mut bench, &mut host);
        bench.reactor.stores_mut().hold = true;
        // The first is complete; in either case a read remains.
        host.send_with(qp, command(io::WRITE, 4, 1), &[9; 512]);
        settle(&mut bench, &mut [&mut host]);
        host.send_with(qp, command(io::READ, 4, 1), &[0; 512]);
        host.send_with(qp, command(opcode, 4, 1), &[9; 512]);
        settle(&mut bench, &mut [&mut host]);
        assert_eq!(bench.reactor.stores_mut().in_flight(), 3);
        host.provider.disconnect(qp);
        settle(&mut bench, &mut [&mut host]);
        let other = bench.reactor.target.locks().join(0);
        let barriers = [0, 1].map(|storage| other.barrier(storage, BarrierScope::Writes));
        let locks = [0, 1].map(|storage| other.ask(storage, 2048..2560));
        assert!(!other.settle_barriers(bench.net.now(), |_, _| None));
        assert!(!other.settle(|_, _, _| false));
        settle(&mut bench, &mut []);
        assert_eq!(barriers.each_ref().map(|one| one.is_quiet()), [false, true]);
        assert_eq!(locks.each_ref().map(|one| one.is_held()), [false, true]);
        bench.reactor.stores_mut().completes = 1;
        settle(&mut bench, &mut []);
        assert_eq!(bench.reactor.stores_mut().in_flight(), 2);
        assert_eq!(barriers[0].is_quiet(), !writes);
        assert_eq!(locks[0].is_held(), !writes);
    }
}

/// Another host may permit writes again at once, and write all the time.
#[test]
fn protection_does_not_wait_for_later_writes() {
    for leaves in [false, true] {
        let mut bench = Bench::new(75);
        let mut host = bench.host();
        let (_, qp) = ready(&mut bench, &mut host);
        let other = bench.reactor.target.locks().join(0);
        bench.reactor.stores_mut().hold = true;
        host.send_with(qp, command(io::WRITE, 4, 1), &[9; 512]);
        settle(&mut bench, &mut [&mut host]);
        let barrier = other.barrier(0, BarrierScope::Writes);
        assert!(!other.settle_barriers(bench.net.now(), |_, _| None));
        settle(&mut bench, &mut [&mut host]);
        host.send_with(qp, command(io::WRITE, 4, 1), &[8; 512]);
        settle(&mut bench, &mut [&mut host]);
        if leaves {
            host.provider.disconnect(qp);
            settle(&mut bench, &mut [&mut host]);
        }
        assert!(!barrier.is_quiet());
        bench.reactor.stores_mut().completes = 1;
        settle(&mut bench, &mut [&mut host]);
        assert_eq!(bench.reactor.stores_mut().in_flight(), 1);
        assert!(barrier.is_quiet());
    }
}

/// Otherwise a host that connects, sends a request and disconnects again and again fills
/// the memory.
#[test]
fn closed_queue_leaves_no_waiting_request() {
    let (mut bench, mut host, other) = with_another_reactor(76);
    let (admin, _) = protect_alone(&mut bench, &mut host);
    let mut waits = Vec::new();
    let now = bench.net.now();
    let _ = other.settle_barriers(now, |storage, _| {
        waits.push(storage);
        Some(now)
    });
    assert_eq!(waits, [0]);
    host.provider.disconnect(admin);
    settle(&mut bench, &mut [&mut host]);
    let _ = other.settle_barriers(now, |storage, _| {
        waits.push(storage);
        None
    });
    assert_eq!(waits, [0], "nobody asks any more");
}
