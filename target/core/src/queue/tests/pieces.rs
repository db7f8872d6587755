//! Commands without data transfer, executed in pieces.

use nvmeof_wire::nvm::{Copy, CopyRange, Io, IoFlags};
use nvmeof_wire::opcode::{Opcode, io};
use nvmeof_wire::sqe::PSDT_SGL;
use nvmeof_wire::{Sqe, Status};
use zerocopy::IntoBytes;

use crate::testing::{Host, apply, keyed, namespace, subsystem, target_of};
use crate::{Action, Event, Executed, IoKind, NamespaceSpec, Request, SubsystemSpec, Target};

const PIECE: u64 = 128 << 10;

fn command(opcode: Opcode, slba: u64, blocks: u32) -> Sqe {
    Io::new(1, slba, blocks).to_sqe(opcode)
}

/// One namespace of `blocks` blocks of 4096 bytes.
fn large(blocks: u64) -> Target {
    target_of(NamespaceSpec {
        blocks,
        block_size: 4096,
        ..namespace(1)
    })
}

#[test]
fn verify_reads_every_block_once_without_transfer() {
    let (_admin, mut host) = Host::ready(&large(1000));
    let completion = host.plain(command(io::VERIFY, 3, 70));
    assert_eq!(
        (completion.status(), completion.data.len()),
        (Status::SUCCESS, 0)
    );
    let pages = 32;
    let mut next = 3 * 4096;
    for (n, op) in host.ops.iter().enumerate() {
        assert_eq!((op.kind, op.offset), (IoKind::Fetch { pages }, next), "{n}");
        assert!(op.len <= PIECE);
        next += op.len;
    }
    assert_eq!((host.ops.len(), next), (3, 73 * 4096));
}

#[test]
fn verify_ends_at_the_first_unreadable_piece() {
    let (_admin, mut host) = Host::ready(&large(1000));
    host.outcomes = vec![Executed::Ok, Executed::Failed];
    let completion = host.plain(command(io::VERIFY, 0, 1000));
    assert_eq!(completion.status(), Status::UNRECOVERED_READ_ERROR);
    assert_eq!(host.ops.len(), 2);
}

/// NVM 1.0, figure 9: what a command says of protection information "is ignored" where there
/// is none; for Verify, 3.2.5 requires that PRACT is refused.
#[test]
fn protection_information_is_ignored_where_there_is_none() {
    let (_admin, mut host) = Host::ready(&large(1000));
    let with = |opcode, flags| {
        Io {
            flags,
            ..Io::new(1, 0, 1)
        }
        .to_sqe(opcode)
    };
    let all = IoFlags::PRINFO;
    let block = [0; 4096];
    assert_eq!(
        host.read(with(io::READ, all), 4096).status(),
        Status::SUCCESS
    );
    for opcode in [io::WRITE, io::COMPARE] {
        let completion = host.write(with(opcode, all), &block);
        assert_eq!(completion.status(), Status::SUCCESS, "{opcode:?}");
    }
    let zeroes = host.plain(with(io::WRITE_ZEROES, all));
    assert_eq!(zeroes.status(), Status::SUCCESS);
    let checks = all.difference(IoFlags::PRACT);
    for (flags, status) in [(checks, Status::SUCCESS), (all, Status::INVALID_FIELD)] {
        assert_eq!(host.plain(with(io::VERIFY, flags)).status(), status);
    }
}

/// VSL says 32 MiB. NVM 1.0, 3.2.5: with ONCS bit 7 set that is what is recommended.
#[test]
fn verify_longer_than_vsl_is_executed() {
    let (_admin, mut host) = Host::ready(&large(1 << 20));
    for blocks in [8192, 8193, 65536] {
        host.ops.clear();
        let completion = host.plain(command(io::VERIFY, 1, blocks));
        assert_eq!(completion.status(), Status::SUCCESS, "{blocks}");
        let read: u64 = host.ops.iter().map(|op| op.len).sum();
        assert_eq!(read, u64::from(blocks) * 4096);
    }
}

