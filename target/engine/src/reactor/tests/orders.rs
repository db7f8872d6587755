//! Closing of backing stores and listeners by orders.

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
use crate::mailbox::{Mail, Order, Reply, ReplyReceiver};

pub(super) fn claim() -> Claim {
    Claim::take(&"null:1M".parse().unwrap(), None).unwrap()
}

/// Orders the only backing store to be closed.
pub(super) fn close(bench: &Bench) -> Receiver<u32> {
    let (reply, receiver) = channel();
    let stores = vec![(0, claim())];
    bench
        .reactor
        .mailbox()
        .order(Order::Close { stores, reply });
    receiver
}

#[test]
fn store_is_flushed_and_closed_after_the_last_command() {
    let mut bench = Bench::new(61);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    bench.reactor.stores_mut().hold = true;
    let sent = host.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.stores_mut().in_flight() == 1
    });
    let receiver = close(&bench);
    bench.run_for(&mut [&mut host], Duration::from_secs(1));
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    assert_eq!(bench.reactor.stores_mut().flushes, 0);
    bench.reactor.stores_mut().hold = false;
    let (cqe, _) = run(&mut bench, &mut host, sent);
    assert_eq!(cqe.status(), Status::SUCCESS);
    bench.run_for(&mut [&mut host], Duration::from_secs(1));
    assert_eq!(receiver.try_recv(), Ok(0));
    assert_eq!(bench.reactor.stores_mut().flushes, 1);
    assert_eq!(bench.reactor.stores_mut().closed, [0]);
}

#[test]
fn command_awaiting_a_buffer_keeps_its_store_open() {
    let mut bench = Bench::new(62);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    // Four long buffers: the fifth read waits, and the backing store has only four.
    bench.reactor.stores_mut().hold = true;
    let sent: Vec<_> = (0..5)
        .map(|_| host.send_with(qp, command(io::READ, 0, 512), &vec![0; 512 * 512]))
        .collect();
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.stores_mut().in_flight() == 4
    });
    let receiver = close(&bench);
    bench.reactor.stores_mut().hold = false;
    for sent in sent {
        let (cqe, _) = run(&mut bench, &mut host, sent);
        assert_eq!(cqe.status(), Status::SUCCESS);
    }
    bench.run_for(&mut [&mut host], Duration::from_secs(1));
    assert_eq!(receiver.try_recv(), Ok(0));
}

#[test]
fn close_of_unknown_store_is_confirmed() {
    let mut bench = Bench::new(63);
    let (reply, receiver) = channel();
    let stores = vec![(7, claim())];
    bench
        .reactor
        .mailbox()
        .order(Order::Close { stores, reply });
    bench.run_for(&mut [], Duration::from_millis(10));
    assert_eq!(receiver.try_recv(), Ok(7));
    assert_eq!(bench.reactor.stores_mut().flushes, 0);
}

/// After a timeout of the requester, the listener is closed again.
#[test]
fn late_listener_is_closed() {
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
        let received = received(&mut bench, awaited, late);
        assert_eq!(bench.reactor.listeners.len(), expected);
        // The second time the address is free.
        assert_eq!(
            received.map(|listened| listened.is_ok()),
            (!late).then_some(true)
        );
    }
}

/// The response of the reactor, if it is not too `late`.
fn received<T>(bench: &mut Bench, awaited: ReplyReceiver<T>, late: bool) -> Option<T> {
    if late {
        assert!(awaited.within(Duration::ZERO).is_none());
        bench.run_for(&mut [], Duration::from_millis(10));
        return None;
    }
    bench.run_for(&mut [], Duration::from_millis(10));
    awaited.within(Duration::ZERO)
}

