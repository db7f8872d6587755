//! Memory keys: the buffers that a peer may access, and its rights.

use std::collections::VecDeque;

use nvmeof_memory::Buf;
use nvmeof_rdma::{ExposeError, QpId, Refused, RemoteKey, RemoteSlice, Rights};

/// Indices above this one are never in the table; they are for the sinks of RDMA Reads of
/// this side, so that a Write to one fails.
const INDEX_BITS: u32 = 23;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
const SINK: u32 = 1 << 31;
/// A freed slot is not reused before this number of slots are free, as long as the table can
/// grow.
const REST: usize = 1024;
/// Address of the first byte of exposed memory. Peers use key and address and need not learn
/// addresses of this process.
pub(crate) const BASE: u64 = 1 << 20;

/// The buffers that are exposed, by key. A key is an index of 24 bits and a
/// generation of 8; both start at random.
#[derive(Debug)]
pub struct KeyTable {
    slots: Vec<Slot>,
    /// Free slots, oldest first.
    free: VecDeque<u32>,
    max: u32,
    /// Offset between the number of a slot and the index of its key.
    start: u32,
    random: u64,
    next_sink: u32,
}

#[derive(Debug)]
struct Slot {
    generation: u8,
    entry: Option<Entry>,
}

#[derive(Debug)]
struct Entry {
    buf: Buf,
    owner: QpId,
    rights: Rights,
    /// Until the peer invalidates the key.
    valid: bool,
    /// Queued responses to RDMA Reads.
    reading: u32,
}

impl Entry {
    /// Offset of the access in the buffer.
    #[inline]
    fn check(&self, access: &Access) -> Result<usize, KeyFault> {
        if !self.valid {
            return Err(KeyFault::Unknown);
        }
        if self.owner != access.owner {
            return Err(KeyFault::Foreign);
        }
        if !self.rights.contains(access.rights) {
            return Err(KeyFault::Rights);
        }
        let len = u64::try_from(access.len).map_err(|_| KeyFault::Wrap)?;
        access.addr.checked_add(len).ok_or(KeyFault::Wrap)?;
        let offset = access.addr.checked_sub(BASE);
        let offset = offset.and_then(|offset| usize::try_from(offset).ok());
        offset
            .filter(|offset| {
                offset
                    .checked_add(access.len)
                    .is_some_and(|end| end <= self.buf.len())
            })
            .ok_or(KeyFault::Bounds)
    }
}

/// Why a peer may not use a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFault {
    /// No memory is exposed by it.
    Unknown,
    /// It belongs to another queue pair.
    Foreign,
    /// It does not give that right.
    Rights,
    /// Address and length are out of bounds.
    Bounds,
    /// Address plus length wraps.
    Wrap,
    /// An RDMA Read of it is in progress.
    Busy,
}

/// An access of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The queue pair it came over.
    pub owner: QpId,
    /// Its key.
    pub key: u32,
    /// Required rights.
    pub rights: Rights,
    /// Address of the first byte, as [`KeyTable::expose`] named it.
    pub addr: u64,
    /// Length in bytes.
    pub len: usize,
}

impl KeyTable {
    /// Creates a table of at most `max` keys, which start at `seed`.
    #[must_use]
    pub fn new(max: u32, seed: u64) -> Self {
        let mut table = Self {
            slots: Vec::new(),
            free: VecDeque::new(),
            max: max.min(INDEX_MASK),
            start: 0,
            random: seed,
            next_sink: 0,
        };
        table.start = table.draw() & INDEX_MASK;
        table.next_sink = table.draw();
        table
    }

    /// Creates a key that gives the peer of `owner` access to the view of `buf`.
    ///
    /// # Errors
    /// [`ExposeError::Full`], with the buffer.
    #[inline]
    pub fn expose(
        &mut self,
        owner: QpId,
        buf: Buf,
        rights: Rights,
    ) -> Result<RemoteSlice, Refused<Buf, ExposeError>> {
        // Buffers of pools are below 4 GiB.
        let len = u32::try_from(buf.len()).ok();
        let number = len.and_then(|_| self.free_slot());
        let slot = number.and_then(|number| self.slots.get_mut(number as usize));
        let (Some(len), Some(number), Some(slot)) = (len, number, slot) else {
            let why = ExposeError::Full { max: self.max };
            return Err(Refused { why, back: buf });
        };
        debug_assert!(slot.entry.is_none(), "free slots are empty");
        slot.entry = Some(Entry {
            buf,
            owner,
            rights,
            valid: true,
            reading: 0,
        });
        let index = number.wrapping_add(self.start) & INDEX_MASK;
        Ok(RemoteSlice {
            key: RemoteKey(index << 8 | u32::from(slot.generation)),
            addr: BASE,
            len,
        })
    }

