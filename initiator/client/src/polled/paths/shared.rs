//! What the two halves share: the state of the paths, and what one half reports to the other.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvmeof_initiator_core::multipath::{PathAccess, PathState, RetryPolicy};
use nvmeof_memory::Region;
use nvmeof_rdma::Address;
use nvmeof_wire::Nqn;

use super::keys::KeyRequest;
use super::{PathEvent, PathStatus};
use crate::error::{Error, NoPath};
use crate::polled::io::IoQueue;

/// The number of a controller, from its connection to its loss. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Incarnation(pub(super) u64);

/// Wake the threads that drive the two halves. A thread that sleeps calls its half when it is
/// woken. Not needed if one thread drives both.
#[derive(Clone, Default)]
pub struct Wakers {
    /// Wakes the thread of [`MultipathAdmin`](super::MultipathAdmin).
    pub admin: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Wakes the thread of [`MultipathIo`](super::MultipathIo).
    pub io: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Wakers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wakers").finish_non_exhaustive()
    }
}

/// The shared state, and a counter of its changes.
#[derive(Debug)]
pub(super) struct Shared {
    /// Changes after each change that the I/O half has to see.
    version: AtomicU64,
    state: Mutex<State>,
    wakers: Wakers,
    subnqn: Nqn,
}

#[derive(Debug)]
pub(super) struct State {
    /// In the order of the configuration. The admin half writes them.
    pub(super) paths: Vec<PathView>,
    /// Controllers that are fenced; the I/O half takes them. Only controllers that it took are
    /// fenced, so their number is limited.
    pub(super) fenced: Vec<Incarnation>,
    /// The last request of each live controller, until the I/O half takes it.
    pub(super) key_requests: Vec<KeyRequest>,
    /// The I/O half is closed: it takes no requests.
    pub(super) is_io_ended: bool,
    /// The I/O half takes them.
    pub(super) events: VecDeque<PathEvent>,
    /// The admin half takes them.
    pub(super) reports: Vec<Report>,
    /// The memory of calls, to be registered with every queue.
    pub(super) regions: Vec<Region>,
}

/// What the I/O half knows of a path.
#[derive(Debug)]
pub(super) struct PathView {
    pub(super) addr: Address,
    /// Connected queues, until the I/O half takes them.
    pub(super) incoming: Option<Incoming>,
    /// The controller, while it is live.
    pub(super) live: Option<Incarnation>,
    /// Its access to the namespace.
    pub(super) access: PathAccess,
    /// Reports of the live controller that are part of `access`: see [`Report::Refused`].
    pub(super) refusals: u64,
    /// Whether a live path has, or may get, access without a reconnect.
    pub(super) may_access: bool,
    /// When it is preferred to others.
    pub(super) settled_at: Duration,
    pub(super) state: PathState,
    /// When calls stop waiting for a lost path, if they do.
    pub(super) fails_at: Option<Duration>,
    pub(super) last_error: Option<Error>,
}

/// The connected queues of a controller.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) incarnation: Incarnation,
    pub(super) queues: Vec<IoQueue>,
    pub(super) retry: RetryPolicy,
    /// The number of regions that are registered with the queues.
    pub(super) regions: usize,
}

/// What the I/O half found out.
#[derive(Debug)]
pub(super) enum Report {
    /// A queue of the controller is lost.
    Lost(Incarnation, Error),
    /// The controller refused a command because of its ANA state.
    Refused(Incarnation),
    /// The answer to the [`KeyRequest`] of that number.
    Authenticated(Incarnation, u64, Result<(), Error>),
}

impl Report {
    /// The controller that it is about.
    pub(super) fn of(&self) -> Incarnation {
        let (Self::Lost(of, _) | Self::Refused(of) | Self::Authenticated(of, ..)) = self;
        *of
    }
}

/// Events that are kept for a caller that does not take them; older ones are dropped.
const MAX_EVENTS: usize = 256;

impl Shared {
    pub(super) fn new(subnqn: Nqn, addrs: impl Iterator<Item = Address>, wakers: Wakers) -> Self {
        let path = |addr| PathView {
            addr,
            incoming: None,
            live: None,
            access: PathAccess::None,
            refusals: 0,
            may_access: false,
            settled_at: Duration::MAX,
            state: PathState::Backoff,
            fails_at: None,
            last_error: None,
        };
        Self {
            version: AtomicU64::new(0),
            state: Mutex::new(State {
                paths: addrs.map(path).collect(),
                fenced: Vec::new(),
                key_requests: Vec::new(),
                is_io_ended: false,
                events: VecDeque::new(),
                reports: Vec::new(),
                regions: Vec::new(),
            }),
            wakers,
            subnqn,
        }
    }

    /// The number of changes. The state is at least as new.
    #[inline]
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // No state is inconsistent between two statements of a holder.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state was changed for the I/O half.
    pub(super) fn changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
        if let Some(wake) = &self.wakers.io {
            wake();
        }
    }

    /// Reports to the admin half.
    pub(super) fn report(&self, report: Report) {
        self.lock().reports.push(report);
        if let Some(wake) = &self.wakers.admin {
            wake();
        }
    }

    /// The error of a call for which no path may become available.
    pub(super) fn no_path(&self) -> Error {
        let state = self.lock();
        let paths = state.paths.iter();
        let paths = paths.map(|path| (path.addr, path.last_error.clone()));
        Error::NoPath(Arc::new(NoPath {
            subnqn: self.subnqn,
            paths: paths.collect(),
            states: Vec::new(),
        }))
    }
}

impl State {
    /// Adds a request, instead of an earlier one of its controller.
    pub(super) fn push_key_request(&mut self, request: KeyRequest) {
        self.key_requests.retain(|one| one.of != request.of);
        self.key_requests.push(request);
    }

    /// Adds an event, instead of the oldest one if there are too many.
    pub(super) fn push_event(&mut self, event: PathEvent) {
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Whether calls without a path wait at `now`.
    pub(super) fn may_wait(&self, now: Duration) -> bool {
        self.paths.iter().any(|path| path.may_wait(now))
    }

    /// When [`may_wait`](Self::may_wait) may change by itself.
    pub(super) fn fails_at(&self, now: Duration) -> Option<Duration> {
        let times = self.paths.iter().filter_map(|path| path.fails_at);
        times.filter(|at| *at > now).min()
    }
}

impl PathView {
    fn may_wait(&self, now: Duration) -> bool {
        match self.live {
            Some(_) => self.may_access,
            None => {
                let ended = matches!(self.state, PathState::GivenUp | PathState::Disconnected);
                !ended && self.fails_at.is_none_or(|at| now < at)
            }
        }
    }

    pub(super) fn status(&self) -> PathStatus {
        PathStatus {
            addr: self.addr,
            state: self.state,
            is_accessible: self.live.is_some() && self.access != PathAccess::None,
            last_error: self.last_error.clone(),
        }
    }
}