/// The same for a provider. One that other reactors do not have is removed again.
#[test]
fn provider_is_removed_if_another_reactor_lacks_it() {
    let mut bench = Bench::new(67);
    let add = |bench: &mut Bench, late| {
        let endpoint = bench
            .net
            .endpoint([10, 0, 0, 7].into(), SoftConfig::default());
        let (reply, awaited) = Reply::new();
        let provider = Box::new(endpoint);
        let order = Order::Add { provider, reply };
        bench.reactor.mailbox().order(order);
        received(bench, awaited, late)
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

/// In whatever state a connection is when its port is removed, it is not accepted
/// afterwards.
#[test]
fn connection_is_closed_with_its_port() {
    for iterations in 0..30 {
        let mut bench = Bench::new(65);
        let mut host = bench.host();
        host.open(bench.net.now(), &CmRequest::new(0, 32));
        let mut left = iterations;
        bench.until(&mut [&mut host], |_, _| {
            left -= 1;
            left < 0
        });
        let (reply, receiver) = channel();
        bench.reactor.mailbox().order(Order::Unlisten {
            provider: 0,
            address: bench.address,
            reply,
        });
        bench.run_for(&mut [&mut host], Duration::from_secs(1));
        assert!(receiver.try_recv().unwrap().is_empty());
        assert_eq!(
            bench.reactor.queue_pairs(),
            0,
            "after {iterations} iterations"
        );
    }
}

/// The failure of a backing store reaches the host and the monitor of backing stores.
#[test]
fn gone_store_is_reported() {
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
        bench.reactor.stores_mut().fails = Some(errno);
        let sent = host.send_with(qp, command(io::WRITE, 0, 8), &[0; 4096]);
        let (cqe, _) = run(&mut bench, &mut host, sent);
        assert_eq!(cqe.status().without_more(), status);
        let reported = failures.wait(Duration::ZERO).unwrap();
        assert_eq!(reported.get(&0).map(|error| error.errno), Some(errno));
    }
}

#[test]
fn detach_closes_after_commands_and_hosts_may_reconnect() {
    let mut bench = Bench::new(64);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    bench.reactor.stores_mut().hold = true;
    let sent = host.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.stores_mut().in_flight() == 1
    });
    let (reply, receiver) = channel();
    bench.reactor.mailbox().order(Order::Detach { reply });
    bench.run_for(&mut [&mut host], Duration::from_millis(100));
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    bench.reactor.stores_mut().hold = false;
    let (cqe, _) = run(&mut bench, &mut host, sent);
    assert_eq!(cqe.status(), Status::SUCCESS);
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.queue_pairs() == 0
    });
    bench.run_for(&mut [&mut host], Duration::from_millis(10));
    assert_eq!(receiver.try_recv(), Ok(()));
    assert!(
        bench.reactor.stores_mut().closed.is_empty(),
        "backing stores stay open"
    );
}

#[test]
fn detach_closes_stalled_hosts_after_the_timeout() {
    let mut bench = Bench::new(65);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    bench.reactor.stores_mut().hold = true;
    let _ = host.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.stores_mut().in_flight() == 1
    });
    let (reply, receiver) = channel();
    bench.reactor.mailbox().order(Order::Detach { reply });
    bench.run_for(&mut [&mut host], Duration::from_secs(60));
    assert_eq!(bench.reactor.queue_pairs(), 0);
    assert_eq!(receiver.try_recv(), Ok(()));
    bench.reactor.stores_mut().hold = false;
}

/// Operations that do not end.
#[test]
fn abandoned_store_closes_connections_with_commands_on_it() {
    let mut bench = Bench::new(66);
    let (mut host, mut other) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut host);
    ready(&mut bench, &mut other);
    bench.reactor.stores_mut().hold = true;
    host.send_with(qp, command(io::WRITE, 0, 8), &[1; 4096]);
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.stores_mut().in_flight() == 1
    });
    let receiver = close(&bench);
    bench.run_for(&mut [&mut host, &mut other], Duration::from_secs(1));
    assert_eq!(host.closed.len(), 0);
    let stores = vec![0];
    bench.reactor.mailbox().order(Order::Abandon { stores });
    bench.run_for(&mut [&mut host, &mut other], Duration::from_secs(1));
    assert!(host.closed.iter().any(|(closed, _)| *closed == qp));
    assert_eq!(other.closed.len(), 0);
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    // It does not keep the reactor from stopping, although a flush would not end either.
    bench.reactor.mailbox().send(Mail::DRAIN);
    bench.run_for(&mut [&mut host, &mut other], Duration::from_secs(1));
    assert!(bench.drained);
    assert_eq!(bench.reactor.stores_mut().in_flight(), 1);
}

#[test]
fn abandoned_store_is_closed_when_its_operations_end() {
    let mut bench = Bench::new(67);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    bench.reactor.stores_mut().hold = true;
    host.send_with(qp, command(io::WRITE, 0, 8), &[1; 4096]);
    bench.run_for(&mut [&mut host], Duration::from_millis(100));
    let receiver = close(&bench);
    let stores = vec![0];
    bench.reactor.mailbox().order(Order::Abandon { stores });
    bench.run_for(&mut [&mut host], Duration::from_secs(1));
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    bench.reactor.stores_mut().hold = false;
    bench.run_for(&mut [&mut host], Duration::from_secs(1));
    assert_eq!(receiver.try_recv(), Ok(0));
    assert_eq!(bench.reactor.stores_mut().flushes, 0);
}
