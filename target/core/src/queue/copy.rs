//! The Copy command (NVM 1.0, 3.2.2): all ranges are checked, then they are
//! copied in order, a piece at a time through one buffer.

use std::ops::Range;

use nvmeof_target_reservations::Access;
use nvmeof_wire::nvm::{COPY_RANGE_LEN, Copy, CopyRange};
use nvmeof_wire::{Sqe, Status};

use super::io::{CDW10, Joined, entry_at, extent_of, writable};
use crate::request::{Copying, Failure, Next, Request, Stage};
use crate::{IoKind, IoOp, Limits};

/// Bits 11:8 of dword 12.
const DESFMT: u16 = 49;

impl Copying {
    /// Whether it is about to write a piece.
    pub(super) fn is_storing(&self) -> bool {
        self.storing
    }

    /// The byte range that may be being written for it: at most a piece.
    pub(super) fn storing(&self) -> Option<Range<u64>> {
        let start = self.to.saturating_add(self.from.into()) << self.extent.block_shift;
        let piece = start..start + u64::from(self.room());
        self.storing.then_some(piece)
    }

    /// Bytes of the current piece; `data` are its ranges.
    pub(super) fn piece_len(&self, data: &[u8]) -> Result<u64, Failure> {
        let range: CopyRange = entry_at(data, self.at)?;
        Ok(u64::from(piece(*self, &range)) << self.extent.block_shift)
    }

    /// Blocks of a piece, at most.
    fn most(&self) -> u32 {
        self.room() >> self.extent.block_shift
    }

    /// The kind of its current operation.
    pub(super) fn kind(&self) -> IoKind {
        if self.storing {
            IoKind::WriteFetched
        } else {
            IoKind::Fetch { pages: self.pages }
        }
    }

    /// NVM 1.0, 3.2.2, dword 0 of the completion: "the number of the lowest numbered
    /// Source Range entry that was not successfully copied".
    pub(super) fn failed(&self, failure: Failure) -> Failure {
        Failure {
            result: self.at.into(),
            ..failure
        }
    }
}

impl Joined {
    pub(super) fn copy(&self, request: &mut Request, sqe: &Sqe) -> Result<Next, Failure> {
        let command = Copy::parse(sqe);
        request.lba = command.slba;
        // The sources are in the same namespace: who may write may read.
        let namespace = self.reach(command.nsid, Access::Write)?;
        // Identify Controller, CDFS: descriptor format 0h only. Format 1h is for protection
        // information, which no namespace has.
        if command.format != 0 {
            return Err(Failure::field(DESFMT));
        }
        // PRINFOR and PRINFOW are ignored without protection information: NVM 1.0, figure 9,
        // and NVM 1.2, 3.3.2.3.
        writable(namespace)?;
        // NVM 1.0, 3.2.2, Command Size Limit Exceeded: more ranges than MSRC,
        // a range longer than MSSRL, or all of them longer than MCL.
        if command.ranges > Limits::COPY_RANGES {
            return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.into());
        }
        request.takes_at_most(u32::from(command.ranges) * COPY_RANGE_LEN)?;
        request.stage = Stage::Copy(Copying {
            extent: extent_of(namespace),
            to: command.slba,
            from: 0,
            pages: self.piece,
            at: 0,
            ranges: command.ranges,
            fua: command.fua || self.controller.hot.writes_through(),
            storing: false,
        });
        Ok(Next::Data)
    }
}

/// The ranges have arrived: all are checked before the first is copied.
pub(super) fn ranges(
    request: &mut Request,
    copying: Copying,
    data: &[u8],
) -> Result<Next, Failure> {
    check(request, copying, data)?;
    begin_range(request, copying, data)
}

