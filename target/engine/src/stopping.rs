//! Shutdown of the target: the progress of its reactors, and how long it waits for them.
//!
//! A reactor completes what it can within `reactor.drain_s`. Operations that a backing
//! store has not completed by then belong to the kernel: their memory, their files and
//! the ring cannot be released before they end, and they cannot be cancelled. The target
//! does not wait for the thread of such a reactor: the process exits, and the kernel
//! releases the rest.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvmeof_backend::Storage;

/// Wait for reactors after their last iteration while the kernel has operations.
const OUTSTANDING: Duration = Duration::from_secs(2);
/// Wait for reactors otherwise: they release memory and devices.
const TEARDOWN: Duration = Duration::from_secs(30);

/// Progress of the reactors of a target at shutdown.
#[derive(Debug, Default)]
pub struct Stopping {
    /// Reactors that have ended their loop.
    over: AtomicUsize,
    /// Operations that did not complete, by backing store.
    outstanding: Mutex<BTreeMap<String, usize>>,
}

/// Threads did not end: the kernel has operations of theirs, or they are stalled.
#[derive(Debug, thiserror::Error)]
pub enum ShutdownError {
    /// A backing store did not complete its operations.
    #[error(
        "stopped, but operations did not complete in time: {0}; the data that they write may or \
         may not be stored; find out why the backing store stalls"
    )]
    Outstanding(String),
    /// A reactor does not end.
    #[error("stopped, but {0} did not end within {1} s; the log says what it waits for")]
    Stuck(String, u64),
}

/// The deadline for the threads of reactors to end.
#[derive(Debug)]
pub struct Patience {
    /// Time for a reactor to end its loop.
    longest: Duration,
    until: Option<Instant>,
    /// Whether all of them have.
    all_over: bool,
}

impl Stopping {
    /// A reactor ended its loop: operations that `storage` has in flight are not waited
    /// for.
    pub fn is_over(&self, storage: &impl Storage) {
        let mut all = self.lock();
        for (name, count) in storage.outstanding() {
            *all.entry(name).or_default() += count;
        }
        drop(all);
        self.over.fetch_add(1, Ordering::AcqRel);
    }

    /// Why `reactors` did not end. Logs it as well.
    pub fn not_ended(
        &self,
        reactors: impl Iterator<Item = usize>,
        longest: Duration,
    ) -> ShutdownError {
        let error = self.outstanding().map_or_else(
            || {
                let names: Vec<_> = reactors.map(|at| format!("reactor {at}")).collect();
                ShutdownError::Stuck(names.join(" and "), longest.as_secs())
            },
            ShutdownError::Outstanding,
        );
        tracing::error!("{error}");
        error
    }

    /// Operations that did not complete, as text; `None` if all did.
    fn outstanding(&self) -> Option<String> {
        let all = self.lock();
        let each = all.iter().map(|(name, count)| format!("{count} on {name}"));
        let all: Vec<_> = each.collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, usize>> {
        // A panic while the lock is held leaves nothing inconsistent.
        self.outstanding
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Patience {
    /// `longest` is how long a shutdown takes at most.
    #[must_use]
    pub fn new(longest: Duration) -> Self {
        Self {
            longest,
            until: None,
            all_over: false,
        }
    }

    /// Updates the deadline; `began` if the shutdown has begun, `reactors` is their
    /// number. Returns whether to wait any longer.
    pub fn lasts(
        &mut self,
        now: Instant,
        began: bool,
        stopping: &Stopping,
        reactors: usize,
    ) -> bool {
        if began && self.until.is_none() {
            self.until = Some(now + self.longest);
        }
        if !self.all_over && stopping.over.load(Ordering::Acquire) >= reactors {
            self.all_over = true;
            let has_all = stopping.outstanding().is_none();
            let patience = if has_all { TEARDOWN } else { OUTSTANDING };
            self.until = Some(now + patience);
        }
        self.until.is_none_or(|until| now < until)
    }

    /// The deadline, if there is one.
    #[must_use]
    pub fn until(&self) -> Option<Instant> {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmeof_backend::Disks;
    use nvmeof_uring::RingConfig;

    #[test]
    fn shutdown_waits_for_reactors_for_a_bounded_time() {
        let (stopping, now) = (Stopping::default(), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        let mut patience = Patience::new(Duration::from_secs(30));
        assert!(patience.lasts(after(100), false, &stopping, 2));
        assert!(patience.lasts(after(100), true, &stopping, 2));
        assert!(patience.lasts(after(129), true, &stopping, 2));
        let idle = Disks::new(RingConfig::default()).unwrap();
        stopping.is_over(&idle);
        assert!(!patience.lasts(after(130), true, &stopping, 2), "one hangs");
        stopping.is_over(&idle);
        assert!(patience.lasts(after(130), true, &stopping, 2));
        assert!(!patience.lasts(after(130) + TEARDOWN, true, &stopping, 2));
        assert_eq!(stopping.outstanding(), None);
    }
}
