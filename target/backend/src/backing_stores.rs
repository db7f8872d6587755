//! The interface of a reactor to its backing stores. [`UringStores`](crate::UringStores)
//! implements it, and the simulation has an implementation of its own.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_uring::RingError;

use crate::{Claim, Done, Losses, OpenError, RefusalReason, Request, Submitted};

/// The backing stores of one reactor, by the numbers that namespaces refer to.
pub trait BackingStores {
    /// The numbers of the open backing stores.
    fn stores(&self) -> Vec<u32>;

    /// Opens `claim` under that number, which no open backing store has.
    ///
    /// # Errors
    /// [`OpenError`]; nothing was opened.
    fn open(&mut self, _store: u32, _claim: &Claim) -> Result<(), OpenError> {
        Ok(())
    }

    /// Closes a backing store. Returns false while it has requests in flight: retry later.
    fn close(&mut self, _store: u32) -> bool {
        true
    }

    /// The operations of a backing store that is being closed do not end, and their results no
    /// longer matter: they do not count as [outstanding](Self::outstanding).
    fn abandon(&mut self, _store: u32) {}

    /// What messages call that backing store.
    fn name(&self, store: u32) -> String {
        format!("backing store {store}")
    }

    /// Alignment of the address of each buffer for that backing store, in bytes: a power of
    /// two.
    fn buffer_alignment(&self, _store: u32) -> u32 {
        1
    }

    /// Identity of the file or device. Two backing stores over the same file, opened before
    /// and after it was resized, have the same one.
    fn identity(&self, store: u32) -> u64 {
        store.into()
    }

    /// Write losses: completed writes that a failed flush may have lost. `None` for memory,
    /// which loses nothing.
    fn losses(&self, _store: u32) -> Option<Arc<Losses>> {
        None
    }

    /// Submits a request, which is complete then or taken: [`poll`](Self::poll) returns its
    /// completion exactly once. A refused request is unchanged.
    ///
    /// # Errors
    /// [`RefusalReason`].
    fn submit(&mut self, store: u32, request: &mut Request) -> Result<Submitted, RefusalReason>;

    /// Starts submitted operations and appends completions. Never waits.
    ///
    /// # Errors
    /// When I/O as a whole fails, independent of any request.
    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), BackingStoresError>;

    /// Whether there is nothing to do until [`wait_fd`](Self::wait_fd) becomes
    /// readable.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    fn may_sleep(&mut self) -> Result<bool, BackingStoresError>;

    /// Whether to sleep instead of polling, because a sleep collects several completions of slow
    /// operations.
    fn completes_in_batches(&self) -> bool {
        false
    }

    /// The longest sleep after [`may_sleep`](Self::may_sleep) returned true; `None`: there is no
    /// limit.
    fn longest_sleep(&self) -> Option<Duration> {
        None
    }

    /// The backing stores that have operations outstanding, and how many.
    fn outstanding(&self) -> Vec<(String, usize)> {
        Vec::new()
    }

    /// The descriptor to sleep on; `None` where no thread ever sleeps.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;
}

/// I/O on all backing stores failed.
#[derive(Debug, thiserror::Error)]
#[error("I/O on backing stores is no longer possible: {0}")]
pub struct BackingStoresError(#[from] pub RingError);
