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

use nvmeof_backend::BackingStores;

/// Wait for reactors after their last iteration while the kernel has operations.
const OUTSTANDING: Duration = Duration::from_secs(2);
/// Wait for reactors otherwise: they release memory and devices.
const TEARDOWN: Duration = Duration::from_secs(30);

/// Progress of the reactors of a target at shutdown.
#[derive(Debug, Default)]
pub struct ShutdownProgress {
    /// Reactors that have ended their loop.
    ended: AtomicUsize,
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
pub struct ShutdownDeadline {
    /// Time for a reactor to end its loop.
    longest: Duration,
    until: Option<Instant>,
    /// Whether all of them have.
    all_ended: bool,
}

impl ShutdownProgress {
    /// A reactor ended its loop: operations that `stores` have in flight are not waited
    /// for.
    pub fn reactor_ended(&self, stores: &impl BackingStores) {
        let mut all = self.lock();
        for (name, count) in stores.outstanding() {
            *all.entry(name).or_default() += count;
        }
        drop(all);
        self.ended.fetch_add(1, Ordering::AcqRel);
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

impl ShutdownDeadline {
    /// `longest` is how long a shutdown takes at most.
    #[must_use]
    pub fn new(longest: Duration) -> Self {
        Self {
            longest,
            until: None,
            all_ended: false,
        }
    }

    /// Updates the deadline; `began` if the shutdown has begun, `reactors` is their
    /// number. Returns whether to wait any longer.
    pub fn keep_waiting(
        &mut self,
        now: Instant,
        began: bool,
        stopping: &ShutdownProgress,
        reactors: usize,
    ) -> bool {
        if began && self.until.is_none() {
            self.until = Some(now + self.longest);
        }
        if !self.all_ended && stopping.ended.load(Ordering::Acquire) >= reactors {
            self.all_ended = true;
            let has_all = stopping.outstanding().is_none();
            let deadline = if has_all { TEARDOWN } else { OUTSTANDING };
            self.until = Some(now + deadline);
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
    use nvmeof_backend::UringStores;
    use nvmeof_uring::RingConfig;

    #[test]
    fn shutdown_waits_for_reactors_for_a_bounded_time() {
        let (stopping, now) = (ShutdownProgress::default(), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        let mut deadline = ShutdownDeadline::new(Duration::from_secs(30));
        assert!(deadline.keep_waiting(after(100), false, &stopping, 2));
        assert!(deadline.keep_waiting(after(100), true, &stopping, 2));
        assert!(deadline.keep_waiting(after(129), true, &stopping, 2));
        let idle = UringStores::new(RingConfig::default()).unwrap();
        stopping.reactor_ended(&idle);
        assert!(
            !deadline.keep_waiting(after(130), true, &stopping, 2),
            "one hangs"
        );
        stopping.reactor_ended(&idle);
        assert!(deadline.keep_waiting(after(130), true, &stopping, 2));
        assert!(!deadline.keep_waiting(after(130) + TEARDOWN, true, &stopping, 2));
        assert_eq!(stopping.outstanding(), None);
    }
}
