//! The queues of a job: one queue of a controller, or a queue on each of several paths.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nvmeof_initiator::blocking;
use nvmeof_initiator::multipath::PathState;
use nvmeof_initiator::polled::{
    Call, Done, IoQueue, MultipathAdmin, MultipathConfig, MultipathIo, PathChange, PathConfig,
    PathEvent, PathStatus, Providers, SubmitError, Wakers, connect_paths,
};
use nvmeof_initiator::rdma::Refused;
use nvmeof_initiator::{
    Address, Blocks, Buf, ConnectOptions, Error, Geometry, Provider, Route, RouteOptions, Transport,
};
use nvmeof_memory::Region;

use super::queue_size;
use crate::args;
use crate::failure::Failure;
use crate::paths::Known;

/// The queues of a job.
pub(super) enum Queues {
    One(Box<IoQueue>),
    Several(Box<Paths>),
}

/// A queue on each path, with controllers of its own. One thread drives both halves.
pub(super) struct Paths {
    admin: MultipathAdmin<Routes>,
    io: MultipathIo,
    /// When the admin half is polled again.
    admin_at: Duration,
    /// What was reported of each path; empty if another job reports.
    known: Vec<(Known, u64)>,
    reconnects: bool,
    lines: VecDeque<String>,
}

/// The providers of the paths. A route is determined once, when its path is first connected.
struct Routes {
    transport: Transport,
    options: RouteOptions,
    paths: Vec<(Address, Option<Route>)>,
}

/// How long a job waits for its other paths when the first one is connected.
const OTHERS: Duration = Duration::from_secs(1);
/// Time-out of a shutdown.
const SHUTDOWN: Duration = Duration::from_secs(2);
/// Time between two polls of the admin half, which has nothing to do most of the time.
const TURN: Duration = Duration::from_millis(1);

impl Queues {
    /// Waits until calls are accepted.
    pub(super) fn ready(&mut self, start: Instant) -> Result<(), Error> {
        match self {
            Self::One(queue) => blocking::ready(queue, start),
            // They were connected.
            Self::Several(_) => Ok(()),
        }
    }

    pub(super) fn register(&mut self, region: &Region, now: Duration) -> Result<(), Error> {
        match self {
            Self::One(queue) => queue.register(region),
            Self::Several(paths) => paths.io.register(region, now),
        }
    }

    pub(super) fn submit(
        &mut self,
        blocks: Blocks,
        buf: Buf,
        user: u64,
        now: Duration,
    ) -> Result<(), Refused<Call, SubmitError>> {
        match self {
            Self::One(queue) => queue.submit(blocks, Some(buf), user, now),
            Self::Several(paths) => {
                let call = Call::new(blocks.into(), Some(buf), user);
                paths.io.submit_call(call, now)
            }
        }
    }

    pub(super) fn poll(&mut self, now: Duration, done: &mut Vec<Done>) -> bool {
        match self {
            Self::One(queue) => queue.poll(now, done),
            Self::Several(paths) => paths.poll(now, done),
        }
    }

    /// A line about a path that changed.
    pub(super) fn take_line(&mut self) -> Option<String> {
        match self {
            Self::One(_) => None,
            Self::Several(paths) => paths.lines.pop_front(),
        }
    }

    /// Prepares for sleep on [`wait_fds`](Self::wait_fds).
    pub(super) fn rest(&mut self) {
        match self {
            Self::One(queue) => queue.rest(),
            Self::Several(paths) => {
                paths.io.rest();
                paths.admin.rest();
            }
        }
    }

    pub(super) fn next_deadline(&self, now: Duration) -> Option<Duration> {
        match self {
            Self::One(queue) => queue.next_deadline(),
            Self::Several(paths) => {
                let admin = paths.admin.next_deadline();
                let io = paths.io.next_deadline(now);
                admin.into_iter().chain(io).min()
            }
        }
    }

    /// The descriptors to sleep on; `None` if one is missing.
    pub(super) fn wait_fds(&self) -> Option<Vec<BorrowedFd<'_>>> {
        match self {
            Self::One(queue) => queue.wait_fd().map(|fd| vec![fd]),
            Self::Several(paths) => {
                let admin = paths.admin.wait_fds();
                paths.io.wait_fds().chain(admin).collect()
            }
        }
    }

    pub(super) fn close(&mut self, start: Instant) {
        match self {
            Self::One(queue) => blocking::close(queue, start),
            Self::Several(paths) => paths.close(start),
        }
    }
}

