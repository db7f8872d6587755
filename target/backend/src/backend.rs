//! The interface of a backend: one backing store, opened for one reactor.

use std::time::Duration;

use nix::fcntl::FallocateFlags;
use nvmeof_memory::Buf;
use nvmeof_uring as uring;
use nvmeof_uring::{FileId, Ring, WriteMode};

use crate::{Done, Geometry, IoError, RefusalReason, Request, Submitted};

/// A backing store, opened for one reactor.
///
/// Each accepted request completes exactly once, as a [`Done`] with its buffer: returned by
/// [`submit`](Self::submit), or through [`Io::done`] during any call.
pub trait Backend {
    /// Size, block size and other properties. They never change.
    fn geometry(&self) -> &Geometry;

    /// Path or specification, for messages.
    fn name(&self) -> &str;

    /// Submits a request. An invalid one completes with an error; it is refused only if
    /// there is no room, and unchanged then.
    ///
    /// # Errors
    /// [`RefusalReason::Full`].
    fn submit(
        &mut self,
        request: &mut Request,
        io: &mut Io<'_>,
    ) -> Result<Submitted, RefusalReason>;

    /// Processes the completion of an operation that this backend started through [`Io`].
    /// `done.tag` is its slot.
    fn complete(&mut self, done: uring::Done, io: &mut Io<'_>);

    /// Resumes deferred requests. Called in each iteration of the event loop while a request is
    /// [in flight](Self::in_flight).
    fn poll(&mut self, io: &mut Io<'_>);

    /// Whether [`poll`](Self::poll) has work although no operation is in flight in the
    /// ring: the reactor must not sleep, because no completion would wake it.
    fn waiting(&self) -> bool;

    /// Whether the reactor is to sleep instead of polling, because many operations are in flight
    /// that are slow, and a sleep collects several completions.
    fn completes_in_batches(&self) -> bool {
        false
    }

    /// The longest sleep after [`waiting`](Self::waiting) was false: completions may be kept that
    /// long before they wake the reactor. `None`: there is no limit.
    fn longest_sleep(&self) -> Option<Duration> {
        None
    }

    /// Accepted requests that have not completed. If there are none, [`poll`](Self::poll) has
    /// nothing to do and is not called, nor are [`waiting`](Self::waiting) and the methods about
    /// sleeping.
    fn in_flight(&self) -> usize;

    /// It is closing, and its operations in flight are not waited for when the process ends.
    fn abandon(&mut self) {}

    /// Removes its file from the ring. Called when nothing is in flight.
    ///
    /// # Errors
    /// [`RingError`](uring::RingError); the backend stays open.
    fn close(&mut self, ring: &mut Ring) -> Result<(), uring::RingError>;
}

/// The context of a call: the ring, the number of the backing store, and the list of
/// completions.
pub struct Io<'a> {
    pub(crate) ring: &'a mut Ring,
    pub(crate) store: u32,
    pub(crate) done: &'a mut Vec<Done>,
}

impl<'a> Io<'a> {
    /// The same with another list of completions: for a wrapper that intercepts those of
    /// the backend that it wraps.
    pub fn with_done<'b>(&'b mut self, done: &'b mut Vec<Done>) -> Io<'b>
    where
        'a: 'b,
    {
        Io {
            ring: self.ring,
            store: self.store,
            done,
        }
    }

    /// Reports the completion of a request.
    pub fn done(&mut self, tag: u64, buf: Option<Buf>, result: Result<(), IoError>) {
        self.done.push(Done { tag, buf, result });
    }

    /// Operations for which the ring has room.
    #[must_use]
    pub fn room(&self) -> usize {
        self.ring.room()
    }

    /// [`Ring::read`] under `slot`.
    ///
    /// # Errors
    /// As there.
    pub fn read(
        &mut self,
        slot: u32,
        file: FileId,
        offset: u64,
        buf: Buf,
    ) -> Result<(), uring::Refused<Buf>> {
        self.ring.read(self.tag(slot), file, offset, buf)
    }

    /// [`Ring::write`] under `slot`.
    ///
    /// # Errors
    /// As there.
    pub fn write(
        &mut self,
        slot: u32,
        file: FileId,
        offset: u64,
        buf: Buf,
        mode: WriteMode,
    ) -> Result<(), uring::Refused<Buf>> {
        self.ring.write(self.tag(slot), file, offset, buf, mode)
    }

    /// [`Ring::fsync`] of the data under `slot`.
    ///
    /// # Errors
    /// As there.
    pub fn fdatasync(&mut self, slot: u32, file: FileId) -> Result<(), uring::Refused<()>> {
        self.ring.fsync(self.tag(slot), file, true)
    }

    /// [`Ring::fallocate`] under `slot`.
    ///
    /// # Errors
    /// As there.
    pub fn fallocate(
        &mut self,
        slot: u32,
        file: FileId,
        mode: FallocateFlags,
        offset: u64,
        len: u64,
    ) -> Result<(), uring::Refused<()>> {
        self.ring.fallocate(self.tag(slot), file, mode, offset, len)
    }

    fn tag(&self, slot: u32) -> u64 {
        u64::from(self.store) << 32 | u64::from(slot)
    }
}
