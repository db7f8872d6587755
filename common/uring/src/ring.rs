//! The ring of a thread: one io_uring, and a second one as soon as it has polled files.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use nix::fcntl::FallocateFlags;
use nvmeof_memory::{Buf, Region};

use crate::errno::errno_of;
use crate::files::{FileId, FileTableFull, IssuedBy};
use crate::fixed::Registered;
use crate::operation::{Refused, WriteMode};
use crate::pieces::NotRegistered;
use crate::polled::{Polled, PolledError};
use crate::start::{MODES, Mode, RingConfig, RingError};
use crate::uring::{Done, RingCounts, UnexpectedCompletion, Uring, Waker};

/// One io_uring, for the thread that made it.
///
/// One iteration of an event loop: start operations, [`submit`](Self::submit) them,
/// [`reap`](Self::reap) completions. The kernel gets the first of many operations while
/// the others are still being started. To sleep, [`arm`](Self::arm) the ring and wait for
/// [`wait_fd`](Self::wait_fd) to become readable.
///
/// Dropping a ring cancels operations where possible and waits for the rest: a buffer is
/// not reused as long as the kernel may write to it.
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
    /// [`RingError`], whose message contains the remedy.
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

    /// How completions are delivered.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.first.mode()
    }

    /// Counters since it was made.
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

    /// Registers as many of `regions` as fixed buffers as the limit on locked memory allows,
    /// the first ones first. They replace those of an earlier call. Buffers in other
    /// regions work too, a little slower.
    pub fn register_regions<'a>(
        &mut self,
        regions: impl IntoIterator<Item = &'a Region>,
    ) -> Registered {
        let regions: Vec<_> = regions.into_iter().collect();
        let registered = self.first.register_regions(regions.iter().copied());
        let Some(second) = self.second_mut() else {
            return registered;
        };
        // Each ring has a limit of its own on some kernels: report the worse result.
        let there = second.register_regions(regions.into_iter());
        if there.left_out > registered.left_out {
            return there;
        }
        registered
    }

    /// Pieces of lent memory ([`Buf::is_lent`]) that are registered as fixed buffers: each
    /// is registered when an operation first uses it, and released when the memory has no
    /// user any more.
    #[must_use]
    pub fn lent_pieces(&self) -> usize {
        self.first.lent_pieces() + self.second().map_or(0, Uring::lent_pieces)
    }

    /// Why some lent memory is not registered at this moment: `None` when the kernel
    /// refused none.
    #[must_use]
    pub fn lent_left_out(&self) -> Option<NotRegistered> {
        let refused = self.first.lent_left_out();
        refused.or_else(|| self.second()?.lent_left_out())
    }

    /// Adds a file to the ring, which owns it until [`remove_file`](Self::remove_file) or
    /// until the ring is dropped.
    ///
    /// # Errors
    /// [`FileTableFull`].
    pub fn add_file(&mut self, file: File) -> Result<FileId, FileTableFull> {
        self.add_file_as(file, IssuedBy::Submitter)
    }

    /// As [`add_file`](Self::add_file), with the thread that starts operations on it.
    ///
    /// # Errors
    /// [`FileTableFull`].
    pub fn add_file_as(
        &mut self,
        file: File,
        issued_by: IssuedBy,
    ) -> Result<FileId, FileTableFull> {
        self.first.add_file(file, issued_by)
    }

    /// As [`add_file`](Self::add_file), for a file with direct I/O on a device
    /// that can be polled: reads, and writes that need not be durable, complete by polling
    /// and not by an interrupt. As long as some are in flight, the owner of the ring cannot
    /// sleep. On other files they fail with `EOPNOTSUPP`.
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
        polled.add_file(duplicate, || first.add_file(file, IssuedBy::Submitter))
    }

    /// Removes a file from the ring. Operations in flight on it complete. `None` when it is
    /// not in the ring.
    ///
    /// # Errors
    /// [`RingError::Enter`] when operations on it could not be submitted first; the file
    /// stays.
    pub fn remove_file(&mut self, id: FileId) -> Result<Option<File>, RingError> {
        self.first.hand_over()?;
        if let Some(polled) = &mut self.polled {
            polled.remove_file(id)?;
        }
        Ok(self.first.remove_file(id))
    }

    /// Reads from byte `offset` of `file` into the view of `buf`. The result is the number
    /// of bytes read, which may be fewer.
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

    /// Writes the view of `buf` to `file` from byte `offset` on. The result is the number of
    /// bytes written, which may be fewer.
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
        // A durable write may require a flush, which cannot be polled.
        if mode == WriteMode::Normal
            && let Some(polled) = &mut self.polled
            && let Some((second, file)) = polled.at(file)
        {
            return second.write(tag, file, offset, buf, mode);
        }
        self.first.write(tag, file, offset, buf, mode)
    }

    /// Completes when everything written to `file` before is on the medium: with `datasync`
    /// the data and the metadata needed to read it (fdatasync), without it also other
    /// metadata such as times (fsync).
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

    /// Whether [`submit`](Self::submit) and [`reap`](Self::reap) have nothing to do until an
    /// operation is started.
    #[inline]
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.first.is_idle() && self.second().is_none_or(Uring::is_idle)
    }

    /// Operations that can be started before one must be reaped.
    #[must_use]
    pub fn room(&self) -> usize {
        let room = self.first.room();
        self.second().map_or(room, |second| room.min(second.room()))
    }

    /// Submits all started operations to the kernel and runs its pending completions,
    /// without waiting, in one system call, or none when there is nothing to do.
    ///
    /// # Errors
    /// [`RingError::Enter`]; operations that were not submitted are kept for the next call.
    /// A transient shortage of memory is not an error.
    pub fn submit(&mut self) -> Result<(), RingError> {
        if let Some(second) = self.second_mut() {
            second.submit()?;
        }
        self.first.submit()
    }

    /// Appends completions to `done`.
    ///
    /// # Errors
    /// [`UnexpectedCompletion`] for a completion that belongs to no operation, after all others
    /// were appended.
    pub fn reap(&mut self, done: &mut Vec<Done>) -> Result<(), UnexpectedCompletion> {
        let there = self.second_mut().map_or(Ok(()), |second| second.reap(done));
        self.first.reap(done).and(there)
    }

    /// Makes [`wait_fd`](Self::wait_fd) readable with the next completion, until the next
    /// [`submit`](Self::submit). Returns false when there is work for `submit` or `reap`
    /// already: do not sleep then.
    ///
    /// A sleep may end early (`EINTR`).
    #[must_use]
    pub fn arm(&mut self) -> bool {
        self.first.release_lent();
        // Polled operations do not end a sleep.
        let polls = self.second_mut().is_some_and(|second| {
            second.release_lent();
            second.in_flight() > 0
        });
        self.first.arm() && !polls
    }

    /// Becomes readable with the next completion, after [`arm`](Self::arm).
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
    /// The descriptor of the ring, to inspect it in `/proc`. Not to sleep on: with
    /// [`Mode::Deferred`] it does not become readable by itself.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.first.as_fd()
    }
}

#[cfg(test)]
mod tests;
