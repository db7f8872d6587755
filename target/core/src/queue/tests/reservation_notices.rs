//! Notifications about reservations, features and Identify fields of them.

use nvmeof_wire::admin::{
    Cns, GetFeatures, GetLogPage, LogId, NSID_ALL, Select, SetFeatures, bare,
};
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::features::FeatureId;
use nvmeof_wire::identify::capabilities::Oncs;
use nvmeof_wire::identify::namespace::Rescap;
use nvmeof_wire::identify::{IdentifyController, IdentifyNamespace};
use nvmeof_wire::log::supported::PageSupport;
use nvmeof_wire::log::{CommandEffects, SupportedPages};
use nvmeof_wire::nvm::Io;
use nvmeof_wire::opcode::admin::ASYNC_EVENT_REQUEST;
use nvmeof_wire::reservation::{
    self, AcquireAction, NoticeMask, NoticePage, NoticeType, RegisterAction, ReleaseAction,
    ReservationType,
};
use nvmeof_wire::{Nqn, Status};
use zerocopy::FromBytes;

use super::reservations::{ACQUIRE, WRITE_EXCLUSIVE, acquire, host, keys, register, release};
use crate::testing::{Host, Outcome, SUBNQN, target, without_keeper};
use crate::{
    CannotImport, Limits, NamespaceState, Order, Preferred, ReservationState, Revision, Target,
};

const WRITE_EXCLUSIVE_REGISTRANTS: ReservationType = ReservationType::WRITE_EXCLUSIVE_REGISTRANTS;

/// Hosts 1 to `count`, registered with their numbers as keys.
fn registered<const COUNT: usize>(target: &Target) -> [(Host, Host); COUNT] {
    std::array::from_fn(|at| {
        let number = u8::try_from(at + 1).unwrap();
        let mut both = host(target, number);
        let status = register(&mut both.1, RegisterAction::REGISTER, 0, number.into());
        assert_eq!(status, Status::SUCCESS);
        both
    })
}

fn hold(admin: &mut Host) {
    let outcome = admin.run(bare(ASYNC_EVENT_REQUEST), &[], &[]);
    assert!(matches!(outcome, Outcome::Held), "{outcome:?}");
}

fn event(admin: &mut Host) -> Option<AsyncEvent> {
    match admin.queue.poll(admin.now)? {
        Order::Respond(response) => Some(AsyncEvent::from_dword(response.cqe.dw0())),
        other => panic!("{other:?}"),
    }
}

fn page(admin: &mut Host) -> NoticePage {
    let command = GetLogPage::new(LogId::RESERVATION, 0, 0, 64);
    let data = admin.read(command.to_sqe(), 64).data;
    NoticePage::read_from_bytes(&data).unwrap()
}

fn notice(admin: &mut Host) -> NoticeType {
    page(admin).kind
}

#[test]
fn preempted_and_released_hosts_are_notified() {
    let target = target();
    let [(mut a1, mut q1), (mut a2, mut q2), (mut a3, mut q3)] = registered::<3>(&target);
    for admin in [&mut a1, &mut a2, &mut a3] {
        hold(admin);
    }
    let status = acquire(&mut q2, ACQUIRE, WRITE_EXCLUSIVE, keys(2, 0));
    assert_eq!(status, Status::SUCCESS);
    // Host 1 takes it from host 2, with another type.
    let preempt = AcquireAction::PREEMPT;
    let kind = WRITE_EXCLUSIVE_REGISTRANTS;
    assert_eq!(acquire(&mut q1, preempt, kind, keys(1, 2)), Status::SUCCESS);
    assert_eq!(event(&mut a1), None, "the issuer is not notified");
    assert_eq!(event(&mut a2), Some(AsyncEvent::RESERVATION));
    assert_eq!(event(&mut a3), Some(AsyncEvent::RESERVATION));
    let read = page(&mut a2);
    assert_eq!((read.count.get(), read.nsid.get()), (1, 1));
    assert_eq!(read.kind, NoticeType::REGISTRATION_PREEMPTED);
    assert_eq!(notice(&mut a3), NoticeType::RESERVATION_RELEASED);
    for admin in [&mut a1, &mut a2, &mut a3] {
        assert_eq!(notice(admin), NoticeType::EMPTY);
    }
    // Host 1 releases a type that depends on registrants; then host 3 removes all.
    let status = release(&mut q1, ReleaseAction::RELEASE, kind, 1);
    assert_eq!(status, Status::SUCCESS);
    assert_eq!(notice(&mut a3), NoticeType::RESERVATION_RELEASED);
    let status = release(&mut q3, ReleaseAction::CLEAR, kind, 3);
    assert_eq!(status, Status::SUCCESS);
    assert_eq!(notice(&mut a1), NoticeType::RESERVATION_PREEMPTED);
    assert_eq!(notice(&mut a2), NoticeType::EMPTY, "it was no registrant");
    // A reset forgets what was not read.
    let _ = register(&mut q1, RegisterAction::REGISTER, 0, 1);
    let _ = register(&mut q3, RegisterAction::REGISTER, 0, 3);
    let _ = release(&mut q3, ReleaseAction::CLEAR, kind, 3);
    a1.set_cc(0);
    a1.set_cc(nvmeof_wire::registers::Cc::ENABLE.0);
    assert_eq!(notice(&mut a1), NoticeType::EMPTY);
}

