//! Reservation commands of several hosts, and what reservations deny.

use std::sync::atomic::Ordering;

use nvmeof_target_reservations::{Access, Effect, effect_of};
use nvmeof_wire::admin::NSID_ALL;
use nvmeof_wire::fabrics::{Connect, ConnectData};
use nvmeof_wire::nvm::{Copy, CopyRange, Io};
use nvmeof_wire::opcode::{Opcode, io};
use nvmeof_wire::reservation::{
    AcquireAction, Keys, PersistChange, Register, RegisterAction, ReleaseAction, Report,
    ReservationType, Reserve,
};
use nvmeof_wire::{Nqn, Status};
use zerocopy::IntoBytes;

use crate::testing::{Host, SUBNQN, target};
use crate::{IoKind, IoOp, Target};

/// Host `number`, with a host identifier of its own: its admin queue and I/O queue 1.
pub(super) fn host(target: &Target, number: u8) -> (Host, Host) {
    let name = |text: &str| Nqn::new(text).unwrap();
    let nqn = name(&format!("nqn.2026-11.org.example:host-{number}"));
    let data = |cntlid| ConnectData::new([number; 16], cntlid, &name(SUBNQN), &nqn);
    let (admin, cntlid) = Host::admin_with(target, 0, &data(0xffff));
    let mut queue = Host::open(target, 1, 128);
    let completion = queue.connect(&Connect::new(1, 128, 0), &data(cntlid));
    assert_eq!(completion.status(), Status::SUCCESS);
    (admin, queue)
}

pub(super) fn keys(current: u64, other: u64) -> Keys {
    Keys {
        current: current.into(),
        other: other.into(),
    }
}

pub(super) fn register(host: &mut Host, action: RegisterAction, current: u64, new: u64) -> Status {
    let command = Register {
        nsid: 1,
        action,
        ignores_key: false,
        persist: PersistChange::SET,
    };
    let keys = keys(current, new);
    host.write(command.to_sqe(), keys.as_bytes()).status()
}

fn reserve(action: u8, kind: ReservationType) -> Reserve {
    Reserve {
        nsid: 1,
        action,
        ignores_key: false,
        kind,
    }
}

pub(super) fn acquire(
    host: &mut Host,
    action: AcquireAction,
    kind: ReservationType,
    its: Keys,
) -> Status {
    let command = reserve(action.0, kind).to_acquire();
    host.write(command, its.as_bytes()).status()
}

pub(super) fn release(
    host: &mut Host,
    action: ReleaseAction,
    kind: ReservationType,
    key: u64,
) -> Status {
    let command = reserve(action.0, kind).to_release();
    host.write(command, &key.to_le_bytes()).status()
}

pub(super) const ACQUIRE: AcquireAction = AcquireAction::ACQUIRE;
pub(super) const WRITE_EXCLUSIVE: ReservationType = ReservationType::WRITE_EXCLUSIVE;

/// An I/O command of the namespace, which succeeds without reservations.
fn run(host: &mut Host, opcode: Opcode) -> Status {
    let block = Io::new(1, 0, 1).to_sqe(opcode);
    match opcode {
        io::READ => host.read(block, 512).status(),
        io::WRITE | io::COMPARE => host.write(block, &[0xda; 512]).status(),
        io::COPY => {
            let copy = Copy {
                nsid: 1,
                slba: 8,
                ranges: 1,
                format: 0,
                protected: false,
                fua: false,
            };
            host.write(copy.to_sqe(), CopyRange::new(0, 1).as_bytes())
                .status()
        }
        io::DATASET_MANAGEMENT => {
            let mut sqe = block;
            (sqe.cdw10, sqe.cdw11, sqe.cdw12) = (0.into(), 4.into(), 0.into());
            host.write(sqe, &[0; 16]).status()
        }
        _ => host.plain(block).status(),
    }
}

