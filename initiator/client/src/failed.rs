//! A failed call with its buffer.

use std::fmt;

use nvmeof_memory::Buf;

use crate::error::Error;

/// The error of a call, with its buffer. `?` converts it to an [`Error`] and returns the
/// buffer to its pool.
#[derive(Debug)]
pub struct Failed {
    /// The error.
    pub error: Error,
    /// The buffer of the call. `None` if the target may still use it:
    ///
    /// * The time limit of the call has passed ([`Error::TimedOut`]). The buffer returns to its
    ///   pool when the command ends.
    /// * Its queue is lost and a target on this machine is stopped, or its backing store is
    ///   stalled. The buffer returns to its pool only if that ends before the queue is dropped.
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

/// The error of a call with several buffers, with the result for each buffer. `?` converts it to
/// an [`Error`] and returns the buffers to their pools.
#[derive(Debug)]
pub struct FailedVectored {
    /// The error of the first buffer that failed.
    pub error: Error,
    /// The result for each buffer, in the order of the call. A buffer that succeeded is read or
    /// written.
    pub results: Vec<Result<Buf, Failed>>,
}

impl fmt::Display for FailedVectored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for FailedVectored {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<FailedVectored> for Error {
    fn from(failed: FailedVectored) -> Self {
        failed.error
    }
}
