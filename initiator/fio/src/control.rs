//! The controller of a job. A thread keeps it alive, because fio pauses, verifies and
//! waits for other jobs at any time.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmeof_initiator::blocking::{self, BlockingAdmin};
use nvmeof_initiator::polled::Association;
use nvmeof_initiator::{ControllerInfo, Geometry, Route};

use crate::failure::Failure;
use crate::options::Options;

/// Connects briefly to read the size of the namespace. Leaves no thread and no
/// descriptor: fio forks its jobs after this.
pub(crate) fn look(options: &Options) -> Result<Geometry, Failure> {
    let route = route(options)?;
    let (admin, geometry) = connect(options, &route, Instant::now())?;
    admin.shutdown();
    Ok(geometry)
}

/// A controller, kept alive until this is dropped.
#[derive(Debug)]
pub(crate) struct Control {
    /// The queues connect over the same route.
    route: Route,
    info: Arc<ControllerInfo>,
    geometry: Geometry,
    association: Association,
    /// Ends the thread.
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Connects. `start` is the time 0 of all queues.
    pub(crate) fn start(options: &Options, start: Instant) -> Result<Self, Failure> {
        let route = route(options)?;
        let (mut admin, geometry) = connect(options, &route, start)?;
        let info = Arc::clone(admin.info());
        // Not a pipe: a process that fio forked may have inherited it, so that closing
        // it has no effect, and a write without a reader raises SIGPIPE.
        let stop = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC);
        let stop = Arc::new(stop.map_err(|errno| no_thread(errno.into()))?);
        let stopped = Arc::clone(&stop);
        let association = admin.association().clone();
        let keep_alive = move || {
            let ended = || {
                let mut fds = [PollFd::new(stopped.as_fd(), PollFlags::POLLIN)];
                poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
            };
            while !ended() {
                admin.poll();
                if admin.error().is_some() {
                    return;
                }
                let fds = [admin.wait_fd(), Some(stopped.as_fd())];
                blocking::sleep(fds, admin.next_deadline());
            }
            admin.shutdown();
        };
        let thread = std::thread::Builder::new().name("nvmeof-admin".to_owned());
        let thread = thread.spawn(keep_alive).map_err(no_thread)?;
        Ok(Self {
            route,
            info,
            geometry,
            association,
            stop,
            thread: Some(thread),
        })
    }

    pub(crate) fn route(&self) -> &Route {
        &self.route
    }

    pub(crate) fn info(&self) -> &ControllerInfo {
        &self.info
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The I/O queues join this, so that they fail with the admin queue.
    pub(crate) fn association(&self) -> &Association {
        &self.association
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed already.
            let _ = thread.join();
        }
    }
}

fn route(options: &Options) -> Result<Route, Failure> {
    let addr = options.connect.addr;
    Ok(options.transport.route(addr, &options.route)?)
}

fn connect(
    options: &Options,
    route: &Route,
    start: Instant,
) -> Result<(BlockingAdmin, Geometry), Failure> {
    let addr = options.connect.addr;
    let config = options.connect.admin_config(&options.identity);
    let mut admin = BlockingAdmin::connect(route.provider()?, addr, config, start)?;
    let geometry = admin.namespace(options.nsid)?;
    Ok((admin, geometry))
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn no_thread(error: std::io::Error) -> Failure {
    let text = format!("cannot start the thread that keeps the controller alive: {error}");
    let errno = error.raw_os_error().map_or(Errno::EAGAIN, Errno::from_raw);
    Failure::new(text, errno)
}
