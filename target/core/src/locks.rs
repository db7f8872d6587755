//! Ranges of storage that one command alone may write, over all reactors.
//!
//! Who writes plainly asks nobody: it looks at one counter, which is zero and in
//! its cache as long as there is no lock. So a lock has to wait until every
//! reactor said that nothing is being written in the range there; what begins
//! later sees the lock and waits.
//!
//! ```text
//!  ask ── each reactor: nothing is being written ──► granted ── drop ──► gone
//! ```
//!
//! Of a write that is on its way already nobody is asked: what begins later waits
//! until it is over.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::overlap;

/// The locks of one target.
#[derive(Clone, Debug, Default)]
pub struct Locks {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Locks that are held or asked for.
    there: AtomicUsize,
    /// The same of some storages each, so that one that is written to elsewhere has
    /// nobody look into the table.
    there_of: [AtomicUsize; GROUPS],
    /// Counts changes, so that reactors see that there was one.
    version: AtomicU64,
    table: Mutex<Table>,
}

/// Groups of storages that have one count.
const GROUPS: usize = 32;

#[derive(Debug, Default)]
struct Table {
    members: BTreeSet<u64>,
    next: u64,
    /// By storage, then by their numbers, which is oldest first: who writes to another
    /// storage has nothing to look through.
    locks: BTreeMap<u64, BTreeMap<u64, Lock>>,
    /// Those that were asked for and that a reactor may have to say something about:
    /// storage and number.
    asked: BTreeSet<(u64, u64)>,
    /// By their numbers.
    barriers: BTreeMap<u64, Behind>,
}

/// A [`Barrier`].
#[derive(Debug)]
struct Behind {
    storage: u64,
    /// Reactors that may still have something begun for it, and when they first
    /// heard of it, if they did.
    waits_for: BTreeMap<u64, Option<Duration>>,
}

#[derive(Debug)]
struct Lock {
    bytes: Range<u64>,
    /// When that was begun, if it is for something that is on its way already.
    keeps_out: Option<Duration>,
    /// Reactors that may still be writing in it.
    waits_for: BTreeSet<u64>,
    /// Whether somebody waits for it to go.
    is_in_the_way: bool,
}

/// One reactor's part in the locks. It counts until it is dropped.
#[derive(Debug)]
pub struct LockMember {
    inner: Arc<Inner>,
    number: u64,
}

/// A lock, or the wish for one. Dropping it gives it up.
#[derive(Debug)]
pub struct RangeLock {
    inner: Arc<Inner>,
    storage: u64,
    id: u64,
}

/// Is quiet when every reactor said that of what was begun before nothing is left
/// that will write to a storage. It keeps nobody from writing: see to it first that
/// nothing more is begun.
#[derive(Debug)]
pub struct Barrier {
    inner: Arc<Inner>,
    id: u64,
}

impl Table {
    fn number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// Whether one of the locks covers some of `bytes` of which `counts` says that it
    /// counts, by its number.
    fn is_taken(
        &mut self,
        storage: u64,
        bytes: &Range<u64>,
        counts: impl Fn(u64, &Lock) -> bool,
    ) -> bool {
        let mut locks = self.locks.get_mut(&storage).into_iter().flatten();
        match locks.find(|(id, lock)| counts(**id, lock) && overlap(&lock.bytes, bytes)) {
            Some((_, lock)) => {
                lock.is_in_the_way = true;
                true
            }
            None => false,
        }
    }

    /// Reactor `number` is not waited for any more.
    fn leave(&mut self, number: u64) {
        self.members.remove(&number);
        for lock in self.locks.values_mut().flat_map(BTreeMap::values_mut) {
            lock.waits_for.remove(&number);
        }
        for one in self.barriers.values_mut() {
            one.waits_for.remove(&number);
        }
    }
}

impl Locks {
    /// One more reactor.
    #[must_use]
    pub fn join(&self) -> LockMember {
        let mut table = self.inner.table();
        let number = table.number();
        table.members.insert(number);
        LockMember {
            inner: Arc::clone(&self.inner),
            number,
        }
    }
}

