//! How often a storage may have lost what was answered as done.
//!
//! The kernel tells one who asks for stable storage that it could not be had, and forgets
//! it then (fsync(2)): whoever asks next hears that all is well. So it is counted here,
//! for those who wrote and did not ask.

mod syncs;

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use syncs::Syncs;
pub(crate) use syncs::{Begun, LostMeanwhile, Synced};

/// A count that only grows. It goes on when the same file or device is opened again.
///
/// Beside it stands which writes were stable before: those that had ended when a flush
/// began that succeeded. In which order that was, stamps say.
#[derive(Debug)]
pub struct Losses {
    number: u64,
    count: AtomicU64,
    /// What has this [stamp](stamp()) or a smaller one is stable.
    stable: AtomicU64,
    history: Mutex<History>,
    syncs: Syncs,
}

/// What was stable when something was lost, the oldest first.
#[derive(Debug, Default)]
struct History {
    runs: VecDeque<Run>,
    /// Losses of which that is not known any more.
    forgotten: u64,
}

/// Losses one after the other between which nothing became stable.
#[derive(Debug)]
struct Run {
    stable: u64,
    /// The count after the last of them.
    until: u64,
}

/// Runs that are remembered.
const MOST: usize = 64;

/// Such a count at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Of what it is: no other file or device of this process has it. 0 for memory,
    /// which loses nothing.
    pub storage: u64,
    /// How often.
    pub count: u64,
}

/// Which file or device it is: the same after a mount or when it is opened again,
/// another when a file takes the place of another under its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageId {
    /// A file, by its number in its file system.
    File(u64),
    /// A block device, by its number and its size in bytes.
    Device(u64, u64),
}

impl StorageId {
    /// Whether the same file or device may have been both, with another size.
    pub(crate) fn is_of(self, other: Self) -> bool {
        match (self, other) {
            (Self::Device(this, _), Self::Device(that, _)) => this == that,
            (this, that) => this == that,
        }
    }
}

/// One that is counted on if it is opened again.
struct Known {
    name: Arc<str>,
    storage: StorageId,
    losses: Arc<Losses>,
}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(1);
/// Flushes that began, of all storages.
static FLUSHES: AtomicU64 = AtomicU64::new(0);

/// The numbers of what is open, and of what was and lost something.
#[must_use]
pub fn counted() -> BTreeSet<u64> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    forget(&mut known);
    known.iter().map(|one| one.losses.number).collect()
}

/// Of what nobody has and where nothing was lost there is nothing to know.
fn forget(known: &mut Vec<Known>) {
    known.retain(|one| Arc::strong_count(&one.losses) > 1 || one.losses.now().count > 0);
}

/// Says that something has ended by now. Greater than 0. What ends later has the same or
/// a greater one.
#[inline]
#[must_use]
pub fn stamp() -> u64 {
    FLUSHES.load(Ordering::SeqCst) + 1
}

/// A flush begins: what ended before has this [stamp](stamp()) or a smaller one, and what
/// ends from now on a greater one. To be taken before the disk is told.
#[must_use]
pub fn flush_begins() -> u64 {
    FLUSHES.fetch_add(1, Ordering::SeqCst) + 1
}

impl Losses {
    /// Of memory, which loses nothing.
    pub(crate) fn of_memory() -> Arc<Self> {
        Self::numbered(0)
    }

