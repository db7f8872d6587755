//! Fused Compare and Write (Base 2.1, 3.4.2; NVM 1.0, 2.1.5 and 3.2.1).
//!
//! The halves are two adjacent commands of one queue. When both have their data, the
//! engine locks the range and executes the first half. If the blocks are equal, it
//! executes the second half.

use std::ops::Range;
use std::time::Duration;

use nvmeof_wire::opcode::{self, Opcode, io};
use nvmeof_wire::sqe::{Fuse, SQE_LEN};
use nvmeof_wire::{Sqe, Status};

use super::io::{CDW12, Joined, first_piece, writable};
use super::{PSDT, Queue, Role, commit, common_checks};
use crate::request::{Failure, Next, Request, Stage};
use crate::{Action, Data, IoKind, IoOp, Limits, overlap};

/// The state of a first half, if it was the last command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstHalf {
    None,
    /// It failed.
    Failed,
    /// It waits for the second half.
    Waits {
        nsid: u32,
        op: IoOp,
    },
}

/// Byte of FUSE in a command.
const FUSE: u16 = 1;

impl Queue {
    /// A command that is half of a fused operation, or that arrives instead of a second
    /// half.
    #[cold]
    pub(super) fn begin_fused(
        &mut self,
        now: Duration,
        request: &mut Request,
        sqe: &Sqe,
        ready: bool,
    ) -> Result<Next, Failure> {
        let first = std::mem::replace(&mut self.first_half, FirstHalf::None);
        let waited = matches!(first, FirstHalf::Waits { .. });
        let fabrics = sqe.opcode == opcode::FABRICS;
        if sqe.fuse() == Fuse::Second && !fabrics {
            let next = self.begin_second(request, sqe, first, ready);
            if waited && next.is_err() {
                self.unfused = Some(Status::ABORTED_FAILED_FUSED);
            }
            return next;
        }
        // Base 2.1, 3.4.2: "if the controller does not receive the second
        // command ... immediately after, the first is aborted with ... Command
        // Aborted due to Missing Fused Command".
        if waited {
            self.unfused = Some(Status::ABORTED_MISSING_FUSED);
        }
        if fabrics {
            return common_checks(sqe).and_then(|()| self.fabrics(now, request, sqe));
        }
        let Role::Io(joined) = &self.role else {
            return Err(Status::INTERNAL_ERROR.into());
        };
        match sqe.fuse() {
            Fuse::First => {
                let next = joined.begin_half(request, sqe, io::COMPARE, ready);
                self.first_half = match request.stage {
                    Stage::Fusing(op) if next.is_ok() => FirstHalf::Waits {
                        nsid: request.nsid,
                        op,
                    },
                    _ => FirstHalf::Failed,
                };
                next
            }
            Fuse::Normal => common_checks(sqe).and_then(|()| joined.begin(request, sqe, ready)),
            _ => Err(Failure::field(FUSE)),
        }
    }

    fn begin_second(
        &self,
        request: &mut Request,
        sqe: &Sqe,
        first: FirstHalf,
        ready: bool,
    ) -> Result<Next, Failure> {
        let Role::Io(joined) = &self.role else {
            return Err(Status::INTERNAL_ERROR.into());
        };
        match first {
            FirstHalf::None => Err(Status::ABORTED_MISSING_FUSED.into()),
            FirstHalf::Failed => Err(Status::ABORTED_FAILED_FUSED.into()),
            FirstHalf::Waits { nsid, op: compare } => {
                let next = joined.begin_half(request, sqe, io::WRITE, ready)?;
                let Stage::Fusing(write) = request.stage else {
                    return Err(Status::INTERNAL_ERROR.into());
                };
                // The namespace may have another backing store meanwhile.
                let same = (request.nsid, write.store, write.offset, write.len)
                    == (nsid, compare.store, compare.offset, compare.len);
                // NVM 1.0, 2.1.5: "the LBA range, if used, shall be the same for
                // the two commands. If the LBA ranges do not match, the commands
                // should be aborted with ... Invalid Field in Command".
                if same {
                    Ok(next)
                } else {
                    Err(Failure::field(CDW12))
                }
            }
        }
    }

    /// The status with which the first half is to be completed, by [`fail`](Self::fail), if
    /// the last command is not its second half.
    pub fn take_unfused(&mut self) -> Option<Status> {
        self.unfused.take()
    }

    /// Whether a first half waits for the next command.
    #[must_use]
    pub fn expects_second_half(&self) -> bool {
        !matches!(self.first_half, FirstHalf::None)
    }

    /// No second half will arrive: the queue begins nothing more.
    pub fn no_second_half(&mut self) {
        self.first_half = FirstHalf::None;
    }

    /// Completes half of a fused operation that has not executed, with `status`.
    pub fn fail(&mut self, request: &mut Request, status: Status) -> Action {
        self.act(request, Err(status.into()))
    }

    /// Executes a half, unless its controller was reset since it began: its host may have
    /// written newer data by now.
    pub(super) fn execute_half(&mut self, request: &mut Request) -> Action {
        let lost = match &self.role {
            Role::Io(joined) => joined.lost(),
            _ => None,
        };
        if let Some(cause) = lost {
            return self.close_now(cause);
        }
        let Stage::Fusing(op) = request.stage else {
            return self.unexpected_event(request);
        };
        let next = match op.kind {
            IoKind::Compare if op.fua => commit::first(request, op),
            _ => commit::committed(request, op),
        };
        self.act(request, Ok(next))
    }
}

