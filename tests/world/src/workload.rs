//! Random calls of hosts, and checks of their results.

use std::ops::Range;
use std::time::Duration;

use nvmeof_initiator::Error;
use nvmeof_initiator::polled::{Done, SubmitError, Work};
use nvmeof_initiator_core::blocks::{self, put_ranges};
use nvmeof_initiator_core::{Blocks, Operation, Range as DsmRange, ReservationCommand};
use nvmeof_memory::Buf;
use nvmeof_rdma_layers::{Dice, OneIn};
use nvmeof_wire::Status;

pub(crate) mod reserving;
mod scratch;

use crate::content::{self, Value, ZEROES};
use crate::oracle::{Ending, OpId, Oracle, Wrong};
use crate::plan::{DiskShape, LONGEST};
use crate::reservations::Rights;
use scratch::Scratch;

/// A call in flight.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) host: usize,
    pub(crate) kind: Kind,
    pub(crate) ns: usize,
    pub(crate) range: Range<u64>,
    /// The data of a compare.
    sent: Vec<Value>,
    has_buf: bool,
    pub(crate) since: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write {
        fua: bool,
    },
    Zeroes {
        fua: bool,
        deallocate: bool,
    },
    Compare,
    Flush,
    Deallocate,
    /// A read beyond the end.
    Beyond,
    /// On the scratch disk.
    Scratch(Scratch),
    /// A change of reservations.
    Reserve(ReservationCommand),
    /// A report of reservations.
    Report,
}

impl Kind {
    /// Whether it changes the contents of a disk, or makes them stable.
    pub(crate) fn changes(self) -> bool {
        match self {
            Self::Read | Self::Compare | Self::Beyond | Self::Reserve(_) | Self::Report => false,
            Self::Scratch(_)
            | Self::Write { .. }
            | Self::Zeroes { .. }
            | Self::Flush
            | Self::Deallocate => true,
        }
    }
}

/// A call that is ready to be submitted.
pub(crate) struct Prepared {
    pub(crate) id: OpId,
    pub(crate) work: Work,
    pub(crate) buf: Option<Buf>,
    pub(crate) pending: Pending,
}

/// Errors that hosts got, by kind, to compare with the injected ones.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ErrorCounts {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) no_space: u64,
    pub(crate) others: u64,
}

/// Whether the namespace of a call existed during the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Always,
    Sometimes,
    Never,
}

/// The state of the namespace during a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Met {
    pub(crate) there: Presence,
    /// Whether it was accessible on the port.
    pub(crate) reached: Presence,
    /// What reservations allowed.
    pub(crate) rights: Rights,
}

/// A call before its preparation.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) kind: Kind,
    pub(crate) ns: usize,
    /// One range, or several to deallocate.
    pub(crate) ranges: Vec<Range<u64>>,
    /// Position of a wrong byte of a compare, modulo its length.
    pub(crate) spoil: Option<u64>,
}

/// Draws a random call.
pub(crate) fn draw(dice: &mut Dice, shapes: &[DiskShape]) -> Ask {
    let mut shapes = shapes;
    if let Some((shape, others)) = shapes.split_last()
        && shape.scratch
    {
        if dice.happens(OneIn(2)) {
            return scratch::draw(dice, others.len(), shape);
        }
        shapes = others;
    }
    let kind = draw_kind(dice);
    let ns = dice.below(shapes.len());
    let shape = &shapes[ns];
    let ranges = match kind {
        Kind::Deallocate => 1 + dice.below(4),
        _ => 1,
    };
    let mut ranges: Vec<Range<u64>> = (0..ranges).map(|_| run_of_blocks(dice, shape)).collect();
    if kind == Kind::Beyond {
        let count = ranges[0].end - ranges[0].start;
        let past = 1 + dice.roll() % count;
        ranges[0] = shape.blocks - count + past..shape.blocks + past;
    }
    let spoil = dice.happens(OneIn(4)).then(|| dice.roll());
    Ask {
        kind,
        ns,
        ranges,
        spoil,
    }
}

fn draw_kind(dice: &mut Dice) -> Kind {
    let fua = dice.happens(OneIn(4));
    match dice.below(100) {
        0..35 => Kind::Read,
        35..70 => Kind::Write { fua },
        70..78 => Kind::Compare,
        78..85 => Kind::Flush,
        85..92 => Kind::Zeroes {
            fua,
            deallocate: dice.happens(OneIn(2)),
        },
        92..98 => Kind::Deallocate,
        _ => Kind::Beyond,
    }
}

/// Draws a range of blocks: mostly short, sometimes longer than one command.
fn run_of_blocks(dice: &mut Dice, shape: &DiskShape) -> Range<u64> {
    let most = (LONGEST / shape.block_size).min(shape.blocks);
    let most = match dice.below(8) {
        0..3 => 1,
        3..5 => most.min(8),
        5..7 => most.min(32),
        _ => most,
    };
    let count = 1 + dice.roll() % most;
    let start = dice.roll() % (shape.blocks - count + 1);
    start..start + count
}

