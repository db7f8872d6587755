//! Writes of a lost queue that a backing store still has must not overwrite later writes.

use std::time::Duration;

use nvmeof_rdma::{Event, Provider};
use nvmeof_wire::fabrics::Connect;
use nvmeof_wire::nvm::{DatasetManagement, DsmRange};
use nvmeof_wire::opcode::io;
use zerocopy::IntoBytes;

use super::Bench;
use super::aborting::abort;
use super::host::{Host, Sent, admin, connect, ready};
use super::io::command;

const A_WHILE: Duration = Duration::from_millis(100);

fn hold(bench: &mut Bench, hold: bool) {
    bench.reactor.stores_mut().hold = hold;
}

fn in_flight(bench: &mut Bench) -> usize {
    bench.reactor.stores_mut().in_flight()
}

/// Waits until all of them complete with success.
fn all_answered(bench: &mut Bench, hosts: &mut [&mut Host], mut left: Vec<(usize, Sent)>) {
    bench.until(hosts, |_, hosts| {
        left.retain(|(host, sent)| match hosts[*host].take(*sent) {
            Some((cqe, _)) => {
                assert!(cqe.status().is_success());
                false
            }
            None => true,
        });
        left.is_empty()
    });
}

#[test]
fn newer_writes_wait_for_those_of_a_lost_queue() {
    let mut bench = Bench::new(80);
    let (mut gone, mut host) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut gone);
    let (_, qp2) = ready(&mut bench, &mut host);
    let locks = bench.reactor.target.locks().join(0);
    hold(&mut bench, true);
    gone.send_with(qp, command(io::WRITE, 4, 2), &[1; 1024]);
    gone.send(qp, command(io::WRITE_ZEROES, 8, 1), &[]);
    let (trim, range) = trim(&[(12, 1)]);
    gone.send_with(qp, trim, &range);
    gone.send_with(qp, command(io::READ, 20, 1), &[0; 512]);
    bench.run_for(&mut [&mut gone, &mut host], A_WHILE);
    assert_eq!(in_flight(&mut bench), 4);
    assert!(locks.is_idle(), "an answer may come yet");
    gone.provider.disconnect(qp);
    bench.run_for(&mut [&mut gone, &mut host], A_WHILE);
    assert!(!locks.is_idle());

    let mut wait = Vec::new();
    for slba in [5, 8, 12] {
        wait.push((
            1,
            host.send_with(qp2, command(io::WRITE, slba, 1), &[7; 512]),
        ));
    }
    bench.run_for(&mut [&mut gone, &mut host], A_WHILE);
    assert_eq!(in_flight(&mut bench), 4, "they wait");
    // Other ranges, ranges that are only read, and commands that only read do not wait.
    wait.push((1, host.send_with(qp2, command(io::WRITE, 6, 1), &[8; 512])));
    wait.push((1, host.send_with(qp2, command(io::WRITE, 20, 1), &[9; 512])));
    wait.push((1, host.send_with(qp2, command(io::READ, 4, 1), &[0; 512])));
    bench.run_for(&mut [&mut gone, &mut host], A_WHILE);
    assert_eq!(in_flight(&mut bench), 7);

    hold(&mut bench, false);
    all_answered(&mut bench, &mut [&mut gone, &mut host], wait);
    let store = &bench.reactor.stores_mut().contents[0];
    let first = [4, 5, 6, 8, 12, 20].map(|block: usize| store[block * 512]);
    assert_eq!(first, [1, 7, 8, 7, 7, 9]);
    assert!(locks.is_idle(), "and none is left");
}

