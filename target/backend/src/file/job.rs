//! The state of a request: its next operation, and the meaning of a result. Does no I/O.
//!
//! ```text
//! read, write     Read/Write, again for the rest while results are short; through the
//!                 page cache Sync after a write that must survive a loss of power
//! flush           Sync
//! deallocate      Punch
//! write zeroes    Punch (if allowed) -> ZeroRange -> WriteZeroes..., each if the one
//!                 before is not supported; after the first two Sync when the request
//!                 must survive a loss of power
//! ```

use std::ops::Range;

use nix::errno::Errno;
use nvmeof_memory::Buf;

use super::zeroes::Zeroes;
use crate::{BlockSize, IoErrorKind, Op};

/// The next operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Read,
    Write,
    Sync,
    Punch { len: u64 },
    ZeroRange { len: u64 },
    WriteZeroes { len: u64 },
}

/// The consequence of a result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The request has completed.
    Done(Result<(), (IoErrorKind, Errno)>),
    /// Start the next operation.
    Step,
    /// Start the next operation, but not immediately.
    Later,
}

/// One request in progress.
#[derive(Debug)]
pub(super) struct Job {
    kind: Kind,
    /// First byte.
    offset: u64,
    /// Bytes requested.
    len: u64,
    /// Bytes of them transferred: whole blocks.
    moved: u64,
    /// Consecutive results of less than a block.
    stalls: u8,
    /// Results that required a retry (`EINTR`, `EAGAIN`).
    retries: u16,
    block_size: BlockSize,
    fua: bool,
    /// Writes bypass the page cache.
    direct: bool,
    /// It was written, and has to be made durable.
    syncs: bool,
}

#[derive(Debug)]
enum Kind {
    /// With the original view of the buffer.
    Read(Range<usize>),
    /// With the original view of the buffer.
    Write(Range<usize>),
    Flush,
    Deallocate,
    WriteZeroes(ZeroMethod),
}

/// How a range is zeroed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ZeroMethod {
    Punch,
    ZeroRange,
    Write,
}

/// Consecutive results of less than a block until the request fails. The second one may
/// return the error that ended the first.
const STALLS: u8 = 3;
/// Maximum number of retries of one request.
const RETRIES: u16 = 1000;

impl Job {
    pub(super) fn new(op: &Op, block_size: BlockSize, direct: bool) -> Self {
        let (offset, len) = op.range();
        let (kind, fua) = match op {
            Op::Read { buf, .. } => (Kind::Read(buf.view()), false),
            Op::Write { buf, fua, .. } => (Kind::Write(buf.view()), *fua),
            Op::Flush => (Kind::Flush, false),
            Op::Deallocate { fua, .. } => (Kind::Deallocate, *fua),
            Op::WriteZeroes {
                may_deallocate,
                fua,
                ..
            } => {
                let way = if *may_deallocate {
                    ZeroMethod::Punch
                } else {
                    ZeroMethod::ZeroRange
                };
                (Kind::WriteZeroes(way), *fua)
            }
        };
        Self {
            kind,
            offset,
            len,
            moved: 0,
            stalls: 0,
            retries: 0,
            block_size,
            fua,
            direct,
            syncs: false,
        }
    }

    /// Whether the buffer in the ring is that of the request.
    pub(super) fn owns_buf(&self) -> bool {
        matches!(self.kind, Kind::Read(_) | Kind::Write(_))
    }

    /// The original view of the buffer.
    pub(super) fn view(&self) -> Option<Range<usize>> {
        match &self.kind {
            Kind::Read(view) | Kind::Write(view) => Some(view.clone()),
            Kind::Flush | Kind::Deallocate | Kind::WriteZeroes(_) => None,
        }
    }

