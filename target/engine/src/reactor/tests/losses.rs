//! Lost writes are reported to all hosts that wrote.

use nix::errno::Errno;
use nvmeof_backend::BackingStores as _;
use nvmeof_rdma::{Provider, QpId};
use nvmeof_wire::fabrics::{Connect, PropertyAccess};
use nvmeof_wire::nvm::{DatasetManagement, DsmRange};
use nvmeof_wire::opcode::io;
use nvmeof_wire::registers::{Cc, Property, PropertyValue};
use nvmeof_wire::{Nqn, Sqe, Status};
use zerocopy::IntoBytes;

use super::host::{Host, Sent, admin, connect, ready, run};
use super::io::command;
use super::{Bench, few_buffers};
use crate::ReactorConfig;

fn flush(bench: &mut Bench, host: &mut Host, qp: QpId, nsid: u32) -> Status {
    let sqe = Sqe {
        nsid: nsid.into(),
        ..command(io::FLUSH, 0, 1)
    };
    let sent = host.send(qp, sqe, &[]);
    run(bench, host, sent).0.status()
}

fn write(bench: &mut Bench, host: &mut Host, qp: QpId) {
    let sent = host.send_with(qp, command(io::WRITE, 4, 1), &[1; 512]);
    assert!(run(bench, host, sent).0.status().is_success());
}

#[test]
fn failed_flush_is_reported_once_to_every_writer() {
    let config = ReactorConfig {
        capsules: 1024,
        ..few_buffers()
    };
    let mut bench = Bench::with(83, config);
    let (mut host, mut other, mut reader) = (bench.host(), bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut host);
    let (_, its) = ready(&mut bench, &mut other);
    let (_, readers) = ready(&mut bench, &mut reader);
    write(&mut bench, &mut host, qp);
    write(&mut bench, &mut other, its);
    let sent = reader.send_with(readers, command(io::READ, 4, 1), &[0; 512]);
    assert!(run(&mut bench, &mut reader, sent).0.status().is_success());

    let failure = Status::WRITE_FAULT;
    bench.reactor.stores_mut().fails = Some(Errno::EIO);
    assert_eq!(flush(&mut bench, &mut host, qp, 1).kind(), failure);
    bench.reactor.stores_mut().fails = None;
    assert!(
        flush(&mut bench, &mut host, qp, 1).is_success(),
        "the loss was reported"
    );
    assert!(
        flush(&mut bench, &mut reader, readers, 1).is_success(),
        "it wrote nothing"
    );
    // It disconnected and reconnected, and flushes all namespaces.
    other.provider.disconnect(its);
    bench.run_for(&mut [&mut other], std::time::Duration::from_millis(100));
    let (_, its) = ready(&mut bench, &mut other);
    let status = flush(&mut bench, &mut other, its, u32::MAX);
    assert_eq!(status.kind(), failure);
    assert!(
        status.dnr(),
        "or the host sends it again and gets a success"
    );
    assert!(flush(&mut bench, &mut other, its, u32::MAX).is_success());
    assert!(flush(&mut bench, &mut other, its, 1).is_success());
}

/// The response may be lost, or arrive after one of another queue. Each queue therefore
/// reports the loss until the host has certainly received one of these responses.
#[test]
fn write_loss_is_reported_on_every_queue_until_received() {
    let config = ReactorConfig {
        capsules: 1024,
        ..few_buffers()
    };
    let mut bench = Bench::with(90, config);
    let mut host = bench.host();
    let (_, cntlid) = admin(&mut bench, &mut host, 0);
    let entries = 8;
    let queue = |bench: &mut Bench, host: &mut Host, qid| {
        connect(bench, host, &Connect::new(qid, entries, 0), cntlid).0
    };
    let [first, second] = [1, 2].map(|qid| queue(&mut bench, &mut host, qid));
    write(&mut bench, &mut host, first);
    bench.reactor.stores_mut().losses[0].add();
    let failure = Status::WRITE_FAULT;
    assert_eq!(flush(&mut bench, &mut host, first, 1).kind(), failure);
    assert!(flush(&mut bench, &mut host, first, 1).is_success());
    assert_eq!(flush(&mut bench, &mut host, second, 1).kind(), failure);
    assert!(flush(&mut bench, &mut host, second, 1).is_success());
    // A queue that is lost may have lost the response as well.
    host.provider.disconnect(second);
    bench.run_for(&mut [&mut host], std::time::Duration::from_millis(100));
    let second = queue(&mut bench, &mut host, 2);
    assert_eq!(flush(&mut bench, &mut host, second, 1).kind(), failure);
    // Without a response, a host sends no more commands than a queue holds.
    for _ in 0..2 * entries {
        assert!(flush(&mut bench, &mut host, first, 1).is_success());
    }
    let third = queue(&mut bench, &mut host, 3);
    assert!(flush(&mut bench, &mut host, third, 1).is_success());
    // The next loss is another one.
    write(&mut bench, &mut host, first);
    bench.reactor.stores_mut().losses[0].add();
    for qp in [first, second, third] {
        assert_eq!(flush(&mut bench, &mut host, qp, 1).kind(), failure);
        assert!(flush(&mut bench, &mut host, qp, 1).is_success());
    }
}