/// Each opcode, type and role.
#[test]
fn commands_are_denied_as_the_table_says() {
    for kind in ReservationType::ALL {
        let target = target();
        let mut hosts = [1, 2, 3].map(|number| host(&target, number));
        for (number, (_, queue)) in (1..).zip(&mut hosts).take(2) {
            let status = register(queue, RegisterAction::REGISTER, 0, number);
            assert_eq!(status, Status::SUCCESS);
        }
        let status = acquire(&mut hosts[0].1, ACQUIRE, kind, keys(1, 0));
        assert_eq!(status, Status::SUCCESS);
        for (number, (_, queue)) in hosts.iter_mut().enumerate() {
            let is_free = number == 0 || kind.is_of_all() && number == 1;
            let registered = number < 2 && kind.depends_on_registrants();
            let reads = is_free || registered || matches!(kind.0, 1 | 3 | 5);
            let writes = is_free || registered;
            for opcode in io::ALL {
                let allowed = match effect_of(*opcode).unwrap() {
                    Effect::One(Access::Read) => reads,
                    Effect::One(Access::Write) => writes,
                    Effect::Copies => reads && writes,
                    Effect::Exempt => continue,
                };
                let expected = match (allowed, *opcode) {
                    (_, io::WRITE_UNCORRECTABLE) => Status::INVALID_OPCODE,
                    (true, _) => Status::SUCCESS,
                    (false, _) => Status::RESERVATION_CONFLICT,
                };
                let status = run(queue, *opcode);
                let name = io::name(*opcode);
                assert_eq!(status, expected, "{name} of host {number}, {}", kind.name());
            }
            let mut flush = Io::new(NSID_ALL, 0, 1).to_sqe(io::FLUSH);
            flush.cdw12 = 0.into();
            let denied = queue.plain(flush).status() != Status::SUCCESS;
            assert_eq!(denied, !writes);
        }
    }
}

/// The command completes when commands that began under the former state have ended.
#[test]
fn change_waits_for_commands_that_it_excludes() {
    let target = target();
    let [(_a, mut holder), (_b, mut other)] = [1, 2].map(|number| host(&target, number));
    let awaits = |host: &mut Host, change: &mut dyn FnMut(&mut Host) -> Status| {
        host.ops.clear();
        assert_eq!(change(host), Status::SUCCESS);
        let kinds = host.ops.iter().map(|op: &IoOp| op.kind);
        kinds.collect::<Vec<_>>()
    };
    let none: Vec<IoKind> = Vec::new();
    let registers = |key| move |host: &mut Host| register(host, RegisterAction::REGISTER, 0, key);
    assert_eq!(awaits(&mut holder, &mut registers(1)), none);
    assert_eq!(awaits(&mut other, &mut registers(2)), none);
    let mut takes = |host: &mut Host| acquire(host, ACQUIRE, WRITE_EXCLUSIVE, keys(1, 0));
    let writes = [IoKind::Await { reads: false }];
    assert_eq!(awaits(&mut holder, &mut takes), writes);
    // The first command may have been interrupted.
    assert_eq!(awaits(&mut holder, &mut takes), writes);
    let all = ReservationType::EXCLUSIVE_ACCESS;
    let mut preempts = |host: &mut Host| acquire(host, AcquireAction::PREEMPT, all, keys(2, 1));
    let both = [IoKind::Await { reads: true }];
    assert_eq!(awaits(&mut other, &mut preempts), both);
    let gone = register(&mut holder, RegisterAction::UNREGISTER, 1, 0);
    assert_eq!(gone, Status::RESERVATION_CONFLICT);
    assert_eq!(run(&mut holder, io::READ), Status::RESERVATION_CONFLICT);
    assert_eq!(
        release(&mut other, ReleaseAction::RELEASE, all, 2),
        Status::SUCCESS
    );
    assert_eq!(run(&mut holder, io::WRITE), Status::SUCCESS);
}

#[test]
fn failed_save_fails_the_command_and_changes_nothing() {
    let target = target();
    let (_admin, mut queue) = host(&target, 1);
    let book = queue.reactor_metrics.clone();
    book.full.store(true, Ordering::Relaxed);
    let status = register(&mut queue, RegisterAction::REGISTER, 0, 1);
    assert_eq!(status, Status::INTERNAL_ERROR);
    book.full.store(false, Ordering::Relaxed);
    assert_eq!(registrants(&mut queue), 0);
    let status = register(&mut queue, RegisterAction::REGISTER, 0, 2);
    assert_eq!(status, Status::SUCCESS);
    assert_eq!(registrants(&mut queue), 1);
}

