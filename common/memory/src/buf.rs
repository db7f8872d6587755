//! One buffer: the only owner of one piece of a region.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::bounds::OutOfBounds;
use crate::home::{Home, LENT};
use crate::racy;
use crate::region::{Region, RegionId};

/// The only owner of one piece of a region. It dereferences to a byte slice: its *view*,
/// which is at first the whole piece.
///
/// Operations on a `Buf` apply to its view: a send transmits it, a read from a file fills
/// it. Dropping a `Buf` returns the piece to its pool, or to the first task that waits for it.
///
/// A buffer of a [`Lender`](crate::Lender) is in memory of another process,
/// which may change the bytes at any time ([`is_lent`](Self::is_lent)). Such a
/// buffer is never a slice: its bytes are [copied in](Self::copy_in) and
/// [out](Self::copy_out), [filled](Self::fill), or handed to the kernel by
/// [address](Self::as_mut_ptr).
///
/// # Panics
/// Dereferencing a buffer in lent memory. Use [`bytes`](Self::bytes) if it may be one.
pub struct Buf {
    start: NonNull<u8>,
    home: Arc<Home>,
    /// Number of the piece; with [`LENT`] set if another process lends it.
    index: u32,
    // Pieces are shorter than 4 GiB. Buffers move often, so they are kept small.
    capacity: u32,
    view: Range<u32>,
}

const _: () = assert!(size_of::<Buf>() == 32 && size_of::<Option<Buf>>() == 32);

// SAFETY: a `Buf` is the only access to its bytes, so moving it moves the access; the pool
// it returns to is shared through atomics. Several `Buf`s may cover lent bytes, and all of
// them use copies that may race.
unsafe impl Send for Buf {}
// SAFETY: `&Buf` gives `&[u8]`, copies of bytes, and numbers only.
unsafe impl Sync for Buf {}

impl Buf {
    /// # Safety
    /// `start..start + capacity` lies inside the region of `home`. No other
    /// `Buf` covers any of it as long as this one lives, or `index` has
    /// [`LENT`] and nothing in this process makes a reference to its bytes.
    pub(crate) unsafe fn new(
        start: NonNull<u8>,
        capacity: u32,
        index: u32,
        home: Arc<Home>,
    ) -> Self {
        Self {
            start,
            home,
            index,
            capacity,
            view: 0..capacity,
        }
    }

    /// Sets the view to `range` of the whole piece, independent of the previous view.
    ///
    /// # Errors
    /// [`OutOfBounds`] when the range is not inside the piece; the view stays.
    pub fn set_view(&mut self, range: Range<usize>) -> Result<(), OutOfBounds> {
        let Range { start, end } = range;
        match (u32::try_from(start), u32::try_from(end)) {
            (Ok(first), Ok(last)) if first <= last && last <= self.capacity => {
                self.view = first..last;
                Ok(())
            }
            _ => Err(OutOfBounds {
                start,
                end,
                capacity: self.capacity(),
            }),
        }
    }

    /// Sets the view to the first `len` bytes of the piece.
    ///
    /// # Errors
    /// [`OutOfBounds`] when the piece is shorter; the view stays.
    pub fn set_len(&mut self, len: usize) -> Result<(), OutOfBounds> {
        self.set_view(0..len)
    }

    /// Sets the view to the whole piece.
    pub fn reset_view(&mut self) {
        self.view = 0..self.capacity;
    }

    /// The view, as a range of the whole piece.
    #[must_use]
    pub fn view(&self) -> Range<usize> {
        self.view.start as usize..self.view.end as usize
    }

    /// Bytes of the whole piece.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// The region of the bytes.
    #[must_use]
    pub fn region(&self) -> RegionId {
        self.home.region().id()
    }

    /// The region itself.
    #[must_use]
    pub fn memory(&self) -> &Region {
        self.home.region()
    }

    /// Whether the bytes belong to another process and may change at any time: a check of
    /// them is not valid for a second read.
    #[must_use]
    pub fn is_lent(&self) -> bool {
        self.index & LENT != 0
    }

