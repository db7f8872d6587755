//! One path: connects, notices its loss, and connects again.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nvmeof_initiator_core::multipath::{
    PathState, Reconnect, ReconnectOptions, ReconnectStep, check_unique,
};
use nvmeof_initiator_core::{ControllerEvent, FenceMethod, SetupError, admin};
use tokio::time::Instant;

use super::Inner;
use super::authentication::{changed_keys, follow};
use super::connection::{Connection, ConnectionId};
use super::events::PathEvent;
use super::fencing::Fencing;
use super::numa::{LOCAL, Topology};
use super::status::{Counters, PathStatus};
use crate::controller::Controller;
use crate::error::{Error, LostCause};
use crate::options::ConnectOptions;

/// A path of a subsystem.
pub(super) struct PathSlot {
    pub(super) options: ConnectOptions,
    pub(super) reconnect: Reconnect,
    connection: Option<Arc<Connection>>,
    pub(super) last_error: Option<Error>,
    losses: u64,
    fenced: Vec<(FenceMethod, u64)>,
    counters: Arc<Counters>,
    /// When and why it entered its state.
    changed: (Duration, String),
    pub(super) is_ended: bool,
}

/// How long after a failure a path is checked again, and how often the states of a path with an
/// inaccessible group are read.
const AGAIN: Duration = Duration::from_secs(1);

/// The shortest time between two checks that the target causes. One that sends events without a
/// pause does not keep the host reading.
const PACE: Duration = Duration::from_millis(100);

/// How long an older controller may take for Keep Alive when a new one has its identifier.
const PROBE: Duration = Duration::from_secs(1);

impl PathSlot {
    pub(super) fn new(options: &ConnectOptions, reconnect: ReconnectOptions, at: u64) -> Self {
        // Hosts must differ, paths of one host as well.
        let seed = RandomState::new().hash_one(at);
        Self {
            options: options.clone(),
            reconnect: Reconnect::new(reconnect, seed, Duration::ZERO),
            connection: None,
            last_error: None,
            losses: 0,
            fenced: Vec::new(),
            counters: Arc::default(),
            changed: (Duration::ZERO, "not connected yet".to_owned()),
            is_ended: false,
        }
    }

    /// Its connection, if that takes commands.
    pub(super) fn live(&self) -> Option<&Arc<Connection>> {
        self.connection.as_ref().filter(|live| !live.is_lost())
    }

    /// Whether calls may wait for it at `now`.
    pub(super) fn may_wait(&self, now: Duration) -> bool {
        !self.is_ended && self.reconnect.may_wait(now)
    }

    /// It is not connected again. Returns its connection.
    pub(super) fn end(&mut self, now: Duration) -> Option<Arc<Connection>> {
        self.is_ended = true;
        self.changed = (now, "disconnected by the caller".to_owned());
        self.connection.take()
    }

    /// A lost controller of it was fenced.
    pub(super) fn fenced(&mut self, method: FenceMethod) {
        match self.fenced.iter_mut().find(|(known, _)| *known == method) {
            Some((_, count)) => *count += 1,
            None => self.fenced.push((method, 1)),
        }
    }

    pub(super) fn status(&self, now: Duration) -> PathStatus {
        let live = self.live();
        let state = match self.reconnect.state() {
            PathState::GivenUp => PathState::GivenUp,
            _ if self.is_ended => PathState::Disconnected,
            // Its task has not noticed the loss yet.
            PathState::Live if live.is_none() => PathState::Backoff,
            state => state,
        };
        let (changed_at, reason) = &self.changed;
        PathStatus {
            addr: self.options.addr,
            state,
            reason: reason.clone(),
            since: now.saturating_sub(*changed_at),
            is_live: live.is_some(),
            is_given_up: self.reconnect.is_given_up(),
            cntlid: live.map(|live| live.controller.info().cntlid),
            losses: self.losses,
            last_error: self.last_error.clone(),
            io_queues: live.map(|live| live.controller.info().io_queues),
            fenced: self.fenced.clone(),
            numa_distance: live.map_or(LOCAL, |live| live.distance),
            commands: self.counters.commands(),
            bytes: self.counters.bytes(),
            outstanding: live.map_or(0, |live| live.outstanding()),
            retries: self.counters.retries(),
            fence_wait: self.counters.fence_wait.total(),
        }
    }
}