    /// Withdraws a buffer.
    ///
    /// # Errors
    /// As [`Provider::withdraw`](nvmeof_rdma::Provider::withdraw).
    pub fn withdraw(&mut self, key: RemoteKey) -> Result<Buf, ExposeError> {
        let number = self.number_of(key.0).ok_or(ExposeError::UnknownKey)?;
        let slot = self.slots.get_mut(number as usize);
        let slot = slot.ok_or(ExposeError::UnknownKey)?;
        if slot.entry.as_ref().is_some_and(|entry| entry.reading > 0) {
            return Err(ExposeError::Busy);
        }
        let entry = slot.entry.take().ok_or(ExposeError::UnknownKey)?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push_back(number);
        Ok(entry.buf)
    }

    /// Offset of the access in the buffer.
    ///
    /// # Errors
    /// [`KeyFault`]: why the peer may not do that.
    pub fn check(&self, access: &Access) -> Result<usize, KeyFault> {
        let entry = self.entry(access.key).ok_or(KeyFault::Unknown)?;
        entry.check(access)
    }

    /// The bytes of a write access.
    ///
    /// # Errors
    /// [`KeyFault`]: why the peer may not do that.
    pub fn bytes_mut(&mut self, access: &Access) -> Result<&mut [u8], KeyFault> {
        let entry = self.entry_mut(access.key).ok_or(KeyFault::Unknown)?;
        let offset = entry.check(access)?;
        entry
            .buf
            .get_mut(offset..offset + access.len)
            .ok_or(KeyFault::Bounds)
    }

    /// Invalidates a key for the peer of `owner`.
    ///
    /// # Errors
    /// [`KeyFault`]: why the peer may not do that.
    pub fn invalidate(&mut self, owner: QpId, key: u32) -> Result<(), KeyFault> {
        let entry = self.entry_mut(key).ok_or(KeyFault::Unknown)?;
        if entry.owner != owner {
            return Err(KeyFault::Foreign);
        }
        if !entry.valid {
            return Err(KeyFault::Unknown);
        }
        if entry.reading > 0 {
            return Err(KeyFault::Busy);
        }
        entry.valid = false;
        Ok(())
    }

    /// Counts a queued response that reads the buffer.
    pub fn begin_read(&mut self, key: u32) {
        if let Some(entry) = self.entry_mut(key) {
            entry.reading += 1;
        }
    }

    /// Counts such a response as sent or dropped.
    pub fn end_read(&mut self, key: u32) {
        if let Some(entry) = self.entry_mut(key) {
            debug_assert!(entry.reading > 0, "a response ends once");
            entry.reading = entry.reading.saturating_sub(1);
        }
    }

    /// Bytes of a buffer that a response reads.
    #[inline(never)]
    #[must_use]
    pub fn reading(&self, key: u32, offset: usize, len: usize) -> Option<&[u8]> {
        self.memory(key)?.get(offset..offset.checked_add(len)?)
    }

    /// All bytes of a buffer that a response reads.
    pub(crate) fn memory(&self, key: u32) -> Option<&[u8]> {
        Some(&self.entry(key)?.buf)
    }

    /// A tag for the sink of an RDMA Read of this side.
    pub(crate) fn sink_tag(&mut self) -> u32 {
        self.next_sink = self.next_sink.wrapping_add(1);
        SINK | self.next_sink
    }

    fn free_slot(&mut self) -> Option<u32> {
        let len = u32::try_from(self.slots.len()).ok()?;
        if self.free.len() < REST && len < self.max {
            self.grow();
            return Some(len);
        }
        self.free.pop_front()
    }

    #[cold]
    fn grow(&mut self) {
        let generation = self.draw().to_le_bytes()[0];
        self.slots.push(Slot {
            generation,
            entry: None,
        });
    }

    /// The slot of a key with the current generation.
    fn number_of(&self, key: u32) -> Option<u32> {
        if key & SINK != 0 {
            return None;
        }
        let number = (key >> 8).wrapping_sub(self.start) & INDEX_MASK;
        let slot = self.slots.get(number as usize)?;
        (u32::from(slot.generation) == key & 0xff).then_some(number)
    }

    fn entry(&self, key: u32) -> Option<&Entry> {
        let number = self.number_of(key)?;
        self.slots.get(number as usize)?.entry.as_ref()
    }

    fn entry_mut(&mut self, key: u32) -> Option<&mut Entry> {
        let number = self.number_of(key)?;
        self.slots.get_mut(number as usize)?.entry.as_mut()
    }

    /// SplitMix64: keys need not be secret, only unlikely to repeat.
    fn draw(&mut self) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let [a, b, c, d, ..] = (z ^ (z >> 31)).to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmeof_memory::{Pages, Pool, PoolLayout};
    use proptest::prelude::*;
    use std::collections::HashSet;

    const ME: QpId = QpId(1);

    fn pool(count: usize) -> Pool {
        let layout = PoolLayout {
            count,
            stride: 4096,
            lead: 0,
        };
        Pool::new(layout, Pages::Normal).unwrap()
    }