#[test]
fn masked_notifications_are_not_reported() {
    let target = target();
    let [(mut a1, mut q1), (mut a2, mut q2)] = registered::<2>(&target);
    let fid = FeatureId::RESERVATION_NOTIFICATION_MASK;
    let mut set = |nsid: u32, value: u32| {
        let mut sqe = SetFeatures::new(fid, value).to_sqe();
        sqe.nsid = nsid.into();
        a2.plain(sqe).status()
    };
    let mask = NoticeMask::RESERVATION_PREEMPTED;
    assert_eq!(set(1, 1), Status::INVALID_FIELD, "reserved bits");
    assert_eq!(set(99, mask.bits()), Status::INVALID_FIELD);
    assert_eq!(set(NSID_ALL, mask.bits()), Status::SUCCESS);
    let mut get = |nsid, select| {
        let command = GetFeatures {
            fid,
            select,
            cdw11: 0,
            nsid,
        };
        let completion = a2.plain(command.to_sqe());
        (completion.status(), completion.result())
    };
    let current = u64::from(mask.bits());
    assert_eq!(get(1, Select::Current), (Status::SUCCESS, current));
    assert_eq!(get(3, Select::Current), (Status::SUCCESS, current));
    assert_eq!(get(1, Select::Default), (Status::SUCCESS, 0));
    assert_eq!(get(NSID_ALL, Select::Current).0, Status::INVALID_FIELD);
    hold(&mut a2);
    let status = release(&mut q1, ReleaseAction::CLEAR, WRITE_EXCLUSIVE, 1);
    assert_eq!(status, Status::SUCCESS);
    assert_eq!(event(&mut a2), None);
    assert_eq!(notice(&mut a2), NoticeType::EMPTY);
    // Another type is not masked, nor is this one for another host.
    for (number, queue) in [(1, &mut q1), (2, &mut q2)] {
        let status = register(queue, RegisterAction::REGISTER, 0, number);
        assert_eq!(status, Status::SUCCESS);
    }
    let preempt = AcquireAction::PREEMPT;
    let status = acquire(&mut q1, preempt, WRITE_EXCLUSIVE, keys(1, 2));
    assert_eq!(status, Status::SUCCESS);
    assert_eq!(event(&mut a2), Some(AsyncEvent::RESERVATION));
    assert_eq!(notice(&mut a2), NoticeType::REGISTRATION_PREEMPTED);
    assert_eq!(notice(&mut a1), NoticeType::EMPTY);
}