/// Keeps path `at` connected until it is given up or ended.
pub(super) async fn run(inner: Weak<Inner>, at: usize) {
    let _end = EndOnDrop {
        inner: Weak::clone(&inner),
        at,
    };
    let Some(mut changes) = inner.upgrade().map(|inner| inner.changes.subscribe()) else {
        return;
    };
    loop {
        let Some(this) = inner.upgrade() else { return };
        changes.borrow_and_update();
        let now = this.now();
        let (step, next, options) = {
            let mut paths = this.lock();
            let Some(path) = paths.get_mut(at).filter(|path| !path.is_ended) else {
                return;
            };
            let step = path.reconnect.poll(now);
            (step, path.reconnect.next_deadline(), path.options.clone())
        };
        match step {
            ReconnectStep::GiveUp => return give_up(&this, at),
            ReconnectStep::Wait => {
                drop(this);
                let wait = next.map_or(AGAIN, |next| next.saturating_sub(now));
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    // Such as that the path is ended, or that nothing of its subsystem is left.
                    changed = changes.changed() => if changed.is_err() { return },
                }
            }
            ReconnectStep::Connect => {
                let connected = connect(&this, at, &options).await;
                let weak = Arc::downgrade(&this);
                drop(this);
                if let Some(connection) = connected {
                    watch(&weak, at, &connection).await;
                }
            }
        }
    }
}

/// Path `at` is not connected again.
fn give_up(inner: &Inner, at: usize) {
    let now = inner.now();
    let (addr, error) = {
        let mut paths = inner.lock();
        let Some(path) = paths.get_mut(at) else {
            return;
        };
        let cause = path.last_error.as_ref().map(Error::cause);
        let cause = cause.unwrap_or_else(|| "it was not connected in time".to_owned());
        path.changed = (now, cause);
        (path.options.addr, path.last_error.clone())
    };
    let cause = error.as_ref().map(Error::cause);
    tracing::error!(%addr, error = cause, "path given up; not reconnecting");
    let path = at;
    inner.report(PathEvent::GivenUp { path, addr, error });
    inner.changed();
}

/// Connects path `at`. `None` if that failed or the path was ended meanwhile.
async fn connect(inner: &Inner, at: usize, options: &ConnectOptions) -> Option<Arc<Connection>> {
    let connected = match inner.host.connect(options.clone()).await {
        Ok(controller) => set_up(inner, at, options, controller).await,
        Err(error) => Err(error),
    };
    if let Ok(new) = &connected {
        end_dead_twin(inner, new.controller.info().cntlid).await;
    }
    let now = inner.now();
    let (path, addr) = (at, options.addr);
    let mut keys = None;
    let (connection, event) = {
        let mut paths = inner.lock();
        let connected = connected.and_then(|new| no_twin(&paths, new));
        let slot = paths.get_mut(at)?;
        match connected {
            // It is shut down when it is dropped.
            Ok(_) if slot.is_ended => (None, None),
            Ok(connection) => {
                let connection = Arc::new(connection);
                slot.reconnect.connected(now);
                slot.last_error = None;
                slot.connection = Some(Arc::clone(&connection));
                keys = changed_keys(&slot.options, options);
                slot.changed = (now, "connected".to_owned());
                (Some(connection), Some(PathEvent::Connected { path, addr }))
            }
            Err(error) => {
                slot.reconnect.failed(now, error.is_final());
                slot.last_error = Some(error.clone());
                slot.changed = (now, error.cause());
                (None, Some(PathEvent::AttemptFailed { path, addr, error }))
            }
        }
    };
    if let Some(event) = event {
        inner.report(event);
    }
    inner.changed();
    if let Some((connection, keys)) = connection.as_ref().zip(keys) {
        follow(connection, keys);
    }
    connection
}

/// Checks a new controller of path `at`, and reads its ANA states.
async fn set_up(
    inner: &Inner,
    at: usize,
    options: &ConnectOptions,
    controller: Controller,
) -> Result<Connection, Error> {
    let (cpu, device) = (inner.cpu, controller.device().clone());
    let distance = move || Topology::of_this_machine().distance(cpu, &device);
    let distance = tokio::task::spawn_blocking(distance).await;
    let counters = {
        let paths = inner.lock();
        let counters = paths.get(at).map(|path| Arc::clone(&path.counters));
        counters.unwrap_or_default()
    };
    let id = ConnectionId(inner.next_id());
    let new = Connection::new((id, at), controller, distance.unwrap_or(LOCAL), counters);
    bounded(options, new).await
}