    pub(super) fn verb(&self) -> &'static str {
        match self.kind {
            Kind::Read(_) => "read",
            Kind::Write(_) => "write",
            Kind::Flush => "flush",
            Kind::Deallocate => "deallocate",
            Kind::WriteZeroes(_) => "write zeroes",
        }
    }

    /// First byte that is not transferred.
    pub(super) fn position(&self) -> u64 {
        self.offset + self.moved
    }

    /// Whether each write is durable (`RWF_DSYNC`). Through the page cache, an error of such
    /// a write would not show whether writing failed, or making it and others durable.
    pub(super) fn writes_through(&self) -> bool {
        self.fua && self.direct
    }

    /// Whether completed writes of other requests may be lost when it fails with `kind`,
    /// because it also failed to make their data in the device or page cache stable.
    /// `fua_alone`: a durable write makes only its own data stable.
    pub(super) fn loses_earlier(&self, kind: IoErrorKind, fua_alone: bool) -> bool {
        let changes = matches!(self.kind, Kind::Write(_) | Kind::WriteZeroes(_));
        match kind {
            _ if self.syncs || matches!(self.kind, Kind::Flush) => true,
            // The write cache is lost with the device.
            IoErrorKind::Removed | IoErrorKind::Fenced => true,
            // The error may belong to other writes.
            IoErrorKind::Media | IoErrorKind::Other => {
                changes && self.writes_through() && !fua_alone
            }
            // The operation failed before.
            IoErrorKind::NoSpace
            | IoErrorKind::ReadOnly
            | IoErrorKind::OutOfRange
            | IoErrorKind::Limits
            | IoErrorKind::Standby => false,
        }
    }

    /// Sets the view to the bytes that are not transferred.
    pub(super) fn set_remaining_view(&self, mut buf: Buf) -> Buf {
        if let (Some(view), Ok(moved)) = (self.view(), usize::try_from(self.moved)) {
            let aimed = buf.set_view(view.start + moved..view.end);
            debug_assert!(aimed.is_ok(), "less than the original view");
        }
        buf
    }

    /// The operation to start next.
    pub(super) fn step(&mut self, zeroes: &Zeroes) -> Step {
        let len = self.len - self.moved;
        if let Kind::WriteZeroes(way) = &mut self.kind {
            *way = match *way {
                ZeroMethod::Punch if zeroes.no_punch && zeroes.no_zero_range => ZeroMethod::Write,
                ZeroMethod::Punch if zeroes.no_punch => ZeroMethod::ZeroRange,
                ZeroMethod::ZeroRange if zeroes.no_zero_range => ZeroMethod::Write,
                way => way,
            };
        }
        match self.kind {
            _ if self.syncs => Step::Sync,
            Kind::Read(_) => Step::Read,
            Kind::Write(_) => Step::Write,
            Kind::Flush => Step::Sync,
            Kind::Deallocate | Kind::WriteZeroes(ZeroMethod::Punch) => Step::Punch { len },
            Kind::WriteZeroes(ZeroMethod::ZeroRange) => Step::ZeroRange { len },
            Kind::WriteZeroes(ZeroMethod::Write) => Step::WriteZeroes { len },
        }
    }

    /// Processes the result of the operation that `step` returned.
    pub(super) fn advance(
        &mut self,
        result: Result<u32, Errno>,
        zeroes: &mut Zeroes,
        path: &str,
    ) -> Next {
        let bytes = match result {
            Ok(bytes) => bytes,
            // Nothing was done, and a retry may succeed.
            Err(Errno::EINTR | Errno::EAGAIN) if self.retries < RETRIES => {
                self.retries += 1;
                return Next::Later;
            }
            Err(errno) => return self.failed(errno, zeroes, path),
        };
        match self.kind {
            _ if self.syncs => Next::Done(Ok(())),
            Kind::Read(_) | Kind::Write(_) | Kind::WriteZeroes(ZeroMethod::Write) => {
                self.transferred(bytes)
            }
            Kind::Deallocate | Kind::WriteZeroes(ZeroMethod::Punch | ZeroMethod::ZeroRange)
                if self.fua =>
            {
                // fallocate(2) has no flag for durability.
                self.syncs = true;
                Next::Step
            }
            Kind::Flush | Kind::Deallocate | Kind::WriteZeroes(_) => Next::Done(Ok(())),
        }
    }

    fn transferred(&mut self, bytes: u32) -> Next {
        // A partial block is transferred again with the rest: direct I/O cannot start in
        // the middle of a block.
        let whole = u64::from(bytes - bytes % self.block_size.bytes());
        self.moved = self.len.min(self.moved + whole);
        if self.moved == self.len {
            let changes = !matches!(self.kind, Kind::Read(_));
            self.syncs = changes && self.fua && !self.direct;
            return match self.syncs {
                true => Next::Step,
                false => Next::Done(Ok(())),
            };
        }
        if whole > 0 {
            self.stalls = 0;
            return Next::Step;
        }
        self.stalls += 1;
        if bytes > 0 && self.stalls < STALLS {
            return Next::Step;
        }
        // A read ends early only at the end of the file.
        let error = match self.kind {
            Kind::Read(_) => (IoErrorKind::Removed, Errno::ENXIO),
            _ => (IoErrorKind::Media, Errno::EIO),
        };
        Next::Done(Err(error))
    }

    fn failed(&mut self, errno: Errno, zeroes: &mut Zeroes, path: &str) -> Next {
        let unsupported = matches!(errno, Errno::EOPNOTSUPP | Errno::ENOSYS) && !self.syncs;
        match self.kind {
            Kind::Deallocate if unsupported => {
                zeroes.no_punch = true;
                Next::Done(Ok(()))
            }
            Kind::WriteZeroes(ZeroMethod::Punch) if unsupported => {
                zeroes.no_punch = true;
                self.kind = Kind::WriteZeroes(ZeroMethod::ZeroRange);
                Next::Step
            }
            Kind::WriteZeroes(ZeroMethod::ZeroRange) if unsupported => {
                if !zeroes.no_zero_range {
                    tracing::info!(
                        path,
                        "Write Zeroes is slow: the file system cannot zero a range; writing \
                         zeroes as data"
                    );
                }
                zeroes.no_zero_range = true;
                self.kind = Kind::WriteZeroes(ZeroMethod::Write);
                Next::Step
            }
            _ => Next::Done(Err((IoErrorKind::of(errno), errno))),
        }
    }
}

#[cfg(test)]
mod tests;
