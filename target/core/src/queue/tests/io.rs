//! I/O commands of the NVM command set.

use nvmeof_wire::admin::{NSID_ALL, SetFeatures};
use nvmeof_wire::features::FeatureId;
use nvmeof_wire::nvm::{DatasetManagement, DsmRange, Io, IoFlags, flush};
use nvmeof_wire::opcode::{Opcode, io};
use nvmeof_wire::{Sqe, Status};
use proptest::prelude::*;
use zerocopy::IntoBytes;

use crate::testing::{Host, namespace, target, target_of};
use crate::{Executed, IoKind, IoOp};

fn command(opcode: Opcode, nsid: u32, slba: u64, blocks: u32, flags: IoFlags) -> Sqe {
    Io {
        nsid,
        slba,
        blocks,
        flags,
    }
    .to_sqe(opcode)
}

fn plain(opcode: Opcode, nsid: u32, slba: u64, blocks: u32) -> Sqe {
    command(opcode, nsid, slba, blocks, IoFlags::empty())
}

#[test]
fn reads_and_writes_become_byte_ranges() {
    let (_admin, mut host) = Host::ready(&target());
    let completion = host.read(plain(io::READ, 3, 5, 2), 8192);
    assert_eq!(
        (completion.status(), completion.data.len()),
        (Status::SUCCESS, 8192)
    );
    let written = command(io::WRITE, 1, 998, 2, IoFlags::FUA);
    let completion = host.write(written, &[1; 1024]);
    assert_eq!(
        (completion.status(), completion.data.len()),
        (Status::SUCCESS, 0)
    );
    let op = |store, kind, offset, len, fua| IoOp {
        store,
        kind,
        offset,
        len,
        fua,
    };
    let expected = [
        op(30, IoKind::Read, 20480, 8192, false),
        op(10, IoKind::Write, 998 * 512, 1024, true),
    ];
    assert_eq!(host.ops, expected);
}

#[test]
fn ranges_beyond_the_namespace_are_refused() {
    let (_admin, mut host) = Host::ready(&target());
    let rows = [
        (1000, 1),
        (999, 2),
        (u64::MAX, 1),
        (u64::MAX - 1, 2),
        (1 << 55, 1),
    ];
    for (slba, blocks) in rows {
        let len = usize::try_from(blocks).unwrap() * 512;
        let completions = [
            host.read(plain(io::READ, 1, slba, blocks), len),
            host.write(plain(io::WRITE, 1, slba, blocks), &vec![0; len]),
            host.write(plain(io::COMPARE, 1, slba, blocks), &vec![0; len]),
            host.plain(plain(io::WRITE_ZEROES, 1, slba, blocks)),
            host.plain(plain(io::VERIFY, 1, slba, blocks)),
        ];
        for completion in completions {
            assert_eq!(
                completion.status(),
                Status::LBA_OUT_OF_RANGE,
                "{slba} {blocks}"
            );
        }
    }
    assert!(host.ops.is_empty());
}

#[test]
fn unknown_namespaces_and_opcodes_are_refused() {
    let (_admin, mut host) = Host::ready(&target());
    // Base 2.1, NSID of a command: inactive and invalid ones; FFFFFFFFh, where a command
    // does not take it.
    for (nsid, status) in [
        (2, Status::INVALID_FIELD),
        (1024, Status::INVALID_FIELD),
        (0, Status::INVALID_NAMESPACE),
        (1025, Status::INVALID_NAMESPACE),
        (NSID_ALL - 1, Status::INVALID_NAMESPACE),
        (NSID_ALL, Status::INVALID_FIELD),
    ] {
        let completion = host.read(plain(io::READ, nsid, 0, 1), 512);
        assert_eq!(completion.status(), status, "{nsid}");
        assert!(completion.cqe.status().dnr(), "{nsid}");
        let write = host.write(plain(io::WRITE, nsid, 0, 1), &[0; 512]);
        assert_eq!(write.status(), status, "{nsid}");
        if nsid != NSID_ALL {
            assert_eq!(host.plain(flush(nsid)).status(), status, "{nsid}");
        }
    }
    for opcode in [io::WRITE_UNCORRECTABLE, Opcode(0x0f), Opcode(0xff)] {
        let completion = host.plain(plain(opcode, 1, 0, 1));
        assert_eq!(completion.status(), Status::INVALID_OPCODE);
    }
}

