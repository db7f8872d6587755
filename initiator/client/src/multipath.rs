//! A subsystem over several paths. Lost paths are connected again, and commands use another path
//! meanwhile. A write whose outcome is unknown is sent again only when the lost controller is
//! fenced.
//!
//! ```no_run
//! use nvmeof_initiator::multipath::{Multipath, MultipathOptions};
//! use nvmeof_initiator::{ConnectOptions, Host, HostConfig, Nqn};
//!
//! # async fn copy() -> Result<(), nvmeof_initiator::Error> {
//! let host = Host::new(HostConfig::of_this_machine()?)?;
//! let subsystem = Nqn::new("nqn.2026-11.org.example:disk").expect("a valid NQN");
//! let paths = ["192.0.2.10:4420", "198.51.100.10:4420"].map(|address| {
//!     let address = address.parse().expect("an address");
//!     ConnectOptions::new(address, subsystem)
//! });
//! let multipath = Multipath::connect(&host, &paths, MultipathOptions::default()).await?;
//! let disk = multipath.namespace(1).await?;
//! let data = disk.read(0, host.buffer(4096)?).await?;
//! # drop(data);
//! # Ok(())
//! # }
//! ```
//!
//! [`nvmeof_initiator_core::multipath`] and [`nvmeof_initiator_core::Fence`] decide what to do.
//! This module does the I/O.

mod authentication;
mod call;
mod choice;
mod connection;
mod events;
mod fencing;
mod head;
mod namespace;
mod numa;
mod path;
mod status;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use nvmeof_initiator_core::multipath::grown;
use nvmeof_wire::Nqn;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

pub use events::{PathChanges, PathEvent};
pub use namespace::MultipathNamespace;
pub use nvmeof_initiator_core::FenceMethod;
pub use nvmeof_initiator_core::multipath::{PathPolicy, PathState, ReconnectOptions};
pub use nvmeof_wire::log::ana::AnaState;
pub use status::{PathStatus, Retries};

use crate::error::{Error, NoPath, UsageError};
use crate::host::Host;
use crate::options::ConnectOptions;
use connection::Connection;
use fencing::Fencing;
use head::Head;
use numa::Topology;
use path::PathSlot;
use status::Stopwatch;

/// Options for all paths of a subsystem.
#[derive(Clone, Debug, Default)]
pub struct MultipathOptions {
    /// How to choose the path of a command.
    pub policy: PathPolicy,
    /// When to connect lost paths again, and when to give them up.
    pub reconnect: ReconnectOptions,
    /// Time after which a lost controller counts as fenced, if it reports no Command Quiesce
    /// Time (CQT) and no other controller can reset it. `None`: three Keep Alive Timeouts. This is
    /// an assumption, because such a controller guarantees no limit.
    pub quiesce: Option<Duration>,
}

/// A subsystem over several paths. Clones share the paths. When the last clone and the last
/// [`MultipathNamespace`] are dropped, the paths are disconnected in the background.
#[derive(Clone)]
pub struct Multipath {
    inner: Arc<Inner>,
}

struct Inner {
    host: Host,
    subnqn: Nqn,
    options: MultipathOptions,
    /// The time 0 of all state machines.
    start: Instant,
    paths: Mutex<Vec<PathSlot>>,
    /// Counts changes that calls depend on.
    version: AtomicU64,
    /// The same, for calls that wait.
    changes: watch::Sender<u64>,
    events: events::Sender,
    /// The CPU that the paths are near to.
    cpu: Option<u32>,
    /// Time that calls waited for a path.
    parked: Stopwatch,
    /// Lost connections to fence.
    lost: mpsc::UnboundedSender<Fencing>,
    /// The namespaces that are in use.
    heads: Mutex<Vec<Weak<Head>>>,
    next_id: AtomicU64,
    /// Keys are changed by one task at a time.
    authenticating: tokio::sync::Mutex<()>,
}

/// How long a call waits for a change before it looks at the paths again.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

