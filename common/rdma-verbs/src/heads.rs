//! Registered memory for heads of messages that do not fit in the work request.

use std::io;
use std::sync::Arc;

use nvmeof_memory::{Buf, Pages, Pool, PoolLayout};

use crate::sys::{INLINE, MemoryRegion, ProtectionDomain, Segment};

/// One buffer for each message that may be outstanding.
#[derive(Debug)]
pub(crate) struct Heads {
    region: MemoryRegion,
    pool: Pool,
}

impl Heads {
    pub(crate) fn new(pd: &Arc<ProtectionDomain>, count: u32) -> io::Result<Self> {
        let layout = PoolLayout {
            count: count as usize,
            stride: INLINE,
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Normal).map_err(io::Error::other)?;
        let region = MemoryRegion::local(pd, pool.region(), None, false)?;
        Ok(Self { region, pool })
    }

    /// Copies a head. `None` if all buffers are in use.
    pub(crate) fn copy(&self, head: &[u8]) -> Option<Buf> {
        let mut place = self.pool.take()?;
        place.set_len(head.len()).ok()?;
        place.copy_from_slice(head);
        Some(place)
    }

    pub(crate) fn segment(&self, copied: &Buf) -> Option<Segment> {
        Some(Segment {
            addr: self.region.name_of(copied.region_offset()),
            len: u32::try_from(copied.len()).ok()?,
            key: self.region.local_key(),
        })
    }
}
