//! Range locks: byte ranges of a storage that only one command may write, over all
//! reactors.
//!
//! Plain writes take no lock. They read one counter, which is zero and cached as long
//! as no range is locked. A lock is therefore granted only when every reactor has
//! reported that no write to the range is in progress. Later writes see the lock and
//! wait.
//!
//! ```text
//!  ask ── each reactor: no write in progress ──► granted ── drop ──► released
//! ```
//!
//! A lock for a write that is already in flight needs no report: it blocks later
//! writes until it is dropped.
//!
//! A change of the table concerns few reactors: those that have to report, the owner of a
//! lock or barrier with all reports, and those with commands that wait for a lock that is
//! released. Each of these is marked ([`LockMember::has_changes`]) and called
//! ([`LockMember::take_calls`]). A fused pair therefore costs one call for each reactor.
//!
//! Every wait ends, because each of its steps marks the reactor of the next step:
//!
//! 1. [`ask`](LockMember::ask) and [`barrier`](LockMember::barrier) mark all reactors.
//! 2. A marked reactor reports, or still executes writes. In that case it settles again in
//!    each iteration.
//! 3. The last report, or the end of the last reactor without one, marks the owner.
//! 4. The owner of a lock executes its command, or finds an older lock and is registered
//!    with it. A write that finds a lock is registered as well. Locks wait for older ones
//!    only, and for writes with an older ticket: there is no cycle.
//! 5. Dropping a lock marks the reactors that are registered with it.
//!
//! A call is not lost: the reactor that makes a change marks itself as well, processes its
//! mark after the change and then delivers all calls. It does not sleep with a mark. The
//! thread of a reactor that ends wakes all others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
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
    /// Number of locks, held or requested.
    count: AtomicUsize,
    /// The same per group of storages, so that writes to other storages do not access the
    /// table.
    group_counts: [AtomicUsize; GROUPS],
    table: Mutex<Table>,
}

/// Groups of storages; each has one counter.
const GROUPS: usize = 32;

#[derive(Debug, Default)]
struct Table {
    members: BTreeMap<u64, Member>,
    /// Numbers of marked reactors that were not called yet.
    calls: BTreeSet<u16>,
    next: u64,
    /// By storage, then by number, oldest first.
    locks: BTreeMap<u64, BTreeMap<u64, Lock>>,
    /// Locks from [`LockMember::ask`], on which reactors may have to report: storage and
    /// number.
    asked: BTreeSet<(u64, u64)>,
    /// By number.
    barriers: BTreeMap<u64, BarrierState>,
}

#[derive(Debug)]
struct Member {
    /// Its index among the reactors of the target.
    reactor: u16,
    mark: Arc<Mark>,
}

/// Whether a change concerns a reactor. On cache lines of its own, because the reactor reads
/// it in each iteration.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Mark(AtomicBool);

/// The commands for which a [`Barrier`] waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BarrierScope {
    /// All that write, or will.
    Writes,
    /// Those that write and will not be checked against reservations again. A write is checked
    /// when its data have arrived, so that a host that does not send them does not delay the
    /// barrier. Copy, fused commands and writes with FUA of a volatile cache are not: they delay it
    /// until their transfer counts as stalled.
    CheckedWrites,
    /// The same, and those that read.
    CheckedAccesses,
}

/// The state of a [`Barrier`].
#[derive(Debug)]
struct BarrierState {
    owner: u64,
    storage: u64,
    scope: BarrierScope,
    /// Reactors that may still have earlier commands for the storage, and when each first
    /// saw the barrier.
    waits_for: BTreeMap<u64, Option<Duration>>,
}

#[derive(Debug)]
struct Lock {
    /// The reactor that requested it.
    owner: u64,
    bytes: Range<u64>,
    /// The start of the write, if the lock is for one that is already in flight.
    in_flight_since: Option<Duration>,
    /// Reactors that may still be writing to the range.
    waits_for: BTreeSet<u64>,
    /// Reactors with a write or a lock that waits for its release.
    waiters: BTreeSet<u64>,
}

/// A reactor as a member of the lock table, until it is dropped.
#[derive(Debug)]
pub struct LockMember {
    inner: Arc<Inner>,
    number: u64,
    reactor: u16,
    mark: Arc<Mark>,
}