/// WZSL says 32 MiB. NVM 1.0, 3.2.8: with ONCS bit 3 set that is what is recommended.
#[test]
fn write_zeroes_longer_than_wzsl_is_split() {
    let (_admin, mut host) = Host::ready(&large(1 << 20));
    for blocks in [1, 8192, 8193, 65536] {
        host.ops.clear();
        let completion = host.plain(command(io::WRITE_ZEROES, 3, blocks));
        assert_eq!(completion.status(), Status::SUCCESS, "{blocks}");
        let mut next = 3 * 4096;
        for op in &host.ops {
            assert!(matches!(op.kind, IoKind::WriteZeroes { .. }), "{op:?}");
            assert!(op.offset == next && op.len <= 32 << 20, "{op:?}");
            next += op.len;
        }
        assert_eq!(next, (3 + u64::from(blocks)) * 4096);
    }
    // Force Unit Access applies to all of them.
    for flags in [IoFlags::empty(), IoFlags::FUA] {
        host.ops.clear();
        let whole = Io {
            flags,
            ..Io::new(1, 3, 65536)
        };
        host.plain(whole.to_sqe(io::WRITE_ZEROES));
        let durable: Vec<_> = host.ops.iter().map(|op| op.fua).collect();
        assert_eq!(durable, [!flags.is_empty(); 8]);
    }
    host.ops.clear();
    host.outcomes = vec![Executed::Ok, Executed::NoSpace];
    let completion = host.plain(command(io::WRITE_ZEROES, 3, 65536));
    assert_eq!(completion.status(), Status::CAPACITY_EXCEEDED);
    assert_eq!(host.ops.len(), 2);
}

fn copy(host: &mut Host, to: u64, ranges: &[CopyRange]) -> (Status, u64) {
    let command = Copy {
        nsid: 1,
        slba: to,
        ranges: u16::try_from(ranges.len()).unwrap(),
        format: 0,
        protected: false,
        fua: true,
    };
    let completion = host.write(command.to_sqe(), ranges.as_bytes());
    (completion.status(), completion.result())
}

#[test]
fn copy_reads_and_writes_each_range_in_pieces_and_in_order() {
    let (_admin, mut host) = Host::ready(&large(1000));
    let ranges = [CopyRange::new(5, 40), CopyRange::new(100, 1)];
    assert_eq!(copy(&mut host, 500, &ranges), (Status::SUCCESS, 0));
    let pages = 32;
    let fetch = IoKind::Fetch { pages };
    let expected = [
        (fetch, 5, 32, false),
        (IoKind::WriteFetched, 500, 32, true),
        (fetch, 37, 8, false),
        (IoKind::WriteFetched, 532, 8, true),
        (fetch, 100, 1, false),
        (IoKind::WriteFetched, 540, 1, true),
    ];
    let ops = host.ops.iter();
    let ops: Vec<_> = ops
        .map(|op| (op.kind, op.offset / 4096, op.len / 4096, op.fua))
        .collect();
    assert_eq!(ops, expected);
}

/// NVM 1.0, 3.2.2, and NVM 1.2, 3.3.2: of descriptor format 0h overlaps are not refused.
#[test]
fn overlapping_copy_preserves_its_source() {
    let rows = [
        (99, 170),
        (100, 170),
        (101, 170),
        (131, 64),
        (133, 33),
        (100, 1),
        (269, 170),
    ];
    for (to, blocks) in rows {
        let (_admin, mut host) = Host::ready(&large(1000));
        let ranges = [CopyRange::new(100, blocks)];
        assert_eq!(copy(&mut host, to, &ranges), (Status::SUCCESS, 0), "{to}");
        let mut store: Vec<u64> = (0..1000).collect();
        let mut piece = Vec::new();
        for op in &host.ops {
            let (at, len) = (op.offset / 4096, op.len / 4096);
            assert!((1..=32).contains(&len), "{to} {op:?}");
            let bytes = usize::try_from(at).unwrap()..usize::try_from(at + len).unwrap();
            match op.kind {
                IoKind::WriteFetched => store[bytes].copy_from_slice(&piece),
                _ => piece = store[bytes].to_vec(),
            }
        }
        let to = usize::try_from(to).unwrap();
        let expected: Vec<u64> = (100..100 + u64::from(blocks)).collect();
        assert_eq!(store[to..to + expected.len()], expected, "{to}");
        assert_eq!(
            host.ops.len(),
            2 * expected.len().div_ceil(32),
            "each piece once"
        );
    }
}

