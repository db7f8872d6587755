//! Regions: page-aligned memory from the kernel, zeroed, with hugepages when
//! they are wanted and there.

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::memfd::{self, SharedError};

/// Which region a buffer lies in. Unique in the process, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(u64);

/// Which pages to ask the kernel for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Ordinary pages.
    Normal,
    /// Hugepages when enough are free, ordinary pages otherwise.
    HugeIfFree,
    /// Pages that another process can be given as well ([`Region::file`]): of
    /// a memfd, or ordinary ones where there is none to be had. They are
    /// transparent hugepages where the system has them for such memory on
    /// request (`transparent_hugepage/shmem_enabled`). Reserved hugepages are
    /// not taken: where they run short, whoever touches one is killed.
    Shareable,
}

/// Why a region could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// Nothing was asked for.
    #[error("a memory region of 0 bytes was asked for")]
    Empty,
    /// The length does not fit the address space when rounded up to pages.
    #[error("a memory region of {len} bytes does not fit the address space")]
    TooLong {
        /// Length asked for, in bytes.
        len: usize,
    },
    /// The kernel refused.
    #[error(
        "the kernel gave no memory for a region of {len} bytes ({source}); \
         free memory or configure fewer or smaller buffers"
    )]
    Refused {
        /// Length asked for, in bytes.
        len: usize,
        /// What the kernel said.
        source: nix::Error,
    },
}

/// Page-aligned, zeroed memory. Clones name the same memory, which is given
/// back to the kernel when the last clone, pool and buffer is gone.
#[derive(Clone, Debug)]
pub struct Region {
    mapping: Arc<Mapping>,
}

/// A region as long as somebody else has it.
#[derive(Debug)]
pub struct WeakRegion(Weak<Mapping>);

impl WeakRegion {
    /// Whether nobody has it any more: neither a region, nor a pool, nor a
    /// buffer. Then nobody ever will.
    #[inline]
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }

    pub(crate) fn upgrade(&self) -> Option<Region> {
        let mapping = self.0.upgrade()?;
        Some(Region { mapping })
    }
}

#[derive(Debug)]
struct Mapping {
    id: RegionId,
    base: NonNull<u8>,
    len: usize,
    huge: bool,
    /// The memfd that it is of: ours.
    file: Option<OwnedFd>,
    /// What tells the memory of another process from others: device and inode.
    origin: Option<(u64, u64)>,
}

// SAFETY: a mapping is plain memory, not tied to the thread that made it. It
// hands out no references itself: bytes are reached through `Buf`, and each
// piece of a region has at most one `Buf`.
unsafe impl Send for Mapping {}
// SAFETY: as above; every method that takes `&Mapping` only reads the fields.
unsafe impl Sync for Mapping {}

/// Size of an ordinary page, in bytes.
const PAGE: usize = 4096;
/// Size of a hugepage on the platforms we run on, in bytes.
const HUGE_PAGE: usize = 2 << 20;

impl Region {
    /// Maps at least `len` bytes: the length is rounded up to whole pages.
    ///
    /// # Errors
    /// [`MemoryError`] when `len` is 0 or cannot be had.
    pub fn anonymous(len: usize, pages: Pages) -> Result<Self, MemoryError> {
        if pages == Pages::HugeIfFree
            && let Ok(region) = Self::map(len, HUGE_PAGE, MapFlags::MAP_HUGETLB)
        {
            return Ok(region);
        }
        if pages == Pages::Shareable
            && let Some(region) = Self::shareable(len)
        {
            return Ok(region);
        }
        Self::map(len, PAGE, MapFlags::empty())
    }

    fn shareable(len: usize) -> Option<Self> {
        let len = len.checked_next_multiple_of(PAGE).filter(|len| *len > 0)?;
        let file = memfd::create(len).ok()?;
        let base = memfd::map(file.as_fd(), len).ok()?;
        // SAFETY: advice about pages of our own mapping, which changes no byte.
        // Where it is not taken the pages are ordinary ones.
        let _ = unsafe { madvise(base.cast(), len, MmapAdvise::MADV_HUGEPAGE) };
        Some(Self::of(base, len, false, Some(file), None))
    }

    /// Maps memory that another process made with [`Pages::Shareable`]. The
    /// descriptor is not needed after that.
    ///
    /// # Errors
    /// [`SharedError`] when it is not `len` bytes long or its maker could take
    /// it away from under us.
    pub(crate) fn open(fd: BorrowedFd<'_>, len: usize) -> Result<Self, SharedError> {
        let stat = memfd::check(fd, len)?;
        let base = memfd::map(fd, len)?;
        let origin = (stat.st_dev, stat.st_ino);
        Ok(Self::of(base, len, false, None, Some(origin)))
    }

