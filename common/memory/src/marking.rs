//! How memory is taken back from a process that may be using it: two words that
//! both processes see.
//!
//! The user *marks* the memory and then looks whether it was *revoked*. The
//! owner revokes it and then looks for the mark. Of two that do so at once, one
//! sees the other: between a store and the load that follows it there is a full
//! fence on one side, and on the other both are `SeqCst`, which costs less for
//! each use. `tests/marking.rs` tries every order in which this can run.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A word that both sides see. Tests have another than [`AtomicU64`].
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

/// The user is about to use the memory. False when it is marked already.
/// Nothing is used before [`is_revoked`] said no.
#[inline]
pub fn mark(mark: &impl Word) -> bool {
    mark.swap(1, Ordering::SeqCst) == 0
}

/// The user is done. The owner that sees it sees what was done before.
#[inline]
pub fn unmark(mark: &impl Word) {
    mark.store(0, Ordering::Release);
}

/// Whether what `name` stands for was revoked; asked after it was marked.
#[inline]
pub fn is_revoked(revoked: &impl Word, name: u64) -> bool {
    revoked.load(Ordering::SeqCst) == name
}

/// The owner takes back what `name` stands for. False while it is in use: then
/// the owner waits until it is not [marked](is_marked) any more.
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
