//! Storing of write protections that is slow, fails or never ends: only the command waits
//! for it.

use std::io;
use std::time::Duration;

use nvmeof_rdma::{Provider, QpId};
use nvmeof_wire::admin::{GetFeatures, Select, bare};
use nvmeof_wire::features::{FeatureId, WriteProtection};
use nvmeof_wire::opcode::{admin as opcode, io as io_opcode};
use nvmeof_wire::registers::{Cc, Property, PropertyValue};
use nvmeof_wire::{Status, fabrics};

use super::Bench;
use super::host::{Host, Sent, admin, ready, run};
use super::io::command;
use super::protection::{set, settle};
use crate::mailbox::Mail;

const PROTECTED: WriteProtection = WriteProtection::PROTECTED;
const NONE: WriteProtection = WriteProtection::NONE;

/// A bench that stores nothing by itself, and a host that requests protection.
fn waiting(seed: u64) -> (Bench, Host, [QpId; 2], Sent) {
    let mut bench = Bench::new(seed);
    bench.saves_at_once = false;
    let mut host = bench.host();
    let (admin, queue) = ready(&mut bench, &mut host);
    let asked = set(&mut host, admin, PROTECTED);
    settle(&mut bench, &mut [&mut host]);
    assert!(host.take(asked).is_none());
    (bench, host, [admin, queue], asked)
}

fn full() -> io::Result<()> {
    Err(io::ErrorKind::StorageFull.into())
}

fn state(bench: &mut Bench, host: &mut Host, admin: QpId) -> WriteProtection {
    let command = GetFeatures {
        fid: FeatureId::NAMESPACE_WRITE_PROTECTION,
        select: Select::Current,
        cdw11: 0,
        nsid: 1,
    };
    let sent = host.send(admin, command.to_sqe(), &[]);
    WriteProtection::from_dword(run(bench, host, sent).0.dw0())
}

fn write(bench: &mut Bench, host: &mut Host, queue: QpId) -> Status {
    let sent = host.send_with(queue, command(io_opcode::WRITE, 4, 1), &[9; 512]);
    run(bench, host, sent).0.status().kind()
}

#[test]
fn stalled_keeper_does_not_block_other_commands() {
    let (mut bench, mut host, [own_admin, queue], asked) = waiting(80);
    // A request that was taken no longer waits.
    let stalled = bench.reactor.target.next_save().unwrap();
    let alive = host.send(own_admin, bare(opcode::ASYNC_EVENT_REQUEST), &[]);
    assert_eq!(state(&mut bench, &mut host, own_admin), PROTECTED);
    let read = host.send_with(queue, command(io_opcode::READ, 4, 1), &[0; 512]);
    assert!(run(&mut bench, &mut host, read).0.status().is_success());
    let mut other = bench.host();
    let (other_admin, other_queue) = {
        let (qp, cntlid) = admin(&mut bench, &mut other, 5000);
        let connect = fabrics::Connect::new(1, 128, 0);
        let (queue, _) = super::host::connect(&mut bench, &mut other, &connect, cntlid);
        (qp, queue)
    };
    for _ in 0..5 {
        let sent = other.send(other_admin, bare(opcode::KEEP_ALIVE), &[]);
        assert!(run(&mut bench, &mut other, sent).0.status().is_success());
        let status = write(&mut bench, &mut other, other_queue);
        assert_eq!(status, Status::NAMESPACE_WRITE_PROTECTED);
    }
    // Another request waits as well, and is withdrawn.
    let later = set(&mut other, other_admin, NONE);
    let target = bench.reactor.target.clone();
    let _ = target
        .apply(nvmeof_target_core::Model::clone(&target.model()))
        .unwrap();
    settle(&mut bench, &mut [&mut host, &mut other]);
    assert!(host.take(asked).is_none() && other.take(later).is_none());
    bench.finish_save_of(stalled, &Ok(()));
    assert!(run(&mut bench, &mut host, asked).0.status().is_success());
    assert!(other.take(later).is_none());
    assert_eq!(bench.stored.len(), 1);
    bench.finish_save(&Ok(()));
    assert!(run(&mut bench, &mut other, later).0.status().is_success());
    assert_eq!(write(&mut bench, &mut host, queue), Status::SUCCESS);
    assert!(bench.stored.is_empty());
    let _ = alive;
}

