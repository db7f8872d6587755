//! How commands are counted, and when counters are removed.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::time::Duration;

use nvmeof_wire::nvm::{Io, IoFlags, flush};
use nvmeof_wire::opcode::{Opcode, io};
use nvmeof_wire::{Nqn, Sqe, Status};

use super::{Class, Operation, ReactorMetrics, Subject, SubjectCounters, Totals};
use crate::testing::{HOST, Host, SUBNQN, target};
use crate::{Executed, Target};

fn ready(target: &Target, reactor_metrics: &ReactorMetrics) -> (Host, Host) {
    let (admin, cntlid) = Host::counted(target, reactor_metrics, 0, 0xffff);
    (admin, Host::counted(target, reactor_metrics, 1, cntlid).0)
}

fn command(opcode: Opcode, nsid: u32, slba: u64) -> Sqe {
    Io {
        nsid,
        slba,
        blocks: 2,
        flags: IoFlags::empty(),
    }
    .to_sqe(opcode)
}

/// As long as the target of the test serves them.
fn read(reactor_metrics: &ReactorMetrics, seconds: u64) -> Vec<SubjectCounters> {
    let serves = |subsystem: &Nqn, nsid| subsystem.as_str() == SUBNQN && [0, 1, 3].contains(&nsid);
    reactor_metrics
        .metrics_registry()
        .read(Duration::from_secs(seconds), &serves)
}

fn forgotten(all: &[SubjectCounters]) -> Totals {
    let its = |one: &&SubjectCounters| match one.subject {
        Subject::Forgotten { subsystem } => subsystem.is_some_and(|it| it.as_str() == SUBNQN),
        Subject::Host { .. } | Subject::Namespace { .. } => false,
    };
    let found = all.iter().find(its);
    found.map_or_else(Totals::default, |one| one.totals.clone())
}

fn namespace(all: &[SubjectCounters], wanted: u32) -> Option<&Totals> {
    let is_it = |one: &&SubjectCounters| match one.subject {
        Subject::Namespace { subsystem, nsid } => nsid == wanted && subsystem.as_str() == SUBNQN,
        Subject::Host { .. } | Subject::Forgotten { .. } => false,
    };
    all.iter().find(is_it).map(|one| &one.totals)
}

fn host(all: &[SubjectCounters]) -> (&Totals, bool) {
    let mut found = all.iter().filter_map(|one| match one.subject {
        Subject::Host {
            host,
            subsystem,
            connected,
        } => {
            assert_eq!((host.as_str(), subsystem.as_str()), (HOST, SUBNQN));
            Some((&one.totals, connected))
        }
        Subject::Namespace { .. } | Subject::Forgotten { .. } => None,
    });
    let one = found.next().unwrap();
    assert_eq!(found.next(), None);
    one
}

fn operations(totals: &Totals) -> Vec<(&'static str, u64)> {
    let all = Operation::ALL
        .into_iter()
        .map(|one| (one.name(), totals.operations(one)));
    all.filter(|(_, count)| *count > 0).collect()
}

#[test]
fn commands_are_counted_for_their_namespace_and_their_host() {
    let (target, reactor_metrics) = (target(), ReactorMetrics::default());
    let (_admin, mut queue) = ready(&target, &reactor_metrics);
    queue.read(command(io::READ, 3, 5), 8192);
    queue.write(command(io::WRITE, 1, 0), &[1; 1024]);
    queue.read(command(io::READ, 1, 0), 1024);
    queue.plain(flush(3));
    let all = read(&reactor_metrics, 0);
    let one = namespace(&all, 1).unwrap();
    assert_eq!(operations(one), [("read", 1), ("write", 1)]);
    assert_eq!((one.bytes_read, one.bytes_written), (1024, 1024));
    let three = namespace(&all, 3).unwrap();
    assert_eq!(operations(three), [("read", 1), ("flush", 1)]);
    assert_eq!((three.bytes_read, three.bytes_written), (8192, 0));
    let (host, connected) = host(&all);
    // Connect of both queues, and CC.
    let expected = [("read", 2), ("write", 1), ("flush", 1), ("fabrics", 3)];
    assert_eq!(operations(host), expected);
    assert_eq!((host.bytes_read, host.bytes_written), (9216, 1024));
    assert!(connected);
    assert_eq!(namespace(&all, 0), None);
}

#[test]
fn failed_commands_are_counted_by_status_and_move_no_bytes() {
    let (target, reactor_metrics) = (target(), ReactorMetrics::default());
    let (_admin, mut queue) = ready(&target, &reactor_metrics);
    queue.outcomes = vec![Executed::Failed];
    queue.write(command(io::WRITE, 1, 0), &[1; 1024]);
    queue.read(command(io::READ, 1, 999), 1024);
    // Namespaces that do not exist.
    for nsid in [2, 77, 78] {
        queue.read(command(io::READ, nsid, 0), 1024);
    }
    let all = read(&reactor_metrics, 0);
    let one = namespace(&all, 1).unwrap();
    let failed: Vec<_> = one.failed().collect();
    let expected = [(Status::LBA_OUT_OF_RANGE, 1), (Status::WRITE_FAULT, 1)];
    assert_eq!(failed, expected);
    assert_eq!((one.bytes_read, one.bytes_written), (0, 0));
    let none = namespace(&all, 0).unwrap();
    assert_eq!(operations(none), [("read", 3)]);
    let of_host: Vec<_> = host(&all).0.failed().collect();
    let unknown = (Status::INVALID_FIELD, 3);
    assert_eq!(of_host, [unknown, expected[0], expected[1]]);
    assert_eq!(all.len(), 3, "{all:?}");
}

