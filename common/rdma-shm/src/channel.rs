//! The memory of one connection: two rings, and who wants to be woken.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use nvmeof_memory::{Shared, SharedError};
use nvmeof_rdma::Fault;

use crate::record::Record;
use crate::ring::{Consumer, MAX_RING, MIN_RING, Place, Producer};

/// The words stand apart, so that none of them shares a cache line, or a pair
/// of lines that is fetched together, with another.
const APART: usize = 128;
/// Bytes before the data of the rings.
const CONTROL: usize = 4096;

/// In the word by which a side says what it wants to be woken for: new records.
const FOR_RECORDS: u64 = 1;
/// New room in the ring that it fills.
const FOR_ROOM: u64 = 2;

/// Which side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The one that connected and made the memory.
    Active,
    /// The one that listened.
    Passive,
}

/// The memory of one connection, as one side sees it.
#[derive(Debug)]
pub(crate) struct Channel {
    memory: Shared,
    out: Producer,
    into: Consumer,
    /// Where the words are by which we and the peer say what to be woken for.
    our_wish: usize,
    their_wish: usize,
    /// What happened that the peer may want to be woken for.
    news: u64,
}

/// Why there is no channel in the memory that a peer passed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    #[error("rings of {0} bytes: it must be a power of two from {MIN_RING} to {MAX_RING}")]
    Ring(u64),
    #[error(transparent)]
    Memory(#[from] SharedError),
}

impl Channel {
    /// Makes memory with rings of `ring` bytes each, and the descriptor for
    /// the peer. Both sides want to be woken.
    pub(crate) fn create(ring: usize) -> Result<(Self, OwnedFd), SharedError> {
        let (memory, fd) = Shared::create(total(ring))?;
        for wish in [wish_at(Role::Active), wish_at(Role::Passive)] {
            if let Ok(word) = memory.word(wish) {
                word.store(FOR_RECORDS, Ordering::Relaxed);
            }
        }
        Ok((Self::new(memory, ring, Role::Active), fd))
    }

    /// Takes the memory that a peer made.
    pub(crate) fn open(fd: BorrowedFd<'_>, ring: u64) -> Result<Self, ChannelError> {
        let size = usize::try_from(ring).ok();
        let size = size.filter(|size| (MIN_RING..=MAX_RING).contains(size));
        let size = size.filter(|size| size.is_power_of_two());
        let size = size.ok_or(ChannelError::Ring(ring))?;
        let memory = Shared::open(fd, total(size))?;
        Ok(Self::new(memory, size, Role::Passive))
    }

    fn new(memory: Shared, ring: usize, role: Role) -> Self {
        let forth = place(0, ring);
        let back = place(1, ring);
        let (out, into, other) = match role {
            Role::Active => (forth, back, Role::Passive),
            Role::Passive => (back, forth, Role::Active),
        };
        Self {
            memory,
            out: Producer::new(out),
            into: Consumer::new(into),
            our_wish: wish_at(role),
            their_wish: wish_at(other),
            news: 0,
        }
    }

    /// Whether there is room for a record with `len` bytes of payload.
    pub(crate) fn has_room(&mut self, len: usize) -> Result<bool, Fault> {
        self.out.has_room(&self.memory, len)
    }

    /// Writes a record, for which there is room.
    pub(crate) fn put(&mut self, record: Record, pieces: [&[u8]; 2]) -> Result<(), Fault> {
        self.news |= FOR_RECORDS;
        self.out.put(&self.memory, record, pieces)
    }

    /// The next record of the peer, if there is one.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, Fault> {
        self.into.next(&self.memory)
    }

    /// Copies out the payload of that record.
    pub(crate) fn payload(&self, bytes: &mut [u8]) -> Result<(), Fault> {
        self.into.payload(&self.memory, bytes)
    }

    /// Is done with that record.
    pub(crate) fn release(&mut self, record: &Record) {
        if self.into.release(&self.memory, record) {
            self.news |= FOR_ROOM;
        }
    }

    /// Throws away what the peer wrote.
    pub(crate) fn discard(&mut self) -> Result<(), Fault> {
        if self.into.discard(&self.memory)? {
            self.news |= FOR_ROOM;
        }
        Ok(())
    }

    /// Tells the peer of what was put, and of what was released as far as it
    /// matters. Returns whether the peer has to be woken for that.
    pub(crate) fn tell(&mut self) -> bool {
        if self.news == 0 {
            return false;
        }
        self.out.tell(&self.memory);
        if self.into.tell(&self.memory) {
            self.news |= FOR_ROOM;
        }
        // Either we see the wish of a peer that goes to sleep, or the peer,
        // which looks once more after it wished, sees what we told.
        fence(Ordering::SeqCst);
        let Ok(wish) = self.memory.word(self.their_wish) else {
            return false;
        };
        let news = std::mem::take(&mut self.news);
        // Taken back, so that one sleep costs one system call.
        wish.load(Ordering::Relaxed) & news != 0 && wish.swap(0, Ordering::Relaxed) & news != 0
    }

    /// Asks to be woken for records, and if there is not `room` for so many
    /// bytes of payload, for that. Returns false when there is something to do
    /// already.
    pub(crate) fn rest(&mut self, room: Option<usize>) -> Result<bool, Fault> {
        let wish = FOR_RECORDS | if room.is_some() { FOR_ROOM } else { 0 };
        self.wish(wish);
        // See `tell`.
        fence(Ordering::SeqCst);
        let room = match room {
            Some(room) => self.has_room(room)?,
            None => false,
        };
        let awake = room || self.next()?.is_some();
        if awake {
            self.wish(0);
        }
        Ok(!awake)
    }

    /// Looks at the rings by itself from now on.
    pub(crate) fn wake(&mut self) {
        self.wish(0);
    }

    fn wish(&self, wish: u64) {
        if let Ok(word) = self.memory.word(self.our_wish) {
            word.store(wish, Ordering::Relaxed);
        }
    }
}

/// Bytes of memory for two rings.
fn total(ring: usize) -> usize {
    ring.saturating_mul(2).saturating_add(CONTROL)
}

/// Ring `number`: 0 is filled by the active side, 1 by the passive side.
fn place(number: usize, size: usize) -> Place {
    Place {
        head: number * 2 * APART,
        tail: (number * 2 + 1) * APART,
        data: CONTROL + number * size,
        size,
    }
}

fn wish_at(role: Role) -> usize {
    match role {
        Role::Active => 4 * APART,
        Role::Passive => 5 * APART,
    }
}

#[cfg(test)]
pub(crate) mod tests;