/// A lock, held or requested. Dropping it releases it.
#[derive(Debug)]
pub struct RangeLock {
    inner: Arc<Inner>,
    owner: u64,
    storage: u64,
    id: u64,
}

/// A barrier is quiet when every reactor has reported that no earlier command will write
/// to the storage. It does not block writers: the caller first makes sure that no
/// further write begins.
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

    /// Marks reactor `number`, and calls it if it was not marked before.
    fn mark(&mut self, number: u64) {
        if let Some(member) = self.members.get(&number)
            && !member.mark.0.swap(true, Ordering::AcqRel)
        {
            self.calls.insert(member.reactor);
        }
    }

    fn mark_all(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.mark(number);
        }
    }

    /// Whether one of the locks for which `counts` returns true overlaps `bytes`. Its release
    /// marks reactor `waiter`.
    fn is_locked(
        &mut self,
        waiter: u64,
        storage: u64,
        bytes: &Range<u64>,
        counts: impl Fn(u64, &Lock) -> bool,
    ) -> bool {
        let mut locks = self.locks.get_mut(&storage).into_iter().flatten();
        match locks.find(|(id, lock)| counts(**id, lock) && overlap(&lock.bytes, bytes)) {
            Some((_, lock)) => {
                lock.waiters.insert(waiter);
                true
            }
            None => false,
        }
    }

    /// Removes reactor `number` from the members and from all waits.
    fn leave(&mut self, number: u64) {
        self.members.remove(&number);
        for lock in self.locks.values_mut().flat_map(BTreeMap::values_mut) {
            lock.waits_for.remove(&number);
        }
        for one in self.barriers.values_mut() {
            one.waits_for.remove(&number);
        }
        // Rare: any of them may have waited for it.
        let others: Vec<_> = self.members.keys().copied().collect();
        self.mark_all(others);
    }
}

impl Locks {
    /// Adds a reactor, with its index among those of the target.
    #[must_use]
    pub fn join(&self, reactor: u16) -> LockMember {
        let mut table = self.inner.table();
        let number = table.number();
        let mark = Arc::<Mark>::default();
        let member = Member {
            reactor,
            mark: Arc::clone(&mark),
        };
        table.members.insert(number, member);
        LockMember {
            inner: Arc::clone(&self.inner),
            number,
            reactor,
            mark,
        }
    }
}

impl Inner {
    fn table(&self) -> MutexGuard<'_, Table> {
        // A panic leaves no change half done.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, table: &mut Table, storage: u64, lock: Lock) -> u64 {
        let id = table.number();
        table.locks.entry(storage).or_default().insert(id, lock);
        // The group first: it is read only if the total is not 0.
        self.group_count(storage).fetch_add(1, Ordering::Release);
        self.count.fetch_add(1, Ordering::Release);
        id
    }

    /// The number of locks of the group of `storage`. Storages are numbered consecutively,
    /// so that few share a group.
    fn group_count(&self, storage: u64) -> &AtomicUsize {
        let [first, ..] = storage.to_le_bytes();
        let group = usize::from(first) % GROUPS;
        self.group_counts.get(group).unwrap_or(&self.count)
    }
}

impl LockMember {
    /// Whether no lock is held or requested.
    #[inline]
    #[must_use]
    pub fn is_idle(&self) -> bool {
        // A requested lock waits until this reactor has reported. One for a write in flight
        // does not, but is added before the host can send a newer write.
        self.inner.count.load(Ordering::Acquire) == 0
    }

    /// Whether a change concerns this reactor. If so, [take the mark](Self::take_changes),
    /// [`settle`](Self::settle), retry waiting writes and requested locks, and
    /// [deliver calls](Self::take_calls), before the next sleep.
    #[inline]
    #[must_use]
    pub fn has_changes(&self) -> bool {
        self.mark.0.load(Ordering::Acquire)
    }

    /// Takes the mark. Call it before looking at the table: a later change marks again.
    #[must_use]
    pub fn take_changes(&self) -> bool {
        self.mark.0.swap(false, Ordering::AcqRel)
    }

    /// The reactors that changes concern, without this one: they may be asleep.
    #[must_use]
    pub fn take_calls(&self) -> BTreeSet<u16> {
        let mut calls = std::mem::take(&mut self.inner.table().calls);
        // It does not sleep with a mark.
        calls.remove(&self.reactor);
        calls
    }

