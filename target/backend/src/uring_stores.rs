//! The backing stores of one reactor, over its io_uring.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_memory::Region;
use nvmeof_uring as uring;
use nvmeof_uring::{Registered, Ring, RingConfig, RingError};

use crate::backing_stores::{BackingStores, BackingStoresError};
use crate::error::CloseError;
use crate::numbers::{index_bits, index_of};
use crate::{
    Backend, Claim, Done, Geometry, Io, Losses, OpenError, RefusalReason, Request, Submitted, probe,
};

/// The backing stores of one reactor, by their [numbers](crate::Numbers). Belongs to the
/// thread that made it.
///
/// One iteration of an event loop: [`poll`](Self::poll) for completions,
/// [`submit`](Self::submit) new requests, [`kick`](Self::kick) once. When there is nothing
/// else to do and [`may_sleep`](Self::may_sleep) returns true, sleep on
/// [`wait_fd`](Self::wait_fd).
///
/// Dropping it with requests in flight waits until the kernel no longer uses their
/// buffers.
pub struct UringStores {
    ring: Ring,
    /// By the [index](index_of) in their numbers.
    stores: Vec<Option<OpenStore>>,
    /// The indices of those that may have requests outstanding, which alone are polled: an
    /// open backing store costs an iteration nothing.
    active: Vec<u32>,
    /// Completions outside of `poll`; its next call returns them.
    ready: Vec<Done>,
    /// Completions of one `reap`, empty between calls: kept for its allocation.
    reaped: Vec<uring::Done>,
    /// Whether the warning about unregistered memory was logged.
    warned: bool,
}

struct OpenStore {
    number: u32,
    claim: Claim,
    backend: Box<dyn Backend>,
    is_abandoned: bool,
    /// Whether it is in `active`.
    is_active: bool,
}

/// Backing stores could not be opened for a reactor.
#[derive(Debug, thiserror::Error)]
pub enum UringStoresError {
    /// The ring could not be made.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// One of the backing stores.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl UringStores {
    /// Makes the ring.
    ///
    /// # Errors
    /// [`RingError`], whose message contains the remedy.
    pub fn new(config: RingConfig) -> Result<Self, RingError> {
        Ok(Self {
            ring: Ring::new(config)?,
            stores: Vec::new(),
            active: Vec::new(),
            ready: Vec::new(),
            reaped: Vec::new(),
            warned: false,
        })
    }

    /// Makes the ring and opens `claims` under those numbers.
    ///
    /// # Errors
    /// [`UringStoresError`].
    pub fn with(
        config: RingConfig,
        claims: impl IntoIterator<Item = (u32, Claim)>,
    ) -> Result<Self, UringStoresError> {
        let mut this = Self::new(config)?;
        for (number, claim) in claims {
            this.open(number, &claim)?;
        }
        Ok(this)
    }

