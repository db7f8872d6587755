//! Memory that another process maps too, and may change at any time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::mman::munmap;

use crate::bounds::OutOfBounds;
use crate::memfd::{self, SharedError};
use crate::racy;

/// Memory that two processes map: a memfd that can neither shrink nor grow.
///
/// The other process may be hostile. The memory is never accessed as a slice: words are read
/// once, atomically, and ranges of bytes are copied in and out. A copy belongs to the caller
/// and does not change any more. Copies that race, with the other process or with another
/// thread, result in mixed bytes.
#[derive(Debug)]
pub struct Shared {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory that is not tied to a thread.
unsafe impl Send for Shared {}
// SAFETY: through `&Shared` words are accessed atomically, and bytes, to which no reference
// exists, by copies that may race (`racy`).
unsafe impl Sync for Shared {}

impl Shared {
    /// Allocates `len` bytes of zeroed memory, and returns the descriptor with which another
    /// process [opens](Self::open) them. Pages are allocated at first use.
    ///
    /// # Errors
    /// [`SharedError`] when the length is invalid or a system call fails.
    pub fn create(len: usize) -> Result<(Self, OwnedFd), SharedError> {
        let fd = memfd::create(len)?;
        Ok((Self::map(fd.as_fd(), len)?, fd))
    }

    /// Maps memory that another process created. The descriptor is not needed after that.
    ///
    /// # Errors
    /// [`SharedError`] when it is not `len` bytes long or not sealed against shrinking.
    pub fn open(fd: BorrowedFd<'_>, len: usize) -> Result<Self, SharedError> {
        memfd::check(fd, len)?;
        Self::map(fd, len)
    }