impl Inner {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing is left half done when a holder panics.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a change of the table that others have to look at.
    fn changed(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    fn add(&self, table: &mut Table, storage: u64, lock: Lock) -> u64 {
        let id = table.number();
        table.locks.entry(storage).or_default().insert(id, lock);
        // First this one, at which nobody looks who finds the other to be 0.
        self.there_of(storage).fetch_add(1, Ordering::Release);
        self.there.fetch_add(1, Ordering::Release);
        id
    }

    /// How many locks there are of some storages, this one among them. Names of storages
    /// are given one after the other, so that few share one.
    fn there_of(&self, storage: u64) -> &AtomicUsize {
        let [first, ..] = storage.to_le_bytes();
        let group = usize::from(first) % GROUPS;
        self.there_of.get(group).unwrap_or(&self.there)
    }
}

impl LockMember {
    /// Whether nobody has a lock or wants one.
    #[inline]
    #[must_use]
    pub fn is_idle(&self) -> bool {
        // Who asks for a lock waits for this reactor to look at the version. Who keeps
        // others out does not, but says so before the host can send anything newer.
        self.inner.there.load(Ordering::Acquire) == 0
    }

    /// Counts changes: when it is another than before, waiting writes and wishes
    /// are to be tried again and [`settle`](Self::settle) called.
    #[inline]
    #[must_use]
    pub fn version(&self) -> u64 {
        self.inner.version.load(Ordering::Acquire)
    }

    /// Asks for the sole right to write `bytes` of `storage`: a name of what is
    /// behind a disk, which it keeps when it is opened again with another size.
    #[must_use]
    pub fn ask(&self, storage: u64, bytes: Range<u64>) -> RangeLock {
        let mut table = self.inner.table();
        let lock = Lock {
            bytes,
            keeps_out: None,
            waits_for: table.members.clone(),
            is_in_the_way: false,
        };
        let id = self.inner.add(&mut table, storage, lock);
        table.asked.insert((storage, id));
        self.inner.changed();
        let inner = Arc::clone(&self.inner);
        RangeLock { inner, storage, id }
    }

    /// Keeps writes out of `bytes` of `storage` that begin from now on: something that
    /// nobody waits for any more is still being written there. It is not waited until
    /// what was begun before is over, so it is never [held](RangeLock::is_held).
    #[must_use]
    pub fn keep_out(&self, storage: u64, bytes: Range<u64>, began: Duration) -> RangeLock {
        let mut table = self.inner.table();
        let lock = Lock {
            bytes,
            keeps_out: Some(began),
            waits_for: BTreeSet::new(),
            is_in_the_way: false,
        };
        let id = self.inner.add(&mut table, storage, lock);
        // Whoever hears of the loss, and has a newer write sent, sees it.
        fence(Ordering::SeqCst);
        let inner = Arc::clone(&self.inner);
        RangeLock { inner, storage, id }
    }

    /// Whether a write of `bytes` of `storage` has to wait for a lock. If so it gets
    /// its `turn`: locks that are asked for later wait for the write. What is on its way
    /// does not, if it was begun before the write was, whenever that is said.
    #[must_use]
    pub fn blocks(
        &self,
        storage: u64,
        bytes: &Range<u64>,
        began: Duration,
        turn: &mut Option<u64>,
    ) -> bool {
        // Seen in time for the same reason as the count that is_idle() looks at.
        if self.inner.there_of(storage).load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut table = self.inner.table();
        let before = turn.unwrap_or(u64::MAX);
        let blocked = table.is_taken(storage, bytes, |id, lock| {
            id < before || lock.keeps_out.is_some_and(|its| its <= began)
        });
        if blocked && turn.is_none() {
            *turn = Some(table.number());
        }
        blocked
    }