    fn lock(&self, storage: u64, id: u64) -> RangeLock {
        RangeLock {
            inner: Arc::clone(&self.inner),
            owner: self.number,
            storage,
            id,
        }
    }

    /// Requests a lock of `bytes` of `storage`: the number of the file or device, which
    /// stays the same when it is opened again with another size.
    #[must_use]
    pub fn ask(&self, storage: u64, bytes: Range<u64>) -> RangeLock {
        let mut table = self.inner.table();
        let members: BTreeSet<_> = table.members.keys().copied().collect();
        let lock = Lock {
            owner: self.number,
            bytes,
            in_flight_since: None,
            waits_for: members.clone(),
            waiters: BTreeSet::new(),
        };
        let id = self.inner.add(&mut table, storage, lock);
        table.asked.insert((storage, id));
        table.mark_all(members);
        drop(table);
        self.lock(storage, id)
    }

    /// Blocks writes to `bytes` of `storage` that begin from now on, because a write that
    /// its host has given up is still in flight there. It does not wait for earlier
    /// writes, so it is never [held](RangeLock::is_held).
    #[must_use]
    pub fn block_writes(&self, storage: u64, bytes: Range<u64>, began: Duration) -> RangeLock {
        let mut table = self.inner.table();
        let lock = Lock {
            owner: self.number,
            bytes,
            in_flight_since: Some(began),
            waits_for: BTreeSet::new(),
            waiters: BTreeSet::new(),
        };
        let id = self.inner.add(&mut table, storage, lock);
        drop(table);
        // A reactor that gets a newer write, sent after the loss, sees the lock.
        fence(Ordering::SeqCst);
        self.lock(storage, id)
    }

    /// Whether a write to `bytes` of `storage` has to wait for a lock. If so, it gets a
    /// number in `ticket`: locks that are requested later wait for the write. Locks for
    /// writes in flight that began before this write count, whenever they are added.
    #[must_use]
    pub fn blocks(
        &self,
        storage: u64,
        bytes: &Range<u64>,
        began: Duration,
        ticket: &mut Option<u64>,
    ) -> bool {
        // Seen in time for the same reason as the count in is_idle().
        if self.inner.group_count(storage).load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut table = self.inner.table();
        let before = ticket.unwrap_or(u64::MAX);
        let blocked = table.is_locked(self.number, storage, bytes, |id, lock| {
            id < before || lock.in_flight_since.is_some_and(|its| its <= began)
        });
        if blocked && ticket.is_none() {
            *ticket = Some(table.number());
        }
        blocked
    }

    /// Reports, for each lock that waits for this reactor, whether the reactor still
    /// writes to the range. `writes` gets the number of the lock, storage and bytes. It also
    /// counts waiting writes with a lower number. Returns whether some locks still wait.
    #[must_use]
    pub fn settle(&self, mut writes: impl FnMut(u64, u64, &Range<u64>) -> bool) -> bool {
        let mut table = self.inner.table();
        let Table { asked, locks, .. } = &mut *table;
        let (mut waits, mut reported) = (false, Vec::new());
        for (storage, id) in asked.iter() {
            let lock = locks.get_mut(storage).and_then(|locks| locks.get_mut(id));
            let Some(lock) = lock.filter(|lock| lock.waits_for.contains(&self.number)) else {
                continue;
            };
            if writes(*id, *storage, &lock.bytes) {
                waits = true;
            } else {
                lock.waits_for.remove(&self.number);
                reported.extend(lock.waits_for.is_empty().then_some(lock.owner));
            }
        }
        table.mark_all(reported);
        waits
    }
}

impl LockMember {
    /// Adds a barrier for commands of this scope that have begun and use `storage`.
    #[must_use]
    pub fn barrier(&self, storage: u64, scope: BarrierScope) -> Barrier {
        let mut table = self.inner.table();
        let id = table.number();
        let members: Vec<_> = table.members.keys().copied().collect();
        table.barriers.insert(
            id,
            BarrierState {
                owner: self.number,
                storage,
                scope,
                waits_for: members.iter().map(|member| (*member, None)).collect(),
            },
        );
        table.mark_all(members);
        let inner = Arc::clone(&self.inner);
        Barrier { inner, id }
    }

