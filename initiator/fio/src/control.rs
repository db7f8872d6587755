//! The admin half of a job: a thread keeps the controllers alive and connects lost paths again,
//! because fio pauses, verifies and waits for other jobs at any time.

use std::hash::{BuildHasher, RandomState};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmeof_initiator::blocking::{self, BlockingAdmin};
use nvmeof_initiator::polled::{
    MultipathAdmin, MultipathConfig, MultipathIo, PathConfig, Providers, Wakers, connect_paths,
};
use nvmeof_initiator::{
    Address, ConnectOptions, Error, Geometry, MachineError, Provider, Route, RouteOptions,
    Transport,
};

use crate::failure::Failure;
use crate::options::Options;

/// Connects briefly to read the size of the namespace, over the first path that can be connected.
/// Leaves no descriptor, and no thread but those of computations: it runs in a process of its own
/// (`engine.c`), because fio forks its jobs after this.
pub(crate) fn look(options: &Options) -> Result<Geometry, Failure> {
    let mut first = None;
    for path in &options.paths {
        match look_at(options, path) {
            Ok(geometry) => return Ok(geometry),
            Err(failure) => first = first.or(Some(failure)),
        }
    }
    Err(first.unwrap_or_else(|| Failure::new("address=: no address is given", Errno::EINVAL)))
}

fn look_at(options: &Options, path: &ConnectOptions) -> Result<Geometry, Failure> {
    let addr = path.addr;
    let config = path.admin_config(&options.identity);
    let provider = options.transport.route(addr, &options.route)?.provider()?;
    let mut admin = BlockingAdmin::connect(provider, addr, config, Instant::now())?;
    check_queues(path.io_queues, admin.info().io_queues)?;
    let geometry = admin.namespace(options.nsid)?;
    admin.shutdown();
    Ok(geometry)
}

