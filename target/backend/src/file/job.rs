//! What a request has come to: which operation is next, and what its result
//! means. Does no I/O.
//!
//! ```text
//! read, write     Read/Write, again for the rest while results are short; through the
//!                 page cache Sync after a write that must survive a loss of power
//! flush           Sync
//! deallocate      Punch
//! write zeroes    Punch (when allowed) -> ZeroRange -> WriteZeroes..., each
//!                 when the one before is not supported; after the first two
//!                 Sync when the request must survive a loss of power
//! ```

use std::ops::Range;

use nix::errno::Errno;
use nvmeof_memory::Buf;

use super::zeroes::Zeroes;
use crate::{BlockSize, IoErrorKind, Op};

/// An operation that is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Read,
    Write,
    Sync,
    Punch { len: u64 },
    ZeroRange { len: u64 },
    WriteZeroes { len: u64 },
}

/// What follows from a result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The request is done.
    Done(Result<(), (IoErrorKind, Errno)>),
    /// Start the next operation.
    Step,
    /// Start the next operation, but not in this turn.
    Later,
}

/// One request on its way.
#[derive(Debug)]
pub(super) struct Job {
    what: What,
    /// First byte on the disk.
    offset: u64,
    /// Bytes asked for.
    len: u64,
    /// Bytes of them done: whole blocks.
    moved: u64,
    /// How often in a row less than a block was moved.
    stalls: u8,
    /// How often the kernel wanted to be asked again.
    retries: u16,
    block_size: BlockSize,
    fua: bool,
    /// What it writes goes past the page cache.
    direct: bool,
    /// It is written, and has to be made durable.
    syncs: bool,
}

#[derive(Debug)]
enum What {
    /// With the buffer's view as it came.
    Read(Range<usize>),
    /// With the buffer's view as it came.
    Write(Range<usize>),
    Flush,
    Deallocate,
    WriteZeroes(Way),
}

/// How zeroes are being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Punch,
    ZeroRange,
    Write,
}

/// Results in a row that moved less than a block before we give up: the
/// second tells what the first was about, if the kernel wants to tell.
const STALLS: u8 = 3;
/// Times one request is asked for again before the kernel's answer is taken
/// for an error.
const RETRIES: u16 = 1000;

