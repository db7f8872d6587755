//! The queue of requests that may take long.
//!
//! All pending edits of the configuration are applied as one change, by the first request that
//! gets a worker. A client that disconnects withdraws its edits, unless they are being applied
//! already; those are applied completely.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::changes::{ChangeError, Edit, Outcome};
use crate::http::{Fault, WORKERS};
use nvmeof_target_manage::files;

/// The queue of requests. Clones share it.
#[derive(Clone, Debug)]
pub struct ChangeQueue {
    workers: Arc<Semaphore>,
    entries: Arc<Semaphore>,
    orders: Arc<Semaphore>,
    /// The most requests that wait or are executed.
    most: usize,
    /// A change in progress for longer is reported to the clients that wait.
    pub(super) stall_limit: Duration,
    waiting: Arc<Mutex<Vec<PendingEdits>>>,
}

/// A request that was admitted to the queue.
#[derive(Debug)]
pub(super) struct Entry {
    queue: ChangeQueue,
    permit: OwnedSemaphorePermit,
}

/// The right to execute a request, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    /// `None` if the semaphore is closed: the target ends.
    _worker: Option<OwnedSemaphorePermit>,
    _entry: OwnedSemaphorePermit,
}

/// Pending edits of one client.
#[derive(Debug)]
pub(super) struct PendingEdits {
    edits: Vec<Edit>,
    reply: Reply,
}

/// Receives the outcome of edits.
pub(super) type Reply = oneshot::Sender<Result<Outcome, ChangeError>>;

/// The outcome of edits, for which a client waits.
pub(super) struct PendingOutcome {
    waiting: Arc<Mutex<Vec<PendingEdits>>>,
    pub(super) outcome: oneshot::Receiver<Result<Outcome, ChangeError>>,
}

/// Requests that are executed at a time; changes among them are applied one after the other.
const CONCURRENT: usize = WORKERS / 2;
/// Orders of high availability that wait for an answer at a time.
const CONCURRENT_ORDERS: usize = 2;
/// Changes and orders leave workers for requests that only read.
const _: () = assert!(CONCURRENT + CONCURRENT_ORDERS < WORKERS);
/// Several times the bound after which a reactor counts as stalled.
const STALL_LIMIT: Duration = Duration::from_secs(30);
/// One of this many connections is reserved for requests that only read.
const RESERVED_SHARE: usize = 8;

impl Default for ChangeQueue {
    fn default() -> Self {
        let connections = files::managing();
        Self::with_most(connections - connections.div_ceil(RESERVED_SHARE))
    }
}

impl ChangeQueue {
    /// At most `most` requests wait or are executed.
    pub(super) fn with_most(most: usize) -> Self {
        Self {
            workers: Arc::new(Semaphore::new(CONCURRENT)),
            entries: Arc::new(Semaphore::new(most)),
            orders: Arc::new(Semaphore::new(CONCURRENT_ORDERS)),
            most,
            stall_limit: STALL_LIMIT,
            waiting: Arc::default(),
        }
    }

    /// Admits a request.
    ///
    /// # Errors
    /// If the limit is reached.
    pub(super) fn enter(&self) -> Result<Entry, Fault> {
        let permit = Arc::clone(&self.entries).try_acquire_owned();
        let permit = permit.map_err(|_| {
            let what = format!(
                "{} requests for changes are waiting, which is the limit; retry later, or combine \
                 changes in one request",
                self.most
            );
            Fault::new(StatusCode::SERVICE_UNAVAILABLE, what)
        })?;
        let queue = self.clone();
        Ok(Entry { queue, permit })
    }

    /// The number of requests with pending edits.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        lock(&self.waiting).len()
    }

    /// Takes all pending edits, in the order of their arrival.
    pub(super) fn take(&self) -> Vec<(Reply, Vec<Edit>)> {
        let all = std::mem::take(&mut *lock(&self.waiting)).into_iter();
        all.map(|one| (one.reply, one.edits)).collect()
    }
}

impl Entry {
    /// Queues edits for the next request that gets a worker.
    pub(super) fn push(&self, edits: Vec<Edit>) -> PendingOutcome {
        let (reply, outcome) = oneshot::channel();
        lock(&self.queue.waiting).push(PendingEdits { edits, reply });
        let waiting = Arc::clone(&self.queue.waiting);
        PendingOutcome { waiting, outcome }
    }

    /// Waits for a worker, in order of arrival.
    pub(super) async fn acquire(self) -> Permit {
        let workers = Arc::clone(&self.queue.workers);
        self.acquire_of(workers).await
    }

    /// Waits for a worker for an order of high availability. It does not wait for changes: a
    /// backing store that stalls them may be the reason for the order.
    pub(super) async fn acquire_for_order(self) -> Permit {
        let workers = Arc::clone(&self.queue.orders);
        self.acquire_of(workers).await
    }

    async fn acquire_of(self, workers: Arc<Semaphore>) -> Permit {
        Permit {
            _worker: workers.acquire_owned().await.ok(),
            _entry: self.permit,
        }
    }
}

impl PendingOutcome {
    /// Withdraws the edits, unless they are being applied. Returns whether it did.
    pub(super) fn withdraw(&mut self) -> bool {
        self.outcome.close();
        let mut waiting = lock(&self.waiting);
        let before = waiting.len();
        waiting.retain(|one| !one.reply.is_closed());
        waiting.len() < before
    }
}

impl Drop for PendingOutcome {
    fn drop(&mut self) {
        self.withdraw();
    }
}

fn lock(waiting: &Mutex<Vec<PendingEdits>>) -> MutexGuard<'_, Vec<PendingEdits>> {
    // Each update is a single operation, so a panic leaves it consistent.
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}
