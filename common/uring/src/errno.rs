//! The error number of a failed system call.

use std::io;

use nix::errno::Errno;

pub(crate) fn errno_of(error: &io::Error) -> Errno {
    error
        .raw_os_error()
        .map_or(Errno::UnknownErrno, Errno::from_raw)
}
