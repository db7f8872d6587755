//! The ring of a thread: one io_uring, and a second one once it has polled files.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use nix::fcntl::FallocateFlags;
use nvmeof_memory::{Buf, Region};

use crate::errno::errno_of;
use crate::files::{Begins, FileId, FileTableFull};
use crate::fixed::Registered;
use crate::operation::{Refused, WriteMode};
use crate::pieces::LeftOut;
use crate::polled::{Polled, PolledError};
use crate::start::{MODES, Mode, RingConfig, RingError};
use crate::uring::{Done, RingCounts, Stray, Uring, Waker};

/// One io_uring, for the thread that made it.
///
/// A turn is: start operations, [`submit`](Self::submit) them,
/// [`reap`](Self::reap) what is done. Of many the kernel gets the first while
/// the others are still being made. To sleep, [`arm`](Self::arm) the ring and
/// wait for [`wait_fd`](Self::wait_fd) to become readable.
///
/// Dropping a ring cancels what can be cancelled and waits for the rest: as
/// long as the kernel may still write to a buffer, nobody else gets it.
pub struct Ring {
    first: Uring,
    config: RingConfig,
    /// For files whose devices are polled.
    polled: Option<Box<Polled>>,
}

impl Ring {
    /// Makes a ring for this thread.
    ///
    /// # Errors
    /// [`RingError`], which says what to do about it.
    pub fn new(config: RingConfig) -> Result<Self, RingError> {
        Self::in_one_of(&MODES, config)
    }

    fn in_one_of(modes: &[Mode], config: RingConfig) -> Result<Self, RingError> {
        Ok(Self {
            first: Uring::new(modes, config, false)?,
            config,
            polled: None,
        })
    }

    fn second(&self) -> Option<&Uring> {
        self.polled.as_deref().map(Polled::ring)
    }

    fn second_mut(&mut self) -> Option<&mut Uring> {
        self.polled.as_deref_mut().map(Polled::ring_mut)
    }

