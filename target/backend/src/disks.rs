//! The disks of one reactor, over its one io_uring.

use std::os::fd::BorrowedFd;

use nvmeof_memory::Region;
use nvmeof_uring as uring;
use nvmeof_uring::{Registered, Ring, RingConfig, RingError};

use crate::error::CloseError;
use crate::{Backend, Claim, Done, Geometry, Io, OpenError, Refused, Request, Why};

/// An open disk of one [`Disks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DiskId {
    index: u32,
    generation: u32,
}

/// The disks of one reactor. Belongs to the thread that made it.
///
/// A turn is: [`poll`](Self::poll) for what is done, [`submit`](Self::submit)
/// what is new, [`kick`](Self::kick) once. When there is nothing else to do and
/// [`may_sleep`](Self::may_sleep), sleep on [`wait_fd`](Self::wait_fd).
///
/// Dropping it with requests in flight waits for the kernel to be done with
/// their buffers.
pub struct Disks {
    ring: Ring,
    disks: Vec<Place>,
    /// Done outside of `poll`, whose next call it comes out of.
    ready: Vec<Done>,
    /// What was reaped last, empty between calls: kept for its memory.
    reaped: Vec<uring::Done>,
}

#[derive(Default)]
struct Place {
    generation: u32,
    backend: Option<Box<dyn Backend>>,
}

impl Disks {
    /// Makes the ring.
    ///
    /// # Errors
    /// [`RingError`], which says what to do about it.
    pub fn new(config: RingConfig) -> Result<Self, RingError> {
        Ok(Self {
            ring: Ring::new(config)?,
            disks: Vec::new(),
            ready: Vec::new(),
            reaped: Vec::new(),
        })
    }

