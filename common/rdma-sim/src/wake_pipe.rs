//! What an endpoint is slept on: a descriptor that is readable while it has news. Its
//! bytes stay inside this process.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, BorrowedFd};

/// A pipe that has one byte in it or none, so that neither end ever waits.
#[derive(Debug)]
pub(crate) struct WakePipe {
    reader: PipeReader,
    writer: PipeWriter,
}

impl WakePipe {
    #[allow(
        clippy::expect_used,
        reason = "a simulation that nobody could sleep on"
    )]
    pub(crate) fn new() -> Self {
        let (reader, writer) = pipe().expect("two descriptors are left");
        Self { reader, writer }
    }

    /// Makes it readable, which it is not.
    pub(crate) fn ring(&self) {
        // Who has the one end has the other.
        let _ = (&self.writer).write(&[1]);
    }

    /// Ends the ringing, of one that rings.
    pub(crate) fn silence(&self) {
        let _ = (&self.reader).read(&mut [0]);
    }
}

impl AsFd for WakePipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}
