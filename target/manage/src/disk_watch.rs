//! The thread that looks after disks: notices when one has another size, and what
//! became of those that fail.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::served::Manager;
use nvmeof_target_engine::Failures;

/// How often sizes are looked at. It takes one system call for each disk.
const EVERY: Duration = Duration::from_secs(2);
/// Between two looks, when disks fail all the time.
const PAUSE: Duration = Duration::from_millis(100);

/// How long the thread may take to end.
const AT_THE_END: Duration = Duration::from_millis(500);

/// Looks after disks until it is dropped.
pub struct DiskWatch {
    failures: Failures,
    thread: Option<JoinHandle<()>>,
}

impl DiskWatch {
    /// Of what reactors tell `failures`. After each change `tell` hears what is served.
    ///
    /// # Errors
    /// When there is no thread for that.
    pub fn start(
        manager: Arc<Manager>,
        failures: Failures,
        tell: fn(&str),
    ) -> std::io::Result<Self> {
        let told = failures.clone();
        let thread = std::thread::Builder::new()
            .name("disks".to_owned())
            .spawn(move || watch(&manager, &told, tell))?;
        Ok(Self {
            failures,
            thread: Some(thread),
        })
    }
}

fn watch(manager: &Manager, failures: &Failures, tell: fn(&str)) {
    while let Some(failed) = failures.wait(EVERY) {
        if manager.look_after(&failed) {
            tell(&manager.status());
        }
        if !failed.is_empty() {
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for DiskWatch {
    fn drop(&mut self) {
        self.failures.stop();
        // One that waits for a device that hangs is left behind.
        let until = Instant::now() + AT_THE_END;
        while let Some(thread) = &self.thread {
            if thread.is_finished() || Instant::now() >= until {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
