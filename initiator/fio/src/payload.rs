//! The memory of a job: fio fills and verifies it, the queues send from it and
//! receive into it.

use nix::errno::Errno;
use nvmeof_memory::{Buf, Pages, Pool, PoolLayout, Region};

use crate::failure::Failure;

/// Equal pieces side by side, one for each operation that fio has in flight.
///
/// A piece is a `Buf` here while fio may touch it, and lent to a queue
/// otherwise: fio leaves the memory of an operation alone until it gets its
/// result. fio knows the memory by address alone, and nothing here reads or
/// writes it.
#[derive(Debug)]
pub(crate) struct Payload {
    pool: Pool,
    /// By number; `None` is lent.
    home: Vec<Option<Buf>>,
    stride: u64,
}

impl Payload {
    /// `count` pieces of `stride` bytes.
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
            home: std::iter::repeat_with(|| None).take(count).collect(),
            stride: u64::try_from(stride).unwrap_or(u64::MAX),
            pool,
        };
        while let Some(mut buf) = payload.pool.take() {
            // Somebody else reaches the bytes by address as long as this is
            // home.
            buf.as_mut_ptr().expose_provenance();
            payload.give_back(buf);
        }
        Ok(payload)
    }

    /// For registering with queues.
    pub(crate) fn region(&self) -> &Region {
        self.pool.region()
    }

    /// Address of the first byte; a page boundary.
    pub(crate) fn addr(&self) -> u64 {
        self.pool.region().addr()
    }

    /// The `len` bytes at `addr`, which lie in one piece that is home.
    pub(crate) fn take(&mut self, addr: u64, len: u64) -> Option<Buf> {
        let at = addr.checked_sub(self.addr())?;
        let start = usize::try_from(at.checked_rem(self.stride)?).ok()?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        let number = usize::try_from(at / self.stride).ok()?;
        let place = self.home.get_mut(number)?;
        place.as_mut()?.set_view(start..end).ok()?;
        place.take()
    }

    /// A piece is home again. One of other memory goes back to its pool.
    pub(crate) fn give_back(&mut self, buf: Buf) {
        if buf.region() != self.pool.region().id() {
            return;
        }
        let number = buf.region_offset().checked_div(self.stride);
        let number = number.and_then(|number| usize::try_from(number).ok());
        if let Some(place) = number.and_then(|number| self.home.get_mut(number)) {
            *place = Some(buf);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_known_by_their_address() {
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
    fn only_what_lies_in_one_piece_is_taken() {
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
            "a refusal takes nothing"
        );
    }

    #[test]
    fn memory_of_another_time_goes_to_its_pool() {
        let mut old = Payload::new(1, 4096).unwrap();
        let lent = old.take(old.addr(), 4096).unwrap();
        let mut new = Payload::new(1, 4096).unwrap();
        new.give_back(lent);
        assert_eq!(old.pool.available(), 1);
        assert!(new.take(new.addr(), 4096).is_some());
    }
}
