//! What makes one storage stable at this moment, in all reactors.
//!
//! The kernel tells one caller of fsync(2) that something was lost, and of several at the
//! same time that may be any of them; a device does so with a flush. So what succeeded is
//! answered when everything that ran beside it has come back, and it fails, too, if
//! something was lost since it began.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_uring::Waker;

use super::{Losses, flush_begins};

/// Those of one storage.
#[derive(Debug, Default)]
pub(crate) struct Syncs {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the one that begins next.
    next: u64,
    running: Vec<u64>,
    /// Who waits until all before that number are done.
    waiting: Vec<(u64, Waker)>,
}

/// One that runs, until it is dropped: a failure has to be counted before.
#[derive(Debug)]
pub(crate) struct Begun {
    losses: Arc<Losses>,
    number: u64,
    /// What was lost before it began.
    before: u64,
    /// The stamp of its begin, if it makes everything stable.
    flush: Option<u64>,
}

/// One that succeeded.
#[derive(Debug)]
pub(crate) struct Synced {
    losses: Arc<Losses>,
    before: u64,
    /// Those with a smaller number ran beside it.
    until: u64,
    flush: Option<u64>,
}

/// Something was lost since it began.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LostMeanwhile;

impl Begun {
    /// One that makes everything stable that was written before.
    pub(crate) fn flush(losses: &Arc<Losses>) -> Self {
        let mut begun = Self::begin(losses);
        begun.flush = Some(flush_begins());
        begun
    }

    /// One that makes stable what it writes itself.
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

    /// It came back with success. `waker` is woken when there is an
    /// [`outcome`](Synced::outcome), if there is none yet.
    pub(crate) fn succeeded(self, waker: &Waker) -> Synced {
        let mut state = self.losses.syncs().lock();
        let until = state.next;
        if state.running.len() > 1 {
            state.waiting.push((until, waker.clone()));
        }
        drop(state);
        let losses = Arc::clone(&self.losses);
        Synced {
            losses,
            before: self.before,
            until,
            flush: self.flush,
        }
    }
}

impl Drop for Begun {
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

impl Synced {
    /// What to answer; `None` as long as one that ran beside it is not done.
    pub(crate) fn outcome(&self) -> Option<Result<(), LostMeanwhile>> {
        let is_beside = |number: &u64| *number < self.until;
        if self.losses.syncs().lock().running.iter().any(is_beside) {
            return None;
        }
        if self.losses.now().count > self.before {
            return Some(Err(LostMeanwhile));
        }
        if let Some(flush) = self.flush {
            self.losses.flushed(flush);
        }
        Some(Ok(()))
    }
}

impl Syncs {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done when a holder panics.
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
    fn one_alone_is_answered_at_once() {
        let (losses, waker) = storage(1);
        losses.add();
        let alone = Begun::begin(&losses).succeeded(&waker);
        assert_eq!(alone.outcome(), Some(Ok(())), "that was before");
        assert!(losses.syncs().lock().waiting.is_empty());
        losses.add();
        assert_eq!(alone.outcome(), Some(Err(LostMeanwhile)));
    }

    /// A loss concerns what was stable before if that is not known to be.
    #[test]
    fn a_flush_that_is_answered_with_success_makes_stable_what_was_before() {
        for (flushes, fails) in [(true, false), (true, true), (false, false)] {
            let (losses, waker) = storage(3);
            let stamp = stamp();
            let begun = if flushes {
                Begun::flush(&losses)
            } else {
                Begun::begin(&losses)
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
    fn one_beside_others_is_answered_after_them_and_fails_with_them() {
        for fails in [false, true] {
            let (losses, waker) = storage(2);
            let [older, this, younger] = [(); 3].map(|()| Begun::begin(&losses));
            let this = this.succeeded(&waker);
            let later = Begun::begin(&losses);
            assert_eq!(this.outcome(), None);
            drop(older);
            assert_eq!(this.outcome(), None);
            assert_eq!(losses.syncs().lock().waiting.len(), 1);
            if fails {
                losses.add();
            }
            drop(younger);
            assert_eq!(losses.syncs().lock().waiting.len(), 0, "it was woken");
            let expected = if fails { Err(LostMeanwhile) } else { Ok(()) };
            assert_eq!(this.outcome(), Some(expected), "who came later is not its");
            drop(later);
        }
    }
}