/// A piece was read or written.
pub(super) fn copied(
    request: &mut Request,
    mut copying: Copying,
    data: &[u8],
) -> Result<Next, Failure> {
    let range: CopyRange = entry_at(data, copying.at)?;
    let blocks = piece(copying, &range);
    if !copying.storing {
        copying.storing = true;
        request.stage = Stage::Copy(copying);
        let to = copying.to.saturating_add(copying.from.into());
        let op = copying
            .extent
            .bytes(to, blocks, IoKind::WriteFetched)
            .ok_or(copying.failed(Status::LBA_OUT_OF_RANGE.into()))?;
        let fua = copying.fua;
        return Ok(Next::Execute(IoOp { fua, ..op }));
    }
    copying.storing = false;
    let next = match is_backwards(copying, &range) {
        true => copying.from.checked_sub(copying.most()),
        false => Some(copying.from.saturating_add(blocks)),
    };
    if let Some(from) = next.filter(|from| *from < range.blocks()) {
        copying.from = from;
        return fetch(request, copying, data);
    }
    copying.to = copying.to.saturating_add(range.blocks().into());
    copying.at += 1;
    if copying.at == copying.ranges {
        return Ok(Next::Done(0));
    }
    begin_range(request, copying, data)
}

/// Whether the range is copied backwards, because its first piece would overwrite blocks
/// that are still to be read.
///
/// NVM 1.0, 3.2.2, neither defines nor refuses a destination that overlaps a source; reads
/// and writes "may operate sequentially or in parallel". NVM 1.2, 3.3.2: "The host should
/// not specify a destination LBA range that overlaps the LBA in any of the Source Range
/// entries"; otherwise blocks in both may get the data of any range that contains them.
/// Here, a range that overlaps its own destination is copied unchanged, and of several
/// overlapping ranges the later ones read the data of the earlier ones.
fn is_backwards(copying: Copying, range: &CopyRange) -> bool {
    let slba = range.slba.get();
    slba < copying.to && copying.to < slba.saturating_add(range.blocks().into())
}

/// Reads the first piece of the current range.
fn begin_range(request: &mut Request, mut copying: Copying, data: &[u8]) -> Result<Next, Failure> {
    let range: CopyRange = entry_at(data, copying.at)?;
    copying.from = 0;
    if is_backwards(copying, &range) {
        // Pieces are the same in either direction.
        let last = range.blocks().saturating_sub(1);
        copying.from = last - last.checked_rem(copying.most()).unwrap_or(0);
    }
    fetch(request, copying, data)
}

/// Checks all ranges and the destination.
fn check(request: &mut Request, copying: Copying, data: &[u8]) -> Result<(), Failure> {
    let (most_of_one, most) = Limits::copy_blocks(copying.extent.block_shift);
    let mut total = 0u32;
    for at in 0..copying.ranges {
        let range: CopyRange = entry_at(data, at)?;
        let (slba, blocks) = (range.slba.get(), range.blocks());
        // No overflow: 256 ranges of 2^16 blocks at most.
        total += blocks;
        if blocks > most_of_one.into() || total > most {
            return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.into());
        }
        if copying.extent.bytes(slba, blocks, IoKind::Read).is_none() {
            request.lba = slba;
            return Err(copying.extent.missed(request));
        }
    }
    if copying
        .extent
        .bytes(copying.to, total, IoKind::Write)
        .is_none()
    {
        return Err(copying.extent.missed(request).at(CDW10));
    }
    Ok(())
}

/// Reads the current piece.
fn fetch(request: &mut Request, copying: Copying, data: &[u8]) -> Result<Next, Failure> {
    let range: CopyRange = entry_at(data, copying.at)?;
    let blocks = piece(copying, &range);
    let from = range.slba.get().saturating_add(copying.from.into());
    request.stage = Stage::Copy(copying);
    let op = copying
        .extent
        .bytes(from, blocks, copying.kind())
        .ok_or(copying.failed(Status::LBA_OUT_OF_RANGE.into()))?;
    Ok(Next::Execute(op))
}

/// Blocks of the current piece.
fn piece(copying: Copying, range: &CopyRange) -> u32 {
    let left = range.blocks().saturating_sub(copying.from);
    left.min(copying.most())
}