    /// Length of the view in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.view.end.wrapping_sub(self.view.start) as usize
    }

    /// Whether the view is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of the view; `None` in lent memory, where they may change.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        (!self.is_lent()).then(|| &**self)
    }

    /// Pointer to the first byte of the view, for the kernel or a device.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.first().as_ptr()
    }

    /// Pointer to the first byte of the view, for writing.
    #[inline]
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.first().as_ptr()
    }

    /// Copies `bytes` into the view from byte `at` on, also into lent memory.
    ///
    /// # Errors
    /// [`OutOfBounds`] when they do not fit; nothing is copied then.
    #[inline]
    pub fn copy_in(&mut self, at: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let start = self.inside(at, bytes.len())?;
        // SAFETY: the destination is inside the view. In this process only this `Buf`, which
        // is borrowed, gives access to it, or accesses use no references.
        unsafe { racy::copy(bytes.as_ptr(), start.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies bytes from the view into `bytes`, from byte `at` on, also from lent memory.
    ///
    /// # Errors
    /// [`OutOfBounds`] when there are not so many; nothing is copied then.
    #[inline]
    pub fn copy_out(&self, at: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        let start = self.inside(at, bytes.len())?;
        // SAFETY: as in `copy_in`, with source and destination exchanged.
        unsafe { racy::copy(start.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// A copy of the bytes of the view, also of lent memory.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        let copied = self.copy_out(0, &mut bytes);
        debug_assert!(copied.is_ok(), "as many as there are");
        bytes
    }

    /// Sets all bytes of the view, also of lent memory.
    #[inline]
    pub fn fill(&mut self, byte: u8) {
        // SAFETY: as in `copy_in`.
        unsafe { racy::fill(self.first().as_ptr(), byte, self.len()) };
    }

    /// Sets `len` bytes from byte `at` of the view on.
    ///
    /// # Errors
    /// [`OutOfBounds`] when there are not so many; nothing is set then.
    #[inline]
    pub fn fill_at(&mut self, at: usize, len: usize, byte: u8) -> Result<(), OutOfBounds> {
        let start = self.inside(at, len)?;
        // SAFETY: as in `copy_in`.
        unsafe { racy::fill(start.as_ptr(), byte, len) };
        Ok(())
    }

    #[inline]
    fn inside(&self, at: usize, len: usize) -> Result<NonNull<u8>, OutOfBounds> {
        match at.checked_add(len) {
            // SAFETY: `at` is at most the length of the view.
            Some(end) if end <= self.len() => Ok(unsafe { self.first().add(at) }),
            _ => Err(OutOfBounds {
                start: at,
                end: at.saturating_add(len),
                capacity: self.len(),
            }),
        }
    }

    /// Address of the first byte of the view: a number for a device or a peer, not a pointer.
    #[must_use]
    pub fn addr(&self) -> u64 {
        (self.start.as_ptr().addr() + self.view.start as usize) as u64
    }

    /// Offset of the first byte of the view in the region.
    #[must_use]
    pub fn region_offset(&self) -> u64 {
        self.addr() - self.home.region().addr()
    }

    fn first(&self) -> NonNull<u8> {
        // SAFETY: the view is kept inside the piece by `set_view`.
        unsafe { self.start.add(self.view.start as usize) }
    }
}

impl Deref for Buf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.assert_stable();
        // SAFETY: the piece is mapped and initialised (the kernel zeroes new
        // mappings), and only this `Buf`, which is borrowed, gives access to it: it is
        // not lent. `Region::file` documents regions that are shared with a peer.
        unsafe { std::slice::from_raw_parts(self.first().as_ptr(), self.len()) }
    }
}

impl DerefMut for Buf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.assert_stable();
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.first().as_ptr(), self.len()) }
    }
}

impl Buf {
    /// A slice of bytes that another process may change would be undefined behaviour, so
    /// dereferencing such a buffer is a bug.
    #[inline]
    fn assert_stable(&self) {
        assert!(!self.is_lent(), "lent memory is never a slice");
    }
}

impl Drop for Buf {
    #[inline]
    fn drop(&mut self) {
        self.home.put_back(self.index);
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf")
            .field("index", &self.index)
            .field("view", &self.view)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Pages, Pool, PoolLayout};

    #[test]
    fn views_stay_inside_the_piece() {
        let layout = PoolLayout {
            count: 1,
            stride: 4096,
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Normal).unwrap();
        let mut buf = pool.take().unwrap();
        let whole = buf.addr();
        buf.set_view(64..128).unwrap();
        buf.fill(9);
        assert_eq!(
            (buf.len(), buf.addr(), buf.region_offset()),
            (64, whole + 64, 64)
        );
        #[allow(clippy::reversed_empty_ranges, reason = "what is tested")]
        for bad in [0..4097, 10..9, usize::MAX..usize::MAX] {
            assert!(buf.set_view(bad).is_err());
            assert_eq!(buf.view(), 64..128);
        }
        buf.reset_view();
        assert_eq!(buf.iter().filter(|byte| **byte == 9).count(), 64);
    }
}
