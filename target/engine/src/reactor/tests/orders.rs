//! Disks are closed when the last command that was begun on them has ended.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use nix::errno::Errno;
use nvmeof_backend::Claim;
use nvmeof_wire::Status;
use nvmeof_wire::cm::Request as CmRequest;
use nvmeof_wire::opcode::io;

use super::Bench;
use super::SoftConfig;
use super::host::{ready, run};
use super::io::command;
use crate::failures::Failures;
use crate::mailbox::{Awaited, Order, Reply};

pub(super) fn claim() -> Claim {
    Claim::take(&"null:1M".parse().unwrap(), None).unwrap()
}

/// Orders the only disk to be closed.
pub(super) fn close(bench: &Bench) -> Receiver<u32> {
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

/// Who waited too long gave up: what was done for it is undone.
#[test]
fn a_listener_that_comes_too_late_is_closed() {
    let mut bench = Bench::new(64);
    let listeners = bench.reactor.listeners.len();
    let address = std::net::SocketAddr::new([10, 0, 0, 1].into(), 4421);
    for (late, expected) in [(true, listeners), (false, listeners + 1)] {
        let (reply, awaited) = Reply::new();
        bench.reactor.mailbox().order(Order::Listen {
            provider: 0,
            address: address.into(),
            reply,
        });
        let heard = heard(&mut bench, awaited, late);
        assert_eq!(bench.reactor.listeners.len(), expected);
        // The second time it is free: nobody has it.
        assert_eq!(
            heard.map(|listened| listened.is_ok()),
            (!late).then_some(true)
        );
    }
}

/// What the reactor answers, if it is not too `late`.
fn heard<T>(bench: &mut Bench, awaited: Awaited<T>, late: bool) -> Option<T> {
    if late {
        assert!(awaited.within(Duration::ZERO).is_none());
        bench.run_for(&mut [], Duration::from_millis(10));
        return None;
    }
    bench.run_for(&mut [], Duration::from_millis(10));
    awaited.within(Duration::ZERO)
}

/// The same of a provider; and one that others do not have goes again.
#[test]
fn a_provider_stays_only_if_every_reactor_has_it() {
    let mut bench = Bench::new(67);
    let add = |bench: &mut Bench, late| {
        let endpoint = bench
            .net
            .endpoint([10, 0, 0, 7].into(), SoftConfig::default());
        let (reply, awaited) = Reply::new();
        let provider = Box::new(endpoint);
        let order = Order::Add { provider, reply };
        bench.reactor.mailbox().order(order);
        heard(bench, awaited, late)
    };
    assert!(add(&mut bench, true).is_none());
    assert_eq!(bench.reactor.providers.len(), 1);
    for _ in 0..2 {
        assert!(add(&mut bench, false).is_some());
        assert_eq!(bench.reactor.providers.len(), 2);
        let take_back = Order::TakeBack { provider: 1 };
        bench.reactor.mailbox().order(take_back);
        bench.run_for(&mut [], Duration::from_millis(10));
        assert_eq!(bench.reactor.providers.len(), 1);
    }
}

/// However far a connection is when its port goes: it is not let in after that.
#[test]
fn a_connection_does_not_outlive_its_port() {
    for fair_queue in 0..30 {
        let mut bench = Bench::new(65);
        let mut host = bench.host();
        host.open(bench.net.now(), &CmRequest::new(0, 32));
        let mut left = fair_queue;
        bench.until(&mut [&mut host], |_, _| {
            left -= 1;
            left < 0
        });
        let (answer, hears) = channel();
        bench.reactor.mailbox().order(Order::Unlisten {
            provider: 0,
            address: bench.address,
            answer,
        });
        bench.run_for(&mut [&mut host], Duration::from_secs(1));
        assert!(hears.try_recv().unwrap().is_empty());
        assert_eq!(bench.reactor.queue_pairs(), 0, "after {fair_queue} turns");
    }
}

/// What a disk says of itself reaches the host and whoever looks after disks.
#[test]
fn a_disk_that_is_gone_is_told_of() {
    let mut bench = Bench::new(66);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let failures = Failures::default();
    bench.reactor.report_to(failures.clone());
    for (errno, status) in [
        (Errno::EIO, Status::WRITE_FAULT.with_dnr()),
        (Errno::ENODEV, Status::NAMESPACE_NOT_READY),
        (Errno::ENXIO, Status::NAMESPACE_NOT_READY),
    ] {
        bench.reactor.storage_mut().fails = Some(errno);
        let sent = host.send_with(qp, command(io::WRITE, 0, 8), &[0; 4096]);
        let (cqe, _) = run(&mut bench, &mut host, sent);
        assert_eq!(cqe.status().without_more(), status);
        let told = failures.wait(Duration::ZERO).unwrap();
        assert_eq!(told.get(&0).map(|error| error.errno), Some(errno));
    }
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
    bench.reactor.mailbox().order(Order::Detach { answer });
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
    bench.reactor.mailbox().order(Order::Detach { answer });
    bench.run_for(&mut [&mut host], Duration::from_secs(60));
    assert_eq!(bench.reactor.queue_pairs(), 0);
    assert_eq!(hears.try_recv(), Ok(()));
    bench.reactor.storage_mut().hold = false;
}
