//! Memfds: memory of fixed size that another process can map.

use std::num::NonZeroUsize;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::stat::{FileStat, fstat};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::unistd::ftruncate;

/// Why memory could not be shared.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// The length is 0 or beyond the address space.
    #[error("cannot share {len} bytes of memory: the length is invalid")]
    Length {
        /// Requested length in bytes.
        len: usize,
    },
    /// A peer could truncate the memory while it is accessed, which would kill this process
    /// (SIGBUS).
    #[error("the memory that the peer shares is not sealed against shrinking")]
    NotSealed,
    /// A peer could free the pages (by a hole), and without free hugepages an access would
    /// kill this process (SIGBUS).
    #[error("the memory that the peer shares is not an ordinary memfd")]
    NotOrdinary,
    /// The file does not have the agreed size.
    #[error("the peer shares {found} bytes of memory instead of the agreed {expected}")]
    WrongSize {
        /// Size of the file in bytes.
        found: u64,
        /// Agreed size in bytes.
        expected: usize,
    },
    /// A system call failed.
    #[error("shared memory: {what} failed: {source}")]
    Refused {
        /// The system call.
        what: &'static str,
        /// Its error.
        source: nix::Error,
    },
}

impl SharedError {
    fn refused(what: &'static str) -> impl FnOnce(nix::Error) -> Self {
        move |source| Self::Refused { what, source }
    }
}

/// Seals of a shared file, which fix its size.
pub(crate) const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW);

/// Creates a memfd of `len` zeroed bytes. Pages are allocated at first use.
pub(crate) fn create(len: usize) -> Result<OwnedFd, SharedError> {
    let length = i64::try_from(len).map_err(|_| SharedError::Length { len })?;
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create("nvmeof-shared", flags);
    let fd = fd.map_err(SharedError::refused("memfd_create"))?;
    ftruncate(&fd, length).map_err(SharedError::refused("ftruncate"))?;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(SEALS)).map_err(SharedError::refused("fcntl(F_ADD_SEALS)"))?;
    Ok(fd)
}

/// Checks that a descriptor of another process is a memfd of `len` bytes, which that process
/// can neither truncate nor replace by hugepages.
pub(crate) fn check(fd: BorrowedFd<'_>, len: usize) -> Result<FileStat, SharedError> {
    // Only a memfd and a hugetlbfs file have these seals.
    let seals = fcntl(fd, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_truncate);
    if !seals.is_ok_and(|seals| seals.contains(SEALS)) {
        return Err(SharedError::NotSealed);
    }
    let system = fstatfs(fd).map_err(SharedError::refused("fstatfs"))?;
    if system.filesystem_type() != TMPFS_MAGIC {
        return Err(SharedError::NotOrdinary);
    }
    let stat = fstat(fd).map_err(SharedError::refused("fstat"))?;
    let found = u64::try_from(stat.st_size).unwrap_or(0);
    if usize::try_from(found) != Ok(len) {
        let expected = len;
        return Err(SharedError::WrongSize { found, expected });
    }
    Ok(stat)
}

/// Maps all of a memfd, which was created or checked here.
pub(crate) fn map(fd: BorrowedFd<'_>, len: usize) -> Result<NonNull<u8>, SharedError> {
    let length = NonZeroUsize::new(len).filter(|_| isize::try_from(len).is_ok());
    let length = length.ok_or(SharedError::Length { len })?;
    let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address the kernel chooses touches no memory
    // that exists already. The file is as long as the mapping and sealed
    // against shrinking, so touching it raises no signal.
    let base = unsafe { mmap(None, length, rights, MapFlags::MAP_SHARED, fd, 0) };
    Ok(base.map_err(SharedError::refused("mmap"))?.cast())
}
