//! Requests to a backing store, and their completions.

use nvmeof_memory::Buf;

use crate::IoError;

/// An operation. Offsets and lengths are in bytes and multiples of the block size; the
/// length of a read or write is that of the view of its buffer.
#[derive(Debug)]
pub enum Op {
    /// Read from `offset` on into the view of `buf`.
    Read {
        /// First byte.
        offset: u64,
        /// The destination.
        buf: Buf,
    },
    /// Write the view of `buf` from `offset` on.
    Write {
        /// First byte.
        offset: u64,
        /// The source.
        buf: Buf,
        /// Completes only when it would survive a loss of power (force unit access).
        fua: bool,
    },
    /// Completes when all writes that completed before would survive a loss of power.
    Flush,
    /// Make `len` bytes from `offset` on read as zero.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// The range may be deallocated instead of written.
        may_deallocate: bool,
        /// Completes only when it would survive a loss of power.
        fua: bool,
    },
    /// Deallocate the range where possible: a hint. See
    /// [`Geometry::deallocate_zeroes`](crate::Geometry::deallocate_zeroes).
    Deallocate {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Completes only when it would survive a loss of power.
        fua: bool,
    },
}

/// An operation with a tag of the caller, which its [`Done`] returns. All backing stores
/// of a [`UringStores`](crate::UringStores) report completions in one list, so the caller keeps
/// tags distinct over all of them.
#[derive(Debug)]
pub struct Request {
    /// The tag of the caller.
    pub tag: u64,
    /// The operation.
    pub op: Op,
}

/// The completion of a request.
#[derive(Debug)]
pub struct Done {
    /// The tag of the request.
    pub tag: u64,
    /// The buffer of the request, if any, with the same view. After a failed read its
    /// content is undefined: never send it.
    pub buf: Option<Buf>,
    /// Success of the whole operation, or the error.
    pub result: Result<(), IoError>,
}

/// What became of a request that was accepted.
#[derive(Debug)]
#[must_use]
pub enum Submitted {
    /// It is complete, with this result, and has its buffer with the same view. After a failed
    /// read the content is undefined: never send it.
    Done(Result<(), IoError>),
    /// Its operation was taken from it, and completes as a [`Done`].
    Pending,
}

/// Why a request was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusalReason {
    /// The backing store has as many requests in flight as the ring has room left, which is
    /// reserved for other stores: retry after [`UringStores::poll`](crate::UringStores::poll).
    #[error("the maximum number of requests is in flight")]
    Full,
    /// The backing store was closed or never opened here.
    #[error("the backing store is not open")]
    NotOpen,
}

impl Op {
    /// Name of the operation, for messages.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::Write { .. } => "write",
            Self::Flush => "flush",
            Self::WriteZeroes { .. } => "write zeroes",
            Self::Deallocate { .. } => "deallocate",
        }
    }

    /// First byte and number of bytes of its range.
    #[must_use]
    pub fn range(&self) -> (u64, u64) {
        match self {
            Self::Read { offset, buf } | Self::Write { offset, buf, .. } => {
                (*offset, buf.len() as u64)
            }
            Self::Flush => (0, 0),
            Self::WriteZeroes { offset, len, .. } | Self::Deallocate { offset, len, .. } => {
                (*offset, *len)
            }
        }
    }

    /// Whether it changes data.
    #[must_use]
    pub fn changes(&self) -> bool {
        !matches!(self, Self::Read { .. } | Self::Flush)
    }

    /// Takes the operation with its buffer.
    #[must_use]
    pub fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Flush)
    }

    /// The buffer it owns, if any.
    #[must_use]
    pub fn into_buf(self) -> Option<Buf> {
        match self {
            Self::Read { buf, .. } | Self::Write { buf, .. } => Some(buf),
            Self::Flush | Self::WriteZeroes { .. } | Self::Deallocate { .. } => None,
        }
    }
}
