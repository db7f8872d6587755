//! The thread that keeps what hosts write protect. Nobody else waits for the file:
//! a reactor has the command wait and goes on.
//!
//! What comes while the file is written is in the next write, all of it: there is one
//! write at a time, however much hosts ask for.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nvmeof_target_core::{KeepProtections, KeptProtection, Target};
use nvmeof_wire::Nqn;

use nvmeof_target_engine::{Mail, Mailbox};

/// How long the thread may take to end.
const AT_THE_END: Duration = Duration::from_millis(500);

/// Where it is kept.
pub(crate) trait Write: Send + 'static {
    /// Of these subsystems those namespaces are protected, and no others.
    ///
    /// # Errors
    /// When it cannot be written: then the one or the other may be there.
    fn write(&mut self, changes: &[(Nqn, Vec<KeptProtection>)]) -> io::Result<()>;
}

/// Keeps it as soon as there is a thread for it.
pub(crate) struct Keeper<W> {
    to: W,
    target: Target,
    wakeup: Arc<Wakeup>,
}

/// Keeps it until it is dropped.
pub(crate) struct Keeping {
    wakeup: Arc<Wakeup>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Wakeup {
    state: Mutex<Rung>,
    rings: Condvar,
}

#[derive(Debug, Default)]
struct Rung {
    /// Whether there may be something to be kept.
    rung: bool,
    stopped: bool,
}

impl<W: Write> Keeper<W> {
    /// What hosts protect of `target` is written there from now on.
    pub(super) fn of(to: W, target: &Target) -> Self {
        let wakeup = Arc::<Wakeup>::default();
        target.keep_protections_in(Arc::clone(&wakeup) as Arc<dyn KeepProtections>);
        let target = target.clone();
        Self { to, target, wakeup }
    }

    /// Starts the thread, which tells those reactors when something is kept.
    ///
    /// # Errors
    /// When there can be no thread.
    pub(crate) fn start(mut self, reactors: Arc<[Mailbox]>) -> io::Result<Keeping> {
        let wakeup = Arc::clone(&self.wakeup);
        let thread = std::thread::Builder::new()
            .name("protections".to_owned())
            .spawn(move || {
                while self.wakeup.wait() {
                    while let Some(to_keep) = self.target.to_keep() {
                        let written = self.to.write(to_keep.changes());
                        to_keep.end(written);
                        Mailbox::send_all(&reactors, Mail::POLL);
                    }
                }
            })?;
        Ok(Keeping { wakeup, thread })
    }
}

impl Wakeup {
    fn state(&self) -> MutexGuard<'_, Rung> {
        // Nothing is left half done when a holder panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there may be something. False when nothing is to be kept any more.
    fn wait(&self) -> bool {
        let nothing = |state: &mut Rung| !state.rung && !state.stopped;
        let waited = self.rings.wait_while(self.state(), nothing);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.rung = false;
        !state.stopped
    }
}

impl KeepProtections for Wakeup {
    fn wake(&self) {
        self.state().rung = true;
        self.rings.notify_one();
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.wakeup.state().stopped = true;
        self.wakeup.rings.notify_all();
        // One that waits for a file that hangs is left behind.
        let until = Instant::now() + AT_THE_END;
        while !self.thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests;