/// Abandons a connection to controller `cntlid` that does not respond: a target that was restarted
/// assigns the identifiers of controllers whose loss this host may not have noticed.
async fn end_dead_twin(inner: &Inner, cntlid: u16) {
    let found = {
        let paths = inner.lock();
        let mut live = paths.iter().filter_map(PathSlot::live);
        live.find(|live| live.controller.info().cntlid == cntlid)
            .map(Arc::clone)
    };
    let Some(twin) = found else { return };
    let addr = twin.controller.options().addr;
    let probe = twin.controller.admin_call(admin::keep_alive(), &[]);
    let why = match tokio::time::timeout(PROBE, probe).await {
        Ok(Ok(_) | Err(Error::Command(_))) => return,
        Ok(Err(why)) => why,
        Err(_) => {
            let timeout = PROBE;
            let cause = LostCause::KeepAlive { cntlid, timeout };
            twin.controller.lost_because(cause).into()
        }
    };
    tracing::debug!(%addr, cntlid, "its identifier was assigned again; it does not respond");
    twin.abandon(&why);
}

/// Refuses a controller with the identifier of another one that is connected.
fn no_twin(paths: &[PathSlot], new: Connection) -> Result<Connection, Error> {
    let live = paths.iter().filter_map(PathSlot::live);
    let connected = live.map(|live| {
        let controller = &live.controller;
        (controller.options().addr, controller.info().cntlid)
    });
    let connected: Vec<_> = connected.collect();
    let controller = &new.controller;
    match check_unique(controller.info().cntlid, &connected) {
        Ok(()) => Ok(new),
        Err(error) => Err(Error::setup(controller.options().addr, 0, error)),
    }
}

/// Admin commands within the time that connecting may take. A target that completes them slowly,
/// or requests more and more of them, does not keep the path from noticing its loss.
async fn bounded<T>(
    options: &ConnectOptions,
    commands: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let ended = tokio::time::timeout(options.connect_timeout, commands).await;
    ended.unwrap_or_else(|_| {
        let error = SetupError::TimedOut {
            what: "ready for commands of the path",
            after: options.connect_timeout,
        };
        Err(Error::setup(options.addr, 0, error))
    })
}

/// Watches the connection of path `at` until it is lost; then it is to be fenced.
async fn watch(inner: &Weak<Inner>, at: usize, connection: &Arc<Connection>) {
    let mut checks = Checks::new();
    let mut arrived = None;
    let mut has_events = true;
    let lost = connection.controller.lost();
    tokio::pin!(lost);
    let why = loop {
        let Some(this) = inner.upgrade() else { return };
        if this.lock().get(at).is_none_or(|path| path.is_ended) {
            return;
        }
        if let Some(event) = arrived.take() {
            handle(&this, connection, &event);
        }
        if checks.are_due(connection) {
            let refreshed = bounded(connection.controller.options(), refresh(&this, connection));
            let refreshed = tokio::select! {
                biased;
                why = &mut lost => break why,
                refreshed = refreshed => refreshed,
            };
            checks.ended(connection, refreshed);
        }
        let next = checks.next(connection);
        drop(this);
        tokio::select! {
            biased;
            why = &mut lost => break why,
            event = connection.controller.event(), if has_events => match event {
                Ok(event) => arrived = Some(event),
                // `lost` has the reason.
                Err(_) => has_events = false,
            },
            () = connection.wake.notified() => {}
            () = until(next) => {}
        }
    };
    lose(inner, at, connection, why);
}

/// The connection of path `at` is lost because of `why`.
fn lose(inner: &Weak<Inner>, at: usize, connection: &Arc<Connection>, why: Error) {
    connection.lose();
    let Some(this) = inner.upgrade() else { return };
    let now = this.now();
    let (path, error) = (at, why);
    let addr = {
        let mut paths = this.lock();
        let Some(slot) = paths.get_mut(at).filter(|path| !path.is_ended) else {
            return;
        };
        slot.connection = None;
        slot.reconnect.lost(now);
        slot.losses += 1;
        slot.changed = (now, error.cause());
        slot.last_error = Some(error.clone());
        slot.options.addr
    };
    tracing::warn!(%addr, error = error.cause(), "path lost; reconnecting");
    this.clear_choices();
    // The receiver lives as long as `this`.
    let _ = this.lost.send(Fencing::new(&this, connection));
    this.report(PathEvent::Lost { path, addr, error });
    this.changed();
}

