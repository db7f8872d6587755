//! Write protection that is kept by somebody who takes his time, fails or never
//! answers: nobody waits for him but the command.

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

/// A bench where nothing is kept by itself, and a host that asks for protection.
fn waiting(seed: u64) -> (Bench, Host, [QpId; 2], Sent) {
    let mut bench = Bench::new(seed);
    bench.keeps = false;
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
fn a_keeper_that_never_answers_holds_up_nobody_else() {
    let (mut bench, mut host, [own_admin, queue], asked) = waiting(80);
    // What is taken is not what is waited for.
    let hangs = bench.reactor.target.to_keep().unwrap();
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
    // Another one waits as well, and is given up.
    let later = set(&mut other, other_admin, NONE);
    let target = bench.reactor.target.clone();
    let _ = target
        .apply(nvmeof_target_core::Model::clone(&target.model()))
        .unwrap();
    settle(&mut bench, &mut [&mut host, &mut other]);
    assert!(host.take(asked).is_none() && other.take(later).is_none());
    bench.keep_that(hangs, Ok(()));
    assert!(run(&mut bench, &mut host, asked).0.status().is_success());
    assert!(other.take(later).is_none());
    assert_eq!(bench.reactor_metrics.len(), 1);
    bench.keep(Ok(()));
    assert!(run(&mut bench, &mut other, later).0.status().is_success());
    assert_eq!(write(&mut bench, &mut host, queue), Status::SUCCESS);
    assert!(bench.reactor_metrics.is_empty());
    let _ = alive;
}

#[test]
fn what_cannot_be_kept_is_told_and_is_as_it_was() {
    let (mut bench, mut host, [admin, queue], asked) = waiting(81);
    bench.keep(full());
    let (cqe, _) = run(&mut bench, &mut host, asked);
    assert_eq!(
        cqe.status().without_more(),
        Status::INTERNAL_ERROR,
        "and may be tried again"
    );
    assert_eq!(write(&mut bench, &mut host, queue), Status::SUCCESS);
    let again = set(&mut host, admin, PROTECTED);
    settle(&mut bench, &mut [&mut host]);
    bench.keep(Ok(()));
    assert!(run(&mut bench, &mut host, again).0.status().is_success());
    let back = set(&mut host, admin, NONE);
    settle(&mut bench, &mut [&mut host]);
    let status = write(&mut bench, &mut host, queue);
    assert_eq!(
        status,
        Status::NAMESPACE_WRITE_PROTECTED,
        "until it is kept"
    );
    bench.keep(full());
    let (cqe, _) = run(&mut bench, &mut host, back);
    assert_eq!(cqe.status().without_more(), Status::INTERNAL_ERROR);
    let status = write(&mut bench, &mut host, queue);
    assert_eq!(status, Status::NAMESPACE_WRITE_PROTECTED);
}

/// A host that asks for ever: what it may have outstanding is all there is, and
/// one write keeps all of it.
#[test]
fn hundreds_of_requests_are_kept_together() {
    let (mut bench, mut host, [admin, _], asked) = waiting(82);
    let hangs = bench.reactor.target.to_keep().unwrap();
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
        bench.reactor.resources.locked.waiting.to_be_kept(),
        1 + 8 * 30
    );
    bench.keep_that(hangs, Ok(()));
    assert!(run(&mut bench, &mut host, asked).0.status().is_success());
    bench.keep(Ok(()));
    let mut hosts: Vec<&mut Host> = others.iter_mut().collect();
    settle(&mut bench, &mut hosts);
    for (at, sent) in sent.into_iter().enumerate() {
        let (cqe, _) = others[at / 30].take(sent).unwrap();
        assert!(cqe.status().is_success(), "{:?}", cqe.status());
    }
    assert_eq!(bench.kept, 2);
    assert!(bench.reactor.target.to_keep().is_none());
    assert_eq!(bench.reactor.resources.locked.waiting.to_be_kept(), 0);
    assert_eq!(state(&mut bench, &mut host, admin), PROTECTED);
}

