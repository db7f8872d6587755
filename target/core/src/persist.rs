//! The outcome of a save of settings of hosts.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A save failed. Displays as the cause.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct SaveError(Arc<str>);

/// A pending save of one namespace or of several, and its outcome. Clones are the same save.
#[derive(Clone, Debug)]
pub struct PendingSave {
    /// One for each namespace. None: nothing is to be saved.
    writes: Vec<Arc<Write>>,
}

#[derive(Debug, Default)]
struct Write {
    outcome: Mutex<Option<Result<(), SaveError>>>,
    over: Condvar,
}

impl Default for PendingSave {
    /// A pending save of one namespace.
    fn default() -> Self {
        let writes = vec![Arc::default()];
        Self { writes }
    }
}

impl PendingSave {
    /// Nothing is to be saved.
    pub(crate) fn none() -> Self {
        let writes = Vec::new();
        Self { writes }
    }

    /// All of them: it fails if one of them does.
    pub(crate) fn all(parts: impl IntoIterator<Item = Self>) -> Self {
        let writes = parts.into_iter().flat_map(|part| part.writes).collect();
        Self { writes }
    }

    /// Whether there was anything to save.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.writes.is_empty()
    }

    /// The outcome; `None` while it is pending. Once it is known, the namespaces are in
    /// the resulting states.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<(), SaveError>> {
        let outcomes = self.writes.iter().map(|write| write.lock().clone());
        let outcomes: Option<Vec<_>> = outcomes.collect();
        outcomes.map(|all| all.into_iter().collect())
    }

    /// Whether the outcome is known.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.writes.iter().all(|write| write.lock().is_some())
    }

    /// Waits for the outcome, for `most` at most. It blocks: not for reactors.
    #[must_use]
    pub fn wait(&self, most: Duration) -> Option<Result<(), SaveError>> {
        let start = Instant::now();
        for write in &self.writes {
            let outcome = write.lock();
            let left = most.saturating_sub(start.elapsed());
            // The outcome is that of all, whatever a holder of the lock did.
            let _ = write
                .over
                .wait_timeout_while(outcome, left, |outcome| outcome.is_none());
        }
        self.outcome()
    }

    /// The save ended with this result.
    pub(crate) fn end(&self, result: &io::Result<()>) {
        let result = result.as_ref().copied();
        let result = result.map_err(|error| SaveError(error.to_string().into()));
        for write in &self.writes {
            *write.lock() = Some(result.clone());
            write.over.notify_all();
        }
    }
}

impl Write {
    fn lock(&self) -> MutexGuard<'_, Option<Result<(), SaveError>>> {
        // It is replaced as a whole.
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