/// When a connection is checked.
struct Checks {
    /// Not before, after a failure.
    from: Option<Instant>,
    /// Not before, after the last check, unless a namespace was opened.
    paced: Option<Instant>,
    /// When states that end by themselves are read again.
    poll_at: Instant,
}

impl Checks {
    fn new() -> Self {
        Self {
            from: None,
            paced: None,
            poll_at: Instant::now(),
        }
    }

    /// Whether a check is due now.
    fn are_due(&mut self, connection: &Connection) -> bool {
        let now = Instant::now();
        if now >= self.poll_at && !connection.is_all_accessible() {
            connection.outdate();
            self.poll_at = now + AGAIN;
        }
        let is_due = connection.needs_check() && self.not_before(connection) <= Some(now);
        if is_due {
            self.paced = Some(now + PACE);
        }
        is_due
    }

    fn not_before(&self, connection: &Connection) -> Option<Instant> {
        match connection.has_opened() {
            true => self.from,
            false => self.from.max(self.paced),
        }
    }

    fn ended(&mut self, connection: &Connection, result: Result<(), Error>) {
        let Err(error) = result else {
            self.from = None;
            return;
        };
        let addr = connection.controller.options().addr;
        match self.from {
            None => tracing::warn!(%addr, %error, "path not checked; trying again"),
            Some(_) => tracing::debug!(%addr, %error, "path not checked again"),
        }
        connection.outdate();
        connection.check_again();
        self.from = Some(Instant::now() + AGAIN);
    }

    /// When to look again, if nothing happens before.
    fn next(&self, connection: &Connection) -> Option<Instant> {
        let poll_at = (!connection.is_all_accessible()).then_some(self.poll_at);
        let check_at = match connection.needs_check() {
            true => self.not_before(connection),
            false => None,
        };
        check_at.into_iter().chain(poll_at).min()
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// An asynchronous event of the connection.
fn handle(inner: &Inner, connection: &Connection, event: &ControllerEvent) {
    match event {
        // The group of a namespace may have changed as well, without a notice about the namespace.
        ControllerEvent::AnaChanged => {
            connection.outdate();
            connection.doubt();
        }
        ControllerEvent::NamespacesChanged(nsids) => {
            connection.forget(nsids);
            inner.changed();
        }
        ControllerEvent::CrossControllerReset => {
            connection.notify_reset();
            inner.changed();
        }
        ControllerEvent::Lost => {
            connection.outdate();
            connection.forget(&[]);
            connection.notify_reset();
            inner.changed();
        }
        _ => {}
    }
}

/// Reads ANA states that may have changed, and checks namespaces that were not. A failure of one
/// check prevents no other.
///
/// # Errors
/// That of the first command that failed, after which it is to be tried again.
async fn refresh(inner: &Inner, connection: &Connection) -> Result<(), Error> {
    let mut result = Ok(());
    if connection.take_outdated() {
        result = connection.read_ana().await;
        inner.changed();
    }
    // Before the list: a namespace that is added to it later requests another check.
    let is_unchecked = connection.take_unchecked();
    let heads = inner.heads();
    if is_unchecked {
        let ids: Vec<_> = heads.iter().map(|head| head.id).collect();
        connection.retain(&ids);
        for head in &heads {
            if connection.current(head.id).is_none() {
                result = result.and(head.check(connection).await);
                inner.changed();
            }
        }
    }
    for head in &heads {
        inner.compare_reports(connection, head);
    }
    result
}

/// Ends a path whose task ends, for whatever reason: calls do not wait for it.
struct EndOnDrop {
    inner: Weak<Inner>,
    at: usize,
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let Some(inner) = self.inner.upgrade() else {
            return;
        };
        if let Some(path) = inner.lock().get_mut(self.at) {
            path.is_ended = true;
        }
        inner.changed();
    }
}
