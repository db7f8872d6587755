//! The memory of one connection: two rings, who wants to be woken, and what of
//! the active side's memory is in use.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use nvmeof_memory::{ForeignRegion, Lender, Shared, SharedError, marking};
use nvmeof_rdma::Fault;

use crate::record::Record;
use crate::ring::{Consumer, MAX_RING, MIN_RING, Producer, RingLayout};

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
    memory: Arc<Shared>,
    /// First byte behind the rings: where grants are marked, if there are any.
    marks: usize,
    grants: u32,
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
    #[error("room for {0} grants: it must be 0 or {GRANT_SLOTS}")]
    Grants(u32),
    #[error(transparent)]
    Memory(#[from] SharedError),
}

impl Channel {
    /// Makes memory with rings of `ring` bytes each and room for `grants`, and
    /// the descriptor for the peer. Both sides want to be woken.
    pub(crate) fn create(ring: usize, grants: u32) -> Result<(Self, OwnedFd), SharedError> {
        let (memory, fd) = Shared::create(total(ring, grants))?;
        for wish in [wish_at(Role::Active), wish_at(Role::Passive)] {
            if let Ok(word) = memory.word(wish) {
                word.store(FOR_RECORDS, Ordering::Relaxed);
            }
        }
        Ok((Self::new(memory, (ring, grants), Role::Active), fd))
    }

    /// Takes the memory that a peer made.
    pub(crate) fn open(fd: BorrowedFd<'_>, ring: u64, grants: u32) -> Result<Self, ChannelError> {
        if grants != 0 && grants != MOST_GRANTS {
            return Err(ChannelError::Grants(grants));
        }
        let size = usize::try_from(ring).ok();
        let size = size.filter(|size| (MIN_RING..=MAX_RING).contains(size));
        let size = size.filter(|size| size.is_power_of_two());
        let size = size.ok_or(ChannelError::Ring(ring))?;
        let memory = Shared::open(fd, total(size, grants))?;
        Ok(Self::new(memory, (size, grants), Role::Passive))
    }

    fn new(memory: Shared, (ring, grants): (usize, u32), role: Role) -> Self {
        let forth = place(0, ring);
        let back = place(1, ring);
        let (out, into, other) = match role {
            Role::Active => (forth, back, Role::Passive),
            Role::Passive => (back, forth, Role::Active),
        };
        Self {
            memory: Arc::new(memory),
            grants,
            marks: ring.saturating_mul(2).saturating_add(CONTROL),
            out: Producer::new(out),
            into: Consumer::new(into),
            our_wish: wish_at(role),
            their_wish: wish_at(other),
            news: 0,
        }
    }

    /// Whether there is room for a record with `len` bytes of payload.
    #[inline]
    pub(crate) fn has_room(&mut self, len: usize) -> Result<bool, Fault> {
        self.out.has_room(&self.memory, len)
    }

    /// Writes a record, for which there is room.
    #[inline]
    pub(crate) fn put(&mut self, record: Record, pieces: [&[u8]; 2]) -> Result<(), Fault> {
        self.news |= FOR_RECORDS;
        self.out.put(&self.memory, record, pieces)
    }

    /// Whether there is a record of the peer.
    #[inline]
    pub(crate) fn is_ready(&mut self) -> Result<bool, Fault> {
        self.into.is_ready(&self.memory)
    }

    /// The next record of the peer, which is there.
    ///
    /// # Errors
    /// What the peer wrote instead.
    #[inline]
    pub(crate) fn record(&self) -> Result<Record, [u64; 3]> {
        self.into.record(&self.memory)
    }

    /// Copies out the payload of that record.
    #[inline]
    pub(crate) fn payload(&self, bytes: &mut [u8]) -> Result<(), Fault> {
        self.into.payload(&self.memory, bytes)
    }

    /// Is done with that record.
    #[inline]
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
        let awake = room || self.is_ready()?;
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

impl Channel {
    /// Grants for which there is room.
    pub(crate) fn grants(&self) -> u32 {
        self.grants
    }

    /// Lends out memory of the peer; what is lent is marked here.
    pub(crate) fn lender(
        &self,
        region: ForeignRegion,
        alive: Arc<dyn fmt::Debug + Send + Sync>,
    ) -> Lender {
        Lender::new(region, Arc::clone(&self.memory), self.marks, alive)
    }

    /// Takes `key` back from the peer. False while the peer uses its memory.
    ///
    /// How this and the use of memory meet, [`marking`] says.
    pub(crate) fn revoke(&self, key: u32) -> bool {
        match (
            self.memory.word(self.revoked_at(key)),
            self.memory.word(self.marked_at(key)),
        ) {
            (Ok(word), Ok(mark)) => marking::revoke(word, revoked(key), mark),
            // Without marks nothing was granted.
            _ => true,
        }
    }

    /// Whether `key`, which was marked before, was taken back.
    #[inline]
    pub(crate) fn is_revoked(&self, key: u32) -> bool {
        let word = self.memory.word(self.revoked_at(key));
        // That acquires, too, the bytes that its owner may have used meanwhile.
        word.is_ok_and(|word| marking::is_revoked(word, revoked(key)))
    }

    /// Whether memory of `key` is in use.
    pub(crate) fn is_marked(&self, key: u32) -> bool {
        let word = self.memory.word(self.marked_at(key));
        word.is_ok_and(marking::is_marked)
    }

    /// Where the mark of a key is.
    fn marked_at(&self, key: u32) -> usize {
        self.marks + 8 * grant_slot(key)
    }

    /// Where it is said which key of that place was taken back last.
    fn revoked_at(&self, key: u32) -> usize {
        self.marks + 8 * (GRANT_SLOTS + grant_slot(key))
    }
}

/// What says that `key` was taken back: not what new memory holds.
fn revoked(key: u32) -> u64 {
    1 << 32 | u64::from(key)
}

/// Slots for grants on a connection that has any: a key has the one that its low bits
/// name. Keys are numbered in turn, so that as many as there are slots without those
/// that rest do not meet.
pub(crate) const GRANT_SLOTS: usize = 2048;

const _: () = assert!(GRANT_SLOTS.is_power_of_two());

/// The slot of a key: its lowest 8 bits say how often the others were used.
pub(crate) fn grant_slot(key: u32) -> usize {
    (key >> 8) as usize & (GRANT_SLOTS - 1)
}

/// Grants for which a connection has room, if it has any.
#[allow(clippy::cast_possible_truncation, reason = "a small number")]
pub(crate) const MOST_GRANTS: u32 = GRANT_SLOTS as u32;

/// Bytes of memory for two rings and so many grants.
fn total(ring: usize, grants: u32) -> usize {
    let grants = (grants as usize).saturating_mul(16);
    ring.saturating_mul(2)
        .saturating_add(CONTROL)
        .saturating_add(grants)
}

/// Ring `number`: 0 is filled by the active side, 1 by the passive side.
fn place(number: usize, size: usize) -> RingLayout {
    RingLayout {
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
