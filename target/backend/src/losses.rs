//! Counting write losses: completed writes that a failed flush may have lost.
//!
//! The kernel reports a failed writeback to one caller of fsync(2), and succeeds for the
//! next. So failures are counted here, for all hosts that wrote and did not flush.

mod syncs;

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use syncs::Syncs;
pub(crate) use syncs::{CompletedSync, LostDuringSync, RunningSync};

/// Number of write losses of a file or device. It only grows, and continues when the same
/// file or device is opened again.
///
/// It also records which writes were stable before a loss: those that had completed when a
/// successful flush began. Stamps define this order.
#[derive(Debug)]
pub struct Losses {
    number: u64,
    count: AtomicU64,
    /// Writes with this [stamp](stamp()) or a smaller one are stable.
    stable: AtomicU64,
    history: Mutex<History>,
    syncs: Syncs,
}

/// What was stable at each loss, the oldest first.
#[derive(Debug, Default)]
struct History {
    runs: VecDeque<Run>,
    /// The count up to which that is no longer known.
    forgotten: u64,
}

/// Consecutive losses between which nothing became stable.
#[derive(Debug)]
struct Run {
    stable: u64,
    /// The count after the last one.
    until: u64,
}

/// Maximum number of runs in the history.
const MAX_RUNS: usize = 64;

/// The number of write losses at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Number of the file or device, unique in this process. 0 for memory, which loses
    /// nothing.
    pub storage: u64,
    /// Number of losses.
    pub count: u64,
}

/// Identity of a file or device: the same after a mount or when it is opened again, another
/// one when a file is replaced under its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageId {
    /// A file, by its inode number.
    File(u64),
    /// A block device, by its number and its size in bytes.
    Device(u64, u64),
}

impl StorageId {
    /// Whether both may be the same file or device, also with another size.
    pub(crate) fn is_of(self, other: Self) -> bool {
        match (self, other) {
            (Self::Device(this, _), Self::Device(that, _)) => this == that,
            (this, that) => this == that,
        }
    }
}

/// A file or device whose count continues when it is opened again.
struct Known {
    name: Arc<str>,
    storage: StorageId,
    losses: Arc<Losses>,
}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(1);
/// Flushes that have begun, of all backing stores.
static FLUSHES: AtomicU64 = AtomicU64::new(0);

/// Numbers of files and devices that are open, or were open and had losses.
#[must_use]
pub fn counted() -> BTreeSet<u64> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    forget(&mut known);
    known.iter().map(|one| one.losses.number).collect()
}

/// Removes entries that are not in use and had no losses.
fn forget(known: &mut Vec<Known>) {
    known.retain(|one| Arc::strong_count(&one.losses) > 1 || one.losses.now().count > 0);
}

/// A stamp for a write that has completed by now. Greater than 0. A write that completes
/// later has the same or a greater one.
#[inline]
#[must_use]
pub fn stamp() -> u64 {
    FLUSHES.load(Ordering::SeqCst) + 1
}

/// Begins a flush: writes that completed before have this [stamp](stamp()) or a smaller
/// one, and later ones a greater one. To be called before the flush is submitted.
#[must_use]
pub fn flush_begins() -> u64 {
    FLUSHES.fetch_add(1, Ordering::SeqCst) + 1
}

impl Losses {
    /// Losses of memory, which are always 0.
    pub(crate) fn of_memory() -> Arc<Self> {
        Self::numbered(0)
    }

    /// Losses of a file or device that is not shared with others.
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

    /// Losses of that file or device, under that name.
    pub(crate) fn of(name: &Arc<str>, storage: StorageId) -> Arc<Self> {
        // The state is consistent also after a panic of another holder.
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

    /// Counts a loss.
    pub fn add(&self) {
        let mut history = self.history();
        let stable = self.stable.load(Ordering::SeqCst);
        // By the total order of SeqCst, a reader that misses this loss has a stamp seen here.
        let until = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        match history.runs.back_mut() {
            Some(last) if last.stable == stable => last.until = until,
            _ => history.runs.push_back(Run { stable, until }),
        }
        if history.runs.len() > MAX_RUNS
            && let Some(oldest) = history.runs.pop_front()
        {
            history.forgotten = oldest.until;
        }
    }

    /// The flush that began with that stamp succeeded, without a loss since.
    pub fn flushed(&self, begun: u64) {
        self.stable.fetch_max(begun, Ordering::SeqCst);
    }

    /// Whether writes with `stamp` or a smaller one are known to be stable.
    #[must_use]
    pub fn is_stable(&self, stamp: u64) -> bool {
        stamp <= self.stable.load(Ordering::SeqCst)
    }

    /// Whether a write with `stamp` or a smaller one may have been lost since the count was
    /// `known`. `stamp` is 0 if there is no such write.
    #[must_use]
    pub fn concern(&self, stamp: u64, known: u64) -> bool {
        let history = self.history();
        if known < history.forgotten {
            return stamp > 0;
        }
        // At later losses at least as much was stable.
        let first = history.runs.iter().find(|run| run.until > known);
        first.is_some_and(|run| stamp > run.stable)
    }

    /// Flushes and durable writes that are running.
    pub(crate) fn syncs(&self) -> &Syncs {
        &self.syncs
    }

    /// The current count.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Lost {
        Lost {
            storage: self.number,
            count: self.count.load(Ordering::SeqCst),
        }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        // The state is consistent also after a panic of another holder.
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
    fn writes_before_a_successful_flush_are_not_lost() {
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
        assert!(!losses.concern(later, 1), "this loss is known");
        flush(&losses);
        assert!(losses.concern(later, 0), "a lost write stays lost");
        losses.add();
        assert!(losses.concern(later, 0) && !losses.concern(later, 1));
        assert!(losses.concern(stamp(), 1));
    }

    #[test]
    fn failed_flush_makes_nothing_stable() {
        let losses = Losses::of_its_own();
        let written = stamp();
        let _ = flush_begins();
        losses.add();
        assert!(losses.concern(written, 0));
        // A late older flush changes nothing.
        let old = flush_begins();
        let written = stamp();
        flush(&losses);
        losses.flushed(old);
        losses.add();
        assert!(!losses.concern(written, 1));
        // Nor does one of another backing store.
        let written = stamp();
        flush(&Losses::of_its_own());
        losses.add();
        assert!(losses.concern(written, 2));
    }

    #[test]
    fn losses_beyond_history_concern_all_writes() {
        let losses = Losses::of_its_own();
        let first = stamp();
        for _ in 0..=MAX_RUNS {
            let written = stamp();
            flush(&losses);
            losses.add();
            assert!(!losses.concern(written, losses.now().count - 1));
        }
        let history = losses.history();
        assert_eq!((history.runs.len(), history.forgotten), (MAX_RUNS, 1));
        drop(history);
        assert!(losses.concern(first, 0) && !losses.concern(0, 0));
        assert!(!losses.concern(first, 1));
        // Many losses without a flush between them are one run.
        for _ in 0..10 * MAX_RUNS {
            losses.add();
        }
        assert_eq!(losses.history().forgotten, 1);
    }

    #[test]
    fn losses_continue_after_reopening() {
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
        // A device with another size.
        let [smaller, larger] = [512, 1024].map(|size| StorageId::Device(0xa_0000_0003, size));
        let losses = Losses::of(&name, smaller);
        losses.add();
        assert_eq!(Losses::of(&name, larger).now(), losses.now());
        let number = Losses::of(&other, file).now().storage;
        drop(Losses::of(&name, file));
        assert!(
            !counted().contains(&number),
            "it is not in use and had no losses"
        );
    }
}