impl Multipath {
    /// Connects to one subsystem over `paths`. Returns when the first path is connected; the
    /// others connect in the background. A path that cannot be connected is retried like a lost
    /// one. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// No path can be connected: the error of the only one, or those of all. `paths` is empty, has
    /// several subsystems, or has a path without a Keep Alive Timeout.
    pub async fn connect(
        host: &Host,
        paths: &[ConnectOptions],
        options: MultipathOptions,
    ) -> Result<Self, Error> {
        let Some(first) = paths.first() else {
            return Err(UsageError::Other("no path is given".to_owned()).into());
        };
        if let Some(other) = paths.iter().find(|path| path.subnqn != first.subnqn) {
            let text = format!(
                "paths of two subsystems, {} and {}; give those of one",
                first.subnqn, other.subnqn
            );
            return Err(UsageError::Other(text).into());
        }
        if let Some(path) = paths.iter().find(|path| path.keep_alive.as_millis() == 0) {
            let text = format!(
                "the path to {} has no keep-alive time-out, so neither side would notice its \
                 loss; set one",
                path.addr
            );
            return Err(UsageError::Other(text).into());
        }
        let (lost, receiver) = mpsc::unbounded_channel();
        let inner = Arc::new(Inner {
            host: host.clone(),
            subnqn: first.subnqn,
            start: Instant::now(),
            paths: Mutex::new(
                (0u64..)
                    .zip(paths)
                    .map(|(at, path)| PathSlot::new(path, options.reconnect, at))
                    .collect(),
            ),
            options,
            version: AtomicU64::new(0),
            changes: watch::channel(0).0,
            events: events::channel(),
            cpu: Topology::of_this_machine().current_cpu(),
            parked: Stopwatch::default(),
            lost,
            heads: Mutex::new(Vec::new()),
            next_id: AtomicU64::new(0),
            authenticating: tokio::sync::Mutex::new(()),
        });
        for at in 0..paths.len() {
            tokio::spawn(path::run(Arc::downgrade(&inner), at));
        }
        tokio::spawn(fencing::run(Arc::downgrade(&inner), receiver));
        let this = Self { inner };
        this.inner.first_connected().await?;
        Ok(this)
    }

    /// Opens namespace `nsid`. Waits for a path if all are lost.
    ///
    /// # Errors
    /// The namespace does not exist, its format is not supported, or no path can be used.
    pub async fn namespace(&self, nsid: u32) -> Result<MultipathNamespace, Error> {
        MultipathNamespace::new(Arc::clone(&self.inner), nsid).await
    }

    /// The status of each path, in the order of [`connect`](Self::connect).
    #[must_use]
    pub fn paths(&self) -> Vec<PathStatus> {
        let now = self.inner.now();
        let paths = self.inner.lock();
        paths.iter().map(|path| path.status(now)).collect()
    }

    /// Time that calls waited because no path could be used, over all calls. Calls that still wait
    /// are not included.
    #[must_use]
    pub fn parked(&self) -> Duration {
        self.inner.parked.total()
    }

    /// The changes and events of the paths from now on.
    #[must_use]
    pub fn changes(&self) -> PathChanges {
        PathChanges::new(self.inner.changes.subscribe(), &self.inner.events)
    }

    /// Disconnects all paths and does not connect them again. Calls in progress fail.
    pub async fn disconnect(self) {
        let connections: Vec<_> = {
            let mut paths = self.inner.lock();
            let now = self.inner.now();
            let each = paths.iter_mut();
            each.filter_map(|path| path.end(now)).collect()
        };
        self.inner.changed();
        self.inner.clear_choices();
        let mut all = JoinSet::new();
        for connection in connections {
            all.spawn(connection.controller.clone().disconnect());
        }
        while all.join_next().await.is_some() {}
    }
}

impl fmt::Debug for Multipath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Multipath")
            .field("subnqn", &self.inner.subnqn)
            .field("paths", &self.paths())
            .finish()
    }
}

impl Inner {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PathSlot>> {
        // No state is inconsistent between two statements of a holder.
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls look at the paths again, and those that wait are woken.
    fn changed(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
        self.changes
            .send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    /// Changes with the paths.
    fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Reports an event.
    fn report(&self, event: PathEvent) {
        // Without a receiver it is lost, as it should be.
        let _ = self.events.send(event);
    }

    /// The connections that accept commands, and the time from which each path is preferred.
    fn connections(&self) -> Vec<(Arc<Connection>, Duration)> {
        let paths = self.lock();
        let live = paths.iter().filter_map(|path| {
            let settled_at = path.reconnect.settled_at();
            Some((Arc::clone(path.live()?), settled_at))
        });
        live.collect()
    }

    /// Waits until one path is connected, or each attempt has failed.
    async fn first_connected(&self) -> Result<(), Error> {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            {
                let paths = self.lock();
                if paths.iter().any(|path| path.live().is_some()) {
                    return Ok(());
                }
                let errors = paths.iter().map(|path| {
                    let error = path.last_error.clone()?;
                    Some((path.options.addr, Some(error)))
                });
                let errors: Option<Vec<_>> = errors.collect();
                if let Some(paths) = errors {
                    return Err(match paths.as_slice() {
                        [(_, Some(only))] => only.clone(),
                        _ => Error::NoPath(Arc::new(NoPath {
                            subnqn: self.subnqn,
                            paths,
                            states: Vec::new(),
                        })),
                    });
                }
            }
            let _ = changes.changed().await;
        }
    }

    /// The namespaces that are in use.
    fn heads(&self) -> Vec<Arc<Head>> {
        let mut heads = self.heads.lock().unwrap_or_else(PoisonError::into_inner);
        heads.retain(|head| head.strong_count() > 0);
        heads.iter().filter_map(Weak::upgrade).collect()
    }

