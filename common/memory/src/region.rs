//! Regions: page-aligned, zeroed memory from the kernel, with hugepages on request if they are
//! available.

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::memfd::{self, SharedError};

/// Identity of a region. Unique in the process, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(u64);

/// Kind of pages of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Ordinary pages.
    Normal,
    /// Hugepages when enough are free, ordinary pages otherwise.
    HugeIfFree,
    /// Pages that can be shared with another process ([`Region::file`]): those of a memfd, or
    /// ordinary ones if a memfd cannot be created. They are transparent hugepages if the
    /// system provides them for such memory on request
    /// (`transparent_hugepage/shmem_enabled`). Reserved hugepages are not used: a process
    /// that accesses one when none is left is killed (SIGBUS).
    Shareable,
}

/// Why a region could not be allocated.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The length is 0.
    #[error("invalid memory region of 0 bytes")]
    Empty,
    /// The length does not fit the address space when rounded up to pages.
    #[error("a memory region of {len} bytes does not fit the address space")]
    TooLong {
        /// Length asked for, in bytes.
        len: usize,
    },
    /// The allocation failed.
    #[error(
        "cannot allocate a memory region of {len} bytes ({source}); free memory, or configure \
         fewer or smaller buffers"
    )]
    Refused {
        /// Length asked for, in bytes.
        len: usize,
        /// The error of mmap(2).
        source: nix::Error,
    },
}

/// Page-aligned, zeroed memory. Clones are the same memory, which is unmapped after the last
/// clone, pool and buffer is dropped.
#[derive(Clone, Debug)]
pub struct Region {
    mapping: Arc<Mapping>,
}

/// A weak reference to a region.
#[derive(Debug)]
pub struct WeakRegion(Weak<Mapping>);

impl WeakRegion {
    /// Whether no region, pool or buffer refers to it any more. This is final.
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
    /// The memfd of this process that it maps.
    file: Option<OwnedFd>,
    /// Identity of memory of another process: device and inode.
    origin: Option<(u64, u64)>,
}

// SAFETY: a mapping is plain memory, not tied to the thread that made it. It gives out no
// references itself: bytes are accessed through `Buf`, and each piece of a region has at
// most one `Buf`.
unsafe impl Send for Mapping {}
// SAFETY: as above; every method that takes `&Mapping` only reads the fields.
unsafe impl Sync for Mapping {}

/// Size of an ordinary page, in bytes.
const PAGE: usize = 4096;
/// Size of a hugepage on supported platforms, in bytes.
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
        // SAFETY: advice about pages of a new mapping, which changes no byte. If it is not
        // taken, the pages are ordinary ones.
        let _ = unsafe { madvise(base.cast(), len, MmapAdvise::MADV_HUGEPAGE) };
        Some(Self::of(base, len, false, Some(file), None))
    }

    /// Maps memory that another process allocated with [`Pages::Shareable`]. The descriptor is
    /// not needed after that.
    ///
    /// # Errors
    /// [`SharedError`] when it is not `len` bytes long or not sealed against shrinking.
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
        // With MAP_POPULATE, a shortage of hugepages is an error here instead of a SIGBUS at
        // first use.
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

    /// Identity of the region.
    #[must_use]
    pub fn id(&self) -> RegionId {
        self.mapping.id
    }

    /// Address of the first byte in this process: a number for registering the region with a
    /// device, not a pointer.
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

    /// The file with which another process can map this memory, and change it: a memfd of
    /// fixed size. `None` unless the region was allocated with [`Pages::Shareable`].
    ///
    /// Buffers of the region are slices here, so the descriptor may be passed only to a process
    /// that has access to the memory of this one anyway, as a debugger or `/proc/self/mem`
    /// has: of the same user, or of root. That process writes only to buffers that were
    /// exposed to it, and these are not accessed as slices until the exposure ends.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.mapping.file.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn origin(&self) -> Option<(u64, u64)> {
        self.mapping.origin
    }

    /// A weak reference, which does not keep the memory mapped.
    #[must_use]
    pub fn downgrade(&self) -> WeakRegion {
        WeakRegion(Arc::downgrade(&self.mapping))
    }

    /// Whether the region consists of hugepages.
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
        // SAFETY: the mapping was made with this base and length, and nothing refers to it any
        // more: pools and buffers hold a `Region`.
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
    fn empty_and_oversized_regions_are_refused() {
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
    fn hugepage_shortage_falls_back_to_ordinary_pages() {
        let region = Region::anonymous(1 << 40, Pages::HugeIfFree);
        if let Ok(region) = region {
            assert!(
                !region.is_huge(),
                "no test machine has a terabyte of hugepages"
            );
        }
    }
}
