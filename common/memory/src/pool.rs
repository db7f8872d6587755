//! Pools: pieces of a region, taken and returned without allocation.

use std::sync::Arc;

use crate::buf::Buf;
use crate::free::Free;
use crate::home::{Home, LENT, Owner};
use crate::region::{MemoryError, Pages, Region};
use crate::waiters::Waiters;

/// How a pool divides its region: `count` pieces, one in each `stride` bytes, from byte
/// `lead` to the end of its stride.
///
/// With `lead`, a capsule of 64 bytes and the data that follow it fit one piece while the
/// data are page-aligned: stride 8192 and lead 4032 put byte 64 of each piece at a multiple
/// of 4096.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLayout {
    /// Number of pieces.
    pub count: usize,
    /// Bytes from one piece to the next.
    pub stride: usize,
    /// Unused bytes at the start of each stride.
    pub lead: usize,
}

/// Why a pool could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The layout is invalid.
    #[error("invalid buffer pool {0:?}: its buffers are empty, or it exceeds the address space")]
    Layout(PoolLayout),
    /// Not enough memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// Pieces of equal length in one region. Clones share the pieces. A dropped [`Buf`] returns to
/// its pool, on any thread.
#[derive(Clone, Debug)]
pub struct Pool {
    home: Arc<Home>,
    layout: PoolLayout,
    /// Length of each piece in bytes.
    len: u32,
}

impl PoolLayout {
    /// Bytes that the pool needs, or `None` if the layout is invalid.
    fn bytes(&self) -> Option<usize> {
        let fits = self.count > 0
            && self.lead < self.stride
            && u32::try_from(self.count).is_ok_and(|count| count <= LENT)
            && u32::try_from(self.stride).is_ok();
        if fits {
            self.count.checked_mul(self.stride)
        } else {
            None
        }
    }
}

impl Pool {
    /// Allocates a region for the layout.
    ///
    /// # Errors
    /// [`PoolError`] when the layout is invalid or memory is exhausted.
    pub fn new(layout: PoolLayout, pages: Pages) -> Result<Self, PoolError> {
        Self::with_waiters(layout, pages, None)
    }

    /// The same for a pool whose pieces tasks wait for, with its index for them.
    pub(crate) fn with_waiters(
        layout: PoolLayout,
        pages: Pages,
        waiters: Option<(Arc<Waiters>, usize)>,
    ) -> Result<Self, PoolError> {
        let bytes = layout.bytes().ok_or(PoolError::Layout(layout))?;
        let len = u32::try_from(layout.stride - layout.lead);
        let len = len.map_err(|_| PoolError::Layout(layout))?;
        let region = Region::anonymous(bytes, pages)?;
        let count = u32::try_from(layout.count).map_err(|_| PoolError::Layout(layout))?;
        let free = Free::new(count);
        let home = Home::new(region, Owner::Pool { free, waiters });
        Ok(Self { home, layout, len })
    }

    /// Takes the piece that was returned last, with its whole length in view. `None` if all are
    /// in use. The bytes are those that the last user left.
    #[must_use]
    pub fn take(&self) -> Option<Buf> {
        let index = self.home.free()?.pop()?;
        // SAFETY: its number was in `free` and is no longer, so no other `Buf` has it.
        Some(unsafe { self.piece(index) })
    }

    /// # Safety
    /// `index` is a number that was in `free` and is no longer, and no other `Buf` has it.
    #[inline]
    pub(crate) unsafe fn piece(&self, index: u32) -> Buf {
        let PoolLayout { stride, lead, .. } = self.layout;
        let start = self.home.region().at(index as usize * stride + lead);
        let home = Arc::clone(&self.home);
        // SAFETY: piece `index` is inside the region, whose length is `count * stride` bytes,
        // because its number is below `count`, and so below `LENT`. No other `Buf` has it.
        unsafe { Buf::new(start, self.len, index, home) }
    }

    /// From now on, a piece is not free when it returns, but handed over to a waiting task.
    pub(crate) fn set_awaited(&self) {
        if let Some(free) = self.home.free() {
            free.set_awaited(true);
        }
    }

    /// Number of free pieces at this moment.
    #[must_use]
    pub fn available(&self) -> usize {
        self.home.free().map_or(0, Free::len)
    }

    /// Number of all pieces.
    #[must_use]
    pub fn count(&self) -> usize {
        self.layout.count
    }

    /// Length of each piece in bytes.
    #[must_use]
    pub fn buf_len(&self) -> usize {
        self.layout.stride - self.layout.lead
    }

    /// The region of the pieces, for registering it with devices.
    #[must_use]
    pub fn region(&self) -> &Region {
        self.home.region()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(count: usize, stride: usize, lead: usize) -> Pool {
        Pool::new(
            PoolLayout {
                count,
                stride,
                lead,
            },
            Pages::Normal,
        )
        .unwrap()
    }

    #[test]
    fn pieces_are_distinct_and_return_to_pool() {
        let pool = pool(3, 4096, 0);
        let mut held: Vec<Buf> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!((held.len(), pool.available()), (3, 0));
        for (n, buf) in (0u8..).zip(held.iter_mut()) {
            buf.fill(n);
        }
        for (n, buf) in (0u8..).zip(&held) {
            assert!(buf.iter().all(|byte| *byte == n));
        }
        drop(held);
        assert_eq!(pool.available(), 3);
    }

    #[test]
    fn lead_aligns_data_after_capsule() {
        let pool = pool(2, 8192, 4032);
        for buf in [pool.take().unwrap(), pool.take().unwrap()] {
            assert_eq!(buf.len(), 4160);
            assert_eq!((buf.addr() + 64) % 4096, 0);
        }
    }

    #[test]
    fn buffers_outlive_pool_and_move_between_threads() {
        let buf = {
            let pool = pool(1, 4096, 0);
            pool.take().unwrap()
        };
        let back = std::thread::spawn(move || {
            let mut buf = buf;
            buf.fill(7);
            buf
        });
        assert!(back.join().unwrap().iter().all(|byte| *byte == 7));
    }

    #[test]
    fn invalid_layouts_are_refused() {
        for (count, stride, lead) in [(0, 1, 0), (1, 0, 0), (1, 8, 8), (usize::MAX, 4096, 0)] {
            let layout = PoolLayout {
                count,
                stride,
                lead,
            };
            assert!(matches!(
                Pool::new(layout, Pages::Normal),
                Err(PoolError::Layout(_))
            ));
        }
    }
}