    /// The number of a new head or connection.
    fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds a namespace, and has each path check it.
    fn add(&self, head: &Arc<Head>) {
        {
            let mut heads = self.heads.lock().unwrap_or_else(PoisonError::into_inner);
            heads.push(Arc::downgrade(head));
        }
        for (connection, _) in self.connections() {
            connection.check_opened();
        }
    }

    /// Reports the ANA state of a namespace over a connection, and its size over all paths, if they
    /// changed.
    fn compare_reports(&self, connection: &Connection, head: &Head) {
        if let Some(Ok(namespace)) = connection.current(head.id) {
            let group = namespace.identify().anagrpid.get();
            let state = connection.state(group);
            if connection.counters.reports(head.id, group, state) {
                let addr = connection.controller.options().addr;
                let nsid = head.nsid();
                tracing::info!(%addr, nsid, group, %state, "ANA state changed");
                self.report(PathEvent::AnaChanged {
                    path: connection.path,
                    addr,
                    nsid,
                    group,
                    state,
                });
            }
        }
        // Locked until the end: a path that is connected meanwhile is checked with the new size.
        let paths = self.lock();
        let live = paths.iter().filter_map(PathSlot::live);
        let reported = live.filter_map(|live| match live.current(head.id) {
            None => Some(None),
            Some(Ok(namespace)) => Some(Some(namespace.blocks())),
            // It is not used.
            Some(Err(_)) => None,
        });
        let (nsid, before) = (head.nsid(), head.blocks());
        if let Some(blocks) = grown(before, reported) {
            head.grow(blocks);
            drop(paths);
            tracing::info!(nsid, before, blocks, "namespace has grown over all paths");
            self.report(PathEvent::SizeChanged { nsid, blocks });
        }
    }

    /// Has no head keep a connection until its next command.
    fn clear_choices(&self) {
        for head in self.heads() {
            head.clear();
        }
    }

    fn is_ended(&self) -> bool {
        self.lock().iter().all(|path| path.is_ended)
    }

    /// Whether a path to the namespace of that head may become available: calls wait for it then.
    fn may_wait(&self, head: u64) -> bool {
        let now = self.now();
        self.lock().iter().any(|path| match path.live() {
            None => path.may_wait(now),
            Some(live) => match live.known(head) {
                None => true,
                Some(Err(_)) => false,
                Some(Ok(namespace)) => {
                    let group = namespace.identify().anagrpid.get();
                    live.state(group) != AnaState::PERSISTENT_LOSS
                }
            },
        })
    }

    /// Whether a path was not tried yet, or whether it may access the namespace of that head is
    /// about to be known.
    fn is_trying(&self, head: u64) -> bool {
        self.lock().iter().any(|path| match path.live() {
            None => !path.is_ended && path.last_error.is_none(),
            Some(live) => live.known(head).is_none(),
        })
    }

    /// Waits for a change of the paths that `changes` has not seen.
    async fn wait_for(&self, changes: &mut watch::Receiver<u64>, head: u64) -> Result<(), Error> {
        if !self.may_wait(head) {
            return Err(self.no_path(head));
        }
        // `fast_io_fail` of a path can expire without a change.
        let now = self.now();
        let fails = {
            let paths = self.lock();
            let fails = paths.iter().filter_map(|path| path.reconnect.fails_at());
            fails
                .map(|at| at.saturating_sub(now))
                .filter(|wait| !wait.is_zero())
                .min()
        };
        let wait = fails.map_or(LONGEST_WAIT, |wait| wait.min(LONGEST_WAIT));
        let _ = tokio::time::timeout(wait, changes.changed()).await;
        Ok(())
    }

    fn no_path(&self, head: u64) -> Error {
        let slots = self.lock();
        let (mut paths, mut states) = (Vec::new(), Vec::new());
        for path in slots.iter() {
            let known = path.live().and_then(|live| Some((live, live.known(head)?)));
            let (refused, state) = match known {
                Some((_, Err(refused))) => (Some(refused), None),
                Some((live, Ok(namespace))) => {
                    let group = namespace.identify().anagrpid.get();
                    (None, Some(live.state(group)))
                }
                None => (None, None),
            };
            let error = refused.or_else(|| path.last_error.clone());
            paths.push((path.options.addr, error));
            states.push(state);
        }
        Error::NoPath(Arc::new(NoPath {
            subnqn: self.subnqn,
            paths,
            states,
        }))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let now = self.start.elapsed();
        for path in self.paths.get_mut().unwrap_or_else(PoisonError::into_inner) {
            if let Some(connection) = path.end(now) {
                // Its task drops it.
                connection.wake.notify_one();
            }
        }
    }
}