    /// Says of each lock that waits for this reactor whether it still writes
    /// there, or will before it is the lock's turn (its first argument). Whether
    /// some have to wait on.
    #[must_use]
    pub fn settle(&self, mut writes: impl FnMut(u64, u64, &Range<u64>) -> bool) -> bool {
        let mut table = self.inner.table();
        let Table { asked, locks, .. } = &mut *table;
        let (mut waits, mut changed) = (false, false);
        for (storage, id) in asked.iter() {
            let lock = locks.get_mut(storage).and_then(|locks| locks.get_mut(id));
            let Some(lock) = lock.filter(|lock| lock.waits_for.contains(&self.number)) else {
                continue;
            };
            if writes(*id, *storage, &lock.bytes) {
                waits = true;
            } else {
                lock.waits_for.remove(&self.number);
                changed = true;
            }
        }
        if changed {
            self.inner.changed();
        }
        waits
    }
}

impl LockMember {
    /// Waits until nothing that was begun will write to `storage` any more.
    #[must_use]
    pub fn barrier(&self, storage: u64) -> Barrier {
        let mut table = self.inner.table();
        let id = table.number();
        let waits_for = table.members.iter().map(|member| (*member, None));
        let waits_for = waits_for.collect();
        table.barriers.insert(id, Behind { storage, waits_for });
        self.inner.changed();
        let inner = Arc::clone(&self.inner);
        Barrier { inner, id }
    }

    /// As [`settle`](Self::settle), of each barrier that waits for this reactor.
    /// `oldest` says since when there is something here that will write to a
    /// storage, if there is. What was begun after the reactor first heard of a
    /// barrier is not waited for: somebody may begin more for ever.
    #[must_use]
    pub fn settle_barriers(
        &self,
        now: Duration,
        mut oldest: impl FnMut(u64) -> Option<Duration>,
    ) -> bool {
        let mut table = self.inner.table();
        let (mut waits, mut changed) = (false, false);
        // Looked for once for each storage, however many barriers there are.
        let mut known = BTreeMap::new();
        for one in table.barriers.values_mut() {
            let Some(heard) = one.waits_for.get_mut(&self.number) else {
                continue;
            };
            let heard = *heard.get_or_insert(now);
            let storage = one.storage;
            let since = *known.entry(storage).or_insert_with(|| oldest(storage));
            if since.is_some_and(|since| since <= heard) {
                waits = true;
            } else {
                one.waits_for.remove(&self.number);
                changed = true;
            }
        }
        if changed {
            self.inner.changed();
        }
        waits
    }
}

impl Drop for LockMember {
    fn drop(&mut self) {
        self.inner.table().leave(self.number);
        self.inner.changed();
    }
}

impl Barrier {
    /// Whether every reactor agreed.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let table = self.inner.table();
        let own = table.barriers.get(&self.id);
        own.is_none_or(|own| own.waits_for.is_empty())
    }
}

impl Drop for Barrier {
    fn drop(&mut self) {
        self.inner.table().barriers.remove(&self.id);
    }
}

impl RangeLock {
    /// Whether it is held: it was [asked for](LockMember::ask), every reactor agreed,
    /// and older ones of the same bytes are gone.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let mut table = self.inner.table();
        let own = table
            .locks
            .get(&self.storage)
            .and_then(|locks| locks.get(&self.id));
        let Some(bytes) = own
            .filter(|own| own.waits_for.is_empty())
            .map(|own| own.bytes.clone())
        else {
            return false;
        };
        table.asked.contains(&(self.storage, self.id))
            && !table.is_taken(self.storage, &bytes, |id, _| id < self.id)
    }
}

