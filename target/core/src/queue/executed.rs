//! The next step after an operation of an I/O command.

use nvmeof_wire::Status;

use super::io::{Joined, first_piece, next_piece, trim};
use super::meter::Meter;
use super::{commit, copy};
use crate::metrics::Operation;
use crate::request::{Failure, Next, Request, Stage};
use crate::{Executed, IoKind, IoOp};

impl Joined {
    /// A Verify read a piece.
    #[cold]
    fn verified(&mut self, request: &Request, bytes: u64, meter: &mut Meter) {
        self.counting.verified(bytes);
        meter.count_local(Operation::Verify, request.nsid, bytes, |nsid| {
            self.namespace(nsid).is_ok()
        });
    }

    /// A Copy wrote a piece, which may be its last one.
    #[cold]
    fn stored(&mut self, request: &Request, bytes: u64, is_last: bool, meter: &mut Meter) {
        self.counting.stored(bytes, is_last);
        meter.count_local(Operation::Copy, request.nsid, bytes, |nsid| {
            self.namespace(nsid).is_ok()
        });
    }

    /// An operation completed or failed.
    #[inline]
    pub(super) fn executed(
        &mut self,
        request: &mut Request,
        outcome: Executed,
        data: &[u8],
        meter: &mut Meter,
    ) -> Result<Next, Failure> {
        if outcome != Executed::Ok {
            return Err(self.failed(request, outcome));
        }
        match request.stage {
            Stage::Executing(op) => {
                match op.kind {
                    IoKind::Read | IoKind::Compare => self.counting.read(op.len),
                    IoKind::Write => self.counting.written(op.len),
                    _ => {}
                }
                Ok(Next::Done(0))
            }
            _ => self.resume(request, data, meter),
        }
    }

    /// An operation failed.
    #[cold]
    fn failed(&self, request: &Request, outcome: Executed) -> Failure {
        if let Stage::Reserve(_) = request.stage {
            // The state has changed and is saved, and earlier commands may still run.
            return Failure::transient(Status::COMMAND_INTERRUPTED);
        }
        let kind = match request.stage {
            Stage::Executing(op) | Stage::Pieces(op) => op.kind,
            Stage::Copy(copying) => copying.kind(),
            Stage::Trim { .. } => IoKind::Deallocate,
            _ => IoKind::Flush,
        };
        if outcome == Executed::Failed {
            self.counting.media_error();
        }
        let failure = match outcome {
            // A command that reads does not fail with Namespace is Write Protected.
            Executed::ReadOnly if matches!(request.stage, Stage::Commit(_)) => {
                Status::WRITE_FAULT.into()
            }
            _ => Failure::of(outcome, kind),
        };
        match request.stage {
            Stage::Copy(copying) => copying.failed(failure),
            _ => failure,
        }
    }

    /// An operation succeeded, of a command that may have several.
    #[cold]
    fn resume(
        &mut self,
        request: &mut Request,
        data: &[u8],
        meter: &mut Meter,
    ) -> Result<Next, Failure> {
        match request.stage {
            Stage::Commit(op) => Ok(commit::committed(request, op)),
            Stage::Reserve(_) => Ok(Next::Done(0)),
            Stage::Pieces(left) => {
                let done = first_piece(left).len;
                let (offset, len) = (left.offset + done, left.len - done);
                if !left.changes() {
                    self.verified(request, done, meter);
                }
                if len == 0 {
                    return Ok(Next::Done(0));
                }
                Ok(next_piece(
                    request,
                    IoOp {
                        offset,
                        len,
                        ..left
                    },
                ))
            }
            Stage::Copy(copying) => {
                let next = copy::copied(request, copying, data)?;
                if copying.is_storing() {
                    let bytes = copying.piece_len(data)?;
                    self.stored(request, bytes, matches!(next, Next::Done(_)), meter);
                }
                Ok(next)
            }
            Stage::Trim {
                command,
                extent,
                next,
                ..
            } => trim(request, command, extent, next, data),
            Stage::FlushAll { from, then, .. } => {
                // A namespace removed meanwhile was flushed when it was closed.
                self.refresh_view();
                self.flush_from(request, from, then)
            }
            _ => Err(Status::INTERNAL_ERROR.into()),
        }
    }
}