/// A silent host may know before the target that its queue is lost, or learn it from what
/// the target does.
#[test]
fn ending_queue_blocks_newer_writes_immediately() {
    let mut bench = Bench::new(81);
    let (mut silent, mut host) = (bench.host(), bench.host());
    let (_, cntlid) = admin(&mut bench, &mut silent, 500);
    let (qp, _) = connect(&mut bench, &mut silent, &Connect::new(1, 4, 0), cntlid);
    let (_, qp2) = ready(&mut bench, &mut host);
    let locks = bench.reactor.target.locks().join(0);
    hold(&mut bench, true);
    silent.send_with(qp, command(io::WRITE, 4, 1), &[1; 512]);
    bench.run_for(&mut [&mut silent, &mut host], A_WHILE);
    assert!(in_flight(&mut bench) == 1 && locks.is_idle());
    // The provider of the host does not run: the queue pair stays in its state.
    bench.until(&mut [&mut host], |_, _| !locks.is_idle());
    let write = host.send_with(qp2, command(io::WRITE, 4, 1), &[7; 512]);
    bench.run_for(&mut [&mut host], A_WHILE);
    assert_eq!(in_flight(&mut bench), 1);
    hold(&mut bench, false);
    all_answered(&mut bench, &mut [&mut host], vec![(0, write)]);
    assert_eq!(bench.reactor.stores_mut().contents[0][4 * 512], 7);
    assert!(locks.is_idle());
}

/// Its host knows already, and the provider takes some time to close it.
#[test]
fn closing_queue_starts_no_commands() {
    let mut bench = Bench::new(84);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let locks = bench.reactor.target.locks().join(0);
    hold(&mut bench, true);
    host.send_with(qp, command(io::WRITE, 4, 1), &[1; 512]);
    bench.run_for(&mut [&mut host], A_WHILE);
    assert!(in_flight(&mut bench) == 1 && locks.is_idle());
    let now = bench.net.now();
    for id in bench.reactor.queues.ids() {
        let queue_pair = bench.reactor.queues.get(id);
        let qp = queue_pair.map(|queue_pair| queue_pair.link.qp).unwrap();
        bench.reactor.handle(0, Event::Ending { qp }, now);
    }
    assert!(!locks.is_idle());
    let late = host.send_with(qp, command(io::WRITE, 4, 1), &[2; 512]);
    bench.run_for(&mut [&mut host], A_WHILE);
    assert_eq!(in_flight(&mut bench), 1, "that came too late");
    hold(&mut bench, false);
    bench.until(&mut [&mut host], |_, _| locks.is_idle());
    assert!(host.take(late).is_none());
    assert_eq!(bench.reactor.stores_mut().contents[0][4 * 512], 1);
}

/// The host of an admin queue that ends drops its I/O queues, however long the provider
/// takes to close it.
#[test]
fn end_of_admin_queue_stops_its_io_queues() {
    let mut bench = Bench::new(85);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let locks = bench.reactor.target.locks().join(0);
    hold(&mut bench, true);
    host.send_with(qp, command(io::WRITE, 4, 1), &[1; 512]);
    bench.run_for(&mut [&mut host], A_WHILE);
    assert!(in_flight(&mut bench) == 1 && locks.is_idle());
    let now = bench.net.now();
    for id in bench.reactor.queues.ids() {
        let queue_pair = bench.reactor.queues.get(id);
        if let Some(qp) = queue_pair
            .filter(|queue_pair| queue_pair.is_admin())
            .map(|queue_pair| queue_pair.link.qp)
        {
            bench.reactor.handle(0, Event::Ending { qp }, now);
        }
    }
    let late = host.send_with(qp, command(io::WRITE, 4, 1), &[2; 512]);
    bench.run_for(&mut [&mut host], A_WHILE);
    assert_eq!(in_flight(&mut bench), 1, "that came too late");
    assert!(!locks.is_idle());
    hold(&mut bench, false);
    bench.until(&mut [&mut host], |_, _| locks.is_idle());
    assert!(host.take(late).is_none());
    assert_eq!(bench.reactor.stores_mut().contents[0][4 * 512], 1);
}