/// Blocks in both may get the data of either range.
#[test]
fn overlapping_ranges_are_copied_in_order() {
    let (_admin, mut host) = Host::ready(&large(1000));
    let ranges = [CopyRange::new(0, 2), CopyRange::new(500, 2)];
    assert_eq!(copy(&mut host, 500, &ranges), (Status::SUCCESS, 0));
    let at: Vec<_> = host.ops.iter().map(|op| op.offset / 4096).collect();
    assert_eq!(at, [0, 500, 500, 502]);
}

#[test]
fn copy_awaiting_its_ranges_writes_nothing() {
    let (_admin, mut host) = Host::ready(&large(1000));
    let command = Copy {
        nsid: 1,
        slba: 0,
        ranges: 1,
        format: 0,
        protected: false,
        fua: false,
    };
    let mut sqe = command.to_sqe();
    sqe.flags = PSDT_SGL;
    sqe.dptr = keyed(32).to_descriptor();
    let mut request = Request::default();
    let action = host.queue.begin(host.now, &sqe.to_bytes(), &mut request);
    assert!(matches!(action, Action::Pull { .. }), "{action:?}");
    assert_eq!(request.store(), Some(10));
    assert!(!request.may_write(|store| store == 10, &(0..4096)));
}

/// NVM 1.0, 3.2.2: dword 0 says how far it came.
#[test]
fn failed_copy_reports_the_lowest_uncopied_range() {
    let (_admin, mut host) = Host::ready(&large(1000));
    let ranges = [0, 1, 2].map(|slba| CopyRange::new(slba, 1));
    let ok = Executed::Ok;
    let rows = [
        (vec![Executed::Failed], Status::UNRECOVERED_READ_ERROR, 0),
        (
            vec![ok, ok, Executed::Failed],
            Status::UNRECOVERED_READ_ERROR,
            1,
        ),
        (
            vec![ok, ok, ok, ok, ok, Executed::NoSpace],
            Status::CAPACITY_EXCEEDED,
            2,
        ),
        (vec![ok, Executed::Failed], Status::WRITE_FAULT, 0),
    ];
    for (outcomes, status, range) in rows {
        host.outcomes = outcomes;
        assert_eq!(copy(&mut host, 500, &ranges), (status, range));
    }
}

/// A failed write of a Copy is reported by its destination.
#[test]
fn failed_piece_is_logged_with_its_own_blocks() {
    let (_admin, mut host) = Host::ready(&large(1000));
    let command = Copy {
        nsid: 1,
        slba: 500,
        ranges: 1,
        format: 0,
        protected: false,
        fua: false,
    };
    let range = CopyRange::new(5, 40);
    let mut sqe = command.to_sqe();
    sqe.flags = PSDT_SGL;
    sqe.dptr = keyed(32).to_descriptor();
    let mut request = Request::default();
    let _ = host.queue.begin(host.now, &sqe.to_bytes(), &mut request);
    let data = range.as_bytes();
    let _ = host.queue.step(host.now, &mut request, Event::Pulled(data));
    let mut done = |request: &mut Request| {
        let outcome = Executed::Ok;
        let event = Event::Executed { outcome, data };
        let _ = host.queue.step(host.now, request, event);
    };
    // One piece was read and written, another one read.
    for _ in 0..3 {
        done(&mut request);
    }
    host.queue.failed_at(&mut request, 535 * 4096 + 1);
    assert_eq!(request.lba, 535);
}