#[test]
fn latency_is_from_arrival_to_response() {
    let (target, reactor_metrics) = (target(), ReactorMetrics::default());
    let (_admin, mut queue) = ready(&target, &reactor_metrics);
    queue.read(command(io::READ, 1, 0), 1024);
    queue.slow = Duration::from_micros(90);
    queue.read(command(io::READ, 1, 0), 1024);
    queue.write(command(io::WRITE, 1, 0), &[1; 1024]);
    let all = read(&reactor_metrics, 0);
    let latency = |class| {
        let totals = namespace(&all, 1).unwrap();
        let (_, found) = totals.latency().find(|(one, _)| *one == class).unwrap();
        (found.buckets().collect::<Vec<_>>(), found.sum_ns)
    };
    let read = vec![(Some(1), 1), (Some(96), 1)];
    assert_eq!(latency(Class::Read), (read, 90_000));
    assert_eq!(latency(Class::Write), (vec![(Some(96), 1)], 90_000));
    assert_eq!(latency(Class::Other), (vec![], 0));
}

#[test]
fn departed_host_is_kept_for_a_while() {
    let (target, reactor_metrics) = (target(), ReactorMetrics::default());
    let (admin, mut queue) = ready(&target, &reactor_metrics);
    queue.read(command(io::READ, 1, 0), 1024);
    drop(admin);
    assert!(
        host(&read(&reactor_metrics, 0)).1,
        "the other queue is there"
    );
    queue.queue.count_connection_error();
    assert_eq!(host(&read(&reactor_metrics, 0)).0.broken, 1);
    drop(queue);
    assert!(!host(&read(&reactor_metrics, 5000)).1);
    assert_eq!(host(&read(&reactor_metrics, 5599)).0.bytes_read, 1024);
    assert_eq!(forgotten(&read(&reactor_metrics, 5599)), Totals::default());
    let later = read(&reactor_metrics, 5600);
    let of_host = |one: &SubjectCounters| matches!(one.subject, Subject::Host { .. });
    assert!(!later.iter().any(of_host), "{later:?}");
    let left = forgotten(&later);
    assert_eq!((left.bytes_read, left.broken), (1024, 1));
    assert_eq!(left.operations(Operation::Read), 1);
    // It restarts from zero when it returns.
    let _queues = ready(&target, &reactor_metrics);
    assert_eq!(host(&read(&reactor_metrics, 5601)).0.bytes_read, 0);
}

/// Its commands remain in the sums of the reactor.
#[test]
fn counts_of_removed_subsystems_are_merged() {
    let (target, reactor_metrics) = (target(), ReactorMetrics::default());
    let (admin, mut queue) = ready(&target, &reactor_metrics);
    queue.read(command(io::READ, 1, 0), 1024);
    drop((admin, queue));
    let before = read(&reactor_metrics, 0);
    let before = host(&before).0;
    let _ = read(&reactor_metrics, 0);
    assert_eq!(&forgotten(&read(&reactor_metrics, 600)), before);
    for seconds in [601, 602] {
        let later = reactor_metrics
            .metrics_registry()
            .read(Duration::from_secs(seconds), &|_, _| false);
        let [one] = &later[..] else {
            panic!("{later:?}");
        };
        assert_eq!(one.subject, Subject::Forgotten { subsystem: None });
        assert_eq!(&one.totals, before);
    }
}

#[test]
fn returning_host_continues_counting() {
    let (target, reactor_metrics) = (target(), ReactorMetrics::default());
    for round in 1..=3 {
        let (_admin, mut queue) = ready(&target, &reactor_metrics);
        queue.read(command(io::READ, 1, 0), 1024);
        let all = read(&reactor_metrics, round * 500);
        assert_eq!(host(&all), (host(&all).0, true));
        assert_eq!(host(&all).0.bytes_read, round * 1024);
    }
}

#[test]
fn metrics_of_changing_host_names_are_bounded() {
    let reactor_metrics = ReactorMetrics::default();
    let nqn = |n: u64| Nqn::new(&format!("nqn.2026-11.org.example:{n}")).unwrap();
    let stays = reactor_metrics.host(nqn(0), nqn(0));
    for n in 1..1000 {
        drop(reactor_metrics.host(nqn(n), nqn(0)));
    }
    let all = read(&reactor_metrics, 0);
    assert_eq!(all.len(), 2 + super::reactor_metrics::MOST_UNUSED);
    let names = |n| {
        let its = move |one: &&SubjectCounters| match one.subject {
            Subject::Host { host, .. } => host == nqn(n),
            Subject::Namespace { .. } | Subject::Forgotten { .. } => false,
        };
        all.iter().find(its).is_some()
    };
    assert!(names(0) && names(999) && !names(1));
    drop(stays);
}

#[test]
fn unserved_namespace_is_hidden_and_forgotten_when_unused() {
    let (target, reactor_metrics) = (target(), ReactorMetrics::default());
    let (admin, mut queue) = ready(&target, &reactor_metrics);
    queue.read(command(io::READ, 1, 0), 1024);
    let hidden = reactor_metrics
        .metrics_registry()
        .read(Duration::ZERO, &|_, _| false);
    assert!(namespace(&hidden, 1).is_none());
    // The queue continues to count in the same entry.
    queue.read(command(io::READ, 1, 0), 1024);
    assert_eq!(
        namespace(&read(&reactor_metrics, 0), 1).unwrap().bytes_read,
        2048
    );
    drop((admin, queue));
    assert_eq!(
        namespace(&read(&reactor_metrics, 0), 1).unwrap().bytes_read,
        2048
    );
    let _ = reactor_metrics
        .metrics_registry()
        .read(Duration::ZERO, &|_, _| false);
    assert!(namespace(&read(&reactor_metrics, 0), 1).is_none());
}
