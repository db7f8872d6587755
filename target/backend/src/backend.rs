//! The contract of a backend: what is behind one disk of one reactor.

use nix::fcntl::FallocateFlags;
use nvmeof_memory::Buf;
use nvmeof_uring as uring;
use nvmeof_uring::{FileId, Ring, WriteMode};

use crate::{Done, Geometry, IoError, Refused, Request};

/// One kind of storage, opened for one reactor.
///
/// Every request that is taken comes out exactly once as a [`Done`] with its
/// buffer: as what [`submit`](Self::submit) gives, or through [`Io::done`] during
/// any call.
pub trait Backend {
    /// What the disk looks like. Never changes.
    fn geometry(&self) -> &Geometry;

    /// Path or specification, for messages.
    fn name(&self) -> &str;

    /// Takes a request. Whatever is wrong with it is its result; it is refused
    /// only for want of room. Gives what became of it if that is known at once.
    ///
    /// # Errors
    /// [`Refused`] with the request.
    fn submit(
        &mut self,
        request: Request,
        io: &mut Io<'_>,
    ) -> Result<Option<Done>, Refused<Request>>;

    /// Takes what came of an operation that this backend started through
    /// [`Io`]. `done.tag` is the slot it gave.
    fn complete(&mut self, done: uring::Done, io: &mut Io<'_>);

    /// Goes on with what had to wait. Called once a turn.
    fn poll(&mut self, io: &mut Io<'_>);

    /// Whether [`poll`](Self::poll) has something to do though no operation is
    /// in flight in the ring: whoever sleeps then sleeps for ever.
    fn waiting(&self) -> bool;

    /// Requests taken whose [`Done`] has not come out.
    fn in_flight(&self) -> usize;

    /// Gives back what it put in the ring. Called when nothing is in flight.
    ///
    /// # Errors
    /// [`RingError`](uring::RingError); the backend stays as it is.
    fn close(&mut self, ring: &mut Ring) -> Result<(), uring::RingError>;
}

/// What a backend works with during a call: the ring, under the name of its
/// disk, and the list of what is done.
pub struct Io<'a> {
    pub(crate) ring: &'a mut Ring,
    pub(crate) disk: u32,
    pub(crate) done: &'a mut Vec<Done>,
}

impl<'a> Io<'a> {
    /// The same, with another list of what is done: for a layer that looks at
    /// what comes out of the backend below it.
    pub fn with_done<'b>(&'b mut self, done: &'b mut Vec<Done>) -> Io<'b>
    where
        'a: 'b,
    {
        Io {
            ring: self.ring,
            disk: self.disk,
            done,
        }
    }

    /// A request is done.
    pub fn done(&mut self, tag: u64, buf: Option<Buf>, result: Result<(), IoError>) {
        self.done.push(Done { tag, buf, result });
    }

    /// Operations the ring has room for.
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
        u64::from(self.disk) << 32 | u64::from(slot)
    }
}