#[test]
fn failed_save_fails_the_command_and_restores_the_state() {
    let (mut bench, mut host, [admin, queue], asked) = waiting(81);
    bench.finish_save(&full());
    let (cqe, _) = run(&mut bench, &mut host, asked);
    assert_eq!(
        cqe.status().without_more(),
        Status::INTERNAL_ERROR,
        "and may be tried again"
    );
    assert_eq!(write(&mut bench, &mut host, queue), Status::SUCCESS);
    let again = set(&mut host, admin, PROTECTED);
    settle(&mut bench, &mut [&mut host]);
    bench.finish_save(&Ok(()));
    assert!(run(&mut bench, &mut host, again).0.status().is_success());
    let back = set(&mut host, admin, NONE);
    settle(&mut bench, &mut [&mut host]);
    let status = write(&mut bench, &mut host, queue);
    assert_eq!(
        status,
        Status::NAMESPACE_WRITE_PROTECTED,
        "until it is kept"
    );
    bench.finish_save(&full());
    let (cqe, _) = run(&mut bench, &mut host, back);
    assert_eq!(cqe.status().without_more(), Status::INTERNAL_ERROR);
    let status = write(&mut bench, &mut host, queue);
    assert_eq!(status, Status::NAMESPACE_WRITE_PROTECTED);
}

/// A host that sends requests without end: their number is bounded by its outstanding
/// commands, and one write stores all of them.
#[test]
fn concurrent_protection_requests_are_saved_together() {
    let (mut bench, mut host, [admin, _], asked) = waiting(82);
    let stalled = bench.reactor.target.next_save().unwrap();
    let mut sent = Vec::new();
    let mut others: Vec<Host> = (0..8).map(|_| bench.host()).collect();
    for other in &mut others {
        let (admin, _) = super::host::admin(&mut bench, other, 0);
        for at in 0..30 {
            let to = if at % 2 == 0 { NONE } else { PROTECTED };
            sent.push(set(other, admin, to));
        }
        settle(&mut bench, &mut [other]);
    }
    assert_eq!(
        bench.reactor.resources.locked.waiting.pending_saves(),
        1 + 8 * 30
    );
    bench.finish_save_of(stalled, &Ok(()));
    assert!(run(&mut bench, &mut host, asked).0.status().is_success());
    bench.finish_save(&Ok(()));
    let mut hosts: Vec<&mut Host> = others.iter_mut().collect();
    settle(&mut bench, &mut hosts);
    for (at, sent) in sent.into_iter().enumerate() {
        let (cqe, _) = others[at / 30].take(sent).unwrap();
        assert!(cqe.status().is_success(), "{:?}", cqe.status());
    }
    assert_eq!(bench.saves, 2);
    assert!(bench.reactor.target.next_save().is_none());
    assert_eq!(bench.reactor.resources.locked.waiting.pending_saves(), 0);
    assert_eq!(state(&mut bench, &mut host, admin), PROTECTED);
}

/// Otherwise a host that connects, sends a request and disconnects again and again fills
/// the memory.
#[test]
fn protection_of_closed_queue_is_saved_without_response() {
    let mut bench = Bench::new(83);
    bench.saves_at_once = false;
    let free = bench.reactor.free_buffers();
    for _ in 0..20 {
        let mut host = bench.host();
        let (admin, _) = admin(&mut bench, &mut host, 0);
        let _ = set(&mut host, admin, PROTECTED);
        settle(&mut bench, &mut [&mut host]);
        assert_eq!(bench.reactor.resources.locked.waiting.pending_saves(), 1);
        host.provider.disconnect(admin);
        settle(&mut bench, &mut [&mut host]);
        assert_eq!(bench.reactor.resources.locked.waiting.pending_saves(), 0);
    }
    assert_eq!(bench.reactor.free_buffers(), free);
    bench.finish_save(&Ok(()));
    let mut host = bench.host();
    let (admin, queue) = ready(&mut bench, &mut host);
    assert_eq!(state(&mut bench, &mut host, admin), PROTECTED);
    let status = write(&mut bench, &mut host, queue);
    assert_eq!(status, Status::NAMESPACE_WRITE_PROTECTED);
    assert_eq!(bench.stored.len(), 1);
}