#[test]
fn persistence_is_set_by_feature_or_register() {
    let target = target();
    let (mut admin, mut queue) = host(&target, 1);
    let fid = FeatureId::RESERVATION_PERSISTENCE;
    let get = |admin: &mut Host, nsid| {
        let command = GetFeatures {
            fid,
            select: Select::Current,
            cdw11: 0,
            nsid,
        };
        let completion = admin.plain(command.to_sqe());
        (completion.status(), completion.result())
    };
    let set = |admin: &mut Host, nsid: u32, value: u32| {
        let mut sqe = SetFeatures::new(fid, value).to_sqe();
        sqe.nsid = nsid.into();
        admin.plain(sqe).status()
    };
    assert_eq!(get(&mut admin, 1), (Status::SUCCESS, 0));
    assert_eq!(get(&mut admin, NSID_ALL).0, Status::INVALID_FIELD);
    assert_eq!(set(&mut admin, 1, 2), Status::INVALID_FIELD);
    assert_eq!(set(&mut admin, NSID_ALL, 1), Status::SUCCESS);
    for nsid in [1, 3] {
        assert_eq!(get(&mut admin, nsid), (Status::SUCCESS, 1));
    }
    assert_eq!(set(&mut admin, 1, 0), Status::SUCCESS);
    assert_eq!(get(&mut admin, 1), (Status::SUCCESS, 0));
    assert_eq!(get(&mut admin, 3), (Status::SUCCESS, 1));
    // The command of Linux sets it.
    let status = register(&mut queue, RegisterAction::REGISTER, 0, 1);
    assert_eq!(status, Status::SUCCESS);
    assert_eq!(get(&mut admin, 1), (Status::SUCCESS, 1));
}

/// What is saved of a namespace that waits may be unknown: its record would be replaced, with the
/// reservation of another host in it.
#[test]
fn namespace_that_waits_is_not_changed() {
    let target = target();
    let (mut admin, _) = host(&target, 1);
    let revision = Revision {
        nqn: Nqn::new(SUBNQN).unwrap(),
        nsid: 1,
        store: 0,
        blocks: 1000,
        preferred: Preferred::default(),
        state: NamespaceState::Absent,
    };
    let _ = target.apply(target.model().revised(&[revision])).unwrap();
    for (fid, value) in [
        (FeatureId::RESERVATION_PERSISTENCE, 1),
        (FeatureId::NAMESPACE_WRITE_PROTECTION, 0),
        (FeatureId::NAMESPACE_WRITE_PROTECTION, 1),
    ] {
        let mut sqe = SetFeatures::new(fid, value).to_sqe();
        sqe.nsid = 1.into();
        let status = admin.plain(sqe).status();
        assert_eq!(status, Status::NAMESPACE_NOT_READY, "{fid:?} {value}");
    }
    let subsystem = Nqn::new(SUBNQN).unwrap();
    let imported = target.import_reservations(&subsystem, 1, ReservationState::default());
    assert_eq!(imported.unwrap_err(), CannotImport::NotReady);
    assert!(target.next_save().is_none());
}

/// What is not saved does not fence.
#[test]
fn reservations_require_a_keeper() {
    for (target, reserves) in [(target(), true), (without_keeper(Limits::default()), false)] {
        let (mut admin, mut queue) = host(&target, 1);
        let data = admin.identify(Cns::CONTROLLER, 0).data;
        let id = IdentifyController::read_from_bytes(&data).unwrap();
        assert_eq!(id.oncs().contains(Oncs::RESERVS), reserves);
        let data = admin.identify(Cns::NAMESPACE, 1).data;
        let namespace = IdentifyNamespace::read_from_bytes(&data).unwrap();
        let all = if reserves {
            Rescap::all()
        } else {
            Rescap::empty()
        };
        assert_eq!(namespace.rescap(), all);
        let effects = GetLogPage::new(LogId::EFFECTS, 0, 0, 4096);
        let data = admin.read(effects.to_sqe(), 4096).data;
        let effects = CommandEffects::read_from_bytes(&data).unwrap();
        let pages = GetLogPage::new(LogId::SUPPORTED, 0, 0, 1024);
        let data = admin.read(pages.to_sqe(), 1024).data;
        let pages = SupportedPages::read_from_bytes(&data).unwrap();
        assert_eq!(
            pages.get(LogId::RESERVATION).contains(PageSupport::LSUPP),
            reserves
        );
        for opcode in reservation::COMMANDS {
            assert_eq!(effects.io(opcode).is_some(), reserves, "{opcode:?}");
            let status = queue.plain(Io::new(1, 0, 1).to_sqe(opcode)).status();
            assert_eq!(status != Status::INVALID_OPCODE, reserves, "{opcode:?}");
        }
        for fid in [
            FeatureId::RESERVATION_NOTIFICATION_MASK,
            FeatureId::RESERVATION_PERSISTENCE,
        ] {
            let mut sqe = SetFeatures::new(fid, 0).to_sqe();
            sqe.nsid = 1.into();
            assert_eq!(admin.plain(sqe).status() == Status::SUCCESS, reserves);
        }
    }
}
