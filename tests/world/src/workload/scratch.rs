//! Calls on the scratch disk: all kinds of commands and lengths, without checks of its
//! contents. All of them must complete.

use std::ops::Range;
use std::time::Duration;

use nvmeof_initiator::polled::Work;
use nvmeof_initiator_core::blocks::{self, put_ranges};
use nvmeof_initiator_core::copy::COPY_ENTRY_LEN;
use nvmeof_initiator_core::{Blocks, CopyPart, Operation, Range as DsmRange};
use nvmeof_memory::Buf;
use nvmeof_rdma_layers::{Dice, OneIn};
use nvmeof_wire::Status;

use super::{Ask, ErrorCounts, Kind, Pending, Prepared};
use crate::oracle::{Ending, OpId, Oracle, Wrong};
use crate::plan::{DiskShape, LONGEST};

/// A call on the scratch disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scratch {
    Read,
    Write,
    Compare,
    /// A fused Compare and Write.
    CompareWrite,
    /// Of any length.
    Verify,
    /// To the first block of the first range.
    Copy,
    Zeroes,
    Trim,
    Flush,
}

impl Scratch {
    /// Whether it changes the contents of the disk, or makes them stable.
    pub(super) fn changes(self) -> bool {
        !matches!(self, Self::Read | Self::Compare | Self::Verify)
    }
}

/// Bytes of each half of a fused operation.
const LONGEST_FUSED: u64 = 4096;

/// Draws a call.
pub(super) fn draw(dice: &mut Dice, ns: usize, shape: &DiskShape) -> Ask {
    let kind = match dice.below(20) {
        0..4 => Scratch::Read,
        4..8 => Scratch::Write,
        8..10 => Scratch::Compare,
        10 => Scratch::CompareWrite,
        11..15 => Scratch::Verify,
        15..18 => Scratch::Copy,
        18 if dice.happens(OneIn(2)) => Scratch::Zeroes,
        18 => Scratch::Trim,
        _ => Scratch::Flush,
    };
    let longest = match kind {
        Scratch::Read | Scratch::Write | Scratch::Compare => LONGEST / shape.block_size,
        Scratch::CompareWrite => LONGEST_FUSED / shape.block_size,
        Scratch::Copy => shape.blocks / 4,
        Scratch::Verify | Scratch::Zeroes | Scratch::Trim | Scratch::Flush => shape.blocks,
    };
    let longest = match dice.below(3) {
        0 => longest.min(8),
        _ => longest,
    };
    let count = match kind {
        Scratch::Copy => 2 + dice.below(3),
        _ => 1,
    };
    // The destination of a Copy has the length of all sources.
    let end = match kind {
        Scratch::Copy => shape.blocks - 3 * longest,
        _ => shape.blocks,
    };
    let ranges = (0..count).map(|_| {
        let count = 1 + dice.roll() % longest;
        let start = dice.roll() % (end - count + 1).max(1);
        start..start + count
    });
    Ask {
        kind: Kind::Scratch(kind),
        ns,
        ranges: ranges.collect(),
        spoil: None,
    }
}

/// Makes it ready.
pub(super) fn prepare(
    (kind, ask): (Scratch, &Ask),
    host: usize,
    shape: &DiskShape,
    oracle: &mut Oracle,
    take: impl FnOnce(usize) -> Option<Buf>,
    now: Duration,
) -> Option<Prepared> {
    let nsid = u32::try_from(ask.ns).unwrap() + 1;
    let range = ask.ranges[0].clone();
    let of_blocks = |operation| -> Work {
        Blocks {
            operation,
            nsid,
            block_shift: u8::try_from(shape.block_size.trailing_zeros()).unwrap(),
            slba: range.start,
            count: range.end - range.start,
            fua: false,
        }
        .into()
    };
    let bytes = usize::try_from((range.end - range.start) * shape.block_size).unwrap();
    let copy = CopyPart {
        to: range.start,
        from: ask.ranges[1..].iter().map(dsm_range).collect(),
    };
    let trim = [dsm_range(&range)];
    let (len, work) = match kind {
        Scratch::Read => (bytes, of_blocks(Operation::Read)),
        Scratch::Write => (bytes, of_blocks(Operation::Write)),
        Scratch::Compare => (bytes, of_blocks(Operation::Compare)),
        Scratch::CompareWrite => (2 * bytes, of_blocks(Operation::CompareWrite)),
        Scratch::Verify => (0, of_blocks(Operation::Verify)),
        Scratch::Zeroes => {
            let deallocate = false;
            (0, of_blocks(Operation::WriteZeroes { deallocate }))
        }
        Scratch::Copy => {
            let len = copy.from.len() * COPY_ENTRY_LEN;
            (len, copy.command(nsid, false).unwrap().into())
        }
        Scratch::Trim => {
            let command = blocks::deallocate(nsid, &trim).unwrap();
            (blocks::RANGE_LEN, command.into())
        }
        Scratch::Flush => (0, blocks::flush(nsid).into()),
    };
    let mut buf = None;
    if len > 0 {
        let buf = buf.insert(take(len)?);
        match kind {
            Scratch::Copy => copy.put(buf),
            Scratch::Trim => put_ranges(&trim, buf),
            // Some compares match.
            _ => buf.fill(0),
        }
    }
    oracle.sent_by(Some(host));
    let pending = Pending {
        host,
        kind: ask.kind,
        ns: ask.ns,
        range: range.clone(),
        sent: Vec::new(),
        has_buf: buf.is_some(),
        since: now,
    };
    Some(Prepared {
        id: oracle.begin_nothing(ask.ns),
        work,
        buf,
        pending,
    })
}

fn dsm_range(range: &Range<u64>) -> DsmRange {
    DsmRange {
        slba: range.start,
        count: u32::try_from(range.end - range.start).unwrap(),
    }
}

/// Checks whether a correct target may return this error.
pub(super) fn check_status(
    (id, kind): (OpId, Scratch),
    status: Status,
    oracle: &mut Oracle,
    errors: &mut ErrorCounts,
) -> Result<(), Wrong> {
    match (kind, status) {
        (Scratch::Compare | Scratch::CompareWrite, Status::COMPARE_FAILURE) => {}
        (_, Status::UNRECOVERED_READ_ERROR) => errors.reads += 1,
        (_, Status::WRITE_FAULT) => errors.writes += 1,
        (_, Status::CAPACITY_EXCEEDED) => errors.no_space += 1,
        (Scratch::Trim, Status::INTERNAL_ERROR) => errors.others += 1,
        (kind, status) => {
            return Err(Wrong(format!(
                "call {id}, {kind:?}: unexpected status {status}"
            )));
        }
    }
    oracle.end(id, Ending::Failed)
}