/// Base 2.1, 3.7.2: outstanding commands get no response after a reset.
#[test]
fn reset_ends_waiting_commands() {
    let (mut bench, mut host, [admin, _], asked) = waiting(84);
    for cc in [Cc(0), Cc::ENABLE] {
        let cc = PropertyValue::Dword(cc.0);
        let sent = host.send(admin, fabrics::PropertyAccess::set(Property::CC, cc), &[]);
        assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    }
    bench.finish_save(&Ok(()));
    settle(&mut bench, &mut [&mut host]);
    assert!(host.take(asked).is_none());
    assert_eq!(bench.reactor.resources.locked.waiting.pending_saves(), 0);
    // All Asynchronous Event Requests are available again.
    bench.saves_at_once = true;
    let sent: Vec<_> = (0..31).map(|_| set(&mut host, admin, NONE)).collect();
    settle(&mut bench, &mut [&mut host]);
    for sent in sent {
        assert!(host.take(sent).unwrap().0.status().is_success());
    }
}

#[test]
fn drain_does_not_wait_for_the_keeper() {
    let (mut bench, mut host, _, asked) = waiting(85);
    bench.reactor.mailbox().send(Mail::DRAIN);
    bench.run_for(&mut [&mut host], Duration::from_secs(60));
    assert!(bench.drained && host.take(asked).is_none());
}

/// For any order of requests and results: each request completes once, and in the end the
/// stored state is the one that hosts see.
#[test]
fn saved_protection_matches_state_in_any_order() {
    for seed in 0..40 {
        let mut bench = Bench::new(seed);
        bench.saves_at_once = false;
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = move |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let mut hosts = [bench.host(), bench.host(), bench.host()];
        let admins = hosts.each_mut().map(|host| admin(&mut bench, host, 0).0);
        let mut sent = Vec::new();
        let mut in_work = None;
        for _ in 0..60 {
            let at = usize::try_from(next(3)).unwrap();
            let to = if next(2) == 0 { NONE } else { PROTECTED };
            sent.push((at, to, set(&mut hosts[at], admins[at], to)));
            bench.reactor.stores_mut().fails = (next(8) == 0).then_some(nix::errno::Errno::EIO);
            let [a, b, c] = &mut hosts;
            bench.run_for(&mut [a, b, c], Duration::from_micros(next(400)));
            if next(3) == 0 {
                let result = if next(3) == 0 { full() } else { Ok(()) };
                match in_work.take() {
                    Some(to_keep) => bench.finish_save_of(to_keep, &result),
                    None => in_work = bench.reactor.target.next_save(),
                }
            }
            sent.retain(|(at, _, sent)| hosts[*at].take(*sent).is_none());
        }
        if let Some(to_keep) = in_work {
            bench.finish_save_of(to_keep, &Ok(()));
        }
        bench.reactor.stores_mut().fails = None;
        bench.saves_at_once = true;
        let [a, b, c] = &mut hosts;
        bench.run_for(&mut [a, b, c], Duration::from_millis(200));
        for (at, to, sent) in sent {
            assert!(hosts[at].take(sent).is_some(), "{seed}: {to:?}");
        }
        let kept = if bench.stored.is_empty() {
            NONE
        } else {
            PROTECTED
        };
        let seen = state(&mut bench, &mut hosts[0], admins[0]);
        assert_eq!(seen, kept, "{seed}");
    }
}