impl Drop for RangeLock {
    fn drop(&mut self) {
        let mut table = self.inner.table();
        let asked = table.asked.remove(&(self.storage, self.id));
        let Some(locks) = table.locks.get_mut(&self.storage) else {
            return;
        };
        let own = locks.remove(&self.id);
        if locks.is_empty() {
            table.locks.remove(&self.storage);
        }
        self.inner.there.fetch_sub(1, Ordering::Release);
        let its = self.inner.there_of(self.storage);
        its.fetch_sub(1, Ordering::Release);
        if asked || own.is_some_and(|own| own.is_in_the_way) {
            self.inner.changed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_waits_for_every_reactor_that_writes() {
        let locks = Locks::default();
        let (one, two) = (locks.join(), locks.join());
        assert!(one.is_idle() && two.is_idle());
        let before = two.version();
        let lock = one.ask(7, 0..512);
        assert!(!two.is_idle() && two.version() != before);
        assert!(!lock.is_held());
        assert!(!one.settle(|_, _, _| false));
        assert!(two.settle(|_, storage, bytes| (storage, bytes.clone()) == (7, 0..512)));
        assert!(!lock.is_held());
        assert!(!two.settle(|_, _, _| false));
        assert!(lock.is_held());
        assert!(two.blocks(7, &(511..1000), NOW, &mut None));
        assert!(!two.blocks(7, &(512..1000), NOW, &mut None));
        assert!(!two.blocks(8, &(0..512), NOW, &mut None));
        drop(lock);
        assert!(two.is_idle() && !two.blocks(7, &(0..512), NOW, &mut None));
    }

    #[test]
    fn locks_of_the_same_bytes_are_held_in_the_order_they_were_asked_for() {
        let locks = Locks::default();
        let member = locks.join();
        let [first, second, third] = [0..512, 0..1024, 512..1024].map(|it| member.ask(1, it));
        assert!(!member.settle(|_, _, _| false));
        assert!(first.is_held() && !second.is_held() && !third.is_held());
        drop(first);
        assert!(second.is_held() && !third.is_held());
        drop(second);
        assert!(third.is_held());
    }

    #[test]
    fn a_write_that_waited_goes_before_locks_that_were_asked_for_later() {
        let member = Locks::default().join();
        let first = member.ask(1, 0..512);
        let mut turn = None;
        assert!(member.blocks(1, &(0..512), NOW, &mut turn));
        let waiting = turn.unwrap();
        let second = member.ask(1, 0..512);
        assert!(member.settle(|lock, _, _| waiting < lock));
        assert!(first.is_held());
        drop(first);
        assert!(!second.is_held(), "the write has its turn");
        assert!(!member.blocks(1, &(0..512), NOW, &mut turn));
        assert_eq!(turn, Some(waiting));
        assert!(!member.settle(|_, _, _| false));
        assert!(second.is_held());
    }

    /// It asks nobody, and nobody has anything to look at until somebody waits.
    #[test]
    fn what_is_on_its_way_keeps_out_what_begins_later() {
        let locks = Locks::default();
        let (one, two) = (locks.join(), locks.join());
        let before = two.version();
        let ghosts = [0..512, 512..1024].map(|bytes| one.keep_out(7, bytes, NOW));
        assert!(!two.is_idle() && two.version() == before);
        assert!(!two.settle(|_, _, _| true), "nobody is asked");
        assert!(!ghosts[0].is_held());
        let mut turn = None;
        assert!(two.blocks(7, &(0..100), NOW, &mut turn));
        assert!(!two.blocks(8, &(0..1024), NOW, &mut None));
        assert!(!two.blocks(7, &(1024..2048), NOW, &mut None));
        let lock = two.ask(7, 512..1024);
        assert!(!one.settle(|_, _, _| false) && !two.settle(|_, _, _| false));
        assert!(!lock.is_held(), "one of them is older");
        let [first, second] = ghosts;
        let before = two.version();
        drop(first);
        assert_ne!(two.version(), before, "somebody waits for it");
        // Another of which that is said only now: it was there before as well.
        let begun_later = one.keep_out(7, 0..512, NOW + Duration::from_secs(1));
        assert!(!two.blocks(7, &(0..100), NOW, &mut turn));
        drop(begun_later);
        let slow = one.keep_out(7, 0..512, NOW);
        assert!(two.blocks(7, &(0..100), NOW, &mut turn));
        drop(slow);
        assert!(!two.blocks(7, &(0..100), NOW, &mut turn));
        drop(second);
        assert!(lock.is_held());
        drop(lock);
        let nobody_waits = one.keep_out(7, 0..512, NOW);
        let before = two.version();
        drop(nobody_waits);
        assert!(two.version() == before && two.is_idle());
    }

    /// The table is held by somebody else all the time.
    #[test]
    fn who_writes_to_another_storage_does_not_wait_for_the_table() {
        let locks = Locks::default();
        let (one, two) = (locks.join(), locks.join());
        let ghost = one.keep_out(7, 0..512, NOW);
        let inner = Arc::clone(&locks.inner);
        let table = inner.table();
        let (told, hears) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let blocked = two.blocks(8, &(0..512), NOW, &mut None);
            let _ = told.send(blocked);
            // Its own storage: it has to wait, and is blocked.
            let _ = told.send(two.blocks(7, &(0..512), NOW, &mut None));
        });
        let patience = Duration::from_secs(60);
        let elsewhere = hears.recv_timeout(patience);
        drop(table);
        assert_eq!(elsewhere, Ok(false));
        assert_eq!(hears.recv_timeout(patience), Ok(true));
        drop(ghost);
        let counts = inner.there_of.iter().map(|it| it.load(Ordering::Acquire));
        assert_eq!(counts.sum::<usize>(), 0);
    }

