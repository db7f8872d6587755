//! Alignment that direct I/O on a file requires.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

/// Alignment of `O_DIRECT` reads and writes of a file, in bytes.
/// Source: statx(2), `STATX_DIOALIGN` (Linux 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectAlignment {
    /// Of the address of the buffer; 0 when the file does not support direct I/O.
    pub memory: u32,
    /// Of offset and length; 0 when the file does not support direct I/O.
    pub offset: u32,
}

/// Queries the file system for the alignment of direct I/O on `file`. `None` when the
/// kernel or the file system does not report it.
///
/// # Errors
/// The error of statx(2); `ENOSYS` where it is missing.
pub fn direct_alignment(file: &impl AsFd) -> Result<Option<DirectAlignment>, Errno> {
    let mut filled = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the descriptor is open, the path is a terminated empty string
    // (AT_EMPTY_PATH: the descriptor itself), and the kernel writes at most
    // one `statx` where there is room for one.
    let result = unsafe {
        libc::statx(
            file.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            filled.as_mut_ptr(),
        )
    };
    Errno::result(result)?;
    // SAFETY: the structure was zeroed and all its fields are numbers.
    let filled = unsafe { filled.assume_init() };
    let is_reported = filled.stx_mask & libc::STATX_DIOALIGN != 0;
    Ok(is_reported.then_some(DirectAlignment {
        memory: filled.stx_dio_mem_align,
        offset: filled.stx_dio_offset_align,
    }))
}
