//! Requests that may take long, which leave threads for those that do not.

use std::sync::Arc;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Fault;
use super::answering::WORKERS;

/// Whose turn it is. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    working: Arc<Semaphore>,
    there: Arc<Semaphore>,
}

/// One that may work, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _working: OwnedSemaphorePermit,
    _there: OwnedSemaphorePermit,
}

/// Requests that are worked on; of changes one at a time goes on.
const WORKING: usize = WORKERS / 2;
/// And with them those that wait; the connections that are left are for others.
const MOST: usize = WORKING + 4;

impl Default for Turns {
    fn default() -> Self {
        Self {
            working: Arc::new(Semaphore::new(WORKING)),
            there: Arc::new(Semaphore::new(MOST)),
        }
    }
}

impl Turns {
    /// Waits for one, in the order of those who come.
    ///
    /// # Errors
    /// Too many wait already.
    pub(super) async fn wait(&self) -> Result<Turn, Fault> {
        let busy = || {
            let what = format!(
                "{MOST} requests for changes wait already, perhaps for a disk that hangs; try \
                 again later"
            );
            Fault::new(StatusCode::SERVICE_UNAVAILABLE, what)
        };
        let there = Arc::clone(&self.there);
        let there = there.try_acquire_owned().map_err(|_| busy())?;
        let working = Arc::clone(&self.working).acquire_owned().await;
        Ok(Turn {
            _working: working.map_err(|_| busy())?,
            _there: there,
        })
    }
}