    fn access(slice: RemoteSlice, rights: Rights) -> Access {
        Access {
            owner: ME,
            key: slice.key.0,
            rights,
            addr: slice.addr,
            len: slice.len as usize,
        }
    }

    #[test]
    fn key_gives_owner_access_to_its_range_with_its_rights() {
        let pool = pool(1);
        let mut table = KeyTable::new(16, 7);
        let mut buf = pool.take().unwrap();
        buf.set_view(64..128).unwrap();
        let slice = table.expose(ME, buf, Rights::REMOTE_READ).unwrap();
        let good = access(slice, Rights::REMOTE_READ);
        assert_eq!(table.check(&good), Ok(0));
        let one_past = Access {
            addr: good.addr + 64,
            len: 0,
            ..good
        };
        assert_eq!(table.check(&one_past), Ok(64));
        for (bad, why) in [
            (
                Access {
                    owner: QpId(2),
                    ..good
                },
                KeyFault::Foreign,
            ),
            (
                Access {
                    key: good.key ^ 1,
                    ..good
                },
                KeyFault::Unknown,
            ),
            (
                Access {
                    key: good.key | SINK,
                    ..good
                },
                KeyFault::Unknown,
            ),
            (
                Access {
                    rights: Rights::REMOTE_WRITE,
                    ..good
                },
                KeyFault::Rights,
            ),
            (
                Access {
                    rights: Rights::all(),
                    ..good
                },
                KeyFault::Rights,
            ),
            (Access { len: 65, ..good }, KeyFault::Bounds),
            (
                Access {
                    addr: good.addr - 1,
                    ..good
                },
                KeyFault::Bounds,
            ),
            (
                Access {
                    addr: u64::MAX,
                    ..good
                },
                KeyFault::Wrap,
            ),
            (
                Access {
                    addr: u64::MAX - 64,
                    ..good
                },
                KeyFault::Bounds,
            ),
        ] {
            assert_eq!(table.check(&bad), Err(why));
        }
    }

    #[test]
    fn invalidated_key_gives_no_access_and_returns_buffer() {
        let pool = pool(1);
        let mut table = KeyTable::new(16, 7);
        let slice = table
            .expose(ME, pool.take().unwrap(), Rights::all())
            .unwrap();
        assert_eq!(
            table.invalidate(QpId(2), slice.key.0),
            Err(KeyFault::Foreign)
        );
        table.begin_read(slice.key.0);
        assert_eq!(table.invalidate(ME, slice.key.0), Err(KeyFault::Busy));
        assert!(matches!(table.withdraw(slice.key), Err(ExposeError::Busy)));
        table.end_read(slice.key.0);
        assert_eq!(table.invalidate(ME, slice.key.0), Ok(()));
        assert_eq!(table.invalidate(ME, slice.key.0), Err(KeyFault::Unknown));
        let read = access(slice, Rights::REMOTE_READ);
        assert_eq!(table.check(&read), Err(KeyFault::Unknown));
        assert!(table.withdraw(slice.key).is_ok());
        assert!(matches!(
            table.withdraw(slice.key),
            Err(ExposeError::UnknownKey)
        ));
        assert_eq!(pool.available(), 1);
    }

    #[test]
    fn keys_are_reused_late_and_table_is_bounded() {
        let pool = pool(3);
        let mut table = KeyTable::new(2000, 3);
        let mut seen = HashSet::new();
        for _ in 0..100_000 {
            let slice = table
                .expose(ME, pool.take().unwrap(), Rights::all())
                .unwrap();
            assert!(seen.insert(slice.key));
            assert_eq!(slice.key.0 & SINK, 0);
            table.withdraw(slice.key).unwrap();
        }
        let mut small = KeyTable::new(2, 3);
        let mut take = || small.expose(ME, pool.take().unwrap(), Rights::all());
        assert!(take().is_ok() && take().is_ok());
        assert_eq!(take().unwrap_err().why, ExposeError::Full { max: 2 });
    }

    proptest! {
        #[test]
        fn no_access_exceeds_its_buffer(
            key: u32,
            addr: u64,
            near in -8192i64..8192,
            len: usize,
            short in 0usize..9000,
        ) {
            let pool = pool(1);
            let mut table = KeyTable::new(4, 1);
            let slice = table.expose(ME, pool.take().unwrap(), Rights::all()).unwrap();
            for (key, addr, len) in [
                (key, addr, len),
                (slice.key.0, addr, len),
                (slice.key.0, slice.addr.wrapping_add_signed(near), short),
            ] {
                let access = Access { owner: ME, key, rights: Rights::all(), addr, len };
                if let Ok(offset) = table.check(&access) {
                    prop_assert!(offset + len <= 4096);
                    prop_assert_eq!(slice.addr + offset as u64, addr);
                    prop_assert_eq!(table.bytes_mut(&access).unwrap().len(), len);
                }
            }
        }
    }
}