#[test]
fn transfers_above_mdts_are_refused_but_write_zeroes_may_be_longer() {
    let (_admin, mut host) = Host::ready(&target());
    let completion = host.read(plain(io::READ, 1, 0, 513), 513 * 512);
    assert_eq!(completion.status(), Status::INVALID_FIELD);
    let completion = host.read(plain(io::READ, 1, 0, 512), 512 * 512);
    assert_eq!(completion.status(), Status::SUCCESS);
    let completion = host.plain(plain(io::WRITE_ZEROES, 1, 0, 1000));
    assert_eq!(completion.status(), Status::SUCCESS);
}

#[test]
fn read_only_namespace_rejects_writes() {
    let (_admin, mut host) = Host::ready(&target());
    let dsm = DatasetManagement {
        nsid: 3,
        ranges: 1,
        deallocate: true,
    };
    let completions = [
        host.write(plain(io::WRITE, 3, 0, 1), &[0; 4096]),
        host.plain(plain(io::WRITE_ZEROES, 3, 0, 1)),
        host.write(dsm.to_sqe(), &[0; 16]),
    ];
    for completion in completions {
        assert_eq!(completion.status(), Status::NAMESPACE_WRITE_PROTECTED);
    }
    assert_eq!(
        host.read(plain(io::READ, 3, 0, 1), 4096).status(),
        Status::SUCCESS
    );
    assert_eq!(host.plain(flush(3)).status(), Status::SUCCESS);
}

#[test]
fn a_flush_of_all_namespaces_flushes_each() {
    let (_admin, mut host) = Host::ready(&target());
    assert_eq!(host.plain(flush(NSID_ALL)).status(), Status::SUCCESS);
    let stores: Vec<_> = host.ops.iter().map(|op| (op.store, op.kind)).collect();
    assert_eq!(stores, [(10, IoKind::Flush), (30, IoKind::Flush)]);
    host.outcomes = vec![Executed::Failed];
    assert_eq!(host.plain(flush(NSID_ALL)).status(), Status::WRITE_FAULT);
    assert_eq!(host.ops.len(), 3);
}

#[test]
fn write_zeroes_may_deallocate() {
    let (_admin, mut host) = Host::ready(&target());
    let flags = IoFlags::DEALLOCATE | IoFlags::FUA;
    host.plain(command(io::WRITE_ZEROES, 1, 1, 3, flags));
    let [op] = host.ops[..] else { panic!() };
    assert_eq!(op.kind, IoKind::WriteZeroes { deallocate: true });
    assert_eq!((op.offset, op.len, op.fua), (512, 1536, true));
}

fn trim(host: &mut Host, ranges: &[DsmRange], deallocate: bool, shown: usize) -> Status {
    let command = DatasetManagement {
        nsid: 1,
        ranges: u16::try_from(ranges.len()).unwrap(),
        deallocate,
    };
    let mut data = ranges.as_bytes().to_vec();
    data.resize(shown, 0);
    host.write(command.to_sqe(), &data).status()
}

#[test]
fn deallocate_does_each_range_that_is_not_empty() {
    let (_admin, mut host) = Host::ready(&target());
    let ranges = [
        DsmRange::new(0, 8),
        DsmRange::new(3, 0),
        DsmRange::new(999, 1),
    ];
    // Linux shows a page for any number of ranges.
    assert_eq!(trim(&mut host, &ranges, true, 4096), Status::SUCCESS);
    let done: Vec<_> = host
        .ops
        .iter()
        .map(|op| (op.kind, op.offset, op.len))
        .collect();
    let expected = [
        (IoKind::Deallocate, 0, 4096),
        (IoKind::Deallocate, 999 * 512, 512),
    ];
    assert_eq!(done, expected);
}

#[test]
fn bad_range_fails_the_whole_deallocation() {
    let (_admin, mut host) = Host::ready(&target());
    for bad in [
        DsmRange::new(999, 2),
        DsmRange::new(u64::MAX, 1),
        DsmRange::new(1001, 0),
    ] {
        let ranges = [DsmRange::new(0, 8), bad];
        assert_eq!(trim(&mut host, &ranges, true, 32), Status::LBA_OUT_OF_RANGE);
    }
    let ranges = [DsmRange::new(0, 8); 2];
    assert_eq!(
        trim(&mut host, &ranges, true, 31),
        Status::DATA_SGL_LENGTH_INVALID
    );
    assert_eq!(trim(&mut host, &ranges, false, 32), Status::SUCCESS);
    assert!(host.ops.is_empty());
}