    #[test]
    fn storages_that_share_a_count_do_not_share_locks() {
        let locks = Locks::default();
        let member = locks.join();
        let [first, second] = [5, 5 + GROUPS as u64];
        let ghost = member.keep_out(first, 0..512, NOW);
        let other = member.keep_out(second, 512..1024, NOW);
        assert!(!member.blocks(second, &(0..512), NOW, &mut None));
        drop(ghost);
        assert!(member.blocks(second, &(512..600), NOW, &mut None));
        assert!(!member.blocks(first, &(0..1024), NOW, &mut None));
        drop(other);
        assert!(member.is_idle());
    }

    #[test]
    fn a_reactor_that_goes_is_not_waited_for() {
        let locks = Locks::default();
        let (one, two) = (locks.join(), locks.join());
        let lock = one.ask(1, 0..512);
        assert!(!one.settle(|_, _, _| false));
        drop(two);
        assert!(lock.is_held());
    }

    const NOW: Duration = Duration::from_secs(5);

    #[test]
    fn a_barrier_does_not_wait_for_what_was_begun_after_it() {
        let locks = Locks::default();
        let (one, two) = (locks.join(), locks.join());
        let barrier = one.barrier(7);
        let after = |ms| NOW + Duration::from_millis(ms);
        assert!(!one.settle_barriers(NOW, |_| None));
        // The other hears of it later: until then it knows of no protection.
        assert!(two.settle_barriers(after(1), |_| Some(after(1))));
        let later = two.barrier(7);
        assert!(two.settle_barriers(after(3), |_| Some(after(1))));
        assert!(!barrier.is_quiet());
        // That one is done, and there is always another.
        assert!(two.settle_barriers(after(4), |_| Some(after(2))));
        assert!(barrier.is_quiet() && !later.is_quiet());
    }

    #[test]
    fn a_barrier_waits_for_every_reactor_and_keeps_nobody_from_writing() {
        let locks = Locks::default();
        let (one, two) = (locks.join(), locks.join());
        let before = two.version();
        let barrier = one.barrier(7);
        assert_ne!(two.version(), before);
        assert!(one.is_idle() && !one.blocks(7, &(0..512), NOW, &mut None));
        assert!(!one.settle_barriers(NOW, |_| None) && !barrier.is_quiet());
        let version = one.version();
        let of = |its| move |storage| (storage == its).then_some(NOW);
        assert!(two.settle_barriers(NOW, of(7)) && !barrier.is_quiet());
        assert_eq!(one.version(), version, "nothing new");
        assert!(!two.settle_barriers(NOW, of(8)) && barrier.is_quiet());
        assert_ne!(one.version(), version);
        let (first, second) = (one.barrier(1), one.barrier(2));
        drop((barrier, one));
        assert!(two.settle_barriers(NOW, of(1)));
        assert!(second.is_quiet() && !first.is_quiet());
        drop(two.barrier(3));
        let mut asked = Vec::new();
        let others = [two.barrier(1), two.barrier(1)];
        let _ = two.settle_barriers(NOW, |storage| {
            asked.push(storage);
            Some(NOW)
        });
        assert_eq!(asked, [1], "of those that are there, and once");
        drop(others);
        drop(two);
        assert!(first.is_quiet(), "who is gone is not waited for");
    }
}
