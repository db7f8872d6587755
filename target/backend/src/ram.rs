//! The RAM store: memory shared by the reactors that have it open.

use std::collections::TryReserveError;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use nix::errno::Errno;
use nvmeof_memory::{Buf, OutOfBounds};
use nvmeof_uring as uring;
use nvmeof_uring::Ring;

use crate::{Backend, Geometry, Io, IoError, IoErrorKind, Op, RefusalReason, Request, Submitted};

/// Unit of locking, allocation and deallocation, in bytes.
const CHUNK: usize = 1 << 20;

/// The memory of a RAM store. It is allocated at the first write; ranges that were never
/// written read as zero.
///
/// A chunk is unlocked only after the next one is locked. So a read that is concurrent with
/// a write sees all of it or nothing.
pub(crate) struct RamStore {
    chunks: Vec<RwLock<Option<Box<[u8]>>>>,
}

impl RamStore {
    /// An empty store for `len` bytes, `None` if memory is exhausted.
    pub(crate) fn new(len: u64) -> Option<Self> {
        let count = usize::try_from(len).ok()?.div_ceil(CHUNK);
        let mut chunks = Vec::new();
        chunks.try_reserve_exact(count).ok()?;
        chunks.resize_with(count, RwLock::default);
        Some(Self { chunks })
    }

    fn read(&self, offset: u64, into: &mut Buf) -> Result<(), OutOfBounds> {
        let (mut at, mut before) = (0, None);
        for (n, within) in pieces(offset, into.len() as u64) {
            let len = within.len();
            let chunk = self.chunks.get(n).map(RwLock::read);
            let chunk = chunk.map(|chunk| chunk.unwrap_or_else(PoisonError::into_inner));
            drop(before.take());
            let bytes = chunk.as_deref().and_then(Option::as_deref);
            match bytes.and_then(|bytes| bytes.get(within)) {
                Some(bytes) => into.copy_in(at, bytes)?,
                None => into.fill_at(at, len, 0)?,
            }
            (at, before) = (at + len, chunk);
        }
        Ok(())
    }

    /// The error is the offset of the first byte that was not written.
    fn write(&self, offset: u64, from: &Buf) -> Result<(), u64> {
        let (mut at, mut before) = (0, None);
        for (n, within) in pieces(offset, from.len() as u64) {
            let len = within.len();
            let Some(chunk) = self.chunks.get(n) else {
                return Ok(());
            };
            let mut chunk = chunk.write().unwrap_or_else(PoisonError::into_inner);
            drop(before.take());
            let short = |_: TryReserveError| offset + at as u64;
            let bytes = match &mut *chunk {
                Some(bytes) => bytes,
                empty => empty.insert(zeroed_chunk().map_err(short)?),
            };
            if let Some(bytes) = bytes.get_mut(within) {
                from.copy_out(at, bytes).map_err(|_| offset + at as u64)?;
            }
            (at, before) = (at + len, Some(chunk));
        }
        Ok(())
    }

    /// Zeroes the range, and frees whole chunks.
    fn clear(&self, offset: u64, len: u64) {
        let mut before = None;
        for (n, within) in pieces(offset, len) {
            let Some(chunk) = self.chunks.get(n) else {
                return;
            };
            let mut chunk = chunk.write().unwrap_or_else(PoisonError::into_inner);
            drop(before.take());
            if within.len() == CHUNK {
                *chunk = None;
            } else if let Some(bytes) = chunk.as_mut().and_then(|it| it.get_mut(within)) {
                bytes.fill(0);
            }
            before = Some(chunk);
        }
    }
}

fn zeroed_chunk() -> Result<Box<[u8]>, TryReserveError> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(CHUNK)?;
    bytes.resize(CHUNK, 0);
    Ok(bytes.into_boxed_slice())
}