/// NVM 1.0, 3.2.3.1: no limits are reported, so that there are none.
#[test]
fn ranges_of_any_number_and_length_are_deallocated() {
    let large = crate::NamespaceSpec {
        blocks: 1 << 40,
        ..namespace(1)
    };
    let (_admin, mut host) = Host::ready(&target_of(large));
    // NR is 0's based and has 8 bits.
    let many: Vec<_> = (0..256)
        .map(|at| DsmRange::new(at << 32, u32::MAX))
        .collect();
    assert_eq!(trim(&mut host, &many, true, 4096), Status::SUCCESS);
    let done: Vec<_> = host.ops.iter().map(|op| (op.offset, op.len)).collect();
    let expected = (0..256).map(|at| (at << 41, u64::from(u32::MAX) << 9));
    assert!(done.into_iter().eq(expected));
}

#[test]
fn ranges_may_come_in_the_capsule() {
    let (_admin, mut host) = Host::ready(&target());
    let command = DatasetManagement {
        nsid: 1,
        ranges: 2,
        deallocate: true,
    };
    let ranges = [DsmRange::new(0, 8), DsmRange::new(8, 8)];
    let completion = host.write_in_capsule(command.to_sqe(), ranges.as_bytes());
    assert_eq!((completion.status(), host.ops.len()), (Status::SUCCESS, 2));
}

#[test]
fn each_backend_failure_has_its_status() {
    let (_admin, mut host) = Host::ready(&target());
    let rows = [
        (io::READ, Executed::Failed, Status::UNRECOVERED_READ_ERROR),
        (
            io::COMPARE,
            Executed::Failed,
            Status::UNRECOVERED_READ_ERROR,
        ),
        (io::COMPARE, Executed::Miscompare, Status::COMPARE_FAILURE),
        (io::WRITE, Executed::Failed, Status::WRITE_FAULT),
        (io::WRITE, Executed::NoSpace, Status::CAPACITY_EXCEEDED),
        (
            io::WRITE,
            Executed::ReadOnly,
            Status::NAMESPACE_WRITE_PROTECTED,
        ),
        (
            io::WRITE_ZEROES,
            Executed::Unsupported,
            Status::INVALID_OPCODE,
        ),
        (io::WRITE_ZEROES, Executed::Failed, Status::WRITE_FAULT),
        (io::VERIFY, Executed::Failed, Status::UNRECOVERED_READ_ERROR),
    ];
    for (opcode, outcome, status) in rows {
        host.outcomes = vec![outcome];
        let sqe = plain(opcode, 1, 7, 1);
        let completion = match opcode {
            io::WRITE_ZEROES | io::VERIFY => host.plain(sqe),
            io::READ => host.read(sqe, 512),
            _ => host.write(sqe, &[0; 512]),
        };
        assert_eq!(
            (completion.status(), completion.data.len()),
            (status, 0),
            "{opcode:?}"
        );
    }
    host.outcomes = vec![Executed::Ok, Executed::Failed];
    let ranges = [DsmRange::new(0, 8); 3];
    assert_eq!(trim(&mut host, &ranges, true, 48), Status::INTERNAL_ERROR);
}

#[test]
fn without_the_volatile_cache_every_write_is_fua() {
    let (mut admin, mut host) = Host::ready(&target());
    let set = |on| SetFeatures::new(FeatureId::VOLATILE_WRITE_CACHE, on).to_sqe();
    for (on, fua) in [(0, true), (1, false)] {
        assert_eq!(admin.plain(set(on)).status(), Status::SUCCESS);
        host.write(plain(io::WRITE, 1, 0, 1), &[0; 512]);
        host.plain(plain(io::WRITE_ZEROES, 1, 0, 1));
        assert!(host.ops.drain(..).all(|op| op.fua == fua));
    }
}

proptest! {
    /// For any command, the operation lies inside the namespace.
    #[test]
    fn operations_stay_inside_their_namespace(bytes: [u8; 64], opcode in 0u8..16, nsid in 0u32..4) {
        let (_admin, mut host) = Host::ready(&target());
        let mut sqe = Sqe::from_capsule(&bytes).unwrap();
        sqe.opcode = Opcode(opcode);
        sqe.flags = 0x40;
        sqe.nsid = nsid.into();
        let capsule = sqe.to_bytes();
        let mut request = crate::Request::default();
        let action = host.queue.begin(host.now, &capsule, &mut request);
        let action = match action {
            crate::Action::Pull { remote, .. } => {
                prop_assert!(remote.len <= 256 << 10);
                let data = vec![0xff; usize::try_from(remote.len).unwrap()];
                host.queue.step(host.now, &mut request, crate::Event::Pulled(&data))
            }
            action => action,
        };
        if let crate::Action::Execute(op) = action {
            let size = if op.store == 10 { 512_000 } else { 4_096_000 };
            prop_assert!(op.offset + op.len <= size);
        }
    }
}
