//! What a reactor needs of its disks: the contract, and the disks of
//! `nvmeof-backend` keeping it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nvmeof_backend::{
    Claim, CloseError, DiskId, Disks, Done, Losses, OpenError, Refused, Request, Why,
};
use nvmeof_memory::Region;
use nvmeof_uring::{RingConfig, RingCounts, RingError};

use crate::numbers::place_of;

/// The disks of one reactor, numbered as the model's namespaces name them.
pub trait Storage {
    /// The numbers of those that are open.
    fn disks(&self) -> Vec<u32>;

    /// Opens `claim` as the disk of that number, which no open one has.
    ///
    /// # Errors
    /// [`OpenError`]; nothing was opened.
    fn open(&mut self, _disk: u32, _claim: &Claim) -> Result<(), OpenError> {
        Ok(())
    }

    /// Closes a disk. False while it has something in flight: try again later.
    fn close(&mut self, _disk: u32) -> bool {
        true
    }

    /// Bytes that the address of every buffer must be a multiple of, for that
    /// disk: a power of two.
    fn buffer_alignment(&self, _disk: u32) -> u32 {
        1
    }

    /// What is behind that disk, under a name that another disk over the same
    /// file has too: one that was opened when the file had another size.
    fn identity(&self, disk: u32) -> u64 {
        disk.into()
    }

    /// What it may have lost of what it had answered as done. `None` for memory, which
    /// loses nothing.
    fn losses(&self, _disk: u32) -> Option<Arc<Losses>> {
        None
    }

    /// Takes a request. Gives what became of it when it was done at once;
    /// otherwise it comes out of [`poll`](Self::poll) exactly once.
    ///
    /// # Errors
    /// [`Refused`] with the request, when there is no room for the moment.
    fn submit(&mut self, disk: u32, request: Request) -> Result<Option<Done>, Refused<Request>>;

    /// Starts what was submitted and appends what is done. Never waits.
    ///
    /// # Errors
    /// When the machine fails in a way that no request is to blame for.
    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), StorageError>;

    /// Whether there is nothing to do until [`wait_fd`](Self::wait_fd) becomes
    /// readable.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    fn may_sleep(&mut self) -> Result<bool, StorageError>;

    /// The backing stores that have operations outstanding, and how many.
    fn outstanding(&self) -> Vec<(String, usize)> {
        Vec::new()
    }

    /// What to sleep on; `None` where nobody ever sleeps.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;
}