    /// As [`settle`](Self::settle), for each barrier that waits for this reactor. `oldest`
    /// returns when the oldest command of a scope began that uses a storage. A barrier does
    /// not wait for commands that began after the reactor first saw it; otherwise a busy
    /// host could hold it forever.
    #[must_use]
    pub fn settle_barriers(
        &self,
        now: Duration,
        mut oldest: impl FnMut(u64, BarrierScope) -> Option<Duration>,
    ) -> bool {
        let mut table = self.inner.table();
        let (mut waits, mut reported) = (false, Vec::new());
        // Once per storage, however many barriers there are.
        let mut known = BTreeMap::new();
        for one in table.barriers.values_mut() {
            let Some(first_seen) = one.waits_for.get_mut(&self.number) else {
                continue;
            };
            let first_seen = *first_seen.get_or_insert(now);
            let (storage, scope) = (one.storage, one.scope);
            let known = known.entry((storage, scope));
            let since = *known.or_insert_with(|| oldest(storage, scope));
            if since.is_some_and(|since| since <= first_seen) {
                waits = true;
            } else {
                one.waits_for.remove(&self.number);
                reported.extend(one.waits_for.is_empty().then_some(one.owner));
            }
        }
        table.mark_all(reported);
        waits
    }
}

impl Drop for LockMember {
    fn drop(&mut self) {
        self.inner.table().leave(self.number);
    }
}

