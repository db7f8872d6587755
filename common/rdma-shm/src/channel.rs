//! The shared memory of one connection: two rings, wake-up requests, and marks for memory of
//! the active side that is in use.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use nvmeof_memory::{ForeignRegion, Lender, Shared, SharedError, marking};
use nvmeof_rdma::Fault;

use crate::record::Record;
use crate::ring::{Consumer, MAX_RING, MIN_RING, Producer, RingLayout};

/// The words are far apart, so that none of them shares a cache line, or a pair of lines that
/// is prefetched together, with another.
const APART: usize = 128;
/// Bytes before the data of the rings.
const CONTROL: usize = 4096;

/// Flag of a wake-up request: new records.
const FOR_RECORDS: u64 = 1;
/// Flag of a wake-up request: new room in the ring that the side fills.
const FOR_ROOM: u64 = 2;

/// Side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The side that connected and created the memory.
    Active,
    /// The side that listened.
    Passive,
}

/// The memory of one connection, as one side sees it.
#[derive(Debug)]
pub(crate) struct Channel {
    memory: Arc<Shared>,
    /// Offset behind the rings, where the marks of grants are, if there are any.
    marks: usize,
    grants: u32,
    out: Producer,
    into: Consumer,
    /// Offsets of the wake-up request of this side and of the peer.
    our_request: usize,
    their_request: usize,
    /// Changes since the last publication for which the peer may request a wake-up.
    changes: u64,
}

/// Why memory from a peer is not a channel.
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
    /// Creates memory with rings of `ring` bytes each and room for `grants`, and the
    /// descriptor for the peer. Initially both sides request a wake-up.
    pub(crate) fn create(ring: usize, grants: u32) -> Result<(Self, OwnedFd), SharedError> {
        let (memory, fd) = Shared::create(total(ring, grants))?;
        for request in [request_at(Role::Active), request_at(Role::Passive)] {
            if let Ok(word) = memory.word(request) {
                word.store(FOR_RECORDS, Ordering::Relaxed);
            }
        }
        Ok((Self::new(memory, (ring, grants), Role::Active), fd))
    }

    /// Opens the memory of a peer.
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
            our_request: request_at(role),
            their_request: request_at(other),
            changes: 0,
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
        self.changes |= FOR_RECORDS;
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
    /// The words that the peer wrote instead.
    #[inline]
    pub(crate) fn record(&self) -> Result<Record, [u64; 3]> {
        self.into.record(&self.memory)
    }

    /// Copies out the payload of that record.
    #[inline]
    pub(crate) fn payload(&self, bytes: &mut [u8]) -> Result<(), Fault> {
        self.into.payload(&self.memory, bytes)
    }

    /// Releases that record.
    #[inline]
    pub(crate) fn release(&mut self, record: &Record) {
        if self.into.release(&self.memory, record) {
            self.changes |= FOR_ROOM;
        }
    }

    /// Discards what the peer wrote.
    pub(crate) fn discard(&mut self) -> Result<(), Fault> {
        if self.into.discard(&self.memory)? {
            self.changes |= FOR_ROOM;
        }
        Ok(())
    }

    /// Whether there is something to publish.
    #[inline]
    pub(crate) fn has_changes(&self) -> bool {
        self.changes != 0
    }

    /// Publishes new records, and released room if there is enough of it. Returns whether the
    /// peer has to be woken.
    pub(crate) fn publish(&mut self) -> bool {
        if self.changes == 0 {
            return false;
        }
        self.out.publish(&self.memory);
        if self.into.publish(&self.memory) {
            self.changes |= FOR_ROOM;
        }
        // Either this side sees the request of a peer that is about to sleep, or the peer,
        // which checks once more after its request, sees what was published.
        fence(Ordering::SeqCst);
        let Ok(request) = self.memory.word(self.their_request) else {
            return false;
        };
        let changes = std::mem::take(&mut self.changes);
        // Cleared, so that one sleep costs one system call.
        request.load(Ordering::Relaxed) & changes != 0
            && request.swap(0, Ordering::Relaxed) & changes != 0
    }

    /// Requests a wake-up for records, and for room for `room` bytes of payload if that is
    /// given. Returns false when there is something to do already.
    pub(crate) fn rest(&mut self, room: Option<usize>) -> Result<bool, Fault> {
        let request = FOR_RECORDS | if room.is_some() { FOR_ROOM } else { 0 };
        self.request_wake(request);
        // See `publish`.
        fence(Ordering::SeqCst);
        let room = match room {
            Some(room) => self.has_room(room)?,
            None => false,
        };
        let awake = room || self.is_ready()?;
        if awake {
            self.request_wake(0);
        }
        Ok(!awake)
    }

    /// Withdraws the wake-up request: this side polls the rings from now on.
    pub(crate) fn wake(&mut self) {
        self.request_wake(0);
    }

    fn request_wake(&self, request: u64) {
        if let Ok(word) = self.memory.word(self.our_request) {
            word.store(request, Ordering::Relaxed);
        }
    }
}

impl Channel {
    /// Grants for which there is room.
    pub(crate) fn grants(&self) -> u32 {
        self.grants
    }

    /// Lends memory of the peer; the marks of lent memory are in this channel.
    pub(crate) fn lender(
        &self,
        region: ForeignRegion,
        alive: Arc<dyn fmt::Debug + Send + Sync>,
    ) -> Lender {
        Lender::new(region, Arc::clone(&self.memory), self.marks, alive)
    }

    /// Revokes `key`. False while the peer uses its memory.
    ///
    /// [`marking`] describes the protocol between this and the use of memory.
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

    /// Whether `key`, which was marked before, was revoked.
    #[inline]
    pub(crate) fn is_revoked(&self, key: u32) -> bool {
        let word = self.memory.word(self.revoked_at(key));
        // This also acquires bytes that the owner may have written meanwhile.
        word.is_ok_and(|word| marking::is_revoked(word, revoked(key)))
    }

    /// Whether memory of `key` is in use.
    pub(crate) fn is_marked(&self, key: u32) -> bool {
        let word = self.memory.word(self.marked_at(key));
        word.is_ok_and(marking::is_marked)
    }

    /// Offset of the mark of a key.
    fn marked_at(&self, key: u32) -> usize {
        self.marks + 8 * grant_slot(key)
    }

    /// Offset of the word that holds the key of this slot that was revoked last.
    fn revoked_at(&self, key: u32) -> usize {
        self.marks + 8 * (GRANT_SLOTS + grant_slot(key))
    }
}

/// The value for a revoked `key`. It differs from the zeroes of new memory.
fn revoked(key: u32) -> u64 {
    1 << 32 | u64::from(key)
}

/// Number of slots for grants on a connection that has any. The low bits of a key select its
/// slot. Keys are numbered in sequence, so that as many keys as there are slots, including
/// freed keys that are not reused yet, do not collide.
pub(crate) const GRANT_SLOTS: usize = 2048;

const _: () = assert!(GRANT_SLOTS.is_power_of_two());

/// The slot of a key. Its lowest 8 bits are a generation.
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

fn request_at(role: Role) -> usize {
    match role {
        Role::Active => 4 * APART,
        Role::Passive => 5 * APART,
    }
}

#[cfg(test)]
pub(crate) mod tests;
