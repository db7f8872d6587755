//! Disk operations of one queue pair: buffers go to the disk and come back.

use nvmeof_backend::{IoError, IoErrorKind, Op};
use nvmeof_memory::Buf;
use nvmeof_target_core::{Data, Executed, IoKind, IoOp};

use super::slots::{Job, Lent};
use super::{Io, QueuePair, of_peer};
use crate::tag::Place;

/// A mistake of ours: disks are closed after the last command.
#[derive(Debug, thiserror::Error)]
#[error("the disk of a namespace is not open")]
struct NotOpen;

impl QueuePair {
    #[cold]
    pub(super) fn tell_not_open(&self, disk: u32, io: &mut Io<'_>) {
        if let Some(left_out) = io.resources.disk_log.ask(io.now) {
            of_peer!(error, self, disk, left_out, "{NotOpen}");
        }
    }
}

/// The disk operation with the buffer it needs, taken out of the job.
pub(super) fn lend(job: &mut Job, op: &IoOp) -> Option<Op> {
    let (offset, len, fua) = (op.offset, op.len, op.fua);
    Some(match op.kind {
        IoKind::Read => {
            job.lent = Lent::Data;
            let buf = job.data.lend()?;
            Op::Read { offset, buf }
        }
        IoKind::Compare => {
            job.lent = Lent::Spare;
            let buf = job.spare.lend()?;
            Op::Read { offset, buf }
        }
        IoKind::Fetch { .. } => {
            job.lent = Lent::Piece;
            let mut buf = job.spare.lend()?;
            buf.set_len(usize::try_from(len).ok()?).ok()?;
            Op::Read { offset, buf }
        }
        IoKind::Store => {
            job.lent = Lent::Piece;
            let buf = job.spare.lend()?;
            Op::Write { offset, buf, fua }
        }
        IoKind::Write => {
            let buf = lend_data(job)?;
            Op::Write { offset, buf, fua }
        }
        IoKind::Flush | IoKind::FlushOwn | IoKind::Settle => Op::Flush,
        IoKind::WriteZeroes { deallocate } => Op::WriteZeroes {
            offset,
            len,
            may_deallocate: deallocate,
            fua,
        },
        IoKind::Deallocate => Op::Deallocate { offset, len, fua },
    })
}

/// The data of a write: the buffer they were pulled into, or the part of the
/// capsule that holds them.
fn lend_data(job: &mut Job) -> Option<Buf> {
    match job.request.data() {
        // The one copy there is: data in the middle of a capsule, for a disk
        // that wants them aligned. Hosts put them at its start.
        Data::Capsule(range) if job.misaligned => {
            job.lent = Lent::Data;
            let from = job.capsule.as_ref()?.get(range.clone())?;
            let mut buf = job.data.lend()?;
            buf.copy_from_slice(from);
            Some(buf)
        }
        Data::Capsule(range) => {
            job.lent = Lent::Capsule;
            let mut buf = job.capsule.take()?;
            buf.set_view(range.clone()).ok()?;
            Some(buf)
        }
        Data::Remote(_) | Data::List { .. } => {
            job.lent = Lent::Data;
            job.data.lend()
        }
        Data::None => None,
    }
}

/// The data of a job's request, wherever they are.
pub(super) fn data_of(job: &Job) -> &[u8] {
    bytes_of(job.request.data(), job.capsule.as_deref(), job.data.get())
}

/// Nothing of data in the host's own memory, by which nothing is decided.
pub(super) fn bytes_of<'a>(
    place: &Data,
    capsule: Option<&'a [u8]>,
    data: Option<&'a Buf>,
) -> &'a [u8] {
    match place {
        Data::Capsule(range) => capsule
            .and_then(|capsule| capsule.get(range.clone()))
            .unwrap_or_default(),
        Data::Remote(_) | Data::List { .. } => data.and_then(Buf::bytes).unwrap_or_default(),
        Data::None => &[],
    }
}

/// Where they begin to differ, or that there is nothing at all.
pub(super) fn difference(ours: &[u8], on_disk: &[u8]) -> Option<u64> {
    if !ours.is_empty() && ours == on_disk {
        return None;
    }
    let same = ours.iter().zip(on_disk).take_while(|(our, its)| our == its);
    Some(same.count() as u64)
}

impl QueuePair {
    /// What the core is told of an operation on `disk` that failed. The log is
    /// told, too, and whoever looks after disks.
    #[cold]
    pub(super) fn failure_of(
        &mut self,
        error: &IoError,
        disk: Option<u32>,
        slot: Place,
        io: &mut Io<'_>,
    ) -> Executed {
        if let Some(job) = self.slots.get(slot) {
            self.core.failed_at(&mut job.request, error.offset);
        }
        if let (Some(disk), Some(failures)) = (disk, &io.resources.failures) {
            failures.tell(disk, error);
        }
        if let Some(left_out) = io.resources.disk_log.ask(io.now) {
            let (path, offset) = (&error.path, error.offset);
            of_peer!(error, self, %path, offset, left_out, "{error}");
        }
        match error.kind {
            IoErrorKind::NoSpace => Executed::NoSpace,
            IoErrorKind::ReadOnly => Executed::ReadOnly,
            IoErrorKind::Removed => Executed::Gone,
            IoErrorKind::Media
            | IoErrorKind::OutOfRange
            | IoErrorKind::Limits
            | IoErrorKind::Other => Executed::Failed,
        }
    }
}
