//! Commands whose data stay here: done piece by piece.

use nvmeof_wire::nvm::{Io, IoFlags};
use nvmeof_wire::opcode::{Opcode, io};
use nvmeof_wire::{Sqe, Status};

use crate::testing::{Host, namespace, target_of};
use crate::{Executed, IoKind, NamespaceSpec, Target};

const PIECE: u64 = 128 << 10;

fn command(opcode: Opcode, slba: u64, blocks: u32) -> Sqe {
    let (nsid, flags) = (1, IoFlags::empty());
    Io {
        nsid,
        slba,
        blocks,
        flags,
    }
    .to_sqe(opcode)
}

/// One namespace of so many blocks of 4096 bytes.
fn large(blocks: u64) -> Target {
    target_of(NamespaceSpec {
        blocks,
        block_size: 4096,
        ..namespace(1)
    })
}

#[test]
fn verify_reads_every_block_once_in_pieces_and_gives_none() {
    let (_admin, mut host) = Host::ready(&large(1000));
    let answer = host.plain(command(io::VERIFY, 3, 70));
    assert_eq!((answer.status(), answer.data.len()), (Status::SUCCESS, 0));
    let room = u32::try_from(PIECE).unwrap();
    let mut next = 3 * 4096;
    for (n, op) in host.ops.iter().enumerate() {
        assert_eq!((op.kind, op.offset), (IoKind::Fetch { room }, next), "{n}");
        assert!(op.len <= PIECE);
        next += op.len;
    }
    assert_eq!((host.ops.len(), next), (3, 73 * 4096));
}

#[test]
fn verify_ends_with_the_first_piece_that_cannot_be_read() {
    let (_admin, mut host) = Host::ready(&large(1000));
    host.outcomes = vec![Executed::Ok, Executed::Failed];
    let answer = host.plain(command(io::VERIFY, 0, 1000));
    assert_eq!(answer.status(), Status::UNRECOVERED_READ_ERROR);
    assert_eq!(host.ops.len(), 2);
}

/// VSL says 32 MiB.
#[test]
fn verify_has_a_limit() {
    let (_admin, mut host) = Host::ready(&large(1 << 20));
    for (blocks, status) in [(8192, Status::SUCCESS), (8193, Status::INVALID_FIELD)] {
        let answer = host.plain(command(io::VERIFY, 1, blocks));
        assert_eq!(answer.status(), status, "{blocks}");
    }
}
