//! The admin half: keeps the controllers of all paths connected, and fences those that are lost.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_initiator_core::dhchap::HostKeys;
use nvmeof_initiator_core::multipath::{PathAccess, PathState, Reconnect, ReconnectStep};
use nvmeof_initiator_core::{ControllerInfo, SetupError};
use nvmeof_rdma::Address;

use super::controller::{Context, Controller, Head};
use super::fencing::{Fenced, Fences};
use super::keys::{KeyChange, KeyRequest};
use super::shared::{Incarnation, Report, Shared};
use super::{MultipathConfig, PathChange, PathConfig, PathEvent, Providers};
use crate::error::{Error, SetupFault, UsageError};
use crate::geometry::Geometry;
use crate::polled::admin::AdminQueue;

/// The admin queues of all paths: see [`connect_paths`](crate::polled::connect_paths). It must be
/// polled by [`next_deadline`](Self::next_deadline), or the keep-alive time-outs of the
/// controllers expire.
#[derive(Debug)]
pub struct MultipathAdmin<P> {
    config: MultipathConfig,
    providers: P,
    shared: Arc<Shared>,
    paths: Vec<PathSlot>,
    head: Option<Head>,
    fences: Fences,
    /// Admin queues that are closing.
    closing: Vec<AdminQueue>,
    incarnations: u64,
    events: Vec<PathEvent>,
    fenced: Vec<Incarnation>,
    /// The change of keys in progress.
    key_change: Option<KeyChange>,
    /// The result of the last one.
    key_outcome: Option<Result<(), Error>>,
    /// Whether the I/O half has to see a change.
    is_changed: bool,
    is_ended: bool,
}

#[derive(Debug)]
struct PathSlot {
    config: PathConfig,
    reconnect: Reconnect,
    controller: Option<Controller>,
    last_error: Option<Error>,
    /// Whether that it was given up was reported.
    is_given_up: bool,
}

impl<P: Providers> MultipathAdmin<P> {
    pub(super) fn new(
        config: MultipathConfig,
        providers: P,
        shared: Arc<Shared>,
        now: Duration,
    ) -> Self {
        let slot = |(at, path): (u64, &PathConfig)| PathSlot {
            config: path.clone(),
            // Hosts must differ, paths of one host as well.
            reconnect: Reconnect::new(config.reconnect, config.seed.wrapping_add(at), now),
            controller: None,
            last_error: None,
            is_given_up: false,
        };
        Self {
            paths: (0..).zip(&config.paths).map(slot).collect(),
            config,
            providers,
            shared,
            head: None,
            fences: Fences::default(),
            closing: Vec::new(),
            incarnations: 0,
            events: Vec::new(),
            fenced: Vec::new(),
            key_change: None,
            key_outcome: None,
            is_changed: false,
            is_ended: false,
        }
    }

    /// Makes progress on all paths. Returns whether there was any.
    pub fn poll(&mut self, now: Duration) -> bool {
        self.take_reports(now);
        let mut progress = false;
        for at in 0..self.paths.len() {
            progress |= self.poll_path(at, now);
        }
        progress |= self.end_key_change();
        self.poll_fences(now);
        let mut done = Vec::new();
        for queue in &mut self.closing {
            progress |= queue.poll(now, &mut done);
        }
        self.closing.retain(|queue| !queue.is_closed());
        if std::mem::take(&mut self.is_changed) {
            progress |= self.publish();
        }
        progress
    }

    /// The namespace, once a path has reported it.
    #[must_use]
    pub fn geometry(&self) -> Option<Geometry> {
        self.head.map(|head| head.geometry)
    }

    /// The live controllers, in the order of the paths.
    pub fn controllers(&self) -> impl Iterator<Item = &ControllerInfo> {
        let live = self.paths.iter().filter_map(PathSlot::live);
        live.filter_map(Controller::info)
    }

