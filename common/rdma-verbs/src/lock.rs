//! Mutexes that a panic does not poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Nothing that is done under these locks can leave a mess behind.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
