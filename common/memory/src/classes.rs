//! Pools of several sizes behind one `take`.

use crate::{Buf, Pages, Pool, PoolError, PoolLayout, Region};

/// One size of buffer and how many of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassSpec {
    /// Length of each buffer in bytes.
    pub len: usize,
    /// Number of buffers.
    pub count: usize,
}

/// Buffers of several fixed sizes, each size with a pool and region of its
/// own, so that memory that can be registered only in part is registered
/// where it helps most: the small ones first.
#[derive(Clone, Debug)]
pub struct Classes {
    /// Shortest buffers first.
    pools: Vec<Pool>,
}

impl Classes {
    /// Makes one pool for each of `specs`, in any order.
    ///
    /// # Errors
    /// [`PoolError`] when a size makes no sense or memory is short.
    pub fn new(specs: &[ClassSpec], pages: Pages) -> Result<Self, PoolError> {
        let mut specs = specs.to_vec();
        specs.sort_by_key(|spec| spec.len);
        let pools = specs
            .iter()
            .map(|spec| {
                let layout = PoolLayout {
                    count: spec.count,
                    stride: spec.len,
                    lead: 0,
                };
                Pool::new(layout, pages)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { pools })
    }

    /// Takes a buffer of the shortest kind of at least `len` bytes, or of the
    /// next longer kind, and puts its first `len` bytes in view. `None` when
    /// none of them is free now: short requests do not use up the longest
    /// buffers, which others can do with alone.
    #[must_use]
    pub fn take(&self, len: usize) -> Option<Buf> {
        let fitting = self.pools.iter().filter(|pool| pool.buf_len() >= len);
        let mut buf = fitting.take(2).find_map(Pool::take)?;
        buf.set_len(len).ok()?;
        Some(buf)
    }

    /// Length of the shortest buffers, in bytes.
    #[must_use]
    pub fn shortest(&self) -> usize {
        self.pools.first().map_or(0, Pool::buf_len)
    }

    /// Length of the longest buffer, in bytes: a request above it never fits.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.pools.last().map_or(0, Pool::buf_len)
    }

    /// Free buffers, over all sizes.
    #[must_use]
    pub fn available(&self) -> usize {
        self.pools.iter().map(Pool::available).sum()
    }

    /// How many buffers there are of each size, the shortest first.
    pub fn counts(&self) -> impl Iterator<Item = usize> {
        self.pools.iter().map(Pool::count)
    }

    /// Which size of buffers [`take`](Self::take) takes one of first: 0 for the
    /// shortest.
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
    fn the_shortest_that_fits_is_taken_then_a_longer_one() {
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
    fn short_requests_leave_the_longest_alone() {
        let specs = [4096, 8192, 65536].map(|len| ClassSpec { len, count: 1 });
        let classes = Classes::new(&specs, Pages::Normal).unwrap();
        let short = [classes.take(1).unwrap(), classes.take(1).unwrap()];
        assert!(classes.take(1).is_none());
        assert_eq!(classes.take(8192).unwrap().capacity(), 65536);
        drop(short);
    }
}