    /// Registers the memory that buffers come from, as far as limits allow.
    /// See [`Ring::register_regions`].
    pub fn register_regions<'a>(
        &mut self,
        regions: impl IntoIterator<Item = &'a Region>,
    ) -> Registered {
        self.ring.register_regions(regions)
    }

    /// The ring, to look at: its mode, what is in flight.
    #[must_use]
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Opens what `claim` is for.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&mut self, claim: &Claim) -> Result<DiskId, OpenError> {
        self.open_wrapped(claim, |backend| backend)
    }

    /// Opens what `claim` is for and puts layers on top of it.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_wrapped(
        &mut self,
        claim: &Claim,
        wrap: impl FnOnce(Box<dyn Backend>) -> Box<dyn Backend>,
    ) -> Result<DiskId, OpenError> {
        let backend = wrap(claim.open(&mut self.ring)?);
        let free = self.disks.iter().position(|it| it.backend.is_none());
        let at = free.unwrap_or(self.disks.len());
        if at == self.disks.len() {
            self.disks.push(Place::default());
        }
        let (Ok(index), Some(place)) = (u32::try_from(at), self.disks.get_mut(at)) else {
            unreachable!("nobody opens four thousand million disks");
        };
        place.backend = Some(backend);
        let generation = place.generation;
        Ok(DiskId { index, generation })
    }

    /// Closes a disk that has nothing in flight.
    ///
    /// # Errors
    /// [`CloseError`]; the disk stays open.
    pub fn close(&mut self, id: DiskId) -> Result<(), CloseError> {
        let place = self.disks.get_mut(id.index as usize);
        let Some(place) = place.filter(|place| place.generation == id.generation) else {
            return Err(CloseError::NotOpen);
        };
        let Some(backend) = &mut place.backend else {
            return Err(CloseError::NotOpen);
        };
        if backend.in_flight() > 0 {
            return Err(CloseError::Busy(backend.in_flight()));
        }
        backend.close(&mut self.ring)?;
        place.backend = None;
        place.generation = place.generation.wrapping_add(1);
        Ok(())
    }

    /// What the disk looks like, `None` when it is not open.
    #[must_use]
    pub fn geometry(&self, id: DiskId) -> Option<&Geometry> {
        let place = self.disks.get(id.index as usize)?;
        let backend = place.backend.as_ref()?;
        (place.generation == id.generation).then(|| backend.geometry())
    }

    /// Takes a request. What is wrong with it, if anything, is its result. Gives
    /// what became of it when it was done without waiting for anything: that does
    /// not come out of [`poll`](Self::poll) then.
    ///
    /// # Errors
    /// [`Refused`] with the request, when there is no room or no such disk.
    pub fn submit(
        &mut self,
        id: DiskId,
        request: Request,
    ) -> Result<Option<Done>, Refused<Request>> {
        let place = self.disks.get_mut(id.index as usize);
        let place = place.filter(|place| place.generation == id.generation);
        let Some(backend) = place.and_then(|place| place.backend.as_mut()) else {
            let why = Why::NotOpen;
            return Err(Refused { why, back: request });
        };
        let mut io = Io {
            ring: &mut self.ring,
            disk: id.index,
            done: &mut self.ready,
        };
        backend.submit(request, &mut io)
    }

    /// Hands what was submitted to the kernel now, in one system call. `poll`
    /// does so too: call this before going to sleep.
    ///
    /// # Errors
    /// [`RingError::Enter`].
    pub fn kick(&mut self) -> Result<(), RingError> {
        self.ring.submit()
    }

    /// Hands what was submitted to the kernel and appends what is done to
    /// `out`. Tells whether anything was.
    ///
    /// # Errors
    /// [`RingError::Enter`].
    pub fn poll(&mut self, out: &mut Vec<Done>) -> Result<bool, RingError> {
        let before = out.len();
        out.append(&mut self.ready);
        self.ring.submit()?;
        if let Err(stray) = self.ring.reap(&mut self.reaped) {
            tracing::error!(%stray, "the kernel completed what was not asked for");
        }
        for mut event in self.reaped.drain(..) {
            // The halves of the tag, as `Io` put them together.
            let (Ok(disk), Ok(slot)) = (
                u32::try_from(event.tag >> 32),
                u32::try_from(event.tag & u64::from(u32::MAX)),
            ) else {
                continue;
            };
            event.tag = u64::from(slot);
            let place = self.disks.get_mut(disk as usize);
            let Some(backend) = place.and_then(|place| place.backend.as_mut()) else {
                tracing::error!(disk, slot, "an operation ended on a disk that is closed");
                continue;
            };
            let mut io = Io {
                ring: &mut self.ring,
                disk,
                done: out,
            };
            backend.complete(event, &mut io);
        }
        for (disk, place) in (0u32..).zip(&mut self.disks) {
            let Some(backend) = &mut place.backend else {
                continue;
            };
            let mut io = Io {
                ring: &mut self.ring,
                disk,
                done: out,
            };
            backend.poll(&mut io);
        }
        Ok(out.len() > before)
    }

    /// Hands over what was submitted and, when nothing is done by then, has
    /// [`wait_fd`](Self::wait_fd) become readable as soon as something is.
    /// False when `poll` has something to do already: do not sleep then.
    ///
    /// # Errors
    /// [`RingError::Enter`].
    pub fn may_sleep(&mut self) -> Result<bool, RingError> {
        self.ring.submit()?;
        let mut open = self.disks.iter().filter_map(|it| it.backend.as_ref());
        let waiting = !self.ready.is_empty() || open.any(|backend| backend.waiting());
        Ok(!waiting && self.ring.arm())
    }

    /// Requests taken whose [`Done`] has not come out.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let open = self.disks.iter().filter_map(|it| it.backend.as_ref());
        open.map(|backend| backend.in_flight()).sum::<usize>() + self.ready.len()
    }

    /// Requests taken by one disk whose [`Done`] has not come out.
    #[must_use]
    pub fn in_flight_on(&self, id: DiskId) -> usize {
        let place = self.disks.get(id.index as usize);
        let place = place.filter(|place| place.generation == id.generation);
        let backend = place.and_then(|place| place.backend.as_ref());
        backend.map_or(0, |backend| backend.in_flight())
    }

    /// After [`may_sleep`](Self::may_sleep) said so, becomes readable when
    /// `poll` has something to do. The same descriptor from beginning to end.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.ring.wait_fd()
    }
}
