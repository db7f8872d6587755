//! Memfds: memory that another process can map, whose end does not move.

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
    #[error("{len} bytes of memory cannot be shared")]
    Length {
        /// Length asked for, in bytes.
        len: usize,
    },
    /// A peer could cut the memory off while we look at it, which would kill
    /// this process.
    #[error("the memory that the peer shares is not sealed against shrinking")]
    NotSealed,
    /// A peer could take the pages away, and where hugepages are short we
    /// would be killed for touching them.
    #[error("the memory that the peer shares is not an ordinary memfd")]
    NotOrdinary,
    /// The file has another size than was agreed.
    #[error("the peer shares {found} bytes of memory, {expected} were agreed")]
    WrongSize {
        /// Size of the file in bytes.
        found: u64,
        /// Size agreed in bytes.
        expected: usize,
    },
    /// The kernel refused.
    #[error("the kernel refused {what}: {source}")]
    Refused {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        source: nix::Error,
    },
}

impl SharedError {
    fn refused(what: &'static str) -> impl FnOnce(nix::Error) -> Self {
        move |source| Self::Refused { what, source }
    }
}

/// What a shared file is sealed against: an end that moves.
pub(crate) const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW);

/// Makes a memfd of `len` zeroed bytes. Pages are taken from the kernel when
/// they are first touched.
pub(crate) fn create(len: usize) -> Result<OwnedFd, SharedError> {
    let length = i64::try_from(len).map_err(|_| SharedError::Length { len })?;
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create("nvmeof-shared", flags);
    let fd = fd.map_err(SharedError::refused("a memfd"))?;
    ftruncate(&fd, length).map_err(SharedError::refused("the size of a memfd"))?;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(SEALS)).map_err(SharedError::refused("seals"))?;
    Ok(fd)
}

/// Checks that what another process made is a memfd of `len` bytes that its
/// maker cannot take away from under us.
pub(crate) fn check(fd: BorrowedFd<'_>, len: usize) -> Result<FileStat, SharedError> {
    // Only a memfd and a hugetlbfs file have seals that say this.
    let seals = fcntl(fd, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_truncate);
    if !seals.is_ok_and(|seals| seals.contains(SEALS)) {
        return Err(SharedError::NotSealed);
    }
    let system = fstatfs(fd).map_err(SharedError::refused("the kind of a memfd"))?;
    if system.filesystem_type() != TMPFS_MAGIC {
        return Err(SharedError::NotOrdinary);
    }
    let stat = fstat(fd).map_err(SharedError::refused("the size of a memfd"))?;
    let found = u64::try_from(stat.st_size).unwrap_or(0);
    if usize::try_from(found) != Ok(len) {
        let expected = len;
        return Err(SharedError::WrongSize { found, expected });
    }
    Ok(stat)
}

/// Maps all of a memfd, which was made or checked here.
pub(crate) fn map(fd: BorrowedFd<'_>, len: usize) -> Result<NonNull<u8>, SharedError> {
    let length = NonZeroUsize::new(len).filter(|_| isize::try_from(len).is_ok());
    let length = length.ok_or(SharedError::Length { len })?;
    let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address the kernel chooses touches no memory
    // that exists already. The file is as long as the mapping and sealed
    // against shrinking, so touching it raises no signal.
    let base = unsafe { mmap(None, length, rights, MapFlags::MAP_SHARED, fd, 0) };
    Ok(base.map_err(SharedError::refused("a mapping"))?.cast())
}