impl Paths {
    /// Connects a queue on each of `paths`: the first that can be connected, and the others if they
    /// can be connected soon. `start` is the time 0 of all queues. `reports` says whether changes
    /// of the paths are printed.
    pub(super) fn connect(
        args: &args::Bench,
        paths: &[ConnectOptions],
        reports: bool,
        start: Instant,
    ) -> Result<(Self, Geometry), Failure> {
        let target = &args.subsystem.target;
        let identity = target.identity()?;
        let options = args.reconnects.options();
        let path = |path: &ConnectOptions| PathConfig {
            addr: path.addr,
            admin: path.admin_config(&identity),
            trusts_target: path.trusts_target,
        };
        let config = MultipathConfig {
            paths: paths.iter().map(path).collect(),
            nsid: args.namespace_id,
            queue_size: queue_size(args),
            waiting_calls: args.iodepth.into(),
            policy: options.policy,
            reconnect: options.reconnect,
            quiesce: None,
            // Of a random state.
            seed: RandomState::new().hash_one(0),
        };
        let routes = Routes {
            transport: target.provider,
            options: target.route_options(),
            paths: paths.iter().map(|path| (path.addr, None)).collect(),
        };
        let now = start.elapsed();
        let (admin, io) = connect_paths(config, routes, Wakers::default(), now)?;
        let known = if reports { paths.len() } else { 0 };
        let mut this = Self {
            admin,
            io,
            admin_at: now,
            known: (0..known).map(|_| (Known::default(), 0)).collect(),
            reconnects: args.reconnects.is_enabled(),
            lines: VecDeque::new(),
        };
        let geometry = this.until_connected(args.namespace_id, start)?;
        for info in this.admin.controllers() {
            super::check_depth(args, info)?;
        }
        Ok((this, geometry))
    }

    /// Polls until the first path can access the namespace, and the others are connected or failed
    /// once.
    fn until_connected(&mut self, nsid: u32, start: Instant) -> Result<Geometry, Failure> {
        let mut until = None;
        let mut done = Vec::new();
        loop {
            let now = start.elapsed();
            self.admin_at = now;
            let progress = self.poll(now, &mut done);
            if let Some(error) = self.admin.error() {
                return Err(error.clone().into());
            }
            if self.admin.controllers().next().is_some() {
                let until = *until.get_or_insert(now + OTHERS);
                let has_waited = now >= until;
                let paths = self.io.paths();
                let is_accessible = paths.iter().any(|path| path.is_accessible);
                if let Some(geometry) = self.admin.geometry().filter(|_| is_accessible)
                    && (has_waited || self.admin.untried() == 0)
                {
                    return Ok(geometry);
                }
                if has_waited && !is_accessible {
                    return Err(no_access(&paths, nsid));
                }
            }
            if !progress {
                self.admin.rest();
                let deadline = self.admin.next_deadline().into_iter().chain(until).min();
                let timeout = deadline.map(|at| at.saturating_sub(start.elapsed()));
                blocking::sleep(self.admin.wait_fds(), timeout);
            }
        }
    }

    fn poll(&mut self, now: Duration, done: &mut Vec<Done>) -> bool {
        let mut progress = false;
        if now >= self.admin_at {
            progress = self.admin.poll(now);
            self.admin_at = now + TURN;
        }
        progress |= self.io.poll(now, done);
        while let Some(event) = self.io.take_event() {
            self.report(&event);
        }
        progress
    }

    /// Keeps the lines about a path that changed.
    fn report(&mut self, event: &PathEvent) {
        let Some((known, losses)) = self.known.get_mut(event.path) else {
            return;
        };
        *losses += u64::from(matches!(event.change, PathChange::Lost(_)));
        let Some(status) = self.io.paths().into_iter().nth(event.path) else {
            return;
        };
        let seen = crate::paths::Seen {
            is_live: status.state == PathState::Live,
            is_given_up: status.state == PathState::GivenUp,
            losses: *losses,
            cause: match &event.change {
                PathChange::Lost(error) | PathChange::Failed(error) => Some(error.cause()),
                _ => status.last_error.as_ref().map(Error::cause),
            },
        };
        let lines = known.follow(&seen, self.reconnects, Instant::now());
        let line = |line| format!("nvmeof: path {} {line}\n", event.addr);
        self.lines.extend(lines.into_iter().map(line));
    }

    /// Closes all queues, within a bounded time.
    fn close(&mut self, start: Instant) {
        let end = start.elapsed() + SHUTDOWN;
        self.io.close();
        let mut done = Vec::new();
        let mut is_shut_down = false;
        while start.elapsed() < end && !(is_shut_down && self.admin.is_closed()) {
            let now = start.elapsed();
            let mut progress = self.io.poll(now, &mut done);
            if self.io.is_closed() && !is_shut_down {
                is_shut_down = true;
                self.admin.shutdown(now, SHUTDOWN);
            }
            progress |= self.admin.poll(now);
            if !progress {
                self.io.rest();
                self.admin.rest();
                let fds = self.admin.wait_fds().chain(self.io.wait_fds());
                blocking::sleep(fds, Some(TURN));
            }
        }
    }
}

/// Paths are connected, but none of them can access namespace `nsid`.
fn no_access(paths: &[PathStatus], nsid: u32) -> Failure {
    match paths.iter().find_map(|path| path.last_error.as_ref()) {
        Some(error) => error.clone().into(),
        None => Failure::new(format!("no path can access namespace {nsid}"))
            .with_remedy("check its access state with nvmeof ana-log"),
    }
}

impl Providers for Routes {
    fn provider(&mut self, path: usize) -> Result<Box<dyn Provider>, Error> {
        let Some((addr, known)) = self.paths.get_mut(path) else {
            let text = format!("path {path} has no route");
            return Err(nvmeof_initiator::MachineError::Internal(text).into());
        };
        let route = match known {
            Some(route) => route,
            None => known.insert(self.transport.route(*addr, &self.options)?),
        };
        route.provider()
    }
}