fn deallocate(bench: &mut Bench, host: &mut Host, qp: QpId) {
    let trim = DatasetManagement {
        nsid: 1,
        ranges: 1,
        deallocate: true,
    };
    let range = DsmRange::new(4, 8);
    let sent = host.send_with(qp, trim.to_sqe(), range.as_bytes());
    assert!(run(bench, host, sent).0.status().is_success());
}

/// Deallocated data may be back after a loss.
#[test]
fn write_loss_is_reported_after_deallocate() {
    let mut bench = Bench::new(86);
    let (mut host, mut other) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut host);
    let (_, its) = ready(&mut bench, &mut other);
    deallocate(&mut bench, &mut other, its);
    bench.reactor.stores_mut().fails = Some(Errno::EIO);
    assert!(!flush(&mut bench, &mut host, qp, 1).is_success());
    bench.reactor.stores_mut().fails = None;
    let failure = flush(&mut bench, &mut other, its, 1);
    assert_eq!(failure.kind(), Status::WRITE_FAULT);
    assert!(flush(&mut bench, &mut other, its, 1).is_success());
}

/// There are too many other hosts to remember this one.
#[test]
fn untracked_writes_are_stable_before_completion() {
    let mut bench = Bench::new(87);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let storage = bench.reactor.stores_mut().losses(0).unwrap().now().storage;
    let remembered = |number: &u32| {
        let name = Nqn::new(&format!("nqn.2026-11.org.example:other{number}")).unwrap();
        let writers = bench.reactor.target.writers();
        let all = || [storage].into();
        writers.join(storage, &name, 0, all).is_some()
    };
    assert!((0..).take_while(remembered).count() > 1000);
    write(&mut bench, &mut host, qp);
    deallocate(&mut bench, &mut host, qp);
    let durable = &bench.reactor.stores_mut().durable;
    assert_eq!(*durable, ["write", "deallocate"]);
}

/// The response to a Flush of a closed queue reaches no host.
#[test]
fn loss_at_flush_of_closed_queue_is_reported_to_its_host() {
    let mut bench = Bench::new(84);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    write(&mut bench, &mut host, qp);
    bench.reactor.stores_mut().hold = true;
    host.send(qp, command(io::FLUSH, 0, 1), &[]);
    let a_while = std::time::Duration::from_millis(100);
    bench.run_for(&mut [&mut host], a_while);
    host.provider.disconnect(qp);
    bench.run_for(&mut [&mut host], a_while);
    let stores = bench.reactor.stores_mut();
    (stores.hold, stores.fails) = (false, Some(Errno::EIO));
    bench.run_for(&mut [&mut host], a_while);
    bench.reactor.stores_mut().fails = None;
    let (_, qp) = ready(&mut bench, &mut host);
    assert_eq!(
        flush(&mut bench, &mut host, qp, 1).kind(),
        Status::WRITE_FAULT
    );
    assert!(flush(&mut bench, &mut host, qp, 1).is_success());
}

/// While a backing store is gone, its host has to send the Flush again, which does not
/// report a loss.
#[test]
fn retried_flush_reports_no_loss() {
    let mut bench = Bench::new(85);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    write(&mut bench, &mut host, qp);
    bench.reactor.stores_mut().fails = Some(Errno::ENODEV);
    let status = flush(&mut bench, &mut host, qp, 1);
    assert_eq!(status.kind(), Status::NAMESPACE_NOT_READY);
    bench.reactor.stores_mut().fails = None;
    assert_eq!(
        flush(&mut bench, &mut host, qp, 1).kind(),
        Status::WRITE_FAULT
    );
    assert!(flush(&mut bench, &mut host, qp, 1).is_success());
}

/// Flushed data, by whichever host, are not lost with later writes.
#[test]
fn write_loss_is_not_reported_to_host_with_flushed_data() {
    let config = ReactorConfig {
        capsules: 1024,
        ..few_buffers()
    };
    let mut bench = Bench::with(86, config);
    let (mut host, mut other) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut host);
    let (_, its) = ready(&mut bench, &mut other);
    write(&mut bench, &mut host, qp);
    write(&mut bench, &mut other, its);
    assert!(flush(&mut bench, &mut other, its, 1).is_success());
    write(&mut bench, &mut other, its);
    bench.reactor.stores_mut().losses[0].add();
    // It writes again before its Flush: that changes nothing for either.
    write(&mut bench, &mut host, qp);
    write(&mut bench, &mut other, its);
    assert!(flush(&mut bench, &mut host, qp, 1).is_success());
    let failure = Status::WRITE_FAULT;
    assert_eq!(flush(&mut bench, &mut other, its, 1).kind(), failure);
    assert!(flush(&mut bench, &mut other, its, 1).is_success());
}

