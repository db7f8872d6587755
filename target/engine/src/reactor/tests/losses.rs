//! What a disk loses is told to all hosts that wrote.

use nix::errno::Errno;
use nvmeof_backend::Storage as _;
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
fn every_host_that_wrote_is_told_once_that_a_flush_failed() {
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

    let told = Status::WRITE_FAULT;
    bench.reactor.storage_mut().fails = Some(Errno::EIO);
    assert_eq!(flush(&mut bench, &mut host, qp, 1).kind(), told);
    bench.reactor.storage_mut().fails = None;
    assert!(
        flush(&mut bench, &mut host, qp, 1).is_success(),
        "it was told"
    );
    assert!(
        flush(&mut bench, &mut reader, readers, 1).is_success(),
        "it wrote nothing"
    );
    // It left and is back, and asks for all namespaces.
    other.provider.disconnect(its);
    bench.run_for(&mut [&mut other], std::time::Duration::from_millis(100));
    let (_, its) = ready(&mut bench, &mut other);
    let status = flush(&mut bench, &mut other, its, u32::MAX);
    assert_eq!(status.kind(), told);
    assert!(
        status.dnr(),
        "or the host sends it again and is told that all is well"
    );
    assert!(flush(&mut bench, &mut other, its, u32::MAX).is_success());
    assert!(flush(&mut bench, &mut other, its, 1).is_success());
}