/// Prepares a call of `host` and reports it to the oracle; `None` if there is no buffer.
pub(crate) fn prepare(
    ask: Ask,
    host: usize,
    shape: &DiskShape,
    oracle: &mut Oracle,
    take: impl FnOnce(usize) -> Option<Buf>,
    now: Duration,
) -> Option<Prepared> {
    if let Kind::Scratch(kind) = ask.kind {
        return scratch::prepare((kind, &ask), host, shape, oracle, take, now);
    }
    if let Kind::Reserve(_) | Kind::Report = ask.kind {
        return reserving::prepare(&ask, host, oracle, take, now);
    }
    let Ask {
        kind,
        ns,
        ranges,
        spoil,
    } = ask;
    let range = ranges[0].clone();
    let nsid = u32::try_from(ns).unwrap() + 1;
    let count = range.end - range.start;
    let block = usize::try_from(shape.block_size).unwrap();
    let bytes = match kind {
        Kind::Read | Kind::Write { .. } | Kind::Compare | Kind::Beyond => {
            usize::try_from(count).unwrap() * block
        }
        Kind::Deallocate => ranges.len() * blocks::RANGE_LEN,
        _ => 0,
    };
    let mut buf = None;
    if bytes > 0 {
        buf = Some(take(bytes)?);
    }
    let blocks_of = |operation, fua| -> Work {
        Blocks {
            operation,
            nsid,
            block_shift: u8::try_from(shape.block_size.trailing_zeros()).unwrap(),
            slba: range.start,
            count,
            fua,
        }
        .into()
    };
    let mut sent = Vec::new();
    oracle.sent_by(Some(host));
    let stable = |fua| fua || !shape.volatile;
    let (id, work) = match kind {
        Kind::Read => {
            // Old contents must not pass for read data.
            buf.as_mut().unwrap().fill(0xee);
            (
                oracle.begin_read(ns, range.clone()),
                blocks_of(Operation::Read, false),
            )
        }
        Kind::Beyond => (oracle.begin_nothing(ns), blocks_of(Operation::Read, false)),
        Kind::Write { fua } => {
            let id = oracle.begin_write(ns, range.clone(), false, stable(fua));
            let blocks = buf.as_mut().unwrap().chunks_exact_mut(block);
            for (lba, bytes) in range.clone().zip(blocks) {
                content::fill(bytes, id, nsid, lba);
            }
            (id, blocks_of(Operation::Write, fua))
        }
        Kind::Compare => {
            let blocks = buf.as_mut().unwrap().chunks_exact_mut(block);
            for (lba, bytes) in range.clone().zip(blocks) {
                let value = oracle.guess(ns, lba);
                content::fill(bytes, value, nsid, lba);
                sent.push(value);
            }
            if let Some(spoil) = spoil {
                let at = usize::try_from(spoil % bytes as u64).unwrap();
                buf.as_mut().unwrap()[at] ^= 0x10;
                sent[at / block] = u64::MAX;
            }
            (
                oracle.begin_read(ns, range.clone()),
                blocks_of(Operation::Compare, false),
            )
        }
        Kind::Zeroes { fua, deallocate } => {
            let id = oracle.begin_write(ns, range.clone(), true, stable(fua));
            (id, blocks_of(Operation::WriteZeroes { deallocate }, fua))
        }
        Kind::Deallocate => {
            let id = if shape.deallocate {
                oracle.begin_changes(ns, &ranges, true, stable(false))
            } else {
                oracle.begin_nothing(ns)
            };
            let ranges: Vec<DsmRange> = ranges
                .iter()
                .map(|range| DsmRange {
                    slba: range.start,
                    count: u32::try_from(range.end - range.start).unwrap(),
                })
                .collect();
            put_ranges(&ranges, buf.as_mut().unwrap());
            let command = blocks::deallocate(nsid, &ranges).unwrap();
            (id, command.into())
        }
        _ => (oracle.begin_flush(ns), blocks::flush(nsid).into()),
    };
    let pending = Pending {
        host,
        kind,
        ns,
        range,
        sent,
        has_buf: buf.is_some(),
        since: now,
    };
    Some(Prepared {
        id,
        work,
        buf,
        pending,
    })
}

/// Checks whether a call may be refused.
pub(crate) fn check_refusal(why: &SubmitError) -> Result<(), Wrong> {
    match why {
        SubmitError::Full
        | SubmitError::NotConnected(_)
        | SubmitError::Buffer(_)
        // A fused operation on a queue of two entries.
        | SubmitError::Narrow
        | SubmitError::Refused(_) => Ok(()),
        SubmitError::Length { .. } | SubmitError::Empty => {
            Err(Wrong(format!("a call was refused: {why}")))
        }
    }
}