impl Joined {
    fn begin_half(
        &self,
        request: &mut Request,
        sqe: &Sqe,
        opcode: Opcode,
        ready: bool,
    ) -> Result<Next, Failure> {
        if !sqe.uses_sgl() {
            return Err(Failure::field(PSDT));
        }
        if !ready {
            return Err(Status::COMMAND_SEQUENCE_ERROR.into());
        }
        // Identify Controller, FUSES: only Compare and Write.
        if sqe.opcode != opcode {
            return Err(Failure::field(0));
        }
        let writes = opcode == io::WRITE;
        let kind = if writes {
            IoKind::Write
        } else {
            IoKind::Compare
        };
        let (namespace, mut op) = self.range(request, sqe, kind)?;
        if writes {
            writable(namespace)?;
            op.fua |= self.controller.hot.writes_through();
        }
        // Identify Controller, ACWU: "if a Compare and Write is submitted that
        // requests a transfer size larger than this value, then the controller
        // may abort the command with ... Atomic Write Unit Exceeded".
        let len = u32::try_from(op.len).unwrap_or(u32::MAX);
        if len > Limits::MAX_FUSED {
            return Err(Failure::from(Status::ATOMIC_WRITE_UNIT_EXCEEDED).at(CDW12));
        }
        request.takes(len)?;
        request.stage = Stage::Fusing(op);
        Ok(Next::Data)
    }
}

impl Request {
    /// Whether it is half of a fused operation that has not executed.
    #[inline]
    #[must_use]
    pub fn is_fusing(&self) -> bool {
        matches!(self.stage, Stage::Fusing(_))
    }

    /// Whether it is the second half.
    #[must_use]
    pub fn is_second_half(&self) -> bool {
        matches!(self.stage, Stage::Fusing(op) if op.kind == IoKind::Write)
    }

    /// The engine has put its data at byte 64 of the capsule.
    pub fn data_behind(&mut self) {
        if let Stage::Fusing(op) = self.stage {
            let len = usize::try_from(op.len).unwrap_or(0);
            self.data = Data::Capsule(SQE_LEN..SQE_LEN + len);
        }
    }

    /// The data of a half are in the capsule.
    pub(super) fn placed(&mut self) -> Next {
        if !matches!(self.data, Data::Capsule(_)) {
            self.data_behind();
        }
        Next::Fuse
    }

    /// Whether a backing store for which `is_it` returns true may be writing to some of
    /// `bytes` for it. May be true without a write, if the exact bytes are not known.
    #[must_use]
    pub fn may_write(&self, is_it: impl Fn(u32) -> bool, bytes: &Range<u64>) -> bool {
        let changing = self.changing();
        changing.is_some_and(|(store, own)| overlap(&own, bytes) && is_it(store))
    }

    /// The backing store that may be changing for it now, and the range that contains the
    /// changed bytes.
    #[must_use]
    pub fn changing(&self) -> Option<(u32, Range<u64>)> {
        match self.stage {
            Stage::Executing(op) if op.changes() => Some((op.store, op.bytes())),
            Stage::Pieces(left) if left.changes() => Some((left.store, first_piece(left).bytes())),
            Stage::Trim { extent, blocks, .. } => {
                let op = extent.bytes(self.lba, blocks, IoKind::Deallocate)?;
                Some((extent.store, op.bytes()))
            }
            Stage::Copy(copying) => Some((copying.store(), copying.storing()?)),
            _ => None,
        }
    }

    /// Whether it is checked against reservations again before it uses a backing store.
    #[must_use]
    pub fn awaits_check(&self) -> bool {
        matches!(self.stage, Stage::Transfer(_) | Stage::Ranges(..))
    }

    /// Whether it is in progress and reads, or will read, data of a backing store for which
    /// `is_it` returns true.
    #[must_use]
    pub fn will_read(&self, is_it: impl Fn(u32) -> bool) -> bool {
        let store = match self.stage {
            Stage::Transfer(op)
            | Stage::Fusing(op)
            | Stage::Commit(op)
            | Stage::Executing(op)
            | Stage::Pieces(op)
                if op.reads() =>
            {
                op.store
            }
            Stage::Copy(copying) => copying.store(),
            _ => return false,
        };
        is_it(store)
    }

    /// Whether it is in progress and changes, or will change, a backing store for which
    /// `is_it` returns true.
    #[must_use]
    pub fn will_write(&self, is_it: impl Fn(u32) -> bool) -> bool {
        let store = match self.stage {
            Stage::Transfer(op) | Stage::Fusing(op) | Stage::Executing(op) | Stage::Pieces(op)
                if op.changes() =>
            {
                op.store
            }
            Stage::Copy(copying) => copying.store(),
            Stage::Ranges(command, extent) if command.deallocate => extent.store,
            Stage::Trim { extent, .. } => extent.store,
            _ => return false,
        };
        is_it(store)
    }
}
