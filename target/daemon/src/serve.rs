//! Serves until a signal arrives.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nvmeof_rdma::explain;
use nvmeof_target_engine::ShutdownDeadline;
use nvmeof_target_manage::ha::HAND_OVER;
use nvmeof_target_manage::retry::{Listeners, Retry};
use nvmeof_target_manage::{
    ANNOUNCE, ANNOUNCE_POLL, BackingStoreMonitor, OldKeyTimer, ServeError, Server,
};

use crate::service::{self, Watchdog};
use nvmeof_target_control::Keeper;

/// Signals within this time count as one.
const TOGETHER: Duration = Duration::from_millis(500);

/// Serves until SIGTERM or SIGINT, then completes commands in flight. A second
/// signal ends the process immediately, unless it arrives together with the
/// first: coreutils' `timeout` and some shells signal both the process and
/// its group. On SIGHUP the keeper reloads the configuration. `listeners` are retried
/// until they listen. The `signals` were blocked before the server started its threads.
///
/// # Errors
/// [`ServeError`] when a reactor failed.
pub(crate) fn run(
    server: Server,
    signals: &SignalFd,
    keeper: Option<&Arc<Keeper>>,
    listeners: Listeners,
) -> Result<(), ServeError> {
    let (mut stop, mut ending): (Option<Stop>, _) = (None, false);
    let (manager, failures) = (server.manager(), server.failures().clone());
    let _monitor = BackingStoreMonitor::start(Arc::clone(manager), failures, service::status)
        .map_err(|error| not_started("thread", &error))?;
    let _retry = Retry::start(Arc::clone(manager), listeners, service::status)
        .map_err(|error| not_started("thread", &error))?;
    let _old_keys =
        OldKeyTimer::start(Arc::clone(manager)).map_err(|error| not_started("thread", &error))?;
    let mut watchdog = Watchdog::of_service(Instant::now());
    let longest = service::longest_stop(server.drain());
    let mut deadline = ShutdownDeadline::new(longest);
    while server.reactors().next().is_some() {
        let (count, began) = (
            server.started(),
            stop.as_ref().is_some_and(Stop::is_announced),
        );
        if !deadline.keep_waiting(Instant::now(), began, server.stopping(), count) {
            let left = server.reactors().map(|(at, _)| at);
            return Err(server.stopping().not_ended(left, longest).into());
        }
        if let Some(watchdog) = &mut watchdog {
            watchdog.check(Instant::now(), server.reactors());
        }
        let look = watchdog.as_ref().map(Watchdog::next);
        let waits = stop.as_ref().is_some_and(|stop| !stop.is_ready());
        let again = waits.then(|| Instant::now() + ANNOUNCE_POLL);
        let look = look.into_iter().chain(deadline.until()).chain(again).min();
        ending |= wait(&server, signals, ending, look);
        while let Ok(Some(signal)) = signals.read_signal() {
            if i32::try_from(signal.ssi_signo) == Ok(Signal::SIGHUP as i32) {
                if stop.is_none() {
                    reload(keeper.cloned());
                }
                continue;
            }
            match stop.as_ref().map(|stop| stop.began.elapsed()) {
                Some(since) if since < TOGETHER => continue,
                Some(_) => {
                    tracing::warn!("second signal: stopping immediately");
                    std::process::exit(1);
                }
                None => {}
            }
            stop = Some(Stop::begin(&server, signal.ssi_signo));
        }
        stop.iter_mut().for_each(|stop| stop.advance(&server));
        // A failed reactor stops the others: hosts would keep waiting for half a target
        // instead of using another path.
        let failed = server.reactors().count() < count;
        if failed {
            // Nobody is waited for, but other gateways need not wait for the lease.
            let _ = server.hand_over();
        }
        if failed || stop.as_ref().is_some_and(Stop::is_ready) {
            server.stop();
        }
    }
    let result = server.join();
    if result.is_ok() {
        tracing::info!("stopped: all backing stores are flushed");
    }
    result
}

