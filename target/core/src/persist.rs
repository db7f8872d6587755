//! The outcome of a write that makes persistent what hosts set.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What is to be kept could not be. Displays as the cause.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotKept(Arc<str>);

/// A place in a write: says what came of it. Clones have the same place.
#[derive(Clone, Debug, Default)]
pub struct Keeping {
    write: Arc<Write>,
}

#[derive(Debug, Default)]
struct Write {
    outcome: Mutex<Option<Result<(), NotKept>>>,
    over: Condvar,
}

impl Keeping {
    /// What came of it; `None` as long as it is not known. By the time it is, the
    /// namespaces are in the states that follow from it.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<(), NotKept>> {
        self.write.lock().clone()
    }

    /// Whether it is known.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.write.lock().is_some()
    }

    /// What came of it, for which it waits for that long at most. Not for reactors.
    #[must_use]
    pub fn wait(&self, most: Duration) -> Option<Result<(), NotKept>> {
        let outcome = self.write.lock();
        let waited = self
            .write
            .over
            .wait_timeout_while(outcome, most, |outcome| outcome.is_none());
        let (outcome, _) = waited.unwrap_or_else(PoisonError::into_inner);
        outcome.clone()
    }

    /// The write ended with that result.
    pub(crate) fn end(&self, result: io::Result<()>) {
        let result = result.map_err(|error| NotKept(error.to_string().into()));
        *self.write.lock() = Some(result);
        self.write.over.notify_all();
    }
}

impl Write {
    fn lock(&self) -> MutexGuard<'_, Option<Result<(), NotKept>>> {
        // It is replaced as a whole.
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