/// It may be among the lost writes, and completes afterwards.
#[test]
fn write_loss_during_a_write_is_reported() {
    let mut bench = Bench::new(87);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    write(&mut bench, &mut host, qp);
    assert!(flush(&mut bench, &mut host, qp, 1).is_success());
    bench.reactor.stores_mut().hold = true;
    let sent = host.send_with(qp, command(io::WRITE, 4, 1), &[2; 512]);
    let a_while = std::time::Duration::from_millis(100);
    bench.run_for(&mut [&mut host], a_while);
    let stores = bench.reactor.stores_mut();
    assert_eq!(stores.in_flight_at(4 * 512), 1);
    stores.losses[0].add();
    // The success of this one proves that earlier completed writes were stable.
    let later = host.send_with(qp, command(io::WRITE, 5, 1), &[2; 512]);
    bench.run_for(&mut [&mut host], a_while);
    let stores = bench.reactor.stores_mut();
    assert_eq!(stores.in_flight(), 2);
    stores.hold = false;
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    assert!(run(&mut bench, &mut host, later).0.status().is_success());
    assert_eq!(
        flush(&mut bench, &mut host, qp, 1).kind(),
        Status::WRITE_FAULT
    );
    assert!(flush(&mut bench, &mut host, qp, 1).is_success());
}

/// A Flush does not cover a write that completed while it ran: a loss with this Flush is
/// reported by the next one.
#[test]
fn write_completed_during_a_flush_is_reported_by_the_next() {
    let mut bench = Bench::new(88);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    write(&mut bench, &mut host, qp);
    assert!(flush(&mut bench, &mut host, qp, 1).is_success());
    bench.reactor.stores_mut().hold = true;
    let a_while = std::time::Duration::from_millis(100);
    let asked = host.send(qp, command(io::FLUSH, 0, 1), &[]);
    bench.run_for(&mut [&mut host], a_while);
    // The backing store completes the later one first.
    let sent = host.send_with(qp, command(io::WRITE, 4, 1), &[2; 512]);
    bench.run_for(&mut [&mut host], a_while);
    let stores = bench.reactor.stores_mut();
    stores.last_first();
    stores.completes = 1;
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    let stores = bench.reactor.stores_mut();
    (stores.hold, stores.fails) = (false, Some(Errno::EIO));
    let failure = Status::WRITE_FAULT;
    assert_eq!(run(&mut bench, &mut host, asked).0.status().kind(), failure);
    bench.reactor.stores_mut().fails = None;
    assert_eq!(flush(&mut bench, &mut host, qp, 1).kind(), failure);
    assert!(flush(&mut bench, &mut host, qp, 1).is_success());
}

/// A stalled backing store delays the shutdown only of hosts that wrote to it.
#[test]
fn normal_shutdown_flushes_only_what_the_host_wrote() {
    let config = ReactorConfig {
        capsules: 1024,
        ..few_buffers()
    };
    let mut bench = Bench::with(89, config);
    let (mut host, mut reader) = (bench.host(), bench.host());
    let (admin, qp) = ready(&mut bench, &mut host);
    let (readers_admin, _) = ready(&mut bench, &mut reader);
    write(&mut bench, &mut host, qp);
    bench.reactor.stores_mut().hold = true;
    let sent = shut_down(&mut reader, readers_admin);
    assert!(run(&mut bench, &mut reader, sent).0.status().is_success());
    // It does not matter which queue wrote the data, nor whether it still exists.
    let a_while = std::time::Duration::from_millis(100);
    host.provider.disconnect(qp);
    bench.run_for(&mut [&mut host], a_while);
    let sent = shut_down(&mut host, admin);
    bench.run_for(&mut [&mut host], a_while);
    assert_eq!(bench.reactor.stores_mut().in_flight(), 1);
    bench.reactor.stores_mut().hold = false;
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    // Stable data are not flushed again.
    let (admin, _) = ready(&mut bench, &mut host);
    bench.reactor.stores_mut().hold = true;
    let sent = shut_down(&mut host, admin);
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
}

fn shut_down(host: &mut Host, admin: QpId) -> Sent {
    let cc = PropertyValue::Dword(Cc::ENABLE.with_normal_shutdown().0);
    host.send(admin, PropertyAccess::set(Property::CC, cc), &[])
}
