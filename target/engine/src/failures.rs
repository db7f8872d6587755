//! Failures of disks, on their way from reactors to whoever looks after disks.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvmeof_backend::IoError;

/// What reactors tell of disks that failed. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    told: Mutex<Told>,
    wakeup: Condvar,
}

#[derive(Debug, Default)]
struct Told {
    /// Of each disk the worst: that it is gone says more than that it failed.
    disks: BTreeMap<u32, IoError>,
    stopped: bool,
}

impl Inner {
    fn told(&self) -> MutexGuard<'_, Told> {
        // Nothing is left half done when a holder panics.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failures {
    /// Disk number `disk` failed.
    pub fn tell(&self, disk: u32, error: &IoError) {
        let mut told = self.inner.told();
        let known = told.disks.get(&disk);
        if known.is_none_or(|known| error.is_gone() && !known.is_gone()) {
            told.disks.insert(disk, error.clone());
            self.inner.wakeup.notify_one();
        }
    }

    /// Waits for failures, at most so long. `None` when nobody looks after disks
    /// any more.
    pub fn wait(&self, most: Duration) -> Option<BTreeMap<u32, IoError>> {
        let nothing = |told: &mut Told| told.disks.is_empty() && !told.stopped;
        let waited = self
            .inner
            .wakeup
            .wait_timeout_while(self.inner.told(), most, nothing);
        let (mut told, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if told.stopped {
            return None;
        }
        Some(std::mem::take(&mut told.disks))
    }

    /// Whoever waits has an end.
    pub fn stop(&self) {
        self.inner.told().stopped = true;
        self.inner.wakeup.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;
    use nvmeof_backend::IoErrorKind;

    use super::*;

    fn error(errno: Errno) -> IoError {
        IoError {
            kind: IoErrorKind::of(errno),
            errno,
            verb: "read",
            path: "disk".into(),
            offset: 0,
        }
    }

    #[test]
    fn the_worst_of_each_disk_is_told_once() {
        let failures = Failures::default();
        for errno in [Errno::EIO, Errno::ENODEV, Errno::EIO, Errno::ENXIO] {
            failures.tell(1, &error(errno));
        }
        failures.tell(2, &error(Errno::EIO));
        let told = failures.wait(Duration::ZERO).unwrap();
        assert_eq!(told[&1].errno, Errno::ENODEV);
        assert_eq!(told[&2].errno, Errno::EIO);
        assert!(failures.wait(Duration::ZERO).unwrap().is_empty());
        failures.stop();
        assert!(failures.wait(Duration::from_secs(600)).is_none());
    }
}