/// The connected controllers of a job: kept alive, and connected again, until this is dropped.
#[derive(Debug)]
pub(crate) struct Control {
    stop: Arc<AtomicBool>,
    wake: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

/// A job that is connected.
#[derive(Debug)]
pub(crate) struct Connected {
    /// Drop this after the queues are closed.
    pub(crate) control: Control,
    pub(crate) io: MultipathIo,
    /// Readable when `io` is to be polled.
    pub(crate) wake: Arc<EventFd>,
    pub(crate) geometry: Geometry,
}

/// The providers of the paths. A route is determined once, when its path is first connected: the
/// query may block.
#[derive(Debug)]
struct Routes {
    transport: Transport,
    options: RouteOptions,
    paths: Vec<(Address, Option<Route>)>,
}

/// Least entries of a queue. The kernel's target sizes a send queue by the number of commands, and
/// never completes a command whose data need more work requests.
const SMALLEST_QUEUE: u16 = 32;
/// How long a job waits for its other paths when the first one is connected.
const OTHERS: Duration = Duration::from_secs(1);
/// Time-out of a shutdown.
const SHUTDOWN: Duration = Duration::from_secs(2);

/// Connects queues for `depth` operations in flight, over the first path that can be connected,
/// and over the others if they can be connected soon. `start` is the time 0 of all queues.
pub(crate) fn start(options: &Options, depth: u32, start: Instant) -> Result<Connected, Failure> {
    let (wake_admin, wake_io) = (wake_fd()?, wake_fd()?);
    let wakers = Wakers {
        admin: Some(waker(&wake_admin)),
        io: Some(waker(&wake_io)),
    };
    let config = config(options, depth);
    let routes = Routes {
        transport: options.transport,
        options: options.route.clone(),
        paths: options.paths.iter().map(|path| (path.addr, None)).collect(),
    };
    let (mut admin, io) = connect_paths(config, routes, wakers, start.elapsed())?;
    let geometry = until_connected(&mut admin, start)?;
    let wanted = options.paths.first().map_or(0, |path| path.io_queues);
    let granted = admin.controllers().map(|info| info.io_queues).min();
    check_queues(wanted, granted.unwrap_or(wanted))?;
    for path in io.paths() {
        if let Some(error) = &path.last_error {
            let (addr, cause) = (path.addr, error.cause());
            eprintln!("nvmeof: path {addr} is not connected yet: {cause}");
        }
    }
    let control = Control::spawn(admin, wake_admin, start)?;
    Ok(Connected {
        control,
        io,
        wake: wake_io,
        geometry,
    })
}

fn check_queues(wanted: u16, granted: u16) -> Result<(), Failure> {
    if granted >= wanted {
        return Ok(());
    }
    let text = format!(
        "queues={wanted}: the controller grants {granted} I/O queues; use queues={granted}"
    );
    Err(Failure::new(text, Errno::EINVAL))
}

fn config(options: &Options, depth: u32) -> MultipathConfig {
    let queues = options
        .paths
        .first()
        .map_or(1, |path| path.io_queues)
        .max(1);
    let of_queue = u16::try_from(depth.div_ceil(u32::from(queues))).unwrap_or(u16::MAX);
    let path = |path: &ConnectOptions| PathConfig {
        addr: path.addr,
        admin: path.admin_config(&options.identity),
        trusts_target: path.trusts_target,
    };
    // Processes that fio forked have the same keys.
    let own = (std::process::id(), std::thread::current().id());
    MultipathConfig {
        paths: options.paths.iter().map(path).collect(),
        nsid: options.nsid,
        // One entry of a queue is always empty.
        queue_size: of_queue.saturating_add(1).max(SMALLEST_QUEUE),
        waiting_calls: usize::try_from(depth).unwrap_or(usize::MAX),
        policy: options.policy,
        reconnect: options.reconnect,
        quiesce: None,
        seed: RandomState::new().hash_one(own),
    }
}

/// Polls until the first path is connected, and the others are connected or failed once.
fn until_connected<P: Providers>(
    admin: &mut MultipathAdmin<P>,
    start: Instant,
) -> Result<Geometry, Failure> {
    let mut until = None;
    loop {
        let now = start.elapsed();
        let progress = admin.poll(now);
        if let Some(error) = admin.error() {
            return Err(error.clone().into());
        }
        if let Some(geometry) = admin.geometry()
            && admin.controllers().next().is_some()
        {
            let until = *until.get_or_insert(now + OTHERS);
            if admin.untried() == 0 || now >= until {
                return Ok(geometry);
            }
        }
        if !progress {
            admin.rest();
            let deadlines = admin.next_deadline().into_iter().chain(until);
            let nearest = deadlines.min();
            let timeout = nearest.map(|nearest| nearest.saturating_sub(start.elapsed()));
            blocking::sleep(admin.wait_fds(), timeout);
        }
    }
}

impl Control {
    /// Starts the thread that drives `admin`.
    fn spawn<P: Providers + Send + 'static>(
        mut admin: MultipathAdmin<P>,
        wake: Arc<EventFd>,
        start: Instant,
    ) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, woken) = (Arc::clone(&stop), Arc::clone(&wake));
        let run = move || {
            let mut end = None;
            loop {
                let now = start.elapsed();
                if end.is_none() && stopped.load(Ordering::Acquire) {
                    admin.shutdown(now, SHUTDOWN);
                    end = Some(now + SHUTDOWN);
                }
                if admin.is_closed() || end.is_some_and(|end| now >= end) {
                    return;
                }
                if admin.poll(now) {
                    continue;
                }
                admin.rest();
                let nearest = admin.next_deadline().into_iter().chain(end).min();
                let timeout = nearest.map(|nearest| nearest.saturating_sub(start.elapsed()));
                blocking::sleep(admin.wait_fds().chain([Some(woken.as_fd())]), timeout);
                // Empty if it was not woken.
                let _ = woken.read();
            }
        };
        let thread = std::thread::Builder::new().name("nvmeof-admin".to_owned());
        let thread = thread.spawn(run).map_err(no_thread)?;
        Ok(Self {
            stop,
            wake,
            thread: Some(thread),
        })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.wake.write(1);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed already.
            let _ = thread.join();
        }
    }
}

impl Providers for Routes {
    fn provider(&mut self, path: usize) -> Result<Box<dyn Provider>, Error> {
        let Some((addr, known)) = self.paths.get_mut(path) else {
            let text = format!("path {path} has no route");
            return Err(MachineError::Internal(text).into());
        };
        let route = match known {
            Some(route) => route,
            None => known.insert(self.transport.route(*addr, &self.options)?),
        };
        route.provider()
    }
}

/// Not a pipe: a process that fio forked may have inherited it, so that closing it has no effect,
/// and a write without a reader raises SIGPIPE.
fn wake_fd() -> Result<Arc<EventFd>, Failure> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let fd = EventFd::from_value_and_flags(0, flags);
    Ok(Arc::new(fd.map_err(|errno| no_thread(errno.into()))?))
}

fn waker(fd: &Arc<EventFd>) -> Arc<dyn Fn() + Send + Sync> {
    let fd = Arc::clone(fd);
    // Fails only if it is readable anyway.
    Arc::new(move || {
        let _ = fd.write(1);
    })
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn no_thread(error: std::io::Error) -> Failure {
    let text = format!("cannot start the thread that keeps the controllers alive: {error}");
    let errno = error.raw_os_error().map_or(Errno::EAGAIN, Errno::from_raw);
    Failure::new(text, errno)
}
