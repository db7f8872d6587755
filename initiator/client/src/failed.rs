//! A call with a buffer that failed: why, and the buffer.

use std::fmt;

use nvmeof_memory::Buf;

use crate::error::Error;

/// Why a call failed, with its buffer. `?` makes an [`Error`] of it and gives the
/// buffer back to its pool.
#[derive(Debug)]
pub struct Failed {
    /// What went wrong.
    pub error: Error,
    /// The buffer that went in. `None` when its queue is lost and somebody still uses
    /// it: a target on this machine that was stopped, or whose disk hangs. It goes
    /// back to its pool then only if that ends before the queue is dropped.
    pub buf: Option<Buf>,
}

impl Failed {
    pub(crate) fn new(error: impl Into<Error>, buf: impl Into<Option<Buf>>) -> Self {
        Self {
            error: error.into(),
            buf: buf.into(),
        }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}
