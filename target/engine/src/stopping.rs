//! The end of a target: how far its reactors are, and for how long they are waited for.
//!
//! A reactor completes what it can within the time of `reactor.drain_s`. What a disk has
//! then is the kernel's: the memory of these operations, their files and the ring cannot be
//! given back before they end, and nothing makes them end. So the thread of such a reactor
//! is not waited for: the process exits, and what the kernel still holds ends with it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvmeof_backend::Storage;

/// How long reactors are waited for after their last turn while the kernel has operations.
const OUTSTANDING: Duration = Duration::from_secs(2);
/// And otherwise: memory and devices are given back.
const TEARDOWN: Duration = Duration::from_secs(30);

/// How far the reactors of a target are at its end.
#[derive(Debug, Default)]
pub struct Stopping {
    /// Reactors that turn no more.
    over: AtomicUsize,
    /// Operations that did not end, by backing store.
    outstanding: Mutex<BTreeMap<String, usize>>,
}

/// Threads are left behind: the kernel has something of theirs, or they hang.
#[derive(Debug, thiserror::Error)]
pub enum NotEnded {
    /// A backing store did not do what it was to.
    #[error(
        "stopped, but operations did not end in time: {0}; what they were to change may or may \
         not be stored; see why the backing store hangs"
    )]
    Outstanding(String),
    /// A reactor does not come to its end.
    #[error("stopped, but {0} did not end within {1} s; the log says what it waits for")]
    Stuck(String, u64),
}

/// Until when the threads of reactors are waited for.
#[derive(Debug)]
pub struct Patience {
    /// For a reactor to have its last turn.
    longest: Duration,
    until: Option<Instant>,
    /// Whether all of them had it.
    all_over: bool,
}

impl Stopping {
    /// A reactor had its last turn: what `storage` has in flight will not be waited for.
    pub fn is_over(&self, storage: &impl Storage) {
        let mut all = self.lock();
        for (name, count) in storage.outstanding() {
            *all.entry(name).or_default() += count;
        }
        drop(all);
        self.over.fetch_add(1, Ordering::AcqRel);
    }

    /// Why `reactors` are left behind, which the log is told.
    pub fn not_ended(&self, reactors: impl Iterator<Item = usize>, longest: Duration) -> NotEnded {
        let error = self.outstanding().map_or_else(
            || {
                let names: Vec<_> = reactors.map(|at| format!("reactor {at}")).collect();
                NotEnded::Stuck(names.join(" and "), longest.as_secs())
            },
            NotEnded::Outstanding,
        );
        tracing::error!("{error}");
        error
    }

    /// Operations that did not end, in words; `None` if all did.
    fn outstanding(&self) -> Option<String> {
        let all = self.lock();
        let each = all.iter().map(|(name, count)| format!("{count} on {name}"));
        let all: Vec<_> = each.collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, usize>> {
        // Nothing is left half done when a holder panics.
        self.outstanding
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Patience {
    /// `longest` is how long a stop takes at most.
    #[must_use]
    pub fn new(longest: Duration) -> Self {
        Self {
            longest,
            until: None,
            all_over: false,
        }
    }

    /// Looks how far the stop is, which `began`; `reactors` is how many there are. Says
    /// whether they are waited for any longer.
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

    /// Until when they are waited for, if that has an end.
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
    fn reactors_are_waited_for_with_a_bound_once_the_stop_began() {
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
