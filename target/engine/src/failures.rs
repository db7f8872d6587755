//! Failures of backing stores, reported by reactors to the thread that monitors backing
//! stores.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvmeof_backend::IoError;

/// Failures that reactors report. Clones share the same state.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    wakeup: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The worst failure of each backing store: that it is gone supersedes any other
    /// error.
    stores: BTreeMap<u32, IoError>,
    stopped: bool,
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while the lock is held leaves nothing inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failures {
    /// Reports that backing store number `store` failed.
    pub fn report(&self, store: u32, error: &IoError) {
        let mut state = self.inner.state();
        let known = state.stores.get(&store);
        if known.is_none_or(|known| error.is_gone() && !known.is_gone()) {
            state.stores.insert(store, error.clone());
            self.inner.wakeup.notify_one();
        }
    }

    /// Waits for failures for at most `most`. `None` once [`stop`](Self::stop) was
    /// called.
    pub fn wait(&self, most: Duration) -> Option<BTreeMap<u32, IoError>> {
        let nothing = |state: &mut State| state.stores.is_empty() && !state.stopped;
        let waited = self
            .inner
            .wakeup
            .wait_timeout_while(self.inner.state(), most, nothing);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.stopped {
            return None;
        }
        Some(std::mem::take(&mut state.stores))
    }

    /// Ends [`wait`](Self::wait), now and from now on.
    pub fn stop(&self) {
        self.inner.state().stopped = true;
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
            path: "store".into(),
            offset: 0,
        }
    }

    #[test]
    fn worst_failure_of_each_store_is_reported_once() {
        let failures = Failures::default();
        for errno in [Errno::EIO, Errno::ENODEV, Errno::EIO, Errno::ENXIO] {
            failures.report(1, &error(errno));
        }
        failures.report(2, &error(Errno::EIO));
        let reported = failures.wait(Duration::ZERO).unwrap();
        assert_eq!(reported[&1].errno, Errno::ENODEV);
        assert_eq!(reported[&2].errno, Errno::EIO);
        assert!(failures.wait(Duration::ZERO).unwrap().is_empty());
        failures.stop();
        assert!(failures.wait(Duration::from_secs(600)).is_none());
    }
}