    /// The number of paths that are neither connected nor failed yet.
    #[must_use]
    pub fn untried(&self) -> usize {
        let untried = |path: &&PathSlot| path.live().is_none() && path.last_error.is_none();
        self.paths.iter().filter(untried).count()
    }

    /// The error of the first path, if each attempt to connect has failed and none is connected.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        if self.untried() > 0 || self.paths.iter().any(|path| path.live().is_some()) {
            return None;
        }
        self.paths.first()?.last_error.as_ref()
    }

    /// The descriptors to sleep on. `None`: a provider has none. Before sleeping, poll until there
    /// is no progress, and call [`rest`](Self::rest).
    pub fn wait_fds(&self) -> impl Iterator<Item = Option<BorrowedFd<'_>>> {
        let paths = self
            .paths
            .iter()
            .filter_map(|path| path.controller.as_ref());
        let closing = self.closing.iter().map(AdminQueue::wait_fd);
        paths.flat_map(Controller::wait_fds).chain(closing)
    }

    /// The time by which [`poll`](Self::poll) must be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let paths = self.paths.iter().filter_map(|path| match &path.controller {
            Some(controller) => controller.next_deadline(),
            None if self.is_ended => None,
            None => path.reconnect.next_deadline(),
        });
        let closing = self.closing.iter().filter_map(AdminQueue::next_deadline);
        let is_due = self.key_change.is_some() && !self.is_changing_keys();
        let all = paths.chain(closing).chain(self.fences.next_deadline());
        all.chain(is_due.then_some(Duration::ZERO)).min()
    }

    /// Prepares for sleep on [`wait_fds`](Self::wait_fds).
    pub fn rest(&mut self) {
        let paths = self.paths.iter_mut();
        let controllers = paths.filter_map(|path| path.controller.as_mut());
        controllers.for_each(Controller::rest);
        self.closing.iter_mut().for_each(AdminQueue::rest);
    }

    /// Authenticates the queues of all connected paths again, with `keys`, which paths that are
    /// lost use when they are connected again. Paths that are being connected are authenticated
    /// with them as soon as they are; one whose attempt begins meanwhile may be so after the
    /// result, which the log has if it fails. Calls go on meanwhile. Poll both halves until
    /// [`take_reauthentication`](Self::take_reauthentication) has the result. A request that has
    /// not ended is replaced, also where queues use its keys by then. While the targets have both
    /// the former key and the new one, no path is lost by this.
    ///
    /// It fails with the first error of a path, which may be its loss meanwhile. A path whose
    /// controller refuses the keys stays connected, unless the target closes the connection, as
    /// that of SPDK does; some of its queues may use the new keys then, and it is connected again
    /// with the former ones. Paths that are lost keep the former keys as well. Keep both keys on
    /// the targets, and repeat the call.
    pub fn reauthenticate(&mut self, keys: Arc<HostKeys>) {
        self.shared.lock().key_requests.clear();
        let mut connecting = Vec::new();
        for controller in self
            .paths
            .iter_mut()
            .filter_map(|path| path.controller.as_mut())
        {
            match controller.is_live() {
                true => controller.authenticate(Arc::clone(&keys)),
                false => connecting.push(controller.incarnation),
            }
        }
        self.key_outcome = None;
        let mut change = KeyChange {
            keys,
            connecting,
            result: Ok(()),
        };
        if self.is_ended {
            change.failed(shut_down());
        }
        self.key_change = Some(change);
    }

    /// The result of the last [`reauthenticate`](Self::reauthenticate), once, when it has ended.
    pub fn take_reauthentication(&mut self) -> Option<Result<(), Error>> {
        self.key_outcome.take()
    }

    /// Shuts all controllers down, within `timeout`, and connects no path again. Close the I/O half
    /// before.
    pub fn shutdown(&mut self, now: Duration, timeout: Duration) {
        self.is_ended = true;
        if let Some(change) = &mut self.key_change {
            change.failed(shut_down());
        }
        for path in &mut self.paths {
            if let Some(controller) = path.controller.take() {
                self.closing.push(controller.shut_down(now, timeout));
            }
        }
        self.is_changed = true;
    }

    /// Whether all queues are closed after [`shutdown`](Self::shutdown).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_ended && self.closing.is_empty()
    }

    /// What the I/O half found out.
    fn take_reports(&mut self, now: Duration) {
        let reports = std::mem::take(&mut self.shared.lock().reports);
        for report in reports {
            let of = Some(report.of());
            let is_its = |path: &PathSlot| path.controller.as_ref().map(|it| it.incarnation) == of;
            let Some(at) = self.paths.iter().position(is_its) else {
                continue;
            };
            if let Report::Lost(_, error) = report {
                self.lose(at, error, now);
                continue;
            }
            let path = self.paths.get_mut(at);
            let Some(controller) = path.and_then(|path| path.controller.as_mut()) else {
                continue;
            };
            match report {
                Report::Authenticated(_, number, result) => {
                    controller.authentication.on_answer(number, result);
                }
                Report::Refused(_) | Report::Lost(..) => controller.refuses(),
            }
        }
    }

    fn poll_path(&mut self, at: usize, now: Duration) -> bool {
        let Some(path) = self.paths.get_mut(at) else {
            return false;
        };
        if path.controller.is_none() {
            return !self.is_ended && self.reconnect(at, now);
        }
        let others = match path.is_set_up() {
            true => Vec::new(),
            false => self.others(at),
        };
        let Some(path) = self.paths.get_mut(at) else {
            return false;
        };
        let regions = self.shared.lock().regions.clone();
        let (polled, is_connected) = {
            let Some(controller) = &mut path.controller else {
                return false;
            };
            let was_live = controller.is_live();
            let mut context = Context {
                path: at,
                config: &path.config,
                nsid: self.config.nsid,
                queue_size: self.config.queue_size,
                providers: &mut self.providers,
                head: &mut self.head,
                regions: &regions,
                others: &others,
            };
            let polled = controller.poll(now, &mut context);
            let news = std::mem::take(&mut controller.news);
            for one in news {
                self.fences.handle(controller.incarnation, one, now);
            }
            self.is_changed |= controller.take_changed();
            (polled, !was_live && controller.is_live())
        };
        match polled {
            Ok(progress) => {
                if is_connected {
                    path.reconnect.connected(now);
                    path.last_error = None;
                    self.follow_keys(at);
                    self.happened(at, PathChange::Connected, now);
                }
                self.on_authenticated(at);
                progress
            }
            Err(error) => {
                self.lose(at, error, now);
                true
            }
        }
    }

    /// Path `at` is connected: authenticates it again if the keys were changed meanwhile.
    fn follow_keys(&mut self, at: usize) {
        let Some(path) = self.paths.get_mut(at) else {
            return;
        };
        let changed = self.key_change.as_ref().map(|change| &change.keys);
        let wanted = changed.or(path.config.admin.setup.names.keys.as_ref());
        if let Some(keys) = wanted.cloned()
            && let Some(live) = path.live_mut()
            && !live.authentication.is_with(&keys)
        {
            live.authenticate(keys);
        }
    }

    /// The queues of path `at` may have been authenticated again.
    fn on_authenticated(&mut self, at: usize) {
        let Some(path) = self.paths.get_mut(at) else {
            return;
        };
        let controller = path.controller.as_mut();
        let Some((keys, result)) = controller.and_then(|it| it.authentication.take_result()) else {
            return;
        };
        let is_requested = |change: &&mut KeyChange| Arc::ptr_eq(&change.keys, &keys);
        match (result, self.key_change.as_mut().filter(is_requested)) {
            (Ok(()), _) => path.config.admin.setup.names.keys = Some(keys),
            (Err(error), Some(change)) => change.failed(error),
            (Err(error), None) => {
                tracing::warn!(
                    addr = %path.config.addr,
                    error = error.cause(),
                    "path connected with former keys not authenticated with the new ones"
                );
            }
        }
    }

    /// Whether a path is being authenticated, or connected since before the change began.
    fn is_changing_keys(&self) -> bool {
        let change = self.key_change.as_ref();
        let connecting = change
            .map(|change| &change.connecting[..])
            .unwrap_or_default();
        let mut controllers = self
            .paths
            .iter()
            .filter_map(|path| path.controller.as_ref());
        controllers.any(|it| match it.is_live() {
            true => it.authentication.is_running(),
            false => connecting.contains(&it.incarnation),
        })
    }

    /// Ends the change of keys when no path is being authenticated any more: all others are
    /// connected with the new keys from now on.
    fn end_key_change(&mut self) -> bool {
        let is_running = self.is_changing_keys();
        let Some(change) = self.key_change.take_if(|_| !is_running) else {
            return false;
        };
        if change.result.is_ok() {
            for path in &mut self.paths {
                path.config.admin.setup.names.keys = Some(Arc::clone(&change.keys));
            }
        }
        self.key_outcome = Some(change.result);
        true
    }

    /// The controllers of all paths but the one at `at`.
    fn others(&self, at: usize) -> Vec<(Address, u16)> {
        let others = self.paths.iter().enumerate().filter(|(one, _)| *one != at);
        let others = others.filter_map(|(_, path)| path.controller.as_ref());
        others.filter_map(Controller::identity).collect()
    }

    /// The next attempt to connect path `at`, if it is due.
    fn reconnect(&mut self, at: usize, now: Duration) -> bool {
        let Some(path) = self.paths.get_mut(at) else {
            return false;
        };
        match path.reconnect.poll(now) {
            ReconnectStep::Wait => false,
            ReconnectStep::GiveUp => {
                if !std::mem::replace(&mut path.is_given_up, true) {
                    let (addr, error) = (path.config.addr, path.last_error.as_ref());
                    let error = error.map(Error::cause);
                    tracing::error!(%addr, error, "path given up; not reconnecting");
                    self.happened(at, PathChange::GivenUp, now);
                }
                false
            }
            ReconnectStep::Connect => {
                let incarnation = Incarnation(self.incarnations);
                self.incarnations += 1;
                let mut context = Context {
                    path: at,
                    config: &path.config,
                    nsid: self.config.nsid,
                    queue_size: self.config.queue_size,
                    providers: &mut self.providers,
                    head: &mut self.head,
                    regions: &[],
                    others: &[],
                };
                match Controller::connect(incarnation, &mut context, now) {
                    Ok(controller) => path.controller = Some(controller),
                    Err(error) => self.failed(at, error, now),
                }
                true
            }
        }
    }

    /// The controller of path `at` is lost, or could not be connected.
    fn lose(&mut self, at: usize, error: Error, now: Duration) {
        // Queues may have ended their authentication before.
        self.on_authenticated(at);
        let Some(path) = self.paths.get_mut(at) else {
            return;
        };
        let Some(controller) = path.controller.take() else {
            return;
        };
        if !controller.is_live() {
            self.closing.push(controller.end(error.clone()));
            return self.failed(at, error, now);
        }
        if controller.authentication.is_running()
            && let Some(change) = &mut self.key_change
        {
            change.failed(error.clone());
        }
        let addr = path.config.addr;
        tracing::warn!(%addr, error = error.cause(), "path lost; reconnecting");
        path.reconnect.lost(now);
        path.last_error = Some(error.clone());
        // Queues that the I/O half did not take carried no command.
        let untaken = {
            let mut state = self.shared.lock();
            let of = controller.incarnation;
            state.key_requests.retain(|request| request.of != of);
            state.paths.get_mut(at).and_then(|its| its.incoming.take())
        };
        if let Some(info) = controller.info()
            && untaken.is_none()
        {
            let keep_alive = path.config.admin.setup.keep_alive;
            let its = (at, addr, controller.incarnation);
            self.fences
                .add(its, info, keep_alive, self.config.quiesce, now);
        }
        self.closing.push(controller.end(error.clone()));
        self.happened(at, PathChange::Lost(error), now);
    }

    /// An attempt to connect path `at` failed.
    fn failed(&mut self, at: usize, error: Error, now: Duration) {
        let Some(path) = self.paths.get_mut(at) else {
            return;
        };
        path.reconnect.failed(now, is_final(&error));
        path.last_error = Some(error.clone());
        self.happened(at, PathChange::Failed(error), now);
    }

    fn poll_fences(&mut self, now: Duration) {
        let paths = self.paths.iter_mut().enumerate();
        let live = paths.filter_map(|(at, path)| Some((at, path.controller.as_mut()?)));
        let mut live: Vec<_> = live.filter(|(_, it)| it.is_live()).collect();
        let fenced = self.fences.poll(now, &mut live);
        for Fenced {
            path,
            incarnation,
            method,
        } in fenced
        {
            self.fenced.push(incarnation);
            self.happened(path, PathChange::Fenced(method), now);
        }
    }

    fn happened(&mut self, path: usize, change: PathChange, at: Duration) {
        let Some(slot) = self.paths.get(path) else {
            return;
        };
        self.events.push(PathEvent {
            at,
            path,
            addr: slot.config.addr,
            change,
        });
        self.is_changed = true;
    }

    /// Writes the state of all paths for the I/O half. Returns whether there is more to do.
    fn publish(&mut self) -> bool {
        let mut is_answered = false;
        {
            let mut state = self.shared.lock();
            let mut requests = Vec::new();
            for (path, view) in self.paths.iter_mut().zip(&mut state.paths) {
                let queues = path.controller.as_mut().and_then(Controller::take_queues);
                if queues.is_some() {
                    view.incoming = queues;
                }
                if let Some(request) = path.live_mut().and_then(Controller::take_key_request) {
                    requests.push(request);
                }
                let live = path.live();
                view.live = live.map(|it| it.incarnation);
                (view.access, view.may_access) =
                    live.map_or((PathAccess::None, false), Controller::access);
                view.refusals = live.map_or(0, |it| it.refusals);
                let refused = live.and_then(|it| it.refused.clone());
                view.last_error = refused.or_else(|| path.last_error.clone());
                view.settled_at = path.reconnect.settled_at();
                view.fails_at = path.reconnect.fails_at();
                view.state = match self.is_ended {
                    true => PathState::Disconnected,
                    false => path.reconnect.state(),
                };
            }
            match state.is_io_ended {
                true => {
                    state
                        .reports
                        .extend(requests.iter().map(KeyRequest::closed));
                    is_answered = !requests.is_empty();
                }
                false => requests
                    .into_iter()
                    .for_each(|it| state.push_key_request(it)),
            }
            state.fenced.append(&mut self.fenced);
            for event in self.events.drain(..) {
                state.push_event(event);
            }
        }
        self.shared.changed();
        is_answered
    }
}

fn shut_down() -> Error {
    UsageError::Other("the paths are shut down".to_owned()).into()
}

impl PathSlot {
    fn live(&self) -> Option<&Controller> {
        self.controller.as_ref().filter(|it| it.is_live())
    }

    fn live_mut(&mut self) -> Option<&mut Controller> {
        self.controller.as_mut().filter(|it| it.is_live())
    }

    fn is_set_up(&self) -> bool {
        let controller = self.controller.as_ref();
        controller.and_then(Controller::identity).is_some()
    }
}

/// Whether a later attempt would be refused as well.
fn is_final(error: &Error) -> bool {
    match error {
        Error::Setup(setup) => match &setup.why {
            SetupFault::Nvme(SetupError::Refused(refusal)) => refusal.status.dnr(),
            SetupFault::Nvme(SetupError::Unsupported { .. }) => true,
            SetupFault::Nvme(_) | SetupFault::Rejected(_) => false,
        },
        // The namespace may be created, or get another format, later.
        Error::Usage(usage) => !matches!(
            **usage,
            UsageError::NoNamespace { .. } | UsageError::Format { .. }
        ),
        _ => false,
    }
}
