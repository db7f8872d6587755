//! The payload memory of a job: fio fills and verifies it, the queues send from it
//! and receive into it.

use nix::errno::Errno;
use nvmeof_memory::{Buf, Pages, Pool, PoolLayout, Region};

use crate::failure::Failure;

/// Contiguous buffers of one size, one for each operation that fio has in flight.
///
/// A buffer is a `Buf` here while fio may access it, and is lent to a queue
/// otherwise: fio does not access the memory of an operation until it gets the
/// result. fio uses addresses only, and this module neither reads nor writes the
/// memory.
#[derive(Debug)]
pub(crate) struct Payload {
    pool: Pool,
    /// By index; `None`: lent to a queue.
    slots: Vec<Option<Buf>>,
    stride: u64,
}

impl Payload {
    /// `count` buffers of `stride` bytes.
    pub(crate) fn new(count: usize, stride: usize) -> Result<Self, Failure> {
        let layout = PoolLayout {
            count,
            stride,
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Shareable).map_err(|error| {
            let text = format!("{error}; or lower iodepth= or bs= of the job");
            Failure::new(text, Errno::ENOMEM)
        })?;
        let mut payload = Self {
            slots: std::iter::repeat_with(|| None).take(count).collect(),
            stride: u64::try_from(stride).unwrap_or(u64::MAX),
            pool,
        };
        while let Some(mut buf) = payload.pool.take() {
            // fio accesses the bytes by address while the buffer is here.
            buf.as_mut_ptr().expose_provenance();
            payload.give_back(buf);
        }
        Ok(payload)
    }

    /// The region to register with queues.
    pub(crate) fn region(&self) -> &Region {
        self.pool.region()
    }

    /// Address of the first byte; a page boundary.
    pub(crate) fn addr(&self) -> u64 {
        self.pool.region().addr()
    }

    /// Takes the `len` bytes at `addr`, which must be in one buffer that is not lent.
    pub(crate) fn take(&mut self, addr: u64, len: u64) -> Option<Buf> {
        let at = addr.checked_sub(self.addr())?;
        let start = usize::try_from(at.checked_rem(self.stride)?).ok()?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        let index = usize::try_from(at / self.stride).ok()?;
        let slot = self.slots.get_mut(index)?;
        slot.as_mut()?.set_view(start..end).ok()?;
        slot.take()
    }

    /// Takes a buffer back. A buffer of another allocation returns to its pool.
    pub(crate) fn give_back(&mut self, buf: Buf) {
        if buf.region() != self.pool.region().id() {
            return;
        }
        let index = buf.region_offset().checked_div(self.stride);
        let index = index.and_then(|index| usize::try_from(index).ok());
        if let Some(slot) = index.and_then(|index| self.slots.get_mut(index)) {
            *slot = Some(buf);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_found_by_address() {
        let mut payload = Payload::new(3, 10_000).unwrap();
        let base = payload.addr();
        assert_eq!(base % 4096, 0);
        let whole = payload.take(base + 10_000, 10_000).unwrap();
        assert_eq!((whole.addr(), whole.len()), (base + 10_000, 10_000));
        let part = payload.take(base + 20_512, 512).unwrap();
        assert_eq!((part.addr(), part.len()), (base + 20_512, 512));
        assert!(payload.take(base + 10_000, 512).is_none(), "it is lent");
        payload.give_back(part);
        payload.give_back(whole);
        assert!(payload.take(base + 20_000, 10_000).is_some());
    }

    #[test]
    fn range_outside_of_one_buffer_is_refused() {
        let mut payload = Payload::new(2, 4096).unwrap();
        let base = payload.addr();
        for (addr, len) in [
            (base - 1, 1),
            (base + 1, 4096),
            (base + 8192, 1),
            (base, u64::MAX),
            (u64::MAX, 1),
        ] {
            assert!(payload.take(addr, len).is_none(), "{addr} {len}");
        }
        assert!(
            payload.take(base, 4096).is_some(),
            "a refusal has no effect"
        );
    }

    #[test]
    fn buffer_of_earlier_allocation_returns_to_its_pool() {
        let mut old = Payload::new(1, 4096).unwrap();
        let lent = old.take(old.addr(), 4096).unwrap();
        let mut new = Payload::new(1, 4096).unwrap();
        new.give_back(lent);
        assert_eq!(old.pool.available(), 1);
        assert!(new.take(new.addr(), 4096).is_some());
    }
}
