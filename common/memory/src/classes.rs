//! Pools of several buffer lengths.

use std::ops::Range;
use std::sync::Arc;

use crate::waiters::{Piece, Waiters};
use crate::{Buf, Pages, Pool, PoolError, PoolLayout, Region};

/// Length and number of buffers of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassSpec {
    /// Length of each buffer in bytes.
    pub len: usize,
    /// Number of buffers.
    pub count: usize,
}

/// Buffers of several fixed sizes. Each size has a pool and region of its own, so that if only
/// a part of the memory can be registered, small buffers are registered first.
#[derive(Clone, Debug)]
pub struct Classes {
    /// Shortest buffers first.
    pools: Vec<Pool>,
    waiters: Arc<Waiters>,
}

impl Classes {
    /// Makes one pool for each of `specs`, in any order.
    ///
    /// # Errors
    /// [`PoolError`] when a size is invalid or memory is exhausted.
    pub fn new(specs: &[ClassSpec], pages: Pages) -> Result<Self, PoolError> {
        let mut specs = specs.to_vec();
        specs.sort_by_key(|spec| spec.len);
        let waiters = Arc::new(Waiters::default());
        let pools = specs
            .iter()
            .enumerate()
            .map(|(index, spec)| {
                let layout = PoolLayout {
                    count: spec.count,
                    stride: spec.len,
                    lead: 0,
                };
                Pool::with_waiters(layout, pages, Some((Arc::clone(&waiters), index)))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { pools, waiters })
    }

    /// Takes a buffer of the shortest size of at least `len` bytes, or of the next longer size,
    /// with its first `len` bytes in view. `None` if none of them is free: short requests do
    /// not use up the longest buffers, which long requests depend on.
    #[must_use]
    pub fn take(&self, len: usize) -> Option<Buf> {
        let fitting = self.pools.iter().filter(|pool| pool.buf_len() >= len);
        let mut buf = fitting.take(2).find_map(Pool::take)?;
        buf.set_len(len).ok()?;
        Some(buf)
    }

    pub(crate) fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    /// The indices of the pools that [`take`](Self::take) tries.
    pub(crate) fn fitting(&self, len: usize) -> Range<usize> {
        let first = self.kind_of(len);
        first..self.pools.len().min(first.saturating_add(2))
    }

    /// The buffer of a piece that was handed over.
    pub(crate) fn buf_of(&self, piece: Piece) -> Option<Buf> {
        let (pool, number) = piece.into_parts();
        let pool = self.pools.get(pool)?;
        // SAFETY: the number is of that pool, because a piece is handed over to the waiters of its
        // own `Classes` only, under the index that the pool has here. A `Piece` exists only if its
        // number was not returned to `free` when its last `Buf` was dropped. It cannot be cloned,
        // and is consumed here.
        Some(unsafe { pool.piece(number) })
    }

    /// Marks pools as awaited.
    pub(crate) fn set_awaited(&self, pools: Range<usize>) {
        for pool in self.pools.get(pools).unwrap_or_default() {
            pool.set_awaited();
        }
    }

    /// Length of the shortest buffers, in bytes.
    #[must_use]
    pub fn shortest(&self) -> usize {
        self.pools.first().map_or(0, Pool::buf_len)
    }

    /// Length of the longest buffers, in bytes: longer requests never fit.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.pools.last().map_or(0, Pool::buf_len)
    }

    /// Number of free buffers of all sizes.
    #[must_use]
    pub fn available(&self) -> usize {
        self.pools.iter().map(Pool::available).sum()
    }

    /// Number of buffers of each size, the shortest first.
    pub fn counts(&self) -> impl Iterator<Item = usize> {
        self.pools.iter().map(Pool::count)
    }

    /// Index of the size that [`take`](Self::take) tries first: 0 for the shortest.
    #[inline]
    #[must_use]
    pub fn kind_of(&self, len: usize) -> usize {
        self.pools
            .iter()
            .take_while(|pool| pool.buf_len() < len)
            .count()
    }

    /// The regions, those of the shortest buffers first.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.pools.iter().map(Pool::region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn take_prefers_shortest_then_next_longer() {
        let specs = [
            ClassSpec {
                len: 65536,
                count: 1,
            },
            ClassSpec {
                len: 4096,
                count: 1,
            },
        ];
        let classes = Classes::new(&specs, Pages::Normal).unwrap();
        let first = classes.take(512).unwrap();
        let second = classes.take(4096).unwrap();
        assert_eq!((first.len(), first.capacity()), (512, 4096));
        assert_eq!((second.len(), second.capacity()), (4096, 65536));
        assert!(classes.take(1).is_none());
        assert_eq!(classes.counts().collect::<Vec<_>>(), [1, 1]);
        let kinds = [1, 4096, 4097, 65536].map(|len| classes.kind_of(len));
        assert_eq!(kinds, [0, 0, 1, 1]);
        assert_eq!((classes.shortest(), classes.longest()), (4096, 65536));
        assert!(classes.take(classes.longest() + 1).is_none());
        drop((first, second));
        assert_eq!(classes.available(), 2);
    }

    #[test]
    fn short_requests_leave_longest_buffers() {
        let specs = [4096, 8192, 65536].map(|len| ClassSpec { len, count: 1 });
        let classes = Classes::new(&specs, Pages::Normal).unwrap();
        let short = [classes.take(1).unwrap(), classes.take(1).unwrap()];
        assert!(classes.take(1).is_none());
        assert_eq!(classes.take(8192).unwrap().capacity(), 65536);
        drop(short);
    }
}
