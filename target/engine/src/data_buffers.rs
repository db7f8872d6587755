//! The buffers for data of one reactor: those of its pools, of which some that
//! came back last are kept at hand.
//!
//! Pools are shared by all who may drop a buffer, on whichever thread: each take
//! and each return are two exchanges that a CPU does alone. Most of the short
//! ones come back to the reactor itself, which gives them to the next command.

use nvmeof_memory::{Buf, Classes, Region, RegionId};

/// Buffers that are kept at hand.
const MOST: usize = 128;

/// The buffers for data of one reactor.
pub(crate) struct DataBuffers {
    classes: Classes,
    /// Some of the shortest kind, which came back last.
    at_hand: Vec<Buf>,
    /// Bytes of each of these, and where they lie.
    short: usize,
    region: Option<RegionId>,
}

impl DataBuffers {
    pub(crate) fn new(classes: Classes) -> Self {
        let region = classes.regions().next().map(Region::id);
        Self {
            short: classes.shortest(),
            classes,
            at_hand: Vec::with_capacity(MOST),
            region,
        }
    }

    /// Takes a buffer as [`Classes::take`] does.
    #[inline]
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

    /// A buffer, if there is any, is of no use any more, wherever it is from.
    // Most answers have none.
    #[inline(always)]
    pub(crate) fn put_back(&mut self, buf: Option<Buf>) {
        if let Some(buf) = buf {
            self.keep(buf);
        }
    }

    fn keep(&mut self, buf: Buf) {
        if Some(buf.region()) == self.region && self.at_hand.len() < MOST {
            self.at_hand.push(buf);
        }
    }

    /// Free buffers, over all sizes.
    pub(crate) fn available(&self) -> usize {
        self.classes.available() + self.at_hand.len()
    }

    /// What they are of.
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
    fn what_came_back_is_given_again_and_counts_as_free() {
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
    fn only_the_short_ones_are_kept_and_only_for_what_fits() {
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
        // Of another stock.
        data_buffers.put_back(self::data_buffers().take(1));
        assert!(data_buffers.take(1).is_none());
    }
}
