//! The thread that ends old keys of hosts at their date.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use crate::served::Manager;

/// Interval of checks. The date is of the clock that an administrator can set, so that a wait for
/// it could be wrong.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of checks for controllers that use a key that ends soon. Each locks every controller.
const NOTICE_INTERVAL: Duration = Duration::from_secs(60);
/// How long a drop waits for the thread to end.
const JOIN_TIMEOUT: Duration = Duration::from_millis(500);

/// Ends old keys until it is dropped. Logs once each controller that uses a key that ends soon.
pub struct OldKeyTimer {
    stop: Option<Sender<()>>,
    thread: JoinHandle<()>,
}

impl OldKeyTimer {
    /// Ends the old keys of the configuration that `manager` serves.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(manager: Arc<Manager>) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new()
            .name("old-keys".to_owned())
            .spawn(move || watch(&manager, &stopped))?;
        Ok(Self {
            stop: Some(stop),
            thread,
        })
    }
}

fn watch(manager: &Manager, stopped: &Receiver<()>) {
    let (mut logged, mut notice) = (BTreeSet::new(), Instant::now());
    while stopped.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let now = SystemTime::now();
        manager.end_old_keys(now);
        if Instant::now() < notice {
            continue;
        }
        notice = Instant::now() + NOTICE_INTERVAL;
        let warnings: BTreeSet<String> = manager.ending_key_warnings(now).into_iter().collect();
        for new in warnings.difference(&logged) {
            tracing::warn!("{new}");
        }
        logged = warnings;
    }
}

impl Drop for OldKeyTimer {
    fn drop(&mut self) {
        self.stop = None;
        // A thread that waits for a change in progress is abandoned.
        let until = Instant::now() + JOIN_TIMEOUT;
        while !self.thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