    fn of(
        base: NonNull<u8>,
        len: usize,
        huge: bool,
        file: Option<OwnedFd>,
        origin: Option<(u64, u64)>,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = RegionId(NEXT.fetch_add(1, Ordering::Relaxed));
        let mapping = Mapping {
            id,
            base,
            len,
            huge,
            file,
            origin,
        };
        Self {
            mapping: Arc::new(mapping),
        }
    }

    fn map(len: usize, page: usize, extra: MapFlags) -> Result<Self, MemoryError> {
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        let too_long = MemoryError::TooLong { len };
        let Some(rounded) = len.checked_next_multiple_of(page) else {
            return Err(too_long);
        };
        let Some(length) = NonZeroUsize::new(rounded).filter(|_| isize::try_from(rounded).is_ok())
        else {
            return Err(too_long);
        };
        // MAP_POPULATE makes a shortage of hugepages an error here and now
        // instead of a SIGBUS on first use.
        let populate = if extra.is_empty() {
            MapFlags::empty()
        } else {
            MapFlags::MAP_POPULATE
        };
        let flags = MapFlags::MAP_PRIVATE | populate | extra;
        // SAFETY: a new anonymous mapping at an address the kernel chooses
        // touches no memory that exists already.
        let base = unsafe {
            mmap_anonymous(
                None,
                length,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                flags,
            )
        }
        .map_err(|source| MemoryError::Refused { len, source })?;
        Ok(Self::of(
            base.cast(),
            rounded,
            !extra.is_empty(),
            None,
            None,
        ))
    }

    /// Which region this is.
    #[must_use]
    pub fn id(&self) -> RegionId {
        self.mapping.id
    }

    /// Address of the first byte in this process: a number for registering
    /// the region with a device, not a way to the bytes.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.mapping.base.as_ptr().addr() as u64
    }

    /// Length in bytes, a multiple of the page size.
    #[must_use]
    pub fn len(&self) -> usize {
        self.mapping.len
    }

    /// Always false: a region has at least one page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The file by which another process can map this memory, and change it: a
    /// memfd whose end does not move. `None` unless the region was made with
    /// [`Pages::Shareable`].
    ///
    /// Buffers of the region are slices here, so the descriptor goes only to a
    /// process that this one trusts with its memory, as it does a debugger and
    /// `/proc/self/mem`: one of the same user, or of root. What that process
    /// writes, it writes into buffers that were exposed to it, and these are
    /// not seen as slices until they are withdrawn.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.mapping.file.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn origin(&self) -> Option<(u64, u64)> {
        self.mapping.origin
    }

    /// The same, without keeping the memory mapped.
    #[must_use]
    pub fn downgrade(&self) -> WeakRegion {
        WeakRegion(Arc::downgrade(&self.mapping))
    }

    /// Whether the region lies in hugepages.
    #[must_use]
    pub fn is_huge(&self) -> bool {
        self.mapping.huge
    }

    /// Pointer to byte `offset`, which the caller has checked to be inside.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset <= self.mapping.len);
        // SAFETY: `offset` is at most the mapping's length, so the result is
        // inside the mapping or one past its end.
        unsafe { self.mapping.base.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this base and length, and
        // nothing refers to it any more: pools and buffers hold a `Region`.
        let unmapped = unsafe { munmap(self.base.cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_rounded_up_to_pages_and_ids_differ() {
        let a = Region::anonymous(1, Pages::Normal).unwrap();
        let b = Region::anonymous(PAGE + 1, Pages::Normal).unwrap();
        assert_eq!((a.len(), b.len()), (PAGE, 2 * PAGE));
        assert_ne!(a.id(), b.id());
        assert_eq!(a.addr() % 4096, 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "it has no end of memory")]
    fn nothing_and_too_much_are_refused() {
        assert!(matches!(
            Region::anonymous(0, Pages::Normal),
            Err(MemoryError::Empty)
        ));
        for len in [usize::MAX, usize::MAX / 2 + 1] {
            let refused = Region::anonymous(len, Pages::Normal);
            assert!(matches!(refused, Err(MemoryError::TooLong { .. })), "{len}");
        }
        let refused = Region::anonymous(1 << 60, Pages::Normal);
        assert!(matches!(refused, Err(MemoryError::Refused { .. })));
    }

    #[test]
    #[cfg_attr(miri, ignore = "it knows no hugepages")]
    fn without_free_hugepages_ordinary_pages_serve() {
        let region = Region::anonymous(1 << 40, Pages::HugeIfFree);
        if let Ok(region) = region {
            assert!(
                !region.is_huge(),
                "no test machine has a terabyte of hugepages"
            );
        }
    }
}