impl Job {
    pub(super) fn new(op: &Op, block_size: BlockSize, direct: bool) -> Self {
        let (offset, len) = op.range();
        let (what, fua) = match op {
            Op::Read { buf, .. } => (What::Read(buf.view()), false),
            Op::Write { buf, fua, .. } => (What::Write(buf.view()), *fua),
            Op::Flush => (What::Flush, false),
            Op::Deallocate { fua, .. } => (What::Deallocate, *fua),
            Op::WriteZeroes {
                may_deallocate,
                fua,
                ..
            } => {
                let way = if *may_deallocate {
                    Way::Punch
                } else {
                    Way::ZeroRange
                };
                (What::WriteZeroes(way), *fua)
            }
        };
        Self {
            what,
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

    /// Whether the buffer in the ring is the request's.
    pub(super) fn owns_buf(&self) -> bool {
        matches!(self.what, What::Read(_) | What::Write(_))
    }

    /// The view the buffer came with.
    pub(super) fn view(&self) -> Option<Range<usize>> {
        match &self.what {
            What::Read(view) | What::Write(view) => Some(view.clone()),
            What::Flush | What::Deallocate | What::WriteZeroes(_) => None,
        }
    }

    pub(super) fn verb(&self) -> &'static str {
        match self.what {
            What::Read(_) => "read",
            What::Write(_) => "write",
            What::Flush => "flush",
            What::Deallocate => "deallocate",
            What::WriteZeroes(_) => "write zeroes",
        }
    }

    /// First byte on the disk that is not done.
    pub(super) fn position(&self) -> u64 {
        self.offset + self.moved
    }

    /// Whether writes are made durable by themselves. Of the page cache one that fails
    /// would not tell whether it was written, or not made durable and others with it.
    pub(super) fn writes_through(&self) -> bool {
        self.fua && self.direct
    }

    /// Whether what others wrote before, and were told was done, may be lost when it
    /// fails with `kind`: with it failed to become stable what a device or the page
    /// cache had of them. `fua_alone` says whether a durable write is made so without
    /// that.
    pub(super) fn loses_earlier(&self, kind: IoErrorKind, fua_alone: bool) -> bool {
        let changes = matches!(self.what, What::Write(_) | What::WriteZeroes(_));
        match kind {
            _ if self.syncs || matches!(self.what, What::Flush) => true,
            // The cache of what is gone is gone.
            IoErrorKind::Removed => true,
            // It takes the error of others.
            IoErrorKind::Media | IoErrorKind::Other => {
                changes && self.writes_through() && !fua_alone
            }
            // It did not come to that.
            IoErrorKind::NoSpace
            | IoErrorKind::ReadOnly
            | IoErrorKind::OutOfRange
            | IoErrorKind::Limits => false,
        }
    }

    /// Puts what is not done in view.
    pub(super) fn aim(&self, mut buf: Buf) -> Buf {
        if let (Some(view), Ok(moved)) = (self.view(), usize::try_from(self.moved)) {
            let aimed = buf.set_view(view.start + moved..view.end);
            debug_assert!(aimed.is_ok(), "less than the view it came with");
        }
        buf
    }

    /// The operation to start.
    pub(super) fn step(&mut self, zeroes: &Zeroes) -> Step {
        let len = self.len - self.moved;
        if let What::WriteZeroes(way) = &mut self.what {
            *way = match *way {
                Way::Punch if zeroes.no_punch && zeroes.no_zero_range => Way::Write,
                Way::Punch if zeroes.no_punch => Way::ZeroRange,
                Way::ZeroRange if zeroes.no_zero_range => Way::Write,
                way => way,
            };
        }
        match self.what {
            _ if self.syncs => Step::Sync,
            What::Read(_) => Step::Read,
            What::Write(_) => Step::Write,
            What::Flush => Step::Sync,
            What::Deallocate | What::WriteZeroes(Way::Punch) => Step::Punch { len },
            What::WriteZeroes(Way::ZeroRange) => Step::ZeroRange { len },
            What::WriteZeroes(Way::Write) => Step::WriteZeroes { len },
        }
    }

    /// Takes the result of the operation `step` told.
    pub(super) fn advance(
        &mut self,
        result: Result<u32, Errno>,
        zeroes: &mut Zeroes,
        path: &str,
    ) -> Next {
        let bytes = match result {
            Ok(bytes) => bytes,
            // Nothing happened and nothing is wrong.
            Err(Errno::EINTR | Errno::EAGAIN) if self.retries < RETRIES => {
                self.retries += 1;
                return Next::Later;
            }
            Err(errno) => return self.failed(errno, zeroes, path),
        };
        match self.what {
            _ if self.syncs => Next::Done(Ok(())),
            What::Read(_) | What::Write(_) | What::WriteZeroes(Way::Write) => {
                self.transferred(bytes)
            }
            What::Deallocate | What::WriteZeroes(Way::Punch | Way::ZeroRange) if self.fua => {
                // fallocate(2) has no way to ask for that.
                self.syncs = true;
                Next::Step
            }
            What::Flush | What::Deallocate | What::WriteZeroes(_) => Next::Done(Ok(())),
        }
    }

    fn transferred(&mut self, bytes: u32) -> Next {
        // A part of a block is moved again with the rest: direct I/O cannot
        // start in the middle.
        let whole = u64::from(bytes - bytes % self.block_size.bytes());
        self.moved = self.len.min(self.moved + whole);
        if self.moved == self.len {
            let changes = !matches!(self.what, What::Read(_));
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
        // Nothing more comes: there is nothing more, since a read ends early
        // only at the end of the file.
        let what = match self.what {
            What::Read(_) => (IoErrorKind::Removed, Errno::ENXIO),
            _ => (IoErrorKind::Media, Errno::EIO),
        };
        Next::Done(Err(what))
    }

    fn failed(&mut self, errno: Errno, zeroes: &mut Zeroes, path: &str) -> Next {
        let unsupported = matches!(errno, Errno::EOPNOTSUPP | Errno::ENOSYS) && !self.syncs;
        match self.what {
            What::Deallocate if unsupported => {
                zeroes.no_punch = true;
                Next::Done(Ok(()))
            }
            What::WriteZeroes(Way::Punch) if unsupported => {
                zeroes.no_punch = true;
                self.what = What::WriteZeroes(Way::ZeroRange);
                Next::Step
            }
            What::WriteZeroes(Way::ZeroRange) if unsupported => {
                if !zeroes.no_zero_range {
                    tracing::info!(
                        path,
                        "Write Zeroes is slow here: zeroes are written as data"
                    );
                }
                zeroes.no_zero_range = true;
                self.what = What::WriteZeroes(Way::Write);
                Next::Step
            }
            _ => Next::Done(Err((IoErrorKind::of(errno), errno))),
        }
    }
}

#[cfg(test)]
mod tests;