/// Checks whether a correct target may return this result.
pub(crate) fn check(
    id: OpId,
    pending: &Pending,
    done: &Done,
    (block, met): (u64, Met),
    oracle: &mut Oracle,
    errors: &mut ErrorCounts,
) -> Result<(), Wrong> {
    check_buffer(id, pending, done)?;
    let rights = met.rights;
    match &done.result {
        Ok(_) if [met.there, met.reached].contains(&Presence::Never) => Err(Wrong(format!(
            "call {id} succeeded, but its namespace was {met:?}"
        ))),
        Ok(_) if !rights.granted => Err(Wrong(format!(
            "call {id} succeeded, but a reservation excluded its host"
        ))),
        Ok(_) => check_success(id, pending, done, block, oracle),
        Err(Error::Command(error)) => match error.status.kind() {
            Status::INVALID_FIELD if met.there != Presence::Always => {
                oracle.end(id, Ending::Failed)
            }
            Status::ANA_INACCESSIBLE if met.reached != Presence::Always => {
                oracle.end(id, Ending::Failed)
            }
            Status::RESERVATION_CONFLICT if rights.denied => oracle.end(id, Ending::Failed),
            Status::COMPARE_FAILURE if !rights.granted => Err(Wrong(format!(
                "call {id} compared, but a reservation excluded its host"
            ))),
            status => check_status(id, pending, status, oracle, errors),
        },
        Err(Error::Lost(_)) => oracle.end(id, Ending::Lost),
        Err(other) => Err(Wrong(format!("call {id} failed: {other}"))),
    }
}

/// Checks that the call returned its buffer.
pub(crate) fn check_buffer(id: OpId, pending: &Pending, done: &Done) -> Result<(), Wrong> {
    if pending.has_buf == done.buf.is_some() {
        return Ok(());
    }
    Err(Wrong(format!("call {id} did not return its buffer")))
}

fn check_success(
    id: OpId,
    pending: &Pending,
    done: &Done,
    block: u64,
    oracle: &mut Oracle,
) -> Result<(), Wrong> {
    match pending.kind {
        Kind::Read => {
            let nsid = u32::try_from(pending.ns).unwrap() + 1;
            let block = usize::try_from(block).unwrap();
            let bytes = done.buf.as_deref().unwrap_or_default();
            let mut seen = Vec::new();
            for (lba, bytes) in pending.range.clone().zip(bytes.chunks_exact(block)) {
                let value = content::read(bytes, nsid, lba).ok_or_else(|| {
                    let start = &bytes[..16];
                    Wrong(format!(
                        "call {id} read garbage at block {lba}: {start:02x?}"
                    ))
                })?;
                seen.push(value);
            }
            oracle.end_read(id, &seen)
        }
        Kind::Compare => oracle.end_read(id, &pending.sent),
        Kind::Beyond => Err(Wrong(format!("call {id} read beyond the end"))),
        Kind::Write { .. }
        | Kind::Zeroes { .. }
        | Kind::Flush
        | Kind::Deallocate
        | Kind::Reserve(_)
        | Kind::Report
        | Kind::Scratch(_) => oracle.end(id, Ending::Done),
    }
}

fn check_status(
    id: OpId,
    pending: &Pending,
    status: Status,
    oracle: &mut Oracle,
    errors: &mut ErrorCounts,
) -> Result<(), Wrong> {
    if let Kind::Scratch(kind) = pending.kind {
        return scratch::check_status((id, kind), status, oracle, errors);
    }
    match (pending.kind, status) {
        (Kind::Compare, Status::COMPARE_FAILURE) => {
            return oracle.end_differing(id, &pending.sent);
        }
        (Kind::Beyond, Status::LBA_OUT_OF_RANGE) => {}
        // The first part of a range beyond the end may be inside.
        (Kind::Read | Kind::Compare | Kind::Beyond, Status::UNRECOVERED_READ_ERROR) => {
            errors.reads += 1;
        }
        (Kind::Write { .. } | Kind::Zeroes { .. } | Kind::Flush, Status::WRITE_FAULT) => {
            errors.writes += 1;
        }
        (Kind::Write { .. } | Kind::Zeroes { .. }, Status::CAPACITY_EXCEEDED) => {
            errors.no_space += 1;
        }
        (Kind::Deallocate, Status::INTERNAL_ERROR) => errors.others += 1,
        (kind, status) => {
            return Err(Wrong(format!(
                "call {id}, {kind:?}: unexpected status {status}"
            )));
        }
    }
    oracle.end(id, Ending::Failed)
}

/// The contents of a block that no compare matches.
const _: () = assert!(ZEROES != u64::MAX);
