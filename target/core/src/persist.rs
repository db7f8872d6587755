//! The outcome of a save of settings of hosts.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A save failed. Displays as the cause.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct SaveError(Arc<str>);

/// A pending save, and its outcome. Clones are the same save.
#[derive(Clone, Debug, Default)]
pub struct PendingSave {
    write: Arc<Write>,
}

#[derive(Debug, Default)]
struct Write {
    outcome: Mutex<Option<Result<(), SaveError>>>,
    over: Condvar,
}

impl PendingSave {
    /// The outcome; `None` while it is pending. Once it is known, the namespaces are in
    /// the resulting states.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<(), SaveError>> {
        self.write.lock().clone()
    }

    /// Whether the outcome is known.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.write.lock().is_some()
    }

    /// Waits for the outcome, for `most` at most. It blocks: not for reactors.
    #[must_use]
    pub fn wait(&self, most: Duration) -> Option<Result<(), SaveError>> {
        let outcome = self.write.lock();
        let waited = self
            .write
            .over
            .wait_timeout_while(outcome, most, |outcome| outcome.is_none());
        let (outcome, _) = waited.unwrap_or_else(PoisonError::into_inner);
        outcome.clone()
    }

    /// The save ended with this result.
    pub(crate) fn end(&self, result: io::Result<()>) {
        let result = result.map_err(|error| SaveError(error.to_string().into()));
        *self.write.lock() = Some(result);
        self.write.over.notify_all();
    }
}

impl Write {
    fn lock(&self) -> MutexGuard<'_, Option<Result<(), SaveError>>> {
        // It is replaced as a whole.
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