    /// Registers the memory of buffers, as far as limits allow, the first regions first.
    /// See [`Ring::register_regions`].
    pub fn register_regions<'a>(
        &mut self,
        regions: impl IntoIterator<Item = &'a Region>,
    ) -> Registered {
        let registered = self.ring.register_regions(regions);
        self.warned = registered.left_out > 0;
        registered
    }

    /// Keeps the lock (flock(2)) of `lock`, which messages name `name`, until the kernel has
    /// completed every operation that was submitted here, even if the process is killed before.
    ///
    /// The kernel releases registered files when it destroys a ring (`io_ring_ctx_free`). It does
    /// so when no operation has a reference to the ring any more (`io_ring_exit_work`).
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn hold(&mut self, name: &str, lock: &File) -> Result<(), OpenError> {
        let duplicate = probe::duplicate(name, lock)?;
        let added = self.ring.add_file(duplicate);
        let full = |source| OpenError::Ring {
            name: name.to_owned(),
            source,
        };
        added.map(drop).map_err(full)
    }

    /// The ring, to inspect its mode and counters.
    #[must_use]
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Opens the backing store of `claim` under a number that no open one has.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&mut self, number: u32, claim: &Claim) -> Result<(), OpenError> {
        self.open_wrapped(number, claim, |backend| backend)
    }

    /// Opens the backing store of `claim` and wraps it.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_wrapped(
        &mut self,
        number: u32,
        claim: &Claim,
        wrap: impl FnOnce(Box<dyn Backend>) -> Box<dyn Backend>,
    ) -> Result<(), OpenError> {
        let backend = wrap(claim.open(&mut self.ring)?);
        let at = index_of(number);
        if self.stores.len() <= at {
            self.stores.resize_with(at + 1, || None);
        }
        if let Some(slot) = self.stores.get_mut(at) {
            debug_assert!(slot.is_none(), "numbers are unique");
            *slot = Some(OpenStore {
                number,
                claim: claim.clone(),
                backend,
                is_abandoned: false,
                is_active: false,
            });
        }
        Ok(())
    }

    /// Closes a backing store that has nothing in flight.
    ///
    /// # Errors
    /// [`CloseError`]; the backing store stays open.
    pub fn close(&mut self, number: u32) -> Result<(), CloseError> {
        let Some(slot) = self.stores.get_mut(index_of(number)) else {
            return Err(CloseError::NotOpen);
        };
        let Some(open) = slot.as_mut().filter(|open| open.number == number) else {
            return Err(CloseError::NotOpen);
        };
        if open.backend.in_flight() > 0 {
            return Err(CloseError::Busy(open.backend.in_flight()));
        }
        open.backend.close(&mut self.ring)?;
        *slot = None;
        self.active.retain(|at| *at != index_bits(number));
        Ok(())
    }

    #[inline]
    fn get(&self, number: u32) -> Option<&OpenStore> {
        let open = self.stores.get(index_of(number))?.as_ref();
        open.filter(|open| open.number == number)
    }

    fn all(&self) -> impl Iterator<Item = &OpenStore> {
        self.stores.iter().flatten()
    }

    /// Those that may have requests outstanding.
    fn active(&self) -> impl Iterator<Item = &OpenStore> {
        let all = self.active.iter();
        all.filter_map(|at| self.stores.get(*at as usize)?.as_ref())
    }

    /// Resumes deferred requests.
    fn poll_active(&mut self, out: &mut Vec<Done>) {
        let mut at = 0;
        while let Some(store) = self.active.get(at).copied() {
            let open = self.stores.get_mut(store as usize).and_then(Option::as_mut);
            let Some(open) = open else {
                self.active.swap_remove(at);
                continue;
            };
            let mut io = Io {
                ring: &mut self.ring,
                store,
                done: out,
            };
            open.backend.poll(&mut io);
            if open.backend.in_flight() > 0 {
                at += 1;
            } else {
                open.is_active = false;
                self.active.swap_remove(at);
            }
        }
    }

    /// The geometry of a backing store, `None` when it is not open.
    #[must_use]
    pub fn geometry(&self, number: u32) -> Option<&Geometry> {
        self.get(number).map(|open| open.backend.geometry())
    }

    #[inline]
    fn submit_in_place(
        &mut self,
        number: u32,
        request: &mut Request,
    ) -> Result<Submitted, RefusalReason> {
        let at = index_of(number);
        let open = self.stores.get_mut(at).and_then(Option::as_mut);
        let Some(open) = open.filter(|open| open.number == number) else {
            return Err(RefusalReason::NotOpen);
        };
        let mut io = Io {
            ring: &mut self.ring,
            store: index_bits(number),
            done: &mut self.ready,
        };
        match open.backend.submit(request, &mut io) {
            Ok(Submitted::Pending) => {
                if !open.is_active {
                    open.is_active = true;
                    self.active.push(index_bits(number));
                }
                Ok(Submitted::Pending)
            }
            // Not moved: an error is large.
            Ok(Submitted::Done(Ok(()))) => Ok(Submitted::Done(Ok(()))),
            ended => ended,
        }
    }

    /// Passes submitted operations to the kernel in one system call. `poll` does so too:
    /// call this before going to sleep.
    ///
    /// # Errors
    /// [`RingError::Enter`].
    pub fn kick(&mut self) -> Result<(), RingError> {
        self.ring.submit()
    }

    /// Passes submitted operations to the kernel and appends completions to `out`. Returns
    /// whether there were any.
    ///
    /// # Errors
    /// [`RingError::Enter`].
    pub fn poll(&mut self, out: &mut Vec<Done>) -> Result<bool, RingError> {
        // The common case for stores that complete at submission.
        if self.active.is_empty() && self.ready.is_empty() && self.ring.is_idle() {
            return Ok(false);
        }
        let before = out.len();
        out.append(&mut self.ready);
        self.ring.submit()?;
        if let Err(stray) = self.ring.reap(&mut self.reaped) {
            tracing::error!(%stray, "io_uring: unknown completion; it is ignored");
        }
        for mut event in self.reaped.drain(..) {
            // The halves of the tag, as `Io` put them together.
            let (Ok(store), Ok(slot)) = (
                u32::try_from(event.tag >> 32),
                u32::try_from(event.tag & u64::from(u32::MAX)),
            ) else {
                continue;
            };
            event.tag = u64::from(slot);
            let open = self.stores.get_mut(store as usize).and_then(Option::as_mut);
            let Some(open) = open else {
                tracing::error!(
                    disk = store,
                    slot,
                    "io_uring: completion for a closed backing store"
                );
                continue;
            };
            let mut io = Io {
                ring: &mut self.ring,
                store,
                done: out,
            };
            open.backend.complete(event, &mut io);
        }
        self.poll_active(out);
        Ok(out.len() > before)
    }

    /// Passes submitted operations to the kernel. From then on the next completion makes
    /// [`wait_fd`](Self::wait_fd) readable. Returns false when `poll` has work already: do
    /// not sleep then.
    ///
    /// # Errors
    /// [`RingError::Enter`].
    pub fn may_sleep(&mut self) -> Result<bool, RingError> {
        self.ring.submit()?;
        let waiting = !self.ready.is_empty() || self.active().any(|open| open.backend.waiting());
        Ok(!waiting && self.ring.arm())
    }

    /// Accepted requests whose [`Done`] was not returned yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let all = self.all().map(|open| open.backend.in_flight());
        all.sum::<usize>() + self.ready.len()
    }

    /// Becomes readable when `poll` has work, after [`may_sleep`](Self::may_sleep) returned
    /// true. The descriptor never changes.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.ring.wait_fd()
    }

    /// Warns once that memory of hosts is used without being registered.
    #[inline]
    fn warn_of_unregistered_memory(&mut self) {
        if !self.warned
            && let Some(why) = self.ring.lent_left_out()
        {
            self.warned = true;
            tracing::warn!(
                "memory that hosts on this machine lend is not registered with io_uring: I/O \
                 works, but the kernel maps the pages again for each request, which costs some \
                 CPU time; {why}"
            );
        }
    }
}

