//! Flushes and durable writes of one file or device that are running, in all reactors.
//!
//! The kernel reports a loss to one caller of fsync(2), which may be any of several
//! concurrent ones; a device does the same with a flush. So a successful sync completes
//! only after all concurrent ones have ended, and it fails as well if a loss was counted
//! since it began.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_uring::Waker;

use super::{Losses, flush_begins};

/// Running syncs of one file or device.
#[derive(Debug, Default)]
pub(crate) struct Syncs {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the next sync.
    next: u64,
    running: Vec<u64>,
    /// Wakers to call when all syncs before that number have ended.
    waiting: Vec<(u64, Waker)>,
}

/// A running sync, until it is dropped. A failure must be counted before.
#[derive(Debug)]
pub(crate) struct RunningSync {
    losses: Arc<Losses>,
    number: u64,
    /// The count of losses when it began.
    before: u64,
    /// The stamp of its start, if it makes all writes stable.
    flush: Option<u64>,
}

/// A sync that succeeded.
#[derive(Debug)]
pub(crate) struct CompletedSync {
    losses: Arc<Losses>,
    before: u64,
    /// Running syncs with a smaller number were concurrent.
    until: u64,
    flush: Option<u64>,
}

/// A loss was counted since the sync began.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LostDuringSync;

impl RunningSync {
    /// Begins a sync that makes all earlier writes stable.
    pub(crate) fn flush(losses: &Arc<Losses>) -> Self {
        let mut begun = Self::begin(losses);
        begun.flush = Some(flush_begins());
        begun
    }

    /// Begins a durable write, which makes its own data stable.
    pub(crate) fn begin(losses: &Arc<Losses>) -> Self {
        let before = losses.now().count;
        let mut state = losses.syncs().lock();
        let number = state.next;
        state.next += 1;
        state.running.push(number);
        drop(state);
        Self {
            losses: Arc::clone(losses),
            number,
            before,
            flush: None,
        }
    }

    /// The operation succeeded. If there is no [`outcome`](CompletedSync::outcome) yet, `waker` is
    /// called as soon as there is one.
    pub(crate) fn succeeded(self, waker: &Waker) -> CompletedSync {
        let mut state = self.losses.syncs().lock();
        let until = state.next;
        if state.running.len() > 1 {
            state.waiting.push((until, waker.clone()));
        }
        drop(state);
        let losses = Arc::clone(&self.losses);
        CompletedSync {
            losses,
            before: self.before,
            until,
            flush: self.flush,
        }
    }
}

impl Drop for RunningSync {
    fn drop(&mut self) {
        let mut state = self.losses.syncs().lock();
        state.running.retain(|number| *number != self.number);
        let State {
            running, waiting, ..
        } = &mut *state;
        if waiting.is_empty() {
            return;
        }
        let oldest = running.iter().min().copied().unwrap_or(u64::MAX);
        for (_, waker) in waiting.extract_if(.., |(until, _)| *until <= oldest) {
            waker.wake();
        }
    }
}

impl CompletedSync {
    /// The result; `None` as long as a concurrent sync is running.
    pub(crate) fn outcome(&self) -> Option<Result<(), LostDuringSync>> {
        let is_concurrent = |number: &u64| *number < self.until;
        if self.losses.syncs().lock().running.iter().any(is_concurrent) {
            return None;
        }
        if self.losses.now().count > self.before {
            return Some(Err(LostDuringSync));
        }
        if let Some(flush) = self.flush {
            self.losses.flushed(flush);
        }
        Some(Ok(()))
    }
}

impl Syncs {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent also after a panic of another holder.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_uring::{Ring, RingConfig};

    use super::*;
    use crate::{StorageId, stamp};

    fn storage(number: u64) -> (Arc<Losses>, Waker) {
        let ring = Ring::new(RingConfig::default()).unwrap();
        let name = format!("/disks/sync{number}").into();
        (Losses::of(&name, StorageId::File(number)), ring.waker())
    }

    #[test]
    fn single_sync_completes_immediately() {
        let (losses, waker) = storage(1);
        losses.add();
        let alone = RunningSync::begin(&losses).succeeded(&waker);
        assert_eq!(alone.outcome(), Some(Ok(())), "the loss was earlier");
        assert!(losses.syncs().lock().waiting.is_empty());
        losses.add();
        assert_eq!(alone.outcome(), Some(Err(LostDuringSync)));
    }

    /// Writes that are not known to be stable may be among those lost.
    #[test]
    fn successful_flush_makes_earlier_writes_stable() {
        for (flushes, fails) in [(true, false), (true, true), (false, false)] {
            let (losses, waker) = storage(3);
            let stamp = stamp();
            let begun = if flushes {
                RunningSync::flush(&losses)
            } else {
                RunningSync::begin(&losses)
            };
            let synced = begun.succeeded(&waker);
            if fails {
                losses.add();
            }
            assert_eq!(synced.outcome().unwrap().is_ok(), !fails);
            let known = losses.now().count;
            losses.add();
            assert_eq!(losses.concern(stamp, known), !flushes || fails);
        }
    }

    #[test]
    fn concurrent_sync_completes_last_and_shares_failure() {
        for fails in [false, true] {
            let (losses, waker) = storage(2);
            let [older, this, younger] = [(); 3].map(|()| RunningSync::begin(&losses));
            let this = this.succeeded(&waker);
            let later = RunningSync::begin(&losses);
            assert_eq!(this.outcome(), None);
            drop(older);
            assert_eq!(this.outcome(), None);
            assert_eq!(losses.syncs().lock().waiting.len(), 1);
            if fails {
                losses.add();
            }
            drop(younger);
            assert_eq!(losses.syncs().lock().waiting.len(), 0, "it was woken");
            let expected = if fails { Err(LostDuringSync) } else { Ok(()) };
            assert_eq!(
                this.outcome(),
                Some(expected),
                "a later one is not concurrent"
            );
            drop(later);
        }
    }
}
