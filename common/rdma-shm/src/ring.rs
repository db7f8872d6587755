//! A ring: bytes from one producer to one consumer in another process.
//!
//! Positions count bytes since the start without wrapping, so that full and empty differ; the
//! offset of a byte is its position modulo the size. Each side keeps its own position and
//! accepts the other's only if it is plausible.

use std::sync::atomic::Ordering;

use nvmeof_memory::{OutOfBounds, Shared};
use nvmeof_rdma::Fault;

use crate::fault::{codes, fault};
use crate::record::{GRAIN, HEADER, Record, SEGMENT, size};

/// Smallest ring, in bytes.
pub(crate) const MIN_RING: usize = 64 << 10;
/// Largest ring, in bytes.
pub(crate) const MAX_RING: usize = 16 << 20;

/// Layout of a ring in the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingLayout {
    /// Offset of the producer's position.
    pub(crate) head: usize,
    /// Offset of the consumer's position.
    pub(crate) tail: usize,
    /// Offset of the data.
    pub(crate) data: usize,
    /// Size of the data in bytes: a power of two.
    pub(crate) size: usize,
}

impl RingLayout {
    /// Offset of the `len` bytes from `position` on, and how many of them lie there: the rest
    /// is at the start of the data.
    fn find(&self, position: u64, len: usize) -> (usize, usize) {
        let mask = self.size.wrapping_sub(1);
        // The mask makes the truncation harmless: the result is below the size.
        let start = usize::try_from(position & mask as u64).unwrap_or(0);
        let first = len.min(self.size.wrapping_sub(start));
        (self.data.wrapping_add(start), first)
    }
}

/// The fault for an invalid position of the other side.
fn bad_index(what: &str, ours: u64, theirs: u64) -> Fault {
    let text = format!("the {what} of a ring is invalid: it is at {theirs}, ours is at {ours}");
    fault(codes::INDEX, text)
}