impl BackingStores for UringStores {
    fn stores(&self) -> Vec<u32> {
        self.all().map(|open| open.number).collect()
    }

    fn open(&mut self, store: u32, claim: &Claim) -> Result<(), OpenError> {
        Self::open(self, store, claim)
    }

    fn close(&mut self, store: u32) -> bool {
        match Self::close(self, store) {
            Ok(()) | Err(CloseError::NotOpen) => true,
            Err(CloseError::Busy(_)) => false,
            Err(error @ CloseError::Ring(_)) => {
                tracing::error!(disk = store, %error, "cannot close a backing store");
                false
            }
        }
    }

    fn buffer_alignment(&self, store: u32) -> u32 {
        let geometry = self.geometry(store);
        geometry.map_or(1, |geometry| geometry.buffer_alignment)
    }

    fn identity(&self, store: u32) -> u64 {
        let open = self.get(store);
        open.map_or(u64::MAX, |open| open.claim.identity())
    }

    fn losses(&self, store: u32) -> Option<Arc<Losses>> {
        let losses = self.get(store)?.claim.losses();
        (losses.now().storage != 0).then(|| Arc::clone(losses))
    }

    fn submit(&mut self, store: u32, request: &mut Request) -> Result<Submitted, RefusalReason> {
        self.submit_in_place(store, request)
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), BackingStoresError> {
        Self::poll(self, done)?;
        self.warn_of_unregistered_memory();
        Ok(())
    }

    fn may_sleep(&mut self) -> Result<bool, BackingStoresError> {
        Ok(Self::may_sleep(self)?)
    }

    fn completes_in_batches(&self) -> bool {
        self.active()
            .any(|open| open.backend.completes_in_batches())
    }

    fn longest_sleep(&self) -> Option<Duration> {
        let active = self.active();
        active.filter_map(|open| open.backend.longest_sleep()).min()
    }

    fn name(&self, store: u32) -> String {
        let claim = self.get(store).map(|open| open.claim.name());
        claim.map_or_else(|| format!("backing store {store}"), str::to_owned)
    }

    fn abandon(&mut self, store: u32) {
        let open = self.stores.get_mut(index_of(store));
        let open = open.and_then(Option::as_mut);
        if let Some(open) = open.filter(|open| open.number == store) {
            open.is_abandoned = true;
            open.backend.abandon();
        }
    }

    fn outstanding(&self) -> Vec<(String, usize)> {
        let all = self.all().filter(|open| !open.is_abandoned).map(|open| {
            let count = open.backend.in_flight();
            (open.claim.name().to_owned(), count)
        });
        all.filter(|(_, count)| *count > 0).collect()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(Self::wait_fd(self))
    }
}
