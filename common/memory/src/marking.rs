//! Revoking memory from a process that may be using it, with two words that both processes
//! share.
//!
//! The user *marks* the memory and then checks whether it was *revoked*. The owner revokes
//! it and then checks for the mark. If both do so at the same time, at least one sees the
//! other: the owner has a full fence between its store and its load, and those of the user
//! are `SeqCst`, which is cheaper for each use. `tests/marking.rs` tests every order of
//! execution.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A shared word. Tests have an implementation of their own beside [`AtomicU64`].
pub trait Word {
    /// See [`AtomicU64::load`].
    fn load(&self, order: Ordering) -> u64;
    /// See [`AtomicU64::store`].
    fn store(&self, value: u64, order: Ordering);
    /// See [`AtomicU64::swap`].
    fn swap(&self, value: u64, order: Ordering) -> u64;
    /// See [`fence`].
    fn fence(order: Ordering);
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }

    #[inline]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        Self::swap(self, value, order)
    }

    #[inline]
    fn fence(order: Ordering) {
        fence(order);
    }
}

/// Marks memory before its use. Returns false if it is marked already. The memory may be used
/// only after [`is_revoked`] returned false.
#[inline]
pub fn mark(mark: &impl Word) -> bool {
    mark.swap(1, Ordering::SeqCst) == 0
}

/// Ends the use. An owner that sees this also sees all earlier accesses.
#[inline]
pub fn unmark(mark: &impl Word) {
    mark.store(0, Ordering::Release);
}

/// Whether the memory `name` was revoked; to be called after marking it.
#[inline]
pub fn is_revoked(revoked: &impl Word, name: u64) -> bool {
    revoked.load(Ordering::SeqCst) == name
}

/// Revokes the memory `name`. Returns false if it is in use: then the owner waits until it is
/// no longer [marked](is_marked).
#[inline]
pub fn revoke<W: Word>(revoked: &W, name: u64, mark: &W) -> bool {
    revoked.store(name, Ordering::Relaxed);
    W::fence(Ordering::SeqCst);
    !is_marked(mark)
}

/// Whether the memory is in use.
#[inline]
pub fn is_marked(mark: &impl Word) -> bool {
    mark.load(Ordering::Acquire) != 0
}
