//! The wake-up descriptor of an endpoint: readable while the endpoint has events. Its bytes
//! stay inside this process.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, BorrowedFd};

/// A pipe that contains at most one byte, so that neither end ever blocks.
#[derive(Debug)]
pub(crate) struct WakePipe {
    reader: PipeReader,
    writer: PipeWriter,
}

impl WakePipe {
    #[allow(clippy::expect_used, reason = "a simulation cannot work without it")]
    pub(crate) fn new() -> Self {
        let (reader, writer) = pipe().expect("two descriptors are left");
        Self { reader, writer }
    }

    /// Makes it readable. It must not be readable.
    pub(crate) fn signal(&self) {
        // Both ends have the same owner.
        let _ = (&self.writer).write(&[1]);
    }

    /// Clears it. It must be readable.
    pub(crate) fn clear(&self) {
        let _ = (&self.reader).read(&mut [0]);
    }
}

impl AsFd for WakePipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}