    /// Of something that is like no other file or device.
    #[must_use]
    pub fn of_its_own() -> Arc<Self> {
        Self::numbered(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    fn numbered(number: u64) -> Arc<Self> {
        Arc::new(Self {
            number,
            count: AtomicU64::new(0),
            stable: AtomicU64::new(0),
            history: Mutex::default(),
            syncs: Syncs::default(),
        })
    }

    /// Of that file or device, under that name.
    pub(crate) fn of(name: &Arc<str>, storage: StorageId) -> Arc<Self> {
        // Nothing is left half done when a holder panics.
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        forget(&mut known);
        let its = |one: &&Known| one.storage.is_of(storage) && one.name == *name;
        if let Some(one) = known.iter().find(its) {
            return Arc::clone(&one.losses);
        }
        let losses = Self::of_its_own();
        known.push(Known {
            name: Arc::clone(name),
            storage,
            losses: Arc::clone(&losses),
        });
        losses
    }

    /// Once more.
    pub fn add(&self) {
        let mut history = self.history();
        let stable = self.stable.load(Ordering::SeqCst);
        // Who does not see it yet has its stamp seen, by the one total order.
        let until = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        match history.runs.back_mut() {
            Some(last) if last.stable == stable => last.until = until,
            _ => history.runs.push_back(Run { stable, until }),
        }
        if history.runs.len() > MOST
            && let Some(oldest) = history.runs.pop_front()
        {
            history.forgotten = oldest.until;
        }
    }

    /// The flush that began with that stamp succeeded, and nothing was lost since.
    pub fn flushed(&self, begun: u64) {
        self.stable.fetch_max(begun, Ordering::SeqCst);
    }

    /// Whether what ended until `stamp` is known to be stable.
    #[must_use]
    pub fn is_stable(&self, stamp: u64) -> bool {
        stamp <= self.stable.load(Ordering::SeqCst)
    }

    /// Whether something that ended until `stamp`, 0 if there is nothing, may be among
    /// what was lost since the count was `known`.
    #[must_use]
    pub fn concern(&self, stamp: u64, known: u64) -> bool {
        let history = self.history();
        if known < history.forgotten {
            return stamp > 0;
        }
        // Of those that came later at least as much was stable.
        let first = history.runs.iter().find(|run| run.until > known);
        first.is_some_and(|run| stamp > run.stable)
    }

    /// What makes it stable at this moment.
    pub(crate) fn syncs(&self) -> &Syncs {
        &self.syncs
    }

    /// How often so far.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Lost {
        Lost {
            storage: self.number,
            count: self.count.load(Ordering::SeqCst),
        }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        // Nothing is left half done when a holder panics.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flush(losses: &Losses) {
        losses.flushed(flush_begins());
    }

    #[test]
    fn what_ended_before_a_flush_that_succeeded_is_not_among_what_is_lost() {
        let losses = Losses::of_its_own();
        let earlier = stamp();
        let first = flush_begins();
        let beside = stamp();
        assert!(earlier <= first && first < beside);
        losses.flushed(first);
        let later = stamp();
        losses.add();
        let concerned = [0, earlier, beside, later].map(|stamp| losses.concern(stamp, 0));
        assert_eq!(concerned, [false, false, true, true]);
        assert!(!losses.concern(later, 1), "that is known");
        flush(&losses);
        assert!(losses.concern(later, 0), "what is lost stays so");
        losses.add();
        assert!(losses.concern(later, 0) && !losses.concern(later, 1));
        assert!(losses.concern(stamp(), 1));
    }

    #[test]
    fn a_flush_that_did_not_succeed_makes_nothing_stable() {
        let losses = Losses::of_its_own();
        let written = stamp();
        let _ = flush_begins();
        losses.add();
        assert!(losses.concern(written, 0));
        // An older one that comes back late takes nothing away.
        let old = flush_begins();
        let written = stamp();
        flush(&losses);
        losses.flushed(old);
        losses.add();
        assert!(!losses.concern(written, 1));
        // Nor does one of another storage.
        let written = stamp();
        flush(&Losses::of_its_own());
        losses.add();
        assert!(losses.concern(written, 2));
    }

    #[test]
    fn of_what_is_too_long_ago_the_worst_is_taken() {
        let losses = Losses::of_its_own();
        let first = stamp();
        for _ in 0..=MOST {
            let written = stamp();
            flush(&losses);
            losses.add();
            assert!(!losses.concern(written, losses.now().count - 1));
        }
        let history = losses.history();
        assert_eq!((history.runs.len(), history.forgotten), (MOST, 1));
        drop(history);
        assert!(losses.concern(first, 0) && !losses.concern(0, 0));
        assert!(!losses.concern(first, 1));
        // Many losses without a flush between them are one run.
        for _ in 0..10 * MOST {
            losses.add();
        }
        assert_eq!(losses.history().forgotten, 1);
    }

    #[test]
    fn what_was_lost_is_known_when_it_is_opened_again() {
        let [name, other] = ["/disks/a", "/disks/b"].map(Arc::<str>::from);
        let file = StorageId::File(0xa_0000_0001);
        let losses = Losses::of(&name, file);
        assert_eq!(losses.now().count, 0);
        losses.add();
        let before = losses.now();
        assert_eq!(before.count, 1);
        drop(losses);
        assert_eq!(Losses::of(&name, file).now(), before);
        for another in [
            Losses::of(&other, file),
            Losses::of(&name, StorageId::File(0xa_0000_0002)),
            Losses::of(&name, StorageId::Device(0xa_0000_0001, 512)),
            Losses::of(&name, StorageId::Device(0xa_0000_0002, 512)),
            Losses::of_memory(),
        ] {
            assert_eq!(another.now().count, 0);
            assert_ne!(another.now().storage, before.storage);
        }
        assert!(counted().contains(&before.storage));
        // A device that has another size by now.
        let [smaller, larger] = [512, 1024].map(|size| StorageId::Device(0xa_0000_0003, size));
        let losses = Losses::of(&name, smaller);
        losses.add();
        assert_eq!(Losses::of(&name, larger).now(), losses.now());
        let number = Losses::of(&other, file).now().storage;
        drop(Losses::of(&name, file));
        assert!(
            !counted().contains(&number),
            "nobody has it, and nothing was lost"
        );
    }
}
