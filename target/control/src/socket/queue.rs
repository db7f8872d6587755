//! Requests that may take long: how many wait, and what is done together.
//!
//! Edits of the configuration that wait are made as one change, by the first
//! client's request that gets a turn. A client that goes away takes its edits with
//! it unless they are being made already; those are made as a whole.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::changes::{ChangeError, Edit, Outcome};
use crate::http::{Fault, WORKERS};
use nvmeof_target_manage::files;

/// Whose turn it is. Clones are the same.
#[derive(Clone, Debug)]
pub struct ChangeQueue {
    working: Arc<Semaphore>,
    places: Arc<Semaphore>,
    most: usize,
    /// A change that is in progress for longer is reported to those who wait.
    pub(super) patience: Duration,
    waiting: Arc<Mutex<Vec<Waiting>>>,
}

/// A place among the requests that wait.
#[derive(Debug)]
pub(super) struct Waits {
    queue: ChangeQueue,
    place: OwnedSemaphorePermit,
}

/// One that may work, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    /// None where nobody counts any more: the target ends.
    _working: Option<OwnedSemaphorePermit>,
    _place: OwnedSemaphorePermit,
}

/// Edits that wait for a turn, whoever's.
#[derive(Debug)]
pub(super) struct Waiting {
    edits: Vec<Edit>,
    reply: Reply,
}

/// Where the outcome of edits goes.
pub(super) type Reply = oneshot::Sender<Result<Outcome, ChangeError>>;

/// The client that waits for the outcome of its edits.
pub(super) struct Awaited {
    waiting: Arc<Mutex<Vec<Waiting>>>,
    pub(super) outcome: oneshot::Receiver<Result<Outcome, ChangeError>>,
}

/// Requests that are worked on; of changes one at a time goes on.
const WORKING: usize = WORKERS / 2;
/// Longer than a reactor that does not answer is waited for, some times over.
const PATIENCE: Duration = Duration::from_secs(30);
/// Of so many connections one is not for changes but for those who ask.
const ASKING_SHARE: usize = 8;

impl Default for ChangeQueue {
    fn default() -> Self {
        let connections = files::managing();
        Self::with_most(connections - connections.div_ceil(ASKING_SHARE))
    }
}

impl ChangeQueue {
    /// So many requests may wait and be worked on together.
    pub(super) fn with_most(most: usize) -> Self {
        Self {
            working: Arc::new(Semaphore::new(WORKING)),
            places: Arc::new(Semaphore::new(most)),
            most,
            patience: PATIENCE,
            waiting: Arc::default(),
        }
    }

    /// A place to wait in.
    ///
    /// # Errors
    /// Too many wait already.
    pub(super) fn enter(&self) -> Result<Waits, Fault> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| {
            let what = format!(
                "{} requests for changes are waiting, which is the limit; try again when some \
                 are done, or make several changes in one request",
                self.most
            );
            Fault::new(StatusCode::SERVICE_UNAVAILABLE, what)
        })?;
        let queue = self.clone();
        Ok(Waits { queue, place })
    }

    /// Requests whose edits nobody makes yet.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        lock(&self.waiting).len()
    }

    /// Everything that waits to be made, in the order in which it came.
    pub(super) fn take(&self) -> Vec<(Reply, Vec<Edit>)> {
        let all = std::mem::take(&mut *lock(&self.waiting)).into_iter();
        all.map(|one| (one.reply, one.edits)).collect()
    }
}

impl Waits {
    /// Leaves edits to be made by the next request that gets a turn.
    pub(super) fn leave(&self, edits: Vec<Edit>) -> Awaited {
        let (reply, outcome) = oneshot::channel();
        lock(&self.queue.waiting).push(Waiting { edits, reply });
        let waiting = Arc::clone(&self.queue.waiting);
        Awaited { waiting, outcome }
    }

    /// Waits for a turn, in the order of those who come.
    pub(super) async fn turn(self) -> Turn {
        let working = Arc::clone(&self.queue.working).acquire_owned().await;
        Turn {
            _working: working.ok(),
            _place: self.place,
        }
    }
}

impl Awaited {
    /// Takes the edits back, unless they are being made. Says whether it did.
    pub(super) fn withdraw(&mut self) -> bool {
        self.outcome.close();
        let mut waiting = lock(&self.waiting);
        let before = waiting.len();
        waiting.retain(|one| !one.reply.is_closed());
        waiting.len() < before
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.withdraw();
    }
}

fn lock(waiting: &Mutex<Vec<Waiting>>) -> MutexGuard<'_, Vec<Waiting>> {
    // It is replaced as a whole.
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}