/// The host may have given up on a slow write: it may use another queue meanwhile.
#[test]
fn newer_writes_wait_for_a_slow_one() {
    let mut bench = Bench::new(82);
    let (mut slow, mut host) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut slow);
    let (_, qp2) = ready(&mut bench, &mut host);
    let locks = bench.reactor.target.locks().join(0);
    hold(&mut bench, true);
    let (trim, ranges) = trim(&[(4, 1), (40, 1)]);
    let trim = slow.send_with(qp, trim, &ranges);
    bench.run_for(&mut [&mut slow, &mut host], Duration::from_millis(500));
    assert!(locks.is_idle());
    bench.run_for(&mut [&mut slow, &mut host], Duration::from_secs(2));
    let write = host.send_with(qp2, command(io::WRITE, 4, 1), &[7; 512]);
    let next = host.send_with(qp2, command(io::WRITE, 40, 1), &[8; 512]);
    bench.run_for(&mut [&mut slow, &mut host], A_WHILE);
    assert_eq!(in_flight(&mut bench), 2, "of one range after the other");
    hold(&mut bench, false);
    all_answered(
        &mut bench,
        &mut [&mut slow, &mut host],
        vec![(0, trim), (1, write), (1, next)],
    );
    assert_eq!(bench.reactor.stores_mut().contents[0][4 * 512], 7);
    assert!(locks.is_idle());
}

#[test]
fn backlog_of_a_closed_queue_is_dropped() {
    let mut bench = Bench::new(87);
    let (mut gone, mut host) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut gone);
    let (_, qp2) = ready(&mut bench, &mut host);
    let locks = bench.reactor.target.locks().join(0);
    bench.reactor.stores_mut().room = 1;
    hold(&mut bench, true);
    gone.send_with(qp, command(io::WRITE, 4, 1), &[1; 512]);
    bench.run_for(&mut [&mut gone, &mut host], A_WHILE);
    gone.send_with(qp, command(io::WRITE, 8, 1), &[2; 512]);
    let write = host.send_with(qp2, command(io::WRITE, 12, 1), &[3; 512]);
    bench.run_for(&mut [&mut gone, &mut host], A_WHILE);
    assert_eq!(bench.reactor.resources.backlog.len(), 2);
    gone.provider.disconnect(qp);
    bench.run_for(&mut [&mut gone, &mut host], A_WHILE);
    assert_eq!(
        bench.reactor.resources.backlog.len(),
        1,
        "that of the other host"
    );
    hold(&mut bench, false);
    all_answered(&mut bench, &mut [&mut gone, &mut host], vec![(1, write)]);
    let store = &bench.reactor.stores_mut().contents[0];
    let first = [4, 8, 12].map(|block: usize| store[block * 512]);
    assert_eq!(first, [1, 0, 3]);
    assert!(locks.is_idle());
}

/// It waited long for a free slot of its backing store, and is not submitted.
#[test]
fn aborted_write_blocks_no_other() {
    let mut bench = Bench::new(86);
    let mut host = bench.host();
    let (admin, qp) = ready(&mut bench, &mut host);
    let locks = bench.reactor.target.locks().join(0);
    bench.reactor.stores_mut().room = 1;
    hold(&mut bench, true);
    let first = host.send_with(qp, command(io::WRITE, 4, 1), &[1; 512]);
    bench.run_for(&mut [&mut host], A_WHILE);
    let second = host.send_with(qp, command(io::WRITE, 8, 1), &[2; 512]);
    bench.run_for(&mut [&mut host], Duration::from_secs(3));
    assert!(!locks.is_idle());
    assert!(abort(&mut bench, &mut host, admin, second));
    let third = host.send_with(qp, command(io::WRITE, 8, 1), &[3; 512]);
    hold(&mut bench, false);
    all_answered(&mut bench, &mut [&mut host], vec![(0, first), (0, third)]);
    assert_eq!(bench.reactor.stores_mut().contents[0][8 * 512], 3);
    assert!(locks.is_idle());
}

fn trim(ranges: &[(u64, u32)]) -> (nvmeof_wire::Sqe, Vec<u8>) {
    let command = DatasetManagement {
        nsid: 1,
        ranges: u16::try_from(ranges.len()).unwrap(),
        deallocate: true,
    };
    let ranges = ranges
        .iter()
        .flat_map(|(slba, blocks)| DsmRange::new(*slba, *blocks).as_bytes().to_vec());
    (command.to_sqe(), ranges.collect())
}
