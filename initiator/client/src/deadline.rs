//! The time limit of a call.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Awaited, Error, TimedOut};

/// When a call ends at the latest, by a time limit of the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    limit: Duration,
}

impl Deadline {
    /// The deadline of a call that starts now. `None` if the clock does not reach it.
    pub(crate) fn after(limit: Duration) -> Option<Self> {
        let at = Instant::now().checked_add(limit)?;
        Some(Self { at, limit })
    }

    /// Whether it has passed.
    pub(crate) fn has_passed(&self) -> bool {
        Instant::now() >= self.at
    }

    /// Waits for `what`, which changes no data. It is not begun after the deadline.
    ///
    /// # Errors
    /// The deadline has passed.
    pub(crate) async fn bound<T>(
        &self,
        what: impl Future<Output = T>,
        waiting_for: Awaited,
    ) -> Result<T, Error> {
        if self.has_passed() {
            return Err(self.error(Awaited::Submission, false));
        }
        let ended = tokio::time::timeout_at(self.at, what).await;
        ended.map_err(|_| self.error(waiting_for, false))
    }

    /// The error of a call that ends because the deadline has passed.
    pub(crate) fn error(&self, waiting_for: Awaited, may_have_executed: bool) -> Error {
        Error::TimedOut(Arc::new(TimedOut {
            limit: self.limit,
            waiting_for,
            may_have_executed,
        }))
    }
}
