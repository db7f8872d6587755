//! Descriptors that are readable as long as there are events.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// A counting eventfd: one count for each event in a queue beside it.
#[derive(Debug)]
pub(crate) struct Signal(EventFd);

impl Signal {
    /// Blocking, as the descriptors of rdma-core are at first.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_SEMAPHORE | EfdFlags::EFD_CLOEXEC;
        Ok(Self(EventFd::from_value_and_flags(0, flags)?))
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }

    /// Adds a count.
    pub(crate) fn raise(&self) {
        // Fails only after 2^64 events.
        let _ = self.0.write(1);
    }

    /// Removes the counts of `count` events that were removed from the queue.
    pub(crate) fn lower(&self, count: usize) {
        for _ in 0..count {
            let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            // Another thread may have taken the count of an event that it does not find.
            if !poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
                return;
            }
            let _ = self.0.read();
        }
    }
}

/// Takes a count of the signal with this descriptor; blocks if the descriptor does.
pub(crate) fn take(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut count = [0; 8];
    nix::unistd::read(fd, &mut count)?;
    Ok(())
}