/// What happens after a signal, before reactors stop.
struct Stop {
    began: Instant,
    step: StopStep,
}

#[derive(Clone, Copy)]
enum StopStep {
    /// Groups are handed over to other gateways, at most until then.
    HandOver(Instant),
    /// Hosts learn of the stop, at most until then.
    Announced(Instant),
    /// Reactors may stop.
    Ready,
}

impl Stop {
    fn begin(server: &Server, signal: u32) -> Self {
        let name = i32::try_from(signal)
            .ok()
            .and_then(|number| Signal::try_from(number).ok())
            .map_or("signal", Signal::as_str);
        tracing::info!("{name}: stopping; completing commands in flight");
        let (began, hands_over) = (Instant::now(), server.hand_over());
        let before = if hands_over {
            HAND_OVER
        } else {
            Duration::ZERO
        };
        service::stopping(server.drain() + before);
        let step = StopStep::HandOver(began + before);
        Self { began, step }
    }

    fn advance(&mut self, server: &Server) {
        self.step = match self.step {
            StopStep::HandOver(end) if server.has_handed_over() || Instant::now() >= end => {
                if !server.has_handed_over() {
                    tracing::warn!(
                        "groups not handed over within {} s; other gateways take them over",
                        HAND_OVER.as_secs()
                    );
                }
                match server.announce_stop() {
                    true => StopStep::Announced(Instant::now() + ANNOUNCE),
                    false => StopStep::Ready,
                }
            }
            StopStep::Announced(end) if server.is_stop_known() || Instant::now() >= end => {
                StopStep::Ready
            }
            same => same,
        }
    }

    /// Whether commands in flight are being completed for the last time.
    fn is_announced(&self) -> bool {
        !matches!(self.step, StopStep::HandOver(_))
    }

    fn is_ready(&self) -> bool {
        matches!(self.step, StopStep::Ready)
    }
}

/// Waits for a signal, the end of a reactor, or `until`. A reactor signals its end
/// shortly before its thread has finished, which can take long on a busy machine:
/// `ending` says that one has signalled, and makes this return every 10 ms. Returns
/// whether one signalled now.
fn wait(server: &Server, signals: &SignalFd, ending: bool, until: Option<Instant>) -> bool {
    let mut fds = [
        PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        PollFd::new(server.ended().wait_fd(), PollFlags::POLLIN),
    ];
    let until = until.map(|until| until.saturating_duration_since(Instant::now()));
    let timeout = if ending {
        PollTimeout::from(10u8)
    } else {
        nvmeof_target_engine::poll_timeout(until)
    };
    let _ = poll(&mut fds, timeout);
    !server.ended().take().is_empty()
}

/// Reloads the configuration. If it is invalid nothing changes, and the log names the
/// error. A reload may have to wait for another change, so it runs on its own thread:
/// watchdog notifications continue in the meantime.
fn reload(keeper: Option<Arc<Keeper>>) {
    let Some(keeper) = keeper else {
        tracing::warn!(
            "SIGHUP ignored: the configuration was given on the command line, so there is no file \
             to read again; send SIGTERM to stop the target"
        );
        return;
    };
    service::reloading();
    let thread = std::thread::Builder::new().name("reload".to_owned());
    let started = thread.spawn(move || {
        match keeper.reload() {
            Ok(outcome) => {
                outcome.log("reload");
                let report = &outcome.report;
                let (changes, lost) = (report.changes.len(), report.disconnected.len());
                tracing::info!("reloaded: {changes} changes, {lost} controllers disconnected");
            }
            Err(error) => tracing::error!("reload refused, nothing changed: {error}"),
        }
        service::ready(&keeper.manager().status());
    });
    if let Err(error) = started {
        tracing::error!("reload refused, nothing changed: cannot start a thread: {error}");
    }
}

/// The kernel refused a resource that the process requires.
pub(crate) fn not_started(what: &'static str, error: &io::Error) -> ServeError {
    ServeError::Start {
        what,
        why: explain(error),
    }
}