/// The answer may be lost, or come after that of another queue. So each queue is told until
/// the host has sent so much more on one that was told that it must have had its answer.
#[test]
fn every_queue_is_told_until_the_host_must_have_heard() {
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
    bench.reactor.storage_mut().losses[0].add();
    let told = Status::WRITE_FAULT;
    assert_eq!(flush(&mut bench, &mut host, first, 1).kind(), told);
    assert!(flush(&mut bench, &mut host, first, 1).is_success());
    assert_eq!(flush(&mut bench, &mut host, second, 1).kind(), told);
    assert!(flush(&mut bench, &mut host, second, 1).is_success());
    // A queue that is lost may have lost the answer with it.
    host.provider.disconnect(second);
    bench.run_for(&mut [&mut host], std::time::Duration::from_millis(100));
    let second = queue(&mut bench, &mut host, 2);
    assert_eq!(flush(&mut bench, &mut host, second, 1).kind(), told);
    // What is sent before an answer comes is no more than a queue holds.
    for _ in 0..2 * entries {
        assert!(flush(&mut bench, &mut host, first, 1).is_success());
    }
    let third = queue(&mut bench, &mut host, 3);
    assert!(flush(&mut bench, &mut host, third, 1).is_success());
    // The next loss is another.
    write(&mut bench, &mut host, first);
    bench.reactor.storage_mut().losses[0].add();
    for qp in [first, second, third] {
        assert_eq!(flush(&mut bench, &mut host, qp, 1).kind(), told);
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

/// What it gave up may be there again.
#[test]
fn a_host_that_deallocated_is_told_as_well() {
    let mut bench = Bench::new(86);
    let (mut host, mut other) = (bench.host(), bench.host());
    let (_, qp) = ready(&mut bench, &mut host);
    let (_, its) = ready(&mut bench, &mut other);
    deallocate(&mut bench, &mut other, its);
    bench.reactor.storage_mut().fails = Some(Errno::EIO);
    assert!(!flush(&mut bench, &mut host, qp, 1).is_success());
    bench.reactor.storage_mut().fails = None;
    let told = flush(&mut bench, &mut other, its, 1);
    assert_eq!(told.kind(), Status::WRITE_FAULT);
    assert!(flush(&mut bench, &mut other, its, 1).is_success());
}

/// There are too many others, so it could not be told later.
#[test]
fn what_a_host_changes_that_cannot_be_remembered_is_stable_first() {
    let mut bench = Bench::new(87);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    let storage = bench.reactor.storage_mut().losses(0).unwrap().now().storage;
    let remembered = |number: &u32| {
        let name = Nqn::new(&format!("nqn.2026-11.org.example:other{number}")).unwrap();
        let writers = bench.reactor.target.writers();
        let all = || [storage].into();
        writers.join(storage, &name, 0, all).is_some()
    };
    assert!((0..).take_while(remembered).count() > 1000);
    write(&mut bench, &mut host, qp);
    deallocate(&mut bench, &mut host, qp);
    let durable = &bench.reactor.storage_mut().durable;
    assert_eq!(*durable, ["write", "deallocate"]);
}

/// Nobody hears what becomes of a Flush whose queue is gone.
#[test]
fn who_asked_is_told_as_well_if_it_was_not_answered() {
    let mut bench = Bench::new(84);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    write(&mut bench, &mut host, qp);
    bench.reactor.storage_mut().hold = true;
    host.send(qp, command(io::FLUSH, 0, 1), &[]);
    let a_while = std::time::Duration::from_millis(100);
    bench.run_for(&mut [&mut host], a_while);
    host.provider.disconnect(qp);
    bench.run_for(&mut [&mut host], a_while);
    let storage = bench.reactor.storage_mut();
    (storage.hold, storage.fails) = (false, Some(Errno::EIO));
    bench.run_for(&mut [&mut host], a_while);
    bench.reactor.storage_mut().fails = None;
    let (_, qp) = ready(&mut bench, &mut host);
    assert_eq!(
        flush(&mut bench, &mut host, qp, 1).kind(),
        Status::WRITE_FAULT
    );
    assert!(flush(&mut bench, &mut host, qp, 1).is_success());
}

/// A disk that is gone for a while has the host send its Flush again, which is no answer.
#[test]
fn a_flush_that_is_to_be_sent_again_tells_nothing() {
    let mut bench = Bench::new(85);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    write(&mut bench, &mut host, qp);
    bench.reactor.storage_mut().fails = Some(Errno::ENODEV);
    let status = flush(&mut bench, &mut host, qp, 1);
    assert_eq!(status.kind(), Status::NAMESPACE_NOT_READY);
    bench.reactor.storage_mut().fails = None;
    assert_eq!(
        flush(&mut bench, &mut host, qp, 1).kind(),
        Status::WRITE_FAULT
    );
    assert!(flush(&mut bench, &mut host, qp, 1).is_success());
}

/// What was flushed, by whomever, is not lost with what was written later.
#[test]
fn who_had_everything_flushed_is_not_told() {
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
    bench.reactor.storage_mut().losses[0].add();
    // It goes on before it asks: that changes nothing for either.
    write(&mut bench, &mut host, qp);
    write(&mut bench, &mut other, its);
    assert!(flush(&mut bench, &mut host, qp, 1).is_success());
    let told = Status::WRITE_FAULT;
    assert_eq!(flush(&mut bench, &mut other, its, 1).kind(), told);
    assert!(flush(&mut bench, &mut other, its, 1).is_success());
}

/// It may have been among what was lost, and is answered after that.
#[test]
fn a_write_during_which_something_is_lost_is_told() {
    let mut bench = Bench::new(87);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    write(&mut bench, &mut host, qp);
    assert!(flush(&mut bench, &mut host, qp, 1).is_success());
    bench.reactor.storage_mut().hold = true;
    let sent = host.send_with(qp, command(io::WRITE, 4, 1), &[2; 512]);
    let a_while = std::time::Duration::from_millis(100);
    bench.run_for(&mut [&mut host], a_while);
    let storage = bench.reactor.storage_mut();
    assert_eq!(storage.in_flight_at(4 * 512), 1);
    storage.losses[0].add();
    // With this one it is settled that what was answered before was stable.
    let later = host.send_with(qp, command(io::WRITE, 5, 1), &[2; 512]);
    bench.run_for(&mut [&mut host], a_while);
    let storage = bench.reactor.storage_mut();
    assert_eq!(storage.in_flight(), 2);
    storage.hold = false;
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    assert!(run(&mut bench, &mut host, later).0.status().is_success());
    assert_eq!(
        flush(&mut bench, &mut host, qp, 1).kind(),
        Status::WRITE_FAULT
    );
    assert!(flush(&mut bench, &mut host, qp, 1).is_success());
}

/// A Flush says nothing about a write that was answered while it ran: what the disk lost
/// with the Flush is told with the next one.
#[test]
fn a_write_that_is_answered_during_a_flush_is_told_with_the_next() {
    let mut bench = Bench::new(88);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    write(&mut bench, &mut host, qp);
    assert!(flush(&mut bench, &mut host, qp, 1).is_success());
    bench.reactor.storage_mut().hold = true;
    let a_while = std::time::Duration::from_millis(100);
    let asked = host.send(qp, command(io::FLUSH, 0, 1), &[]);
    bench.run_for(&mut [&mut host], a_while);
    // The disk does the younger one first.
    let sent = host.send_with(qp, command(io::WRITE, 4, 1), &[2; 512]);
    bench.run_for(&mut [&mut host], a_while);
    let storage = bench.reactor.storage_mut();
    storage.last_first();
    storage.lets_go = 1;
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    let storage = bench.reactor.storage_mut();
    (storage.hold, storage.fails) = (false, Some(Errno::EIO));
    let told = Status::WRITE_FAULT;
    assert_eq!(run(&mut bench, &mut host, asked).0.status().kind(), told);
    bench.reactor.storage_mut().fails = None;
    assert_eq!(flush(&mut bench, &mut host, qp, 1).kind(), told);
    assert!(flush(&mut bench, &mut host, qp, 1).is_success());
}

/// A disk that hangs holds up the shutdown of those that wrote to it, and of nobody else.
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
    bench.reactor.storage_mut().hold = true;
    let sent = shut_down(&mut reader, readers_admin);
    assert!(run(&mut bench, &mut reader, sent).0.status().is_success());
    // By which queue it was written, and whether that is there, does not matter.
    let a_while = std::time::Duration::from_millis(100);
    host.provider.disconnect(qp);
    bench.run_for(&mut [&mut host], a_while);
    let sent = shut_down(&mut host, admin);
    bench.run_for(&mut [&mut host], a_while);
    assert_eq!(bench.reactor.storage_mut().in_flight(), 1);
    bench.reactor.storage_mut().hold = false;
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    // What is stable is not flushed again.
    let (admin, _) = ready(&mut bench, &mut host);
    bench.reactor.storage_mut().hold = true;
    let sent = shut_down(&mut host, admin);
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
}

fn shut_down(host: &mut Host, admin: QpId) -> Sent {
    let cc = PropertyValue::Dword(Cc::ENABLE.with_normal_shutdown().0);
    host.send(admin, PropertyAccess::set(Property::CC, cc), &[])
}