/// The disks as a whole failed.
#[derive(Debug, thiserror::Error)]
#[error("disk I/O is not possible any more: {0}")]
pub struct StorageError(#[from] pub RingError);

/// The disks of `nvmeof-backend`. Belongs to the thread that made it.
pub struct OpenDisks {
    disks: Disks,
    /// By [`place_of`] their numbers.
    places: Vec<Option<OpenDisk>>,
    /// Nothing is to be said of memory that is not registered, any more.
    told: bool,
}

#[derive(Clone)]
struct OpenDisk {
    number: u32,
    id: DiskId,
    claim: Claim,
}

/// Disks could not be opened for a reactor.
#[derive(Debug, thiserror::Error)]
pub enum StorageOpenError {
    /// No ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// One of the disks.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl OpenDisks {
    /// Opens all of `claims`: disk 0 is the first.
    ///
    /// # Errors
    /// [`StorageOpenError`].
    pub fn open(claims: &[Claim], config: RingConfig) -> Result<Self, StorageOpenError> {
        Self::open_numbered((0..).zip(claims.iter().cloned()), config)
    }

    /// The same under those numbers.
    ///
    /// # Errors
    /// [`StorageOpenError`].
    pub fn open_numbered(
        claims: impl IntoIterator<Item = (u32, Claim)>,
        config: RingConfig,
    ) -> Result<Self, StorageOpenError> {
        let mut this = Self {
            disks: Disks::new(config)?,
            places: Vec::new(),
            told: false,
        };
        for (number, claim) in claims {
            this.open_as(number, &claim)?;
        }
        Ok(this)
    }

    fn open_as(&mut self, number: u32, claim: &Claim) -> Result<(), OpenError> {
        let id = self.disks.open(claim)?;
        let at = place_of(number);
        if self.places.len() <= at {
            self.places.resize(at + 1, None);
        }
        if let Some(place) = self.places.get_mut(at) {
            debug_assert!(place.is_none(), "numbers are given once");
            let claim = claim.clone();
            *place = Some(OpenDisk { number, id, claim });
        }
        Ok(())
    }

    #[inline]
    fn place(&self, disk: u32) -> Option<&OpenDisk> {
        match self.places.get(place_of(disk)) {
            Some(Some(open)) if open.number == disk => Some(open),
            _ => None,
        }
    }

    #[inline]
    fn id(&self, disk: u32) -> Option<DiskId> {
        self.place(disk).map(|open| open.id)
    }

    /// Registers the memory that buffers come from; the first regions matter
    /// most. The answer displays as a line for the log.
    pub fn register_regions<'a>(
        &mut self,
        regions: impl IntoIterator<Item = &'a Region>,
    ) -> nvmeof_uring::Registered {
        let registered = self.disks.register_regions(regions);
        self.told = registered.left_out > 0;
        registered
    }

    /// What the ring did, for tests.
    #[must_use]
    pub fn ring_counts(&self) -> RingCounts {
        self.disks.ring().counts()
    }

    /// Says once that memory of hosts is used without being registered.
    #[inline]
    fn tell_what_is_left_out(&mut self) {
        if !self.told
            && let Some(why) = self.disks.ring().lent_left_out()
        {
            self.told = true;
            tracing::warn!(
                "memory that hosts on this machine lend is not registered with io_uring: disk \
                 I/O with it works, but the kernel maps its pages again for each request, which \
                 costs some processor time; {why}"
            );
        }
    }
}

impl Storage for OpenDisks {
    fn disks(&self) -> Vec<u32> {
        let open = self.places.iter().flatten();
        open.map(|disk| disk.number).collect()
    }

    fn open(&mut self, disk: u32, claim: &Claim) -> Result<(), OpenError> {
        self.open_as(disk, claim)
    }

    fn close(&mut self, disk: u32) -> bool {
        let Some(id) = self.id(disk) else {
            return true;
        };
        match self.disks.close(id) {
            Ok(()) | Err(CloseError::NotOpen) => {
                if let Some(place) = self.places.get_mut(place_of(disk)) {
                    *place = None;
                }
                true
            }
            Err(CloseError::Busy(_)) => false,
            Err(error @ CloseError::Ring(_)) => {
                tracing::error!(disk, %error, "a disk cannot be closed");
                false
            }
        }
    }

    fn buffer_alignment(&self, disk: u32) -> u32 {
        let geometry = self.id(disk).and_then(|id| self.disks.geometry(id));
        geometry.map_or(1, |geometry| geometry.buffer_alignment)
    }

    fn identity(&self, disk: u32) -> u64 {
        let open = self.place(disk);
        open.map_or(u64::MAX, |open| open.claim.identity())
    }

    fn losses(&self, disk: u32) -> Option<Arc<Losses>> {
        let losses = self.place(disk)?.claim.losses();
        (losses.now().storage != 0).then(|| Arc::clone(losses))
    }

    fn submit(&mut self, disk: u32, request: Request) -> Result<Option<Done>, Refused<Request>> {
        match self.id(disk) {
            Some(id) => self.disks.submit(id, request),
            None => Err(Refused {
                why: Why::NotOpen,
                back: request,
            }),
        }
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), StorageError> {
        self.disks.poll(done)?;
        self.tell_what_is_left_out();
        Ok(())
    }

    fn may_sleep(&mut self) -> Result<bool, StorageError> {
        Ok(self.disks.may_sleep()?)
    }

    fn outstanding(&self) -> Vec<(String, usize)> {
        let open = self.places.iter().flatten();
        let all = open.map(|disk| {
            let count = self.disks.in_flight_on(disk.id);
            (disk.claim.name().to_owned(), count)
        });
        all.filter(|(_, count)| *count > 0).collect()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.disks.wait_fd())
    }
}
