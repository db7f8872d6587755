//! One ring: bytes from one producer to one consumer in another process.
//!
//! Positions are bytes since the start, never reduced, so that full and empty
//! differ; the place of a byte is its position modulo the size. Each side has
//! its own position for itself and only believes the other's as far as it
//! makes sense.

use std::sync::atomic::Ordering;

use nvmeof_memory::{OutOfBounds, Shared};
use nvmeof_rdma::Fault;

use crate::fault::{codes, fault};
use crate::record::{GRAIN, HEADER, Record, SEGMENT, size};

/// Smallest ring, in bytes.
pub(crate) const MIN_RING: usize = 64 << 10;
/// Largest ring, in bytes.
pub(crate) const MAX_RING: usize = 16 << 20;

/// Where a ring lies in the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingLayout {
    /// The word that says how far the producer is.
    pub(crate) head: usize,
    /// The word that says how far the consumer is.
    pub(crate) tail: usize,
    /// First byte of the data.
    pub(crate) data: usize,
    /// Bytes of the data: a power of two.
    pub(crate) size: usize,
}

impl RingLayout {
    /// Where in the memory the `len` bytes from `position` on start, and how
    /// many of them lie there: the others start where the data starts.
    fn find(&self, position: u64, len: usize) -> (usize, usize) {
        let mask = self.size.wrapping_sub(1);
        // Truncation is what the mask does anyway. So it is below the size.
        let start = usize::try_from(position & mask as u64).unwrap_or(0);
        let first = len.min(self.size.wrapping_sub(start));
        (self.data.wrapping_add(start), first)
    }
}

/// A position that the other side wrote and that cannot be.
fn bad_index(what: &str, ours: u64, theirs: u64) -> Fault {
    let text = format!("the {what} of a ring is at {theirs}, ours is at {ours}");
    fault(codes::INDEX, text)
}

/// A place outside of the memory: places are made when the memory is, so this
/// does not happen.
#[allow(clippy::needless_pass_by_value, reason = "what `map_err` gives")]
fn outside(error: OutOfBounds) -> Fault {
    fault(codes::INDEX, error.to_string())
}

/// The end that writes.
#[derive(Debug)]
pub(crate) struct Producer {
    place: RingLayout,
    /// How far we are, and how far the consumer knows.
    head: u64,
    told: u64,
    /// How far the consumer was when we looked last.
    tail: u64,
}

impl Producer {
    pub(crate) fn new(place: RingLayout) -> Self {
        Self {
            place,
            head: 0,
            told: 0,
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

    /// Looks how far the consumer is. Returns the room.
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
        // A header never lies in two parts, and payload hardly ever does.
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
        // The consumer may begin with what is long; short records are told of
        // together.
        if self.untold() >= SEGMENT {
            self.tell(memory);
        }
        Ok(())
    }

    /// Copies a piece to where it belongs from position `at` on.
    fn fill(&self, memory: &Shared, at: u64, piece: &[u8]) -> Result<(), Fault> {
        let (start, first) = self.place.find(at, piece.len());
        let (one, two) = piece.split_at_checked(first).unwrap_or((piece, &[]));
        memory.copy_in(start, one).map_err(outside)?;
        if !two.is_empty() {
            memory.copy_in(self.place.data, two).map_err(outside)?;
        }
        Ok(())
    }

    /// Bytes that were written and not told.
    fn untold(&self) -> usize {
        usize::try_from(self.head.wrapping_sub(self.told)).unwrap_or(usize::MAX)
    }

    /// Tells the consumer what was written.
    pub(crate) fn tell(&mut self, memory: &Shared) {
        if self.untold() > 0
            && let Ok(word) = memory.word(self.place.head)
        {
            word.store(self.head, Ordering::Release);
        }
        self.told = self.head;
    }
}

/// The end that reads.
#[derive(Debug)]
pub(crate) struct Consumer {
    place: RingLayout,
    /// How far we are, and how far the producer knows.
    tail: u64,
    told: u64,
    /// How far the producer was when we looked last.
    head: u64,
}

impl Consumer {
    pub(crate) fn new(place: RingLayout) -> Self {
        Self {
            place,
            tail: 0,
            told: 0,
            head: 0,
        }
    }

    fn ready(&self) -> u64 {
        self.head.wrapping_sub(self.tail)
    }

    /// Looks how far the producer is.
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

    /// The next record, of which [`is_ready`](Self::is_ready) said that it is there.
    /// Its payload is there too.
    ///
    /// # Errors
    /// What the peer wrote instead, which [`wrong`](crate::record::wrong) explains.
    #[inline]
    pub(crate) fn record(&self, memory: &Shared) -> Result<Record, [u64; 3]> {
        let (start, _) = self.place.find(self.tail, HEADER);
        // Places are inside of the memory. What is outside would be no record.
        let words = memory.load(start).unwrap_or_default();
        match Record::parse(words) {
            Some(record) if need(&record) <= self.ready() => Ok(record),
            _ => Err(words),
        }
    }

    /// Copies out the payload of the record that [`record`](Self::record) gave:
    /// `bytes` is as long as that.
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

    /// Is done with that record. Tells so now and then, and returns whether it
    /// did: not each time, since the word that says it moves between two
    /// CPUs. What is not told is never so much that the producer would
    /// have to wait for it.
    pub(crate) fn release(&mut self, memory: &Shared, record: &Record) -> bool {
        self.tail = self.tail.wrapping_add(need(record));
        self.untold() >= self.place.size / 4 && self.tell(memory)
    }

    /// Throws away everything that is there. Returns whether there was
    /// anything.
    pub(crate) fn discard(&mut self, memory: &Shared) -> Result<bool, Fault> {
        self.look(memory)?;
        self.tail = self.head;
        Ok(self.tell(memory))
    }

    /// How far we are.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> u64 {
        self.tail
    }

    /// Bytes of room that the producer does not know of.
    fn untold(&self) -> usize {
        usize::try_from(self.tail.wrapping_sub(self.told)).unwrap_or(usize::MAX)
    }

    /// Tells the producer what room there is. Returns whether there is more.
    pub(crate) fn tell(&mut self, memory: &Shared) -> bool {
        if self.untold() == 0 {
            return false;
        }
        if let Ok(word) = memory.word(self.place.tail) {
            word.store(self.tail, Ordering::Release);
        }
        self.told = self.tail;
        true
    }
}

/// Bytes of ring that a record takes.
fn need(record: &Record) -> u64 {
    usize::try_from(record.len).map_or(u64::MAX, |len| size(len) as u64)
}

/// A record fits into three quarters of the smallest ring.
const _: () = assert!(HEADER + SEGMENT + GRAIN <= MIN_RING / 4 * 3);