/// Offsets are computed when the memory is created, so an offset outside of it does not
/// happen.
#[allow(clippy::needless_pass_by_value, reason = "what `map_err` gives")]
fn outside(error: OutOfBounds) -> Fault {
    fault(codes::INDEX, error.to_string())
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct Producer {
    place: RingLayout,
    /// Own position, and the position that is published to the consumer.
    head: u64,
    published: u64,
    /// Position of the consumer when it was read last.
    tail: u64,
}

impl Producer {
    pub(crate) fn new(place: RingLayout) -> Self {
        Self {
            place,
            head: 0,
            published: 0,
            tail: 0,
        }
    }

    fn room(&self) -> usize {
        let used = self.head.wrapping_sub(self.tail);
        let used = usize::try_from(used).unwrap_or(usize::MAX);
        self.place.size.saturating_sub(used)
    }

    /// Whether there is room for a record with `len` bytes of payload.
    #[inline]
    pub(crate) fn has_room(&mut self, memory: &Shared, len: usize) -> Result<bool, Fault> {
        Ok(self.room() >= size(len) || self.look(memory)? >= size(len))
    }

    /// Reads the position of the consumer. Returns the room.
    #[cold]
    fn look(&mut self, memory: &Shared) -> Result<usize, Fault> {
        let tail = memory.word(self.place.tail).map_err(outside)?;
        let tail = tail.load(Ordering::Acquire);
        let moved = tail.wrapping_sub(self.tail);
        if moved > self.head.wrapping_sub(self.tail) || !tail.is_multiple_of(GRAIN as u64) {
            return Err(bad_index("tail", self.head, tail));
        }
        self.tail = tail;
        Ok(self.room())
    }

    /// Writes a record, for which there is room, with the payload in `pieces`.
    #[inline]
    pub(crate) fn put(
        &mut self,
        memory: &Shared,
        record: Record,
        pieces: [&[u8]; 2],
    ) -> Result<(), Fault> {
        self.write(memory, record.to_words(), pieces)
    }

    fn write(
        &mut self,
        memory: &Shared,
        header: [u64; 3],
        [one, two]: [&[u8]; 2],
    ) -> Result<(), Fault> {
        let len = one.len().saturating_add(two.len());
        debug_assert!(self.room() >= size(len), "room was asked for");
        // A header never wraps, and payload hardly ever does.
        let (start, first) = self.place.find(self.head, HEADER.wrapping_add(one.len()));
        memory.store(start, header).map_err(outside)?;
        let data = start.wrapping_add(HEADER);
        if first.wrapping_sub(HEADER) == one.len() && two.is_empty() {
            memory.copy_in(data, one).map_err(outside)?;
        } else {
            let at = self.head.wrapping_add(HEADER as u64);
            self.fill(memory, at, one)?;
            self.fill(memory, at.wrapping_add(one.len() as u64), two)?;
        }
        self.head = self.head.wrapping_add(size(len) as u64);
        // Long records are published immediately, so that the consumer can start; short ones
        // are published together.
        if self.unpublished() >= SEGMENT {
            self.publish(memory);
        }
        Ok(())
    }

    /// Copies a piece to position `at`.
    fn fill(&self, memory: &Shared, at: u64, piece: &[u8]) -> Result<(), Fault> {
        let (start, first) = self.place.find(at, piece.len());
        let (one, two) = piece.split_at_checked(first).unwrap_or((piece, &[]));
        memory.copy_in(start, one).map_err(outside)?;
        if !two.is_empty() {
            memory.copy_in(self.place.data, two).map_err(outside)?;
        }
        Ok(())
    }

    /// Bytes that are written and not published.
    fn unpublished(&self) -> usize {
        usize::try_from(self.head.wrapping_sub(self.published)).unwrap_or(usize::MAX)
    }

    /// Publishes what was written to the consumer.
    pub(crate) fn publish(&mut self, memory: &Shared) {
        if self.unpublished() > 0
            && let Ok(word) = memory.word(self.place.head)
        {
            word.store(self.head, Ordering::Release);
        }
        self.published = self.head;
    }
}

/// The reading end.
#[derive(Debug)]
pub(crate) struct Consumer {
    place: RingLayout,
    /// Own position, and the position that is published to the producer.
    tail: u64,
    published: u64,
    /// Position of the producer when it was read last.
    head: u64,
}

impl Consumer {
    pub(crate) fn new(place: RingLayout) -> Self {
        Self {
            place,
            tail: 0,
            published: 0,
            head: 0,
        }
    }

    fn ready(&self) -> u64 {
        self.head.wrapping_sub(self.tail)
    }

    /// Reads the position of the producer.
    fn look(&mut self, memory: &Shared) -> Result<(), Fault> {
        let head = memory.word(self.place.head).map_err(outside)?;
        let head = head.load(Ordering::Acquire);
        let ready = head.wrapping_sub(self.tail);
        if ready > self.place.size as u64
            || ready < self.ready()
            || !head.is_multiple_of(GRAIN as u64)
        {
            return Err(bad_index("head", self.tail, head));
        }
        self.head = head;
        Ok(())
    }

    /// Whether there is a record.
    #[inline]
    pub(crate) fn is_ready(&mut self, memory: &Shared) -> Result<bool, Fault> {
        if self.ready() == 0 {
            self.look(memory)?;
        }
        Ok(self.ready() > 0)
    }

    /// The next record, after [`is_ready`](Self::is_ready) returned true. Its payload is
    /// complete.
    ///
    /// # Errors
    /// The words that the peer wrote instead, which [`wrong`](crate::record::wrong) explains.
    #[inline]
    pub(crate) fn record(&self, memory: &Shared) -> Result<Record, [u64; 3]> {
        let (start, _) = self.place.find(self.tail, HEADER);
        // Offsets are inside the memory. Anything outside would not be a record.
        let words = memory.load(start).unwrap_or_default();
        match Record::parse(words) {
            Some(record) if need(&record) <= self.ready() => Ok(record),
            _ => Err(words),
        }
    }

    /// Copies out the payload of the record that [`record`](Self::record) returned: `bytes`
    /// has its length.
    #[inline]
    pub(crate) fn payload(&self, memory: &Shared, bytes: &mut [u8]) -> Result<(), Fault> {
        let at = self.tail.wrapping_add(HEADER as u64);
        let (start, first) = self.place.find(at, bytes.len());
        // `first` is at most the length.
        let (one, two) = bytes.split_at_mut(first.min(bytes.len()));
        memory.copy_out(start, one).map_err(outside)?;
        if two.is_empty() {
            return Ok(());
        }
        memory.copy_out(self.place.data, two).map_err(outside)
    }

    /// Releases that record. Publishes the room now and then, and returns whether it did: not
    /// each time, because the word moves between two CPUs. The unpublished room is never so
    /// large that the producer would have to wait for it.
    pub(crate) fn release(&mut self, memory: &Shared, record: &Record) -> bool {
        self.tail = self.tail.wrapping_add(need(record));
        self.unpublished() >= self.place.size / 4 && self.publish(memory)
    }

    /// Discards everything in the ring. Returns whether there was anything.
    pub(crate) fn discard(&mut self, memory: &Shared) -> Result<bool, Fault> {
        self.look(memory)?;
        self.tail = self.head;
        Ok(self.publish(memory))
    }

    /// How far we are.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> u64 {
        self.tail
    }

    /// Bytes of room that are not published.
    fn unpublished(&self) -> usize {
        usize::try_from(self.tail.wrapping_sub(self.published)).unwrap_or(usize::MAX)
    }

    /// Publishes the room to the producer. Returns whether it grew.
    pub(crate) fn publish(&mut self, memory: &Shared) -> bool {
        if self.unpublished() == 0 {
            return false;
        }
        if let Ok(word) = memory.word(self.place.tail) {
            word.store(self.tail, Ordering::Release);
        }
        self.published = self.tail;
        true
    }
}

/// Bytes of ring that a record takes.
fn need(record: &Record) -> u64 {
    usize::try_from(record.len).map_or(u64::MAX, |len| size(len) as u64)
}

/// A record fits into three quarters of the smallest ring.
const _: () = assert!(HEADER + SEGMENT + GRAIN <= MIN_RING / 4 * 3);
