//! What a reactor needs of its backing stores. [`Disks`](crate::Disks) keeps this contract,
//! and a simulation has stores of its own.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nvmeof_uring::RingError;

use crate::{Claim, Done, Losses, OpenError, Refused, Request};

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
