//! The thread that monitors backing stores: it detects other sizes, and examines those that
//! failed.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::served::Manager;
use nvmeof_target_engine::Failures;

/// Interval of size checks. Each takes one system call for each backing store.
const EVERY: Duration = Duration::from_secs(2);
/// Pause between two checks while backing stores fail continuously.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a drop waits for the thread to end.
const JOIN_TIMEOUT: Duration = Duration::from_millis(500);

/// Monitors backing stores until it is dropped.
pub struct BackingStoreMonitor {
    failures: Failures,
    thread: Option<JoinHandle<()>>,
}

impl BackingStoreMonitor {
    /// Examines the backing stores that reactors report to `failures`. After each change, `notify`
    /// gets the status of the target.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        manager: Arc<Manager>,
        failures: Failures,
        notify: fn(&str),
    ) -> std::io::Result<Self> {
        let reported = failures.clone();
        let thread = std::thread::Builder::new()
            .name("disks".to_owned())
            .spawn(move || watch(&manager, &reported, notify))?;
        Ok(Self {
            failures,
            thread: Some(thread),
        })
    }
}

fn watch(manager: &Manager, failures: &Failures, notify: fn(&str)) {
    while let Some(failed) = failures.wait(EVERY) {
        if manager.check_stores(&failed) {
            notify(&manager.status());
        }
        if !failed.is_empty() {
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for BackingStoreMonitor {
    fn drop(&mut self) {
        self.failures.stop();
        // A thread that is blocked by an unresponsive device is abandoned.
        let until = Instant::now() + JOIN_TIMEOUT;
        while let Some(thread) = &self.thread {
            if thread.is_finished() || Instant::now() >= until {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