/// The chunks that contain `len` bytes from `offset` on, and the range in each.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (usize, Range<usize>)> {
    let chunk = CHUNK as u64;
    let end = offset + len;
    let chunks = offset / chunk..end.div_ceil(chunk);
    chunks.filter_map(move |n| {
        let start = usize::try_from(offset.saturating_sub(n * chunk)).ok()?;
        let stop = usize::try_from((end - n * chunk).min(chunk)).ok()?;
        Some((usize::try_from(n).ok()?, start..stop))
    })
}

/// A RAM store, opened for one reactor. Copies data and completes requests immediately.
pub(crate) struct RamBackend {
    store: Arc<RamStore>,
    name: Arc<str>,
    geometry: Geometry,
}

impl RamBackend {
    pub(crate) fn new(store: Arc<RamStore>, name: Arc<str>, geometry: Geometry) -> Self {
        Self {
            store,
            name,
            geometry,
        }
    }

    fn run(&self, op: &mut Op) -> Result<(), IoError> {
        self.geometry.check(&self.name, op)?;
        match op {
            Op::Read { offset, buf } => {
                let read = self.store.read(*offset, buf);
                debug_assert!(read.is_ok(), "pieces are inside of the buffer: {read:?}");
            }
            Op::Write { offset, buf, .. } => {
                self.store.write(*offset, buf).map_err(|offset| IoError {
                    kind: IoErrorKind::NoSpace,
                    errno: Errno::ENOMEM,
                    verb: "write",
                    path: Arc::clone(&self.name),
                    offset,
                })?;
            }
            Op::WriteZeroes { offset, len, .. } | Op::Deallocate { offset, len, .. } => {
                self.store.clear(*offset, *len);
            }
            Op::Flush => {}
        }
        Ok(())
    }
}

impl Backend for RamBackend {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn submit(
        &mut self,
        request: &mut Request,
        _io: &mut Io<'_>,
    ) -> Result<Submitted, RefusalReason> {
        Ok(Submitted::Done(self.run(&mut request.op)))
    }

    fn complete(&mut self, _done: uring::Done, _io: &mut Io<'_>) {}

    fn poll(&mut self, _io: &mut Io<'_>) {}

    fn waiting(&self) -> bool {
        false
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn close(&mut self, _ring: &mut Ring) -> Result<(), uring::RingError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_memory::{Pages, Pool, PoolLayout};

    use super::*;

    #[test]
    fn pieces_cover_exactly_the_range() {
        let chunk = CHUNK as u64;
        let all = |offset, len| pieces(offset, len).collect::<Vec<_>>();
        assert_eq!(all(0, chunk), [(0, 0..CHUNK)]);
        assert_eq!(all(chunk - 1, 2), [(0, CHUNK - 1..CHUNK), (1, 0..1)]);
        assert_eq!(all(chunk, 0), []);
        assert_eq!(all(chunk + 1, 0), [(1, 1..1)]);
        assert_eq!(all(2 * chunk + 5, 7), [(2, 5..12)]);
    }

    #[test]
    fn writes_allocate_chunks_and_clear_frees_whole_ones() {
        let store = RamStore::new(1 << 40).unwrap();
        let taken = || {
            store
                .chunks
                .iter()
                .filter(|it| it.read().unwrap().is_some())
                .count()
        };
        let layout = PoolLayout {
            count: 1,
            stride: 4,
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Normal).unwrap();
        let mut bytes = pool.take().unwrap();
        bytes.set_len(2).unwrap();
        bytes.copy_in(0, &[1, 2]).unwrap();
        store.write(3 * CHUNK as u64 - 1, &bytes).unwrap();
        bytes.reset_view();
        bytes.fill(9);
        assert_eq!(taken(), 2);
        store.read(3 * CHUNK as u64 - 2, &mut bytes).unwrap();
        assert_eq!(bytes[..], [0, 1, 2, 0]);
        store.clear(2 * CHUNK as u64, CHUNK as u64 + 1);
        assert_eq!(taken(), 1);
        store.read(3 * CHUNK as u64 - 2, &mut bytes).unwrap();
        assert_eq!(bytes[..], [0; 4]);
    }
}