    fn map(fd: BorrowedFd<'_>, len: usize) -> Result<Self, SharedError> {
        let base = memfd::map(fd, len)?;
        Ok(Self { base, len })
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: the length is greater than 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Pointer to the `len` bytes from byte `start` on.
    #[inline]
    fn check(&self, start: usize, len: usize) -> Result<NonNull<u8>, OutOfBounds> {
        match start.checked_add(len) {
            // SAFETY: `start` is at most the mapping's length.
            Some(end) if end <= self.len => Ok(unsafe { self.base.add(start) }),
            _ => Err(self.outside(start, len)),
        }
    }

    #[cold]
    fn outside(&self, start: usize, len: usize) -> OutOfBounds {
        OutOfBounds {
            start,
            end: start.saturating_add(len),
            capacity: self.len,
        }
    }

    /// The word at byte `at`, a multiple of 8.
    ///
    /// # Errors
    /// [`OutOfBounds`] when it is not inside or not aligned.
    #[inline]
    pub fn word(&self, at: usize) -> Result<&AtomicU64, OutOfBounds> {
        self.words::<1>(at).map(|[word]| word)
    }

    /// `N` words from byte `at` on, a multiple of 8.
    #[inline]
    fn words<const N: usize>(&self, at: usize) -> Result<&[AtomicU64; N], OutOfBounds> {
        let words = self.check(at, size_of::<[AtomicU64; N]>())?;
        if !at.is_multiple_of(align_of::<AtomicU64>()) {
            return Err(self.outside(at, 0));
        }
        // SAFETY: the words are inside the mapping, which lives as long as `self`; mappings
        // are page-aligned, so the words are aligned; and all accesses to them in this
        // process are atomic or copies that may race.
        Ok(unsafe { words.cast().as_ref() })
    }

    /// The words from byte `at` on, a multiple of 8. Each is read once.
    ///
    /// # Errors
    /// [`OutOfBounds`] when they are not inside or not aligned.
    #[inline]
    pub fn load<const N: usize>(&self, at: usize) -> Result<[u64; N], OutOfBounds> {
        let words = self.words::<N>(at)?;
        Ok(words.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    /// Stores words from byte `at` on, a multiple of 8.
    ///
    /// # Errors
    /// [`OutOfBounds`] when they are not inside or not aligned.
    #[inline]
    pub fn store<const N: usize>(&self, at: usize, words: [u64; N]) -> Result<(), OutOfBounds> {
        for (slot, word) in self.words::<N>(at)?.iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies `bytes` to the memory from byte `at` on.
    ///
    /// # Errors
    /// [`OutOfBounds`] when there is no room; nothing is copied then.
    #[inline]
    pub fn copy_in(&self, at: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let start = self.check(at, bytes.len())?;
        // SAFETY: the destination is inside the mapping, and no reference to it exists in this
        // process, so it does not overlap `bytes`. The other process may write there too: no
        // value there is trusted.
        unsafe { racy::copy(bytes.as_ptr(), start.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies the memory from byte `at` on into `bytes`.
    ///
    /// # Errors
    /// [`OutOfBounds`] when there are not so many; nothing is copied then.
    #[inline]
    pub fn copy_out(&self, at: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        let start = self.check(at, bytes.len())?;
        // SAFETY: as in `copy_in`, with source and destination exchanged: each value of a byte
        // is a valid `u8`.
        unsafe { racy::copy(start.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this base and length, and
        // words borrowed from it cannot outlive `self`.
        let unmapped = unsafe { munmap(self.base.cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}

// Miri knows no memfd.
#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::memfd::SEALS;
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::unistd::ftruncate;

    const LEN: usize = 8192;

    #[test]
    fn both_mappings_share_memory() {
        let (ours, fd) = Shared::create(LEN).unwrap();
        let theirs = Shared::open(fd.as_fd(), LEN).unwrap();
        drop(fd);
        ours.copy_in(100, b"hello").unwrap();
        ours.store(4096, [7, 8, 9]).unwrap();
        let mut bytes = [0; 5];
        theirs.copy_out(100, &mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
        assert_eq!(theirs.load(4096).unwrap(), [7, 8, 9, 0]);
    }

    #[test]
    fn threads_copy_same_bytes_concurrently() {
        let (shared, _fd) = Shared::create(LEN).unwrap();
        std::thread::scope(|scope| {
            for byte in 1..=2 {
                let shared = &shared;
                scope.spawn(move || {
                    let mut seen = [0; 64];
                    for _ in 0..1000 {
                        shared.copy_in(1, &[byte; 64]).unwrap();
                        shared.copy_out(1, &mut seen).unwrap();
                        assert!(seen.iter().all(|byte| [1, 2].contains(byte)));
                    }
                });
            }
        });
    }

    #[test]
    fn access_beyond_end_is_refused() {
        let (shared, _fd) = Shared::create(LEN).unwrap();
        for (at, len) in [
            (LEN, 1),
            (LEN - 1, 2),
            (usize::MAX, 1),
            (0, LEN + 1),
            (usize::MAX, LEN),
        ] {
            let mut bytes = vec![1; len];
            assert!(shared.copy_in(at, &bytes).is_err(), "{at} {len}");
            assert!(shared.copy_out(at, &mut bytes).is_err(), "{at} {len}");
        }
        assert!(shared.copy_in(LEN, &[]).is_ok());
        for at in [LEN, LEN - 7, 1, usize::MAX, usize::MAX - 7] {
            assert!(shared.word(at).is_err(), "{at}");
            assert!(shared.load::<2>(at).is_err(), "{at}");
        }
        assert!(shared.load::<2>(LEN - 8).is_err());
        assert!(shared.store(LEN - 8, [1, 2]).is_err());
    }

    #[test]
    fn unsealed_memory_is_refused() {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let fd = memfd_create("loose", flags).unwrap();
        ftruncate(&fd, 8192).unwrap();
        let open = |len| Shared::open(fd.as_fd(), len);
        assert!(matches!(open(LEN), Err(SharedError::NotSealed)));
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_GROW)).unwrap();
        assert!(matches!(open(LEN), Err(SharedError::NotSealed)));
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SEALS)).unwrap();
        for other in [LEN - 4096, LEN + 4096, 0] {
            assert!(matches!(open(other), Err(SharedError::WrongSize { .. })));
        }
        assert!(open(LEN).is_ok());
        let plain = std::fs::File::open("/dev/null").unwrap();
        let plain = Shared::open(plain.as_fd(), LEN);
        assert!(matches!(plain, Err(SharedError::NotSealed)));
        assert!(matches!(
            Shared::create(0),
            Err(SharedError::Length { len: 0 })
        ));
    }

    #[test]
    fn hugepages_and_write_sealed_memory_are_refused() {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let sealed = |flags, seals| {
            let fd = memfd_create("other", flags).unwrap();
            ftruncate(&fd, 2 << 20).unwrap();
            fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
            Shared::open(fd.as_fd(), 2 << 20)
        };
        let huge = sealed(flags | MFdFlags::MFD_HUGETLB, SEALS);
        assert!(matches!(huge, Err(SharedError::NotOrdinary)), "{huge:?}");
        let fixed = sealed(flags, SEALS | SealFlag::F_SEAL_WRITE);
        assert!(
            matches!(fixed, Err(SharedError::Refused { .. })),
            "{fixed:?}"
        );
    }
}
