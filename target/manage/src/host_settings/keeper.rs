//! The thread that saves what hosts set. No other thread waits for a file: a reactor defers the
//! command and continues.
//!
//! All changes of a namespace that arrive while records are written are in its next write. There is
//! one write at a time, however many changes hosts request.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nvmeof_target_core::{SavedSettings, SettingsKeeper, SettingsSave, Target};
use nvmeof_wire::Nqn;

use nvmeof_target_engine::{Mail, Mailbox};

/// How long the thread waits before it retries, at first and at last.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How long a drop waits for the thread to end.
const JOIN_TIMEOUT: Duration = Duration::from_millis(500);

/// Stores settings of hosts.
pub(crate) trait Write: Send + 'static {
    /// Stores all settings of the namespace `nsid` of `subsystem`, which replace the former ones.
    ///
    /// # Errors
    /// If it cannot be written: then the old or the new state may be stored.
    fn write(&mut self, subsystem: &Nqn, nsid: u32, settings: &SavedSettings) -> io::Result<()>;

    /// Stores again the former settings of one namespace whose write failed.
    fn retry(&mut self) -> Retried;
}

/// The result of [`Write::retry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retried {
    /// None is left.
    All,
    /// One is stored; others may be left.
    One,
    /// One could not be stored.
    Failed,
}

/// A keeper whose thread was not started yet.
pub(crate) struct Keeper<W> {
    to: W,
    target: Target,
    wakeup: Arc<Wakeup>,
}

/// A running keeper; it stops when it is dropped.
pub(crate) struct KeeperHandle {
    wakeup: Arc<Wakeup>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Wakeup {
    state: Mutex<WakeupState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WakeupState {
    /// Whether there may be changes to store.
    is_pending: bool,
    stopped: bool,
}

impl<W: Write> Keeper<W> {
    /// A keeper that stores what hosts set in `target`.
    pub(super) fn of(to: W, target: &Target) -> Self {
        let wakeup = Arc::<Wakeup>::default();
        target.set_settings_keeper(Arc::clone(&wakeup) as Arc<dyn SettingsKeeper>);
        let target = target.clone();
        Self { to, target, wakeup }
    }

    /// Starts the thread, which notifies the reactors when changes are stored.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(mut self, reactors: Arc<[Mailbox]>) -> io::Result<KeeperHandle> {
        let wakeup = Arc::clone(&self.wakeup);
        let thread = std::thread::Builder::new()
            .name("host-settings".to_owned())
            .spawn(move || {
                // When, and how long after the attempt before.
                let (mut retry, (first, last)) = (None::<(Instant, Duration)>, RETRY);
                while self.wakeup.wait(retry.map(|(at, _)| at)) {
                    while let Some(save) = self.target.next_save() {
                        let written = Self::write(&mut self.to, &save);
                        save.end(&written);
                        Mailbox::send_all(&reactors, Mail::POLL);
                    }
                    // One at a time: a host that waits for a save does not wait for all of them.
                    if retry.is_none_or(|(at, _)| Instant::now() >= at) {
                        let retried = catch_unwind(AssertUnwindSafe(|| self.to.retry()));
                        let pause = retry.map_or(first, |(_, pause)| last.min(2 * pause));
                        let now = Instant::now();
                        retry = match retried.unwrap_or(Retried::Failed) {
                            Retried::All => None,
                            Retried::One => Some((now, first / 2)),
                            Retried::Failed => Some((now + pause, pause)),
                        };
                    }
                }
            })?;
        Ok(KeeperHandle { wakeup, thread })
    }

    fn write(to: &mut W, save: &SettingsSave) -> io::Result<()> {
        let write = || to.write(save.subsystem(), save.nsid(), save.settings());
        // The commands of later saves would wait for a thread that has ended.
        let written = catch_unwind(AssertUnwindSafe(write));
        written.unwrap_or_else(|_| Err(io::Error::other("a bug: the thread panicked, see above")))
    }
}

impl Wakeup {
    fn state(&self) -> MutexGuard<'_, WakeupState> {
        // A panic of a holder leaves nothing inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there may be changes, or until then. False when the keeper stops.
    fn wait(&self, until: Option<Instant>) -> bool {
        let idle = |state: &mut WakeupState| !state.is_pending && !state.stopped;
        let state = self.state();
        let most = until.map_or(Duration::MAX, |at| {
            at.saturating_duration_since(Instant::now())
        });
        let waited = self.changed.wait_timeout_while(state, most, idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_pending = false;
        !state.stopped
    }
}

impl SettingsKeeper for Wakeup {
    fn wake(&self) {
        self.state().is_pending = true;
        self.changed.notify_one();
    }
}

impl Drop for KeeperHandle {
    fn drop(&mut self) {
        self.wakeup.state().stopped = true;
        self.wakeup.changed.notify_all();
        // A thread that is blocked by an unresponsive file system is abandoned.
        let until = Instant::now() + JOIN_TIMEOUT;
        while !self.thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests;
