//! Operations on backing stores for one queue pair: buffers are lent and returned.

use nvmeof_backend::{IoError, IoErrorKind, Op};
use nvmeof_memory::Buf;
use nvmeof_target_core::{Data, Executed, IoKind, IoOp};

use super::slots::{Command, Lent};
use super::{Io, QueuePair, log_peer};
use crate::tag::SlotId;

/// An internal error: backing stores are closed after the last command.
#[derive(Debug, thiserror::Error)]
#[error("the backing store of a namespace is not open")]
struct NotOpen;

impl QueuePair {
    #[cold]
    pub(super) fn report_not_open(&self, store: u32, io: &mut Io<'_>) {
        if let Some(left_out) = io.resources.store_log.ask(io.now) {
            log_peer!(error, self, disk = store, left_out, "{NotOpen}");
        }
    }
}

/// The operation with the buffer that it needs, taken from the command.
pub(super) fn lend(command: &mut Command, op: &IoOp) -> Option<Op> {
    let (offset, len, fua) = (op.offset, op.len, op.fua);
    Some(match op.kind {
        IoKind::Read => {
            command.lent = Lent::Data;
            let buf = command.data.lend()?;
            Op::Read { offset, buf }
        }
        IoKind::Compare => {
            command.lent = Lent::Spare;
            let buf = command.spare.lend()?;
            Op::Read { offset, buf }
        }
        IoKind::Fetch { .. } => {
            command.lent = Lent::Piece;
            let mut buf = command.spare.lend()?;
            buf.set_len(usize::try_from(len).ok()?).ok()?;
            Op::Read { offset, buf }
        }
        IoKind::WriteFetched => {
            command.lent = Lent::Piece;
            let buf = command.spare.lend()?;
            Op::Write { offset, buf, fua }
        }
        IoKind::Write => {
            let buf = lend_data(command)?;
            Op::Write { offset, buf, fua }
        }
        IoKind::Flush | IoKind::FlushOwn | IoKind::Settle | IoKind::Await { .. } => Op::Flush,
        IoKind::WriteZeroes { deallocate } => Op::WriteZeroes {
            offset,
            len,
            may_deallocate: deallocate,
            fua,
        },
        IoKind::Deallocate => Op::Deallocate { offset, len, fua },
    })
}

/// The data of a write: the buffer into which they were pulled, or their part of the
/// capsule.
fn lend_data(command: &mut Command) -> Option<Buf> {
    match command.request.data() {
        // The only copy of data: data in the middle of a capsule, for a backing store
        // that requires alignment. Hosts put them at its start.
        Data::Capsule(range) if command.misaligned => {
            command.lent = Lent::Data;
            let from = command.capsule.as_ref()?.get(range.clone())?;
            let mut buf = command.data.lend()?;
            buf.copy_from_slice(from);
            Some(buf)
        }
        Data::Capsule(range) => {
            command.lent = Lent::Capsule;
            let mut buf = command.capsule.take()?;
            buf.set_view(range.clone()).ok()?;
            Some(buf)
        }
        Data::Remote(_) | Data::List { .. } => {
            command.lent = Lent::Data;
            command.data.lend()
        }
        Data::None => None,
    }
}

/// The data of a command, in its buffer or in its capsule.
pub(super) fn data_of(command: &Command) -> &[u8] {
    bytes_of(
        command.request.data(),
        command.capsule.as_deref(),
        command.data.get(),
    )
}

/// Empty for data in mapped memory of the host: no decision may depend on them.
pub(super) fn bytes_of<'a>(
    location: &Data,
    capsule: Option<&'a [u8]>,
    data: Option<&'a Buf>,
) -> &'a [u8] {
    match location {
        Data::Capsule(range) => capsule
            .and_then(|capsule| capsule.get(range.clone()))
            .unwrap_or_default(),
        Data::Remote(_) | Data::List { .. } => data.and_then(Buf::bytes).unwrap_or_default(),
        Data::None => &[],
    }
}

/// The offset of the first difference; `None` if there are none.
pub(super) fn difference(ours: &[u8], store_ops: &[u8]) -> Option<u64> {
    if !ours.is_empty() && ours == store_ops {
        return None;
    }
    let same = ours
        .iter()
        .zip(store_ops)
        .take_while(|(our, its)| our == its);
    Some(same.count() as u64)
}

impl QueuePair {
    /// The outcome of a failed operation on `store`, for the core. The failure is also
    /// logged and reported to the monitor of backing stores.
    #[cold]
    pub(super) fn failure_of(
        &mut self,
        error: &IoError,
        store: Option<u32>,
        slot: SlotId,
        io: &mut Io<'_>,
    ) -> Executed {
        if let Some(command) = self.slots.get(slot) {
            self.core.failed_at(&mut command.request, error.offset);
        }
        if let (Some(store), Some(failures)) = (store, &io.resources.failures) {
            failures.report(store, error);
        }
        // A group that another gateway serves from now on is no error. Its log has the change.
        let is_error = error.kind != IoErrorKind::Standby;
        if is_error && let Some(left_out) = io.resources.store_log.ask(io.now) {
            let (path, offset) = (&error.path, error.offset);
            log_peer!(error, self, %path, offset, left_out, "{error}");
        }
        match error.kind {
            IoErrorKind::NoSpace => Executed::NoSpace,
            IoErrorKind::ReadOnly => Executed::ReadOnly,
            IoErrorKind::Removed => Executed::Gone,
            IoErrorKind::Fenced => Executed::Fenced,
            IoErrorKind::Standby => Executed::Standby,
            IoErrorKind::Media
            | IoErrorKind::OutOfRange
            | IoErrorKind::Limits
            | IoErrorKind::Other => Executed::Failed,
        }
    }
}