fn report(host: &mut Host, len: u64, is_extended: bool) -> (Status, Vec<u8>) {
    let command = Report {
        nsid: 1,
        len,
        is_extended,
    };
    let completion = host.read(command.to_sqe(), usize::try_from(len).unwrap());
    (completion.status(), completion.data)
}

fn registrants(host: &mut Host) -> u8 {
    let (status, data) = report(host, 64, true);
    assert_eq!(status, Status::SUCCESS);
    data[5]
}

#[test]
fn report_may_be_cut_off_or_longer() {
    let target = target();
    let [(_a, mut one), (_b, mut other)] = [1, 2].map(|number| host(&target, number));
    for (key, queue) in [(1, &mut one), (2, &mut other)] {
        let status = register(queue, RegisterAction::REGISTER, 0, key);
        assert_eq!(status, Status::SUCCESS);
    }
    for len in [4, 64, 100, 192, 4096] {
        let (status, data) = report(&mut other, len, true);
        assert_eq!((status, data.len() as u64), (Status::SUCCESS, len));
        assert_eq!(data[0], 2, "generation");
        if len > 64 {
            assert_eq!(data[5], 2, "all registrants are counted");
        }
        assert!(data.iter().skip(192).all(|byte| *byte == 0));
    }
    let (status, _) = report(&mut one, 4096, false);
    assert_eq!(status, Status::HOST_ID_INCONSISTENT);
    let (status, _) = report(&mut one, 1 << 23, true);
    assert_eq!(status, Status::INVALID_FIELD);
}

#[test]
fn wrong_fields_and_data_are_refused() {
    let target = target();
    let (_admin, mut queue) = host(&target, 1);
    let mut wrong = |sqe, data: &[u8]| queue.write(sqe, data).status();
    let command = Register {
        nsid: 1,
        action: RegisterAction(3),
        ignores_key: false,
        persist: PersistChange::KEEP,
    };
    let field = Status::INVALID_FIELD;
    assert_eq!(wrong(command.to_sqe(), &[1; 16]), field);
    let action = RegisterAction::REGISTER;
    let persist = PersistChange(1);
    let reserved = Register {
        action,
        persist,
        ..command
    };
    assert_eq!(wrong(reserved.to_sqe(), &[1; 16]), field);
    let right = Register { action, ..command };
    assert_eq!(wrong(right.to_sqe(), &[0; 16]), field, "NRKEY is 0");
    let len = Status::DATA_SGL_LENGTH_INVALID;
    for short in [8, 12] {
        assert_eq!(wrong(right.to_sqe(), &vec![1; short]), len, "{short}");
    }
    // Linux sends 16 bytes for each command.
    let release = reserve(ReleaseAction::RELEASE.0, WRITE_EXCLUSIVE);
    assert_eq!(wrong(release.to_release(), &[1; 4]), len);
    let conflict = Status::RESERVATION_CONFLICT;
    assert_eq!(wrong(release.to_release(), &[1; 16]), conflict);
    let elsewhere = Register { nsid: 9, ..right };
    assert_ne!(wrong(elsewhere.to_sqe(), &[1; 16]), Status::SUCCESS);
    let ignoring = Reserve {
        ignores_key: true,
        ..reserve(0, WRITE_EXCLUSIVE)
    };
    assert_eq!(wrong(ignoring.to_acquire(), &[1; 16]), field);
    assert_eq!(wrong(ignoring.to_release(), &[1; 8]), field);
}

/// A namespace that the administrator made read-only has reservations all the same.
#[test]
fn read_only_namespace_can_be_reserved() {
    let target = target();
    let (_admin, mut queue) = host(&target, 1);
    let command = Register {
        nsid: 3,
        action: RegisterAction::REGISTER,
        ignores_key: false,
        persist: PersistChange::SET,
    };
    let status = queue
        .write(command.to_sqe(), keys(0, 1).as_bytes())
        .status();
    assert_eq!(status, Status::SUCCESS);
    let acquire = Reserve {
        nsid: 3,
        ..reserve(ACQUIRE.0, WRITE_EXCLUSIVE)
    };
    let status = queue
        .write(acquire.to_acquire(), keys(1, 0).as_bytes())
        .status();
    assert_eq!(status, Status::SUCCESS);
}