    /// How completions come.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.first.mode()
    }

    /// What it did since it was made.
    #[must_use]
    pub fn counts(&self) -> RingCounts {
        let RingCounts {
            operations,
            not_fixed,
            enters,
        } = self.first.counts;
        let second = self.second().map(|second| second.counts);
        let second = second.unwrap_or_default();
        RingCounts {
            operations: operations + second.operations,
            not_fixed: not_fixed + second.not_fixed,
            enters: enters + second.enters,
        }
    }

    /// Makes fixed buffers of as many of `regions` as the limit on locked
    /// memory allows, the first ones first, in place of those of an earlier
    /// call. Buffers in all others work too, a little slower.
    pub fn register_regions<'a>(
        &mut self,
        regions: impl IntoIterator<Item = &'a Region>,
    ) -> Registered {
        let regions: Vec<_> = regions.into_iter().collect();
        let registered = self.first.register_regions(regions.iter().copied());
        let Some(second) = self.second_mut() else {
            return registered;
        };
        // Each ring has a limit of its own on some kernels: the worse is told.
        let there = second.register_regions(regions.into_iter());
        if there.left_out > registered.left_out {
            return there;
        }
        registered
    }

    /// Pieces of memory of other processes ([`Buf::is_lent`]) that are fixed
    /// buffers now: each is made one when an operation first uses it, and given
    /// up when nobody has that memory any more.
    #[must_use]
    pub fn lent_pieces(&self) -> usize {
        self.first.lent_pieces() + self.second().map_or(0, Uring::lent_pieces)
    }

    /// Why memory of other processes is used without, at this moment: `None` when
    /// the kernel refused none.
    #[must_use]
    pub fn lent_left_out(&self) -> Option<LeftOut> {
        let refused = self.first.lent_left_out();
        refused.or_else(|| self.second()?.lent_left_out())
    }

    /// Puts a file in the ring, which owns it until
    /// [`remove_file`](Self::remove_file) or its own end.
    ///
    /// # Errors
    /// [`FileTableFull`].
    pub fn add_file(&mut self, file: File) -> Result<FileId, FileTableFull> {
        self.add_file_as(file, Begins::Submitter)
    }

    /// The same, and who begins operations on it.
    ///
    /// # Errors
    /// [`FileTableFull`].
    pub fn add_file_as(&mut self, file: File, begins: Begins) -> Result<FileId, FileTableFull> {
        self.first.add_file(file, begins)
    }

    /// As [`add_file`](Self::add_file), for a file with direct I/O on a device
    /// that can be polled: reads, and writes that need not be durable, are
    /// asked for instead of told by an interrupt. As long as some are in
    /// flight, the ring's owner cannot sleep. On other files they fail with
    /// `EOPNOTSUPP`.
    ///
    /// # Errors
    /// [`PolledError`].
    pub fn add_polled_file(&mut self, file: File) -> Result<FileId, PolledError> {
        let duplicate = file.try_clone();
        let duplicate = duplicate.map_err(|error| PolledError::Duplicate(errno_of(&error)))?;
        let Self {
            first,
            config,
            polled,
        } = self;
        let polled = match polled {
            Some(polled) => polled,
            none => none.insert(Box::new(Polled::new(*config, first.fixed.regions())?)),
        };
        polled.add_file(duplicate, || first.add_file(file, Begins::Submitter))
    }

    /// Takes a file out of the ring. Operations started on it go on to their
    /// end. `None` when it is not there.
    ///
    /// # Errors
    /// [`RingError::Enter`] when operations on it could not be handed over
    /// first; the file stays.
    pub fn remove_file(&mut self, id: FileId) -> Result<Option<File>, RingError> {
        self.first.hand_over()?;
        if let Some(polled) = &mut self.polled {
            polled.remove_file(id)?;
        }
        Ok(self.first.remove_file(id))
    }

    /// Reads from byte `offset` of `file` into the view of `buf`. Its
    /// [`Done`] tells how many bytes came, which may be fewer.
    ///
    /// # Errors
    /// [`Refused`] with the buffer.
    pub fn read(
        &mut self,
        tag: u64,
        file: FileId,
        offset: u64,
        buf: Buf,
    ) -> Result<(), Refused<Buf>> {
        if let Some(polled) = &mut self.polled
            && let Some((second, file)) = polled.at(file)
        {
            return second.read(tag, file, offset, buf);
        }
        self.first.read(tag, file, offset, buf)
    }

    /// Writes the view of `buf` to `file` from byte `offset` on. Its
    /// [`Done`] tells how many bytes went, which may be fewer.
    ///
    /// # Errors
    /// [`Refused`] with the buffer.
    pub fn write(
        &mut self,
        tag: u64,
        file: FileId,
        offset: u64,
        buf: Buf,
        mode: WriteMode,
    ) -> Result<(), Refused<Buf>> {
        // What has to be durable may need a flush, which is not polled.
        if mode == WriteMode::Normal
            && let Some(polled) = &mut self.polled
            && let Some((second, file)) = polled.at(file)
        {
            return second.write(tag, file, offset, buf, mode);
        }
        self.first.write(tag, file, offset, buf, mode)
    }

    /// Waits for the medium to have everything written to `file` before: with
    /// `datasync` the data and what is needed to read it (fdatasync), without
    /// also times and owners (fsync).
    ///
    /// # Errors
    /// [`Refused`].
    pub fn fsync(&mut self, tag: u64, file: FileId, datasync: bool) -> Result<(), Refused<()>> {
        self.first.fsync(tag, file, datasync)
    }

    /// fallocate(2) on `len` bytes from `offset` on.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn fallocate(
        &mut self,
        tag: u64,
        file: FileId,
        mode: FallocateFlags,
        offset: u64,
        len: u64,
    ) -> Result<(), Refused<()>> {
        self.first.fallocate(tag, file, mode, offset, len)
    }

    /// Operations started whose [`Done`] has not been reaped.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.first.in_flight() + self.second().map_or(0, Uring::in_flight)
    }

    /// Operations that can be started before one must be reaped.
    #[must_use]
    pub fn room(&self) -> usize {
        let room = self.first.room();
        self.second().map_or(room, |second| room.min(second.room()))
    }

    /// Hands everything started to the kernel and lets it finish what it can
    /// without waiting, in one system call, or none when there is nothing to
    /// do.
    ///
    /// # Errors
    /// [`RingError::Enter`]; what was not handed over is kept for the next
    /// call. Being short of memory for the moment is not an error.
    pub fn submit(&mut self) -> Result<(), RingError> {
        if let Some(second) = self.second_mut() {
            second.submit()?;
        }
        self.first.submit()
    }

    /// Appends what is done to `done`.
    ///
    /// # Errors
    /// [`Stray`] for a completion that belongs to nothing, after all others
    /// have been taken.
    pub fn reap(&mut self, done: &mut Vec<Done>) -> Result<(), Stray> {
        let there = self.second_mut().map_or(Ok(()), |second| second.reap(done));
        self.first.reap(done).and(there)
    }

    /// From now on until the next [`submit`](Self::submit), makes
    /// [`wait_fd`](Self::wait_fd) readable when something is done. False when
    /// something is waiting for `submit` or `reap` already: do not sleep then.
    ///
    /// A sleep may end early (`EINTR`).
    #[must_use]
    pub fn arm(&mut self) -> bool {
        self.first.let_go_of_lent();
        let asks = self.second_mut().is_some_and(|second| {
            second.let_go_of_lent();
            second.in_flight() > 0
        });
        // Who has to ask cannot sleep.
        self.first.arm() && !asks
    }

    /// Becomes readable when something is done, after [`arm`](Self::arm).
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.first.wait_fd()
    }

    /// Makes [`wait_fd`](Self::wait_fd) readable from another thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.first.waker()
    }
}

impl AsFd for Ring {
    /// The ring itself, to look at in `/proc`. Not to sleep on: with
    /// [`Mode::Deferred`] it does not become readable by itself.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.first.as_fd()
    }
}

#[cfg(test)]
mod tests;