/// Otherwise a host that comes, asks and goes fills the memory.
#[test]
fn of_a_queue_that_goes_nothing_waits_and_what_it_asked_for_is_kept() {
    let mut bench = Bench::new(83);
    bench.keeps = false;
    let free = bench.reactor.free_buffers();
    for _ in 0..20 {
        let mut host = bench.host();
        let (admin, _) = admin(&mut bench, &mut host, 0);
        let _ = set(&mut host, admin, PROTECTED);
        settle(&mut bench, &mut [&mut host]);
        assert_eq!(bench.reactor.resources.locked.waiting.to_be_kept(), 1);
        host.provider.disconnect(admin);
        settle(&mut bench, &mut [&mut host]);
        assert_eq!(bench.reactor.resources.locked.waiting.to_be_kept(), 0);
    }
    assert_eq!(bench.reactor.free_buffers(), free);
    bench.keep(Ok(()));
    let mut host = bench.host();
    let (admin, queue) = ready(&mut bench, &mut host);
    assert_eq!(state(&mut bench, &mut host, admin), PROTECTED);
    let status = write(&mut bench, &mut host, queue);
    assert_eq!(status, Status::NAMESPACE_WRITE_PROTECTED);
    assert_eq!(bench.reactor_metrics.len(), 1);
}

/// Base 2.1, 3.7.2: what was outstanding is not answered after a reset.
#[test]
fn a_reset_ends_what_waits() {
    let (mut bench, mut host, [admin, _], asked) = waiting(84);
    for cc in [Cc(0), Cc::ENABLE] {
        let cc = PropertyValue::Dword(cc.0);
        let sent = host.send(admin, fabrics::PropertyAccess::set(Property::CC, cc), &[]);
        assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    }
    bench.keep(Ok(()));
    settle(&mut bench, &mut [&mut host]);
    assert!(host.take(asked).is_none());
    assert_eq!(bench.reactor.resources.locked.waiting.to_be_kept(), 0);
    // All that it may have outstanding it may have again.
    bench.keeps = true;
    let sent: Vec<_> = (0..31).map(|_| set(&mut host, admin, NONE)).collect();
    settle(&mut bench, &mut [&mut host]);
    for sent in sent {
        assert!(host.take(sent).unwrap().0.status().is_success());
    }
}

#[test]
fn a_target_that_stops_does_not_wait_for_it() {
    let (mut bench, mut host, _, asked) = waiting(85);
    bench.reactor.mailbox().send(Mail::DRAIN);
    bench.run_for(&mut [&mut host], Duration::from_secs(60));
    assert!(bench.drained && host.take(asked).is_none());
}

/// In whatever order hosts ask and the keeper answers, and whatever that is: each
/// is answered once, and in the end what is kept is what hosts see.
#[test]
fn what_is_kept_is_what_is_so_in_any_order() {
    for seed in 0..40 {
        let mut bench = Bench::new(seed);
        bench.keeps = false;
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
            bench.reactor.storage_mut().fails = (next(8) == 0).then_some(nix::errno::Errno::EIO);
            let [a, b, c] = &mut hosts;
            bench.run_for(&mut [a, b, c], Duration::from_micros(next(400)));
            if next(3) == 0 {
                let result = if next(3) == 0 { full() } else { Ok(()) };
                match in_work.take() {
                    Some(to_keep) => bench.keep_that(to_keep, result),
                    None => in_work = bench.reactor.target.to_keep(),
                }
            }
            sent.retain(|(at, _, sent)| hosts[*at].take(*sent).is_none());
        }
        if let Some(to_keep) = in_work {
            bench.keep_that(to_keep, Ok(()));
        }
        bench.reactor.storage_mut().fails = None;
        bench.keeps = true;
        let [a, b, c] = &mut hosts;
        bench.run_for(&mut [a, b, c], Duration::from_millis(200));
        for (at, to, sent) in sent {
            assert!(hosts[at].take(sent).is_some(), "{seed}: {to:?}");
        }
        let kept = if bench.reactor_metrics.is_empty() {
            NONE
        } else {
            PROTECTED
        };
        let seen = state(&mut bench, &mut hosts[0], admins[0]);
        assert_eq!(seen, kept, "{seed}");
    }
}
