//! Force Unit Access: writing through, and flushing before a
//! read.

use nvmeof_wire::nvm::{Copy, CopyRange, Io, IoFlags};
use nvmeof_wire::opcode::{Opcode, io};
use nvmeof_wire::{Sqe, Status};
use zerocopy::IntoBytes;

use super::fused::{execute, executed, half};
use crate::testing::{Completion, Host, target};
use crate::{Action, Event, Executed, IoKind, IoOp};

/// Four blocks from block 8 on.
fn sqe(opcode: Opcode, flags: IoFlags) -> Sqe {
    Io {
        nsid: 1,
        slba: 8,
        blocks: 4,
        flags,
    }
    .to_sqe(opcode)
}

fn send(host: &mut Host, opcode: Opcode, flags: IoFlags) -> Completion {
    match opcode {
        io::READ => host.read(sqe(opcode, flags), 2048),
        io::VERIFY => host.plain(sqe(opcode, flags)),
        _ => host.write(sqe(opcode, flags), &[0xda; 2048]),
    }
}

fn kinds(host: &mut Host) -> Vec<IoKind> {
    host.ops.drain(..).map(|op| op.kind).collect()
}

/// The operations of each command that reads.
fn reading(pages: u8) -> [(Opcode, IoKind); 3] {
    [
        (io::READ, IoKind::Read),
        (io::COMPARE, IoKind::Compare),
        (io::VERIFY, IoKind::Fetch { pages }),
    ]
}

#[test]
fn fua_read_commits_first() {
    let (_admin, mut host) = Host::ready(&target());
    let pages = target().limits().piece();
    for (opcode, kind) in reading(pages) {
        let completion = send(&mut host, opcode, IoFlags::FUA);
        assert_eq!(completion.status(), Status::SUCCESS, "{opcode:?}");
        let len = if opcode == io::READ { 2048 } else { 0 };
        assert_eq!(completion.data.len(), len, "{opcode:?}");
        let [commit, read] = host.ops[..] else {
            panic!("{opcode:?}: {:?}", host.ops)
        };
        assert_eq!((commit.store, commit.kind), (10, IoKind::Flush));
        assert_eq!((read.kind, read.bytes()), (kind, 4096..6144));
        host.ops.clear();
        send(&mut host, opcode, IoFlags::empty());
        assert_eq!(kinds(&mut host), [kind], "without it nothing is committed");
    }
    let compare = sqe(io::COMPARE, IoFlags::FUA);
    let completion = host.write_in_capsule(compare, &[0xda; 2048]);
    assert_eq!(completion.status(), Status::SUCCESS);
    assert_eq!(kinds(&mut host), [IoKind::Flush, IoKind::Compare]);
}

/// Base 2.1, figure 106, Write Fault: "the write data could not be committed to the media"
/// is the cause, although the command does not write.
#[test]
fn fua_read_fails_when_commit_fails() {
    let (_admin, mut host) = Host::ready(&target());
    let rows = [
        (Executed::Failed, Status::WRITE_FAULT),
        (Executed::NoSpace, Status::CAPACITY_EXCEEDED),
        (Executed::ReadOnly, Status::WRITE_FAULT),
        (Executed::Gone, Status::NAMESPACE_NOT_READY),
        (Executed::Fenced, Status::INTERNAL_PATH_ERROR),
        (Executed::Standby, Status::ANA_INACCESSIBLE),
    ];
    for (opcode, _) in reading(0) {
        for (outcome, status) in rows {
            host.outcomes = vec![outcome];
            let completion = send(&mut host, opcode, IoFlags::FUA);
            let reported = (completion.status(), completion.data.len());
            assert_eq!(reported, (status, 0), "{opcode:?}");
            assert_eq!(kinds(&mut host), [IoKind::Flush], "{opcode:?}");
        }
    }
    // The read afterwards may fail as usual.
    for (opcode, _) in reading(0) {
        host.outcomes = vec![Executed::Ok, Executed::Failed];
        let completion = send(&mut host, opcode, IoFlags::FUA);
        assert_eq!(completion.status(), Status::UNRECOVERED_READ_ERROR);
    }
}

#[test]
fn a_fused_compare_commits_under_the_lock_of_its_blocks() {
    let (_admin, mut host) = Host::ready(&target());
    let (mut first, action) = half(&mut host, 1, sqe(io::COMPARE, IoFlags::FUA), 2048);
    assert!(matches!(action, Action::Fuse));
    let (mut second, _) = half(&mut host, 2, sqe(io::WRITE, IoFlags::FUA), 2048);
    // The lock is requested with the first operation, for its bytes.
    let commit = execute(&mut host, &mut first);
    assert_eq!((commit.kind, commit.bytes()), (IoKind::Flush, 4096..6144));
    let outcome = Executed::Ok;
    let event = Event::Executed { outcome, data: &[] };
    match host.queue.step(host.now, &mut first, event) {
        Action::Execute(IoOp { kind, .. }) => assert_eq!(kind, IoKind::Compare),
        other => panic!("{other:?}"),
    }
    assert_eq!(executed(&mut host, &mut first, outcome), Status::SUCCESS);
    let write = execute(&mut host, &mut second);
    assert_eq!((write.kind, write.fua), (IoKind::Write, true));
}

/// NVM 1.0, 3.2.2: FUA of a Copy is about what it writes.
#[test]
fn a_copy_with_fua_writes_through() {
    let (_admin, mut host) = Host::ready(&target());
    for fua in [false, true] {
        let copy = Copy {
            nsid: 1,
            slba: 500,
            ranges: 2,
            format: 0,
            protected: false,
            fua,
        };
        let ranges = [CopyRange::new(0, 8), CopyRange::new(100, 1)];
        let completion = host.write(copy.to_sqe(), ranges.as_bytes());
        assert_eq!(completion.status(), Status::SUCCESS);
        let (stores, others): (Vec<_>, Vec<_>) = host
            .ops
            .drain(..)
            .partition(|op| op.kind == IoKind::WriteFetched);
        assert!(stores.len() == 2 && stores.iter().all(|op| op.fua == fua));
        let fetches = |op: &IoOp| matches!(op.kind, IoKind::Fetch { .. });
        assert!(others.len() == 2 && others.iter().all(fetches));
    }
}
