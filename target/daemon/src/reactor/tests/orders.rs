//! Disks are closed when the last command that was begun on them has ended.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use nvmeof_backend::Claim;
use nvmeof_wire::Status;
use nvmeof_wire::opcode::io;

use super::Bench;
use super::host::{ready, run};
use super::io::command;
use crate::mailbox::Order;

fn claim() -> Claim {
    Claim::take(&"null:1M".parse().unwrap(), None).unwrap()
}

/// Orders the only disk to be closed.
fn close(bench: &Bench) -> Receiver<u32> {
    let (answer, hears) = channel();
    let disks = vec![(0, claim())];
    bench
        .reactor
        .mailbox()
        .order(Order::Close { disks, answer });
    hears
}

#[test]
fn a_disk_is_closed_after_the_last_command_and_flushed_before() {
    let mut bench = Bench::new(61);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    bench.reactor.storage_mut().hold = true;
    let sent = host.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.storage_mut().in_flight() == 1
    });
    let hears = close(&bench);
    bench.run_for(&mut [&mut host], Duration::from_secs(1));
    assert_eq!(hears.try_recv(), Err(TryRecvError::Empty));
    assert_eq!(bench.reactor.storage_mut().flushes, 0);
    bench.reactor.storage_mut().hold = false;
    let (cqe, _) = run(&mut bench, &mut host, sent);
    assert_eq!(cqe.status(), Status::SUCCESS);
    bench.run_for(&mut [&mut host], Duration::from_secs(1));
    assert_eq!(hears.try_recv(), Ok(0));
    assert_eq!(bench.reactor.storage_mut().flushes, 1);
    assert_eq!(bench.reactor.storage_mut().closed, [0]);
}

#[test]
fn a_command_that_waits_for_a_buffer_keeps_its_disk() {
    let mut bench = Bench::new(62);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    // Four long buffers: the fifth read waits, and the disk has only four.
    bench.reactor.storage_mut().hold = true;
    let sent: Vec<_> = (0..5)
        .map(|_| host.send_with(qp, command(io::READ, 0, 512), &vec![0; 512 * 512]))
        .collect();
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.storage_mut().in_flight() == 4
    });
    let hears = close(&bench);
    bench.reactor.storage_mut().hold = false;
    for sent in sent {
        let (cqe, _) = run(&mut bench, &mut host, sent);
        assert_eq!(cqe.status(), Status::SUCCESS);
    }
    bench.run_for(&mut [&mut host], Duration::from_secs(1));
    assert_eq!(hears.try_recv(), Ok(0));
}

#[test]
fn what_is_not_open_is_closed() {
    let mut bench = Bench::new(63);
    let (answer, hears) = channel();
    let disks = vec![(7, claim())];
    bench
        .reactor
        .mailbox()
        .order(Order::Close { disks, answer });
    bench.run_for(&mut [], Duration::from_millis(10));
    assert_eq!(hears.try_recv(), Ok(7));
    assert_eq!(bench.reactor.storage_mut().flushes, 0);
}

#[test]
fn all_hosts_are_let_go_when_their_commands_have_ended_and_may_come_back() {
    let mut bench = Bench::new(64);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    bench.reactor.storage_mut().hold = true;
    let sent = host.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.storage_mut().in_flight() == 1
    });
    let (answer, hears) = channel();
    bench.reactor.mailbox().order(Order::LetGo { answer });
    bench.run_for(&mut [&mut host], Duration::from_millis(100));
    assert_eq!(hears.try_recv(), Err(TryRecvError::Empty));
    bench.reactor.storage_mut().hold = false;
    let (cqe, _) = run(&mut bench, &mut host, sent);
    assert_eq!(cqe.status(), Status::SUCCESS);
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.queue_pairs() == 0
    });
    bench.run_for(&mut [&mut host], Duration::from_millis(10));
    assert_eq!(hears.try_recv(), Ok(()));
    assert!(bench.reactor.storage_mut().closed.is_empty(), "disks stay");
}

#[test]
fn who_does_not_let_go_is_closed_when_the_time_is_up() {
    let mut bench = Bench::new(65);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    bench.reactor.storage_mut().hold = true;
    let _ = host.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.storage_mut().in_flight() == 1
    });
    let (answer, hears) = channel();
    bench.reactor.mailbox().order(Order::LetGo { answer });
    bench.run_for(&mut [&mut host], Duration::from_secs(60));
    assert_eq!(bench.reactor.queue_pairs(), 0);
    assert_eq!(hears.try_recv(), Ok(()));
    bench.reactor.storage_mut().hold = false;
}
