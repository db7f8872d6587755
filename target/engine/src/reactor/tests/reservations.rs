//! Reservations: a command that takes one completes when nothing that it excludes is executed any
//! more.

use nvmeof_rdma::{Provider, QpId};
use nvmeof_wire::opcode::io;
use nvmeof_wire::reservation::{
    AcquireAction, Keys, PersistChange, Register, RegisterAction, ReservationType, Reserve,
};
use nvmeof_wire::{Sqe, Status};
use zerocopy::IntoBytes;

use super::Bench;
use super::host::{Host, Sent, ready, run};
use super::io::command;
use super::protection::settle;

const WRITE_EXCLUSIVE: ReservationType = ReservationType::WRITE_EXCLUSIVE;
const EXCLUSIVE_ACCESS: ReservationType = ReservationType::EXCLUSIVE_ACCESS;

fn keys(current: u64, other: u64) -> [u8; 16] {
    let keys = Keys {
        current: current.into(),
        other: other.into(),
    };
    let mut bytes = [0; 16];
    bytes.copy_from_slice(keys.as_bytes());
    bytes
}

fn register() -> Sqe {
    let command = Register {
        nsid: 1,
        action: RegisterAction::REGISTER,
        ignores_key: false,
        persist: PersistChange::SET,
    };
    command.to_sqe()
}

/// Takes the reservation.
fn acquire(host: &mut Host, qp: QpId, kind: ReservationType) -> Sent {
    let command = Reserve {
        nsid: 1,
        action: AcquireAction::ACQUIRE.0,
        ignores_key: false,
        kind,
    };
    host.send_with(qp, command.to_acquire(), &keys(1, 0))
}

/// A registered host and another one, with their I/O queues.
fn registered(bench: &mut Bench) -> ((Host, QpId), (Host, QpId)) {
    let (mut host, mut other) = (bench.host(), bench.host());
    let (_, qp) = ready(bench, &mut host);
    let (_, of_other) = ready(bench, &mut other);
    let sent = host.send_with(qp, register(), &keys(0, 1));
    assert!(run(bench, &mut host, sent).0.status().is_success());
    ((host, qp), (other, of_other))
}

#[test]
fn reservation_waits_for_commands_that_it_excludes() {
    let rows = [
        (WRITE_EXCLUSIVE, io::READ, false),
        (WRITE_EXCLUSIVE, io::WRITE, true),
        (EXCLUSIVE_ACCESS, io::READ, true),
        (EXCLUSIVE_ACCESS, io::WRITE, true),
    ];
    for (kind, opcode, waits) in rows {
        let mut bench = Bench::new(80);
        let ((mut host, qp), (mut other, of_other)) = registered(&mut bench);
        bench.reactor.stores_mut().hold = true;
        let before = other.send_with(of_other, command(opcode, 4, 1), &[9; 512]);
        settle(&mut bench, &mut [&mut host, &mut other]);
        assert_eq!(bench.reactor.stores_mut().in_flight(), 1);
        let asked = acquire(&mut host, qp, kind);
        settle(&mut bench, &mut [&mut host, &mut other]);
        assert_eq!(host.take(asked).is_none(), waits, "{opcode:?} {kind:?}");
        // Later ones are excluded already.
        if waits {
            let late = other.send_with(of_other, command(opcode, 4, 1), &[7; 512]);
            let (cqe, _) = run(&mut bench, &mut other, late);
            assert_eq!(cqe.status().kind(), Status::RESERVATION_CONFLICT);
        }
        bench.reactor.stores_mut().hold = false;
        settle(&mut bench, &mut [&mut host, &mut other]);
        let (cqe, _) = other.take(before).unwrap();
        assert!(cqe.status().is_success());
        if waits {
            let (cqe, _) = host.take(asked).unwrap();
            assert!(cqe.status().is_success());
        }
    }
}

/// A host that is to be fenced may be unable to send its data, or unwilling to.
#[test]
fn reservation_does_not_wait_for_data_of_excluded_hosts() {
    for (kind, opcode) in [
        (WRITE_EXCLUSIVE, io::WRITE),
        (WRITE_EXCLUSIVE, io::DATASET_MANAGEMENT),
        (EXCLUSIVE_ACCESS, io::COMPARE),
    ] {
        let mut bench = Bench::new(81);
        let ((mut host, qp), (mut other, of_other)) = registered(&mut bench);
        let mut sqe = command(opcode, 4, 1);
        let mut data = vec![9; 512];
        if opcode == io::DATASET_MANAGEMENT {
            let trim = nvmeof_wire::nvm::DatasetManagement {
                nsid: 1,
                ranges: 1,
                deallocate: true,
            };
            sqe = trim.to_sqe();
            data = [&[0; 4][..], &1_u32.to_le_bytes(), &4_u64.to_le_bytes()].concat();
        }
        let before = other.send_with(of_other, sqe, &data);
        other.provider.submit(bench.net.now());
        // It sends that and serves no RDMA Read.
        settle(&mut bench, &mut [&mut host]);
        let asked = acquire(&mut host, qp, kind);
        let (cqe, _) = run(&mut bench, &mut host, asked);
        assert!(cqe.status().is_success(), "{opcode:?}");
        let contents = bench.reactor.stores_mut().contents[0].clone();
        let (cqe, _) = run(&mut bench, &mut other, before);
        assert_eq!(cqe.status().kind(), Status::RESERVATION_CONFLICT);
        assert_eq!(bench.reactor.stores_mut().contents[0], contents);
    }
}