/// Bytes of one backing store are not blocks of another, which may have another block size.
#[test]
fn failed_block_is_not_logged_after_store_change() {
    let target = large(1000);
    let (_admin, mut host) = Host::ready(&target);
    let mut begin = |request: &mut Request| {
        let sqe = command(io::VERIFY, 3, 70).to_bytes();
        let _ = host.queue.begin(host.now, &sqe, request);
        host.queue.failed_at(request, 5 * 4096);
        request.lba
    };
    let mut before = Request::default();
    assert_eq!(begin(&mut before), 5);
    let other = NamespaceSpec {
        store: 77,
        ..namespace(1)
    };
    let spec = SubsystemSpec {
        namespaces: vec![other],
        ..subsystem()
    };
    assert!(!apply(&target, &[spec]).changes.is_empty());
    let mut after = Request::default();
    assert_eq!(begin(&mut after), 40, "blocks of 512 bytes");
    host.queue.failed_at(&mut before, 6 * 4096);
    assert_eq!(before.lba, 5);
}

#[test]
fn bad_range_fails_the_whole_copy() {
    let (_admin, mut host) = Host::ready(&large(100_000));
    let one = CopyRange::new(0, 1);
    let rows = [
        (0, CopyRange::new(100_000, 1), Status::LBA_OUT_OF_RANGE),
        (0, CopyRange::new(u64::MAX, 1), Status::LBA_OUT_OF_RANGE),
        (99_999, CopyRange::new(1, 1), Status::LBA_OUT_OF_RANGE),
        (u64::MAX, CopyRange::new(1, 1), Status::LBA_OUT_OF_RANGE),
        // MSSRL and MCL are 64 MiB here.
        (
            50_000,
            CopyRange::new(1, 16_385),
            Status::COMMAND_SIZE_LIMIT_EXCEEDED,
        ),
        (
            50_000,
            CopyRange::new(1, 16_384),
            Status::COMMAND_SIZE_LIMIT_EXCEEDED,
        ),
    ];
    for (to, bad, status) in rows {
        assert_eq!(
            copy(&mut host, to, &[one, bad]),
            (status, 0),
            "{to} {bad:?}"
        );
    }
    let ranges = [one; 129];
    let status = Status::COMMAND_SIZE_LIMIT_EXCEEDED;
    assert_eq!(copy(&mut host, 500, &ranges), (status, 0));
    assert!(host.ops.is_empty());
    let most = [one, CopyRange::new(1, 16_383)];
    assert_eq!(copy(&mut host, 50_000, &most), (Status::SUCCESS, 0));
    assert_eq!(copy(&mut host, 500, &ranges[1..]), (Status::SUCCESS, 0));
}

#[test]
fn copies_beyond_the_namespace_are_refused() {
    let (_admin, mut host) = Host::ready(&large(1000));
    let command = Copy {
        nsid: 1,
        slba: 9,
        ranges: 1,
        format: 0,
        protected: false,
        fua: false,
    };
    let range = CopyRange::new(0, 1);
    let format = Copy {
        format: 1,
        ..command
    }
    .to_sqe();
    let completion = host.write(format, range.as_bytes());
    assert_eq!(completion.status(), Status::INVALID_FIELD);
    // NVM 1.0, figure 9: PRINFOR and PRINFOW are ignored, for want of such information.
    for prinfo in [0xf << 12, 0xf << 26] {
        let mut sqe = command.to_sqe();
        sqe.cdw12 = (sqe.cdw12.get() | prinfo).into();
        let completion = host.write(sqe, range.as_bytes());
        assert_eq!(completion.status(), Status::SUCCESS, "{prinfo:#x}");
    }
    let completion = host.write(command.to_sqe(), &range.as_bytes()[..31]);
    assert_eq!(completion.status(), Status::DATA_SGL_LENGTH_INVALID);
    let readonly = NamespaceSpec {
        readonly: true,
        ..namespace(1)
    };
    let (_admin, mut host) = Host::ready(&target_of(readonly));
    let completion = host.write(command.to_sqe(), range.as_bytes());
    assert_eq!(completion.status(), Status::NAMESPACE_WRITE_PROTECTED);
}