impl Barrier {
    /// Whether every reactor has reported.
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
    /// Whether it is held: it was [requested](LockMember::ask), every reactor has
    /// reported, and older locks of the same bytes are released.
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
            && !table.is_locked(self.owner, self.storage, &bytes, |id, _| id < self.id)
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
        self.inner.count.fetch_sub(1, Ordering::Release);
        let its = self.inner.group_count(self.storage);
        its.fetch_sub(1, Ordering::Release);
        let waiters = own.map(|own| own.waiters).unwrap_or_default();
        if asked || !waiters.is_empty() {
            table.mark_all(waiters);
            // It delivers the calls. Its queue may have another command that needs a lock.
            table.mark(self.owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_waits_for_every_reactor_that_writes() {
        let locks = Locks::default();
        let (one, two) = (locks.join(0), locks.join(1));
        assert!(one.is_idle() && two.is_idle());
        let lock = one.ask(7, 0..512);
        assert!(!two.is_idle() && two.has_changes());
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
    fn locks_of_the_same_bytes_are_granted_in_order() {
        let locks = Locks::default();
        let member = locks.join(0);
        let [first, second, third] = [0..512, 0..1024, 512..1024].map(|it| member.ask(1, it));
        assert!(!member.settle(|_, _, _| false));
        assert!(first.is_held() && !second.is_held() && !third.is_held());
        drop(first);
        assert!(second.is_held() && !third.is_held());
        drop(second);
        assert!(third.is_held());
    }

    #[test]
    fn waiting_write_precedes_later_locks() {
        let member = Locks::default().join(0);
        let first = member.ask(1, 0..512);
        let mut ticket = None;
        assert!(member.blocks(1, &(0..512), NOW, &mut ticket));
        let waiting = ticket.unwrap();
        let second = member.ask(1, 0..512);
        assert!(member.settle(|lock, _, _| waiting < lock));
        assert!(first.is_held());
        drop(first);
        assert!(!second.is_held(), "the write comes first");
        assert!(!member.blocks(1, &(0..512), NOW, &mut ticket));
        assert_eq!(ticket, Some(waiting));
        assert!(!member.settle(|_, _, _| false));
        assert!(second.is_held());
    }

    /// It needs no report, and publishes no change until a write waits.
    #[test]
    fn write_in_flight_blocks_later_writes() {
        let locks = Locks::default();
        let (one, two) = (locks.join(0), locks.join(1));
        let ghosts = [0..512, 512..1024].map(|bytes| one.block_writes(7, bytes, NOW));
        assert!(!two.is_idle() && !two.has_changes());
        assert!(!two.settle(|_, _, _| true), "no report is needed");
        assert!(!ghosts[0].is_held());
        let mut ticket = None;
        assert!(two.blocks(7, &(0..100), NOW, &mut ticket));
        assert!(!two.blocks(8, &(0..1024), NOW, &mut None));
        assert!(!two.blocks(7, &(1024..2048), NOW, &mut None));
        let lock = two.ask(7, 512..1024);
        assert!(!one.settle(|_, _, _| false) && !two.settle(|_, _, _| false));
        assert!(!lock.is_held(), "one of them is older");
        let [first, second] = ghosts;
        assert!(two.take_changes() && !two.has_changes());
        drop(first);
        assert!(two.has_changes(), "a write waits for it");
        // A write in flight whose lock is added only now.
        let begun_later = one.block_writes(7, 0..512, NOW + Duration::from_secs(1));
        assert!(!two.blocks(7, &(0..100), NOW, &mut ticket));
        drop(begun_later);
        let slow = one.block_writes(7, 0..512, NOW);
        assert!(two.blocks(7, &(0..100), NOW, &mut ticket));
        drop(slow);
        assert!(!two.blocks(7, &(0..100), NOW, &mut ticket));
        drop(second);
        assert!(lock.is_held());
        drop(lock);
        let no_waiters = one.block_writes(7, 0..512, NOW);
        assert!(two.take_changes() && one.take_changes());
        drop(no_waiters);
        assert!(!two.has_changes() && !one.has_changes() && two.is_idle());
    }

    /// The table is locked by another thread all the time.
    #[test]
    fn writes_to_other_stores_do_not_lock_the_table() {
        let locks = Locks::default();
        let (one, two) = (locks.join(0), locks.join(1));
        let ghost = one.block_writes(7, 0..512, NOW);
        let inner = Arc::clone(&locks.inner);
        let table = inner.table();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let blocked = two.blocks(8, &(0..512), NOW, &mut None);
            let _ = sender.send(blocked);
            // Its own storage: it has to wait, and is blocked.
            let _ = sender.send(two.blocks(7, &(0..512), NOW, &mut None));
        });
        let timeout = Duration::from_secs(60);
        let elsewhere = receiver.recv_timeout(timeout);
        drop(table);
        assert_eq!(elsewhere, Ok(false));
        assert_eq!(receiver.recv_timeout(timeout), Ok(true));
        drop(ghost);
        let counts = inner
            .group_counts
            .iter()
            .map(|it| it.load(Ordering::Acquire));
        assert_eq!(counts.sum::<usize>(), 0);
    }

    #[test]
    fn storages_of_one_group_do_not_share_locks() {
        let locks = Locks::default();
        let member = locks.join(0);
        let [first, second] = [5, 5 + GROUPS as u64];
        let ghost = member.block_writes(first, 0..512, NOW);
        let other = member.block_writes(second, 512..1024, NOW);
        assert!(!member.blocks(second, &(0..512), NOW, &mut None));
        drop(ghost);
        assert!(member.blocks(second, &(512..600), NOW, &mut None));
        assert!(!member.blocks(first, &(0..1024), NOW, &mut None));
        drop(other);
        assert!(member.is_idle());
    }

    #[test]
    fn departed_reactor_is_not_waited_for() {
        let locks = Locks::default();
        let (one, two) = (locks.join(0), locks.join(1));
        let lock = one.ask(1, 0..512);
        assert!(!one.settle(|_, _, _| false));
        drop(two);
        assert!(lock.is_held());
    }

    /// Each change concerns those who have to do something, and calls each of them once.
    #[test]
    fn fused_pair_calls_each_reactor_once() {
        const REACTORS: u16 = 64;
        let locks = Locks::default();
        let members: Vec<_> = (0..REACTORS).map(|reactor| locks.join(reactor)).collect();
        let mut calls = Vec::new();
        let lock = members[5].ask(7, 0..512);
        let mut run = |member: &LockMember| {
            let marked = member.take_changes();
            let _ = marked && member.settle(|_, _, _| false);
            calls.extend(member.take_calls());
            marked
        };
        assert!(run(&members[5]));
        assert!(members.iter().filter(|member| run(member)).count() == 63);
        assert!(lock.is_held() && run(&members[5]));
        drop(lock);
        assert!(run(&members[5]), "to deliver calls");
        assert!(!members.iter().any(run), "none waits for the lock");
        calls.sort_unstable();
        assert_eq!(calls, (0..REACTORS).collect::<Vec<_>>());
    }

    #[test]
    fn released_lock_calls_the_reactors_that_wait_for_it() {
        let locks = Locks::default();
        let members: Vec<_> = (0..8).map(|reactor| locks.join(reactor)).collect();
        let first = members[0].ask(1, 0..512);
        let second = members[1].ask(1, 0..512);
        for member in &members {
            assert!(member.take_changes() && !member.settle(|_, _, _| false));
        }
        assert!(first.is_held() && !second.is_held());
        assert!(members[2].blocks(1, &(0..512), NOW, &mut None));
        assert!(members[0].take_changes() && members[1].take_changes());
        let _ = members[0].take_calls();
        drop(first);
        let marked: Vec<_> = (0u16..)
            .zip(&members)
            .filter(|(_, it)| it.has_changes())
            .collect();
        let marked: Vec<_> = marked.into_iter().map(|(at, _)| at).collect();
        assert_eq!(marked, [0, 1, 2]);
        assert_eq!(members[0].take_calls(), BTreeSet::from([1, 2]));
        assert!(second.is_held());
    }

    /// A reactor that ends was the last one that had to report.
    #[test]
    fn departed_reactor_marks_those_that_waited() {
        let locks = Locks::default();
        let (one, two, third) = (locks.join(0), locks.join(1), locks.join(2));
        let lock = one.ask(1, 0..512);
        for member in [&one, &third] {
            assert!(member.take_changes() && !member.settle(|_, _, _| false));
        }
        assert!(!one.has_changes());
        drop(two);
        assert!(one.has_changes() && lock.is_held());
        assert_eq!(third.take_calls(), BTreeSet::from([0, 1]));
    }

    const NOW: Duration = Duration::from_secs(5);

    #[test]
    fn barrier_does_not_wait_for_later_commands() {
        let locks = Locks::default();
        let (one, two) = (locks.join(0), locks.join(1));
        let barrier = one.barrier(7, BarrierScope::Writes);
        let after = |ms| NOW + Duration::from_millis(ms);
        assert!(!one.settle_barriers(NOW, |_, _| None));
        // The other reactor sees it later: until then it knows of no protection.
        assert!(two.settle_barriers(after(1), |_, _| Some(after(1))));
        let later = two.barrier(7, BarrierScope::Writes);
        assert!(two.settle_barriers(after(3), |_, _| Some(after(1))));
        assert!(!barrier.is_quiet());
        // That command has completed, and there is always another.
        assert!(two.settle_barriers(after(4), |_, _| Some(after(2))));
        assert!(barrier.is_quiet() && !later.is_quiet());
    }

    #[test]
    fn barrier_waits_for_every_reactor_and_does_not_block_writes() {
        let locks = Locks::default();
        let (one, two) = (locks.join(0), locks.join(1));
        let barrier = one.barrier(7, BarrierScope::Writes);
        assert!(one.take_changes() && two.take_changes());
        assert!(one.is_idle() && !one.blocks(7, &(0..512), NOW, &mut None));
        assert!(!one.settle_barriers(NOW, |_, _| None) && !barrier.is_quiet());
        let of = |its| move |storage, _| (storage == its).then_some(NOW);
        assert!(two.settle_barriers(NOW, of(7)) && !barrier.is_quiet());
        assert!(!one.has_changes(), "nothing new");
        assert!(!two.settle_barriers(NOW, of(8)) && barrier.is_quiet());
        assert!(one.has_changes() && !two.has_changes());
        let (first, second) = (
            one.barrier(1, BarrierScope::Writes),
            one.barrier(2, BarrierScope::Writes),
        );
        drop((barrier, one));
        assert!(two.settle_barriers(NOW, of(1)));
        assert!(second.is_quiet() && !first.is_quiet());
        drop(two.barrier(3, BarrierScope::Writes));
        let mut asked = Vec::new();
        let others = [
            two.barrier(1, BarrierScope::Writes),
            two.barrier(1, BarrierScope::Writes),
        ];
        let _ = two.settle_barriers(NOW, |storage, _| {
            asked.push(storage);
            Some(NOW)
        });
        assert_eq!(asked, [1], "of those that are there, and once");
        drop(others);
        drop(two);
        assert!(first.is_quiet(), "a departed reactor is not waited for");
    }
}
