//! What is asked of a disk and what comes of it.

use std::fmt;

use nvmeof_memory::Buf;

use crate::IoError;

/// One thing to do. Offsets and lengths are in bytes and multiples of the
/// block size; the length of a read or write is that of the buffer's view.
#[derive(Debug)]
pub enum Op {
    /// Fill the view of `buf` from `offset` on.
    Read {
        /// First byte.
        offset: u64,
        /// Where to.
        buf: Buf,
    },
    /// Store the view of `buf` from `offset` on.
    Write {
        /// First byte.
        offset: u64,
        /// Where from.
        buf: Buf,
        /// Done only when it would survive a loss of power (force unit access).
        fua: bool,
    },
    /// Done when everything done before would survive a loss of power.
    Flush,
    /// Make `len` bytes from `offset` on read as zero.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// How many.
        len: u64,
        /// Storage may be given back instead of written.
        may_deallocate: bool,
        /// Done only when it would survive a loss of power.
        fua: bool,
    },
    /// Give storage back where that can be done: a hint. See
    /// [`Geometry::deallocate_zeroes`](crate::Geometry::deallocate_zeroes).
    Deallocate {
        /// First byte.
        offset: u64,
        /// How many.
        len: u64,
        /// Done only when it would survive a loss of power.
        fua: bool,
    },
}

/// An operation under a name of the caller's, which comes back with its
/// [`Done`]. All disks of a [`Disks`](crate::Disks) answer in one list, so the
/// caller keeps tags distinct over all of them.
#[derive(Debug)]
pub struct Request {
    /// The caller's name for it.
    pub tag: u64,
    /// What to do.
    pub op: Op,
}

/// What became of a request.
#[derive(Debug)]
pub struct Done {
    /// The name it was given.
    pub tag: u64,
    /// The buffer it was given, if any, with the same view. After a failed
    /// read its bytes are whatever the disk left there: never send them.
    pub buf: Option<Buf>,
    /// All of it was done, or why not.
    pub result: Result<(), IoError>,
}

/// A request was not taken: why, and the request, back.
#[derive(Debug)]
pub struct Refused<T> {
    /// Why.
    pub why: Why,
    /// What was given.
    pub back: T,
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// The disk has as much in flight as the ring has room left, which is for other
    /// disks: try again after [`Disks::poll`](crate::Disks::poll).
    #[error("as many requests are in flight as there is room for")]
    Full,
    /// The disk is closed or was never open here.
    #[error("the disk is not open")]
    NotOpen,
}

impl<T: fmt::Debug> fmt::Display for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl<T: fmt::Debug> std::error::Error for Refused<T> {}

impl Op {
    /// What it does, for messages.
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

    /// First byte and number of bytes it is about.
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

    /// Whether it changes what the disk holds.
    #[must_use]
    pub fn changes(&self) -> bool {
        !matches!(self, Self::Read { .. } | Self::Flush)
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
