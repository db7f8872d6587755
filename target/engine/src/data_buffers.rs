//! The data buffers of one reactor: those of its pools, with a cache of some that were
//! returned last.
//!
//! A pool is shared by all threads that may drop a buffer: each take and each return
//! costs two atomic operations. Most short buffers are returned to the reactor itself,
//! which reuses them for the next command.

use nvmeof_memory::{Buf, Classes, Region, RegionId};

/// Buffers in the cache at most.
const CACHE_MAX: usize = 128;

/// The data buffers of one reactor.
pub(crate) struct DataBuffers {
    classes: Classes,
    /// The cache: buffers of the shortest kind that were returned last.
    at_hand: Vec<Buf>,
    /// Bytes of each of these, and their memory region.
    short: usize,
    region: Option<RegionId>,
}

impl DataBuffers {
    pub(crate) fn new(classes: Classes) -> Self {
        let region = classes.regions().next().map(Region::id);
        Self {
            short: classes.shortest(),
            classes,
            at_hand: Vec::with_capacity(CACHE_MAX),
            region,
        }
    }

    /// Takes a buffer as [`Classes::take`] does.
    #[inline(always)]
    pub(crate) fn take(&mut self, len: usize) -> Option<Buf> {
        if len <= self.short
            && let Some(mut buf) = self.at_hand.pop()
        {
            buf.set_len(len).ok()?;
            return Some(buf);
        }
        self.take_from_pool(len)
    }

    #[inline(never)]
    fn take_from_pool(&self, len: usize) -> Option<Buf> {
        self.classes.take(len)
    }

    /// Returns a buffer, if there is one, from whichever pool it is.
    // Most responses have none.
    #[inline(always)]
    pub(crate) fn put_back(&mut self, buf: Option<Buf>) {
        if let Some(buf) = buf {
            self.put_in_cache(buf);
        }
    }

    fn put_in_cache(&mut self, buf: Buf) {
        if Some(buf.region()) == self.region && self.at_hand.len() < CACHE_MAX {
            self.at_hand.push(buf);
        }
    }

    /// Free buffers, over all sizes.
    pub(crate) fn available(&self) -> usize {
        self.classes.available() + self.at_hand.len()
    }

    /// The pools.
    pub(crate) fn classes(&self) -> &Classes {
        &self.classes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmeof_memory::{ClassSpec, Pages};

    fn data_buffers() -> DataBuffers {
        let specs = [4096, 65536].map(|len| ClassSpec { len, count: 2 });
        DataBuffers::new(Classes::new(&specs, Pages::Normal).unwrap())
    }

    #[test]
    fn returned_buffer_is_reused_and_counts_as_free() {
        let mut data_buffers = data_buffers();
        let buf = data_buffers.take(4096).unwrap();
        let addr = buf.addr();
        assert_eq!(data_buffers.available(), 3);
        data_buffers.put_back(Some(buf));
        assert_eq!(
            (data_buffers.available(), data_buffers.classes().available()),
            (4, 3)
        );
        let again = data_buffers.take(512).unwrap();
        assert_eq!((again.addr(), again.len()), (addr, 512));
    }

    #[test]
    fn cache_keeps_short_buffers_only() {
        let mut data_buffers = data_buffers();
        let (short, long) = (
            data_buffers.take(1).unwrap(),
            data_buffers.take(4097).unwrap(),
        );
        data_buffers.put_back(Some(long));
        assert_eq!(
            data_buffers.classes().available(),
            3,
            "it went back to its pool"
        );
        data_buffers.put_back(Some(short));
        assert_eq!(data_buffers.take(4097).unwrap().capacity(), 65536);
        let all: Vec<Buf> = std::iter::from_fn(|| data_buffers.take(1)).collect();
        let lens: Vec<usize> = all.iter().map(|buf| buf.capacity()).collect();
        assert_eq!(lens, [4096, 4096, 65536, 65536]);
        // A buffer of another pool.
        data_buffers.put_back(self::data_buffers().take(1));
        assert!(data_buffers.take(1).is_none());
    }
}
