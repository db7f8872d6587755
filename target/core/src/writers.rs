//! Which hosts wrote to a storage, and which of them have to be told that it lost
//! something.
//!
//! Base 2.1, 7.2: a Flush is answered with success when what was written before is on
//! non-volatile media. When that fails the kernel says so to one who asks, for all that
//! wrote. So the next Flush fails, once on each queue, of each of those of whose data it is
//! not certain that an earlier one had made them stable; until the host is known to have
//! heard it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_wire::Nqn;

/// Those of one target. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Writers {
    told: Arc<Mutex<Told>>,
}

#[derive(Debug, Default)]
struct Told {
    /// By storage, then by host.
    storages: BTreeMap<u64, BTreeMap<Nqn, Entry>>,
    /// Hosts of all of them.
    len: usize,
    /// Hosts that found no place since it was looked last whose place is of no use.
    refused: usize,
}

#[derive(Debug)]
struct Entry {
    write_loss: Arc<WriteLoss>,
    /// Up to which stamp there are writes that it has to be told of.
    owed: Option<u64>,
}

/// What one host may lose of one storage. All its queues have the same.
#[derive(Debug)]
pub struct WriteLoss {
    /// The stamp of its last write that may be lost; 0 if there is none.
    wrote: AtomicU64,
    /// Of how many losses it is known whether they concern it.
    known: AtomicU64,
}

impl WriteLoss {
    /// A write that may be lost has ended, and is going to be answered with success.
    /// `stamp` was taken after it ended. When the storage has lost something since it
    /// began, which is looked at after this, [`Writers::owe`] comes next.
    #[inline]
    pub fn wrote(&self, stamp: u64) {
        // It rarely changes, so that queues on several CPUs only read it.
        if self.wrote.load(Ordering::SeqCst) < stamp {
            self.wrote.fetch_max(stamp, Ordering::SeqCst);
        }
    }

    /// Whether nothing was lost of which it is not known whether it concerns the host.
    /// If not, [`Writers::settle`] comes before the next write.
    #[inline]
    #[must_use]
    pub fn knows(&self, losses: u64) -> bool {
        self.known.load(Ordering::SeqCst) == losses
    }
}

/// Hosts that are remembered of one storage.
const MOST_OF_ONE: usize = 4096;
/// And of all, which takes some 20 MiB.
const MOST: usize = 65_536;
/// After so many that found no place it is looked again.
const PATIENCE: usize = 1024;

impl Writers {
    /// `host` is going to write to `storage`, which has lost something `losses` times so
    /// far. `None` when there are too many others: what it writes has to be stable before
    /// it is answered. `counted` says which storages are there or lost something.
    #[must_use]
    pub fn join(
        &self,
        storage: u64,
        host: &Nqn,
        losses: u64,
        counted: impl FnOnce() -> BTreeSet<u64>,
    ) -> Option<Arc<WriteLoss>> {
        let mut told = self.lock();
        if told.len >= MOST {
            told.refused += 1;
            if told.refused % PATIENCE == 1 {
                told.forget(&counted());
            }
        }
        let is_full = told.len >= MOST;
        let Told { storages, len, .. } = &mut *told;
        let hosts = storages.entry(storage).or_default();
        if let Some(entry) = hosts.get(host) {
            return Some(Arc::clone(&entry.write_loss));
        }
        if is_full || hosts.len() >= MOST_OF_ONE {
            return None;
        }
        let write_loss = Arc::new(WriteLoss {
            wrote: AtomicU64::new(0),
            known: AtomicU64::new(losses),
        });
        let entry = Entry {
            write_loss: Arc::clone(&write_loss),
            owed: None,
        };
        hosts.insert(*host, entry);
        *len += 1;
        Some(write_loss)
    }

    /// `storage` has lost something `losses` times by now: finds out whether that
    /// concerns `host`. `concern` says whether something that was written until a stamp
    /// may be among what was lost since a count.
    pub fn settle(
        &self,
        storage: u64,
        host: &Nqn,
        losses: u64,
        concern: impl FnOnce(u64, u64) -> bool,
    ) {
        if let Some(entry) = self.lock().of(storage, host) {
            entry.settle(losses, concern);
        }
    }

    /// A write of `host` was on its way to `storage` when something was lost, and
    /// succeeded; it has that stamp.
    pub fn owe(&self, storage: u64, host: &Nqn, stamp: u64) {
        if let Some(entry) = self.lock().of(storage, host) {
            entry.owed = entry.owed.max(Some(stamp));
        }
    }

    /// Up to which stamp there are writes of `host`, whose Flush is done, that may be lost
    /// and of which it is not known to have [heard](Self::heard). It
    /// [settles](Self::settle) that first.
    #[must_use]
    pub fn owed(
        &self,
        storage: u64,
        host: &Nqn,
        losses: u64,
        concern: impl FnOnce(u64, u64) -> bool,
    ) -> Option<u64> {
        let mut told = self.lock();
        let entry = told.of(storage, host)?;
        entry.settle(losses, concern);
        entry.owed
    }

    /// Whether `host` wrote something to `storage` that was answered with success and that
    /// `stable` does not know to be stable. It takes the stamp of the last such write. Of a
    /// host that was not remembered every write was stable before its answer
    /// ([`join`](Self::join)).
    #[must_use]
    pub fn has_unflushed(
        &self,
        storage: u64,
        host: &Nqn,
        stable: impl FnOnce(u64) -> bool,
    ) -> bool {
        self.lock().of(storage, host).is_some_and(|entry| {
            let wrote = entry.write_loss.wrote.load(Ordering::SeqCst);
            wrote > 0 && !stable(wrote)
        })
    }

    /// The host is known to have heard the answer to a Flush that came with that stamp: it
    /// was told of what it wrote before. What was answered later the Flush said nothing
    /// about.
    pub fn heard(&self, storage: u64, host: &Nqn, came: u64) {
        if let Some(entry) = self.lock().of(storage, host) {
            entry.owed.take_if(|owed| *owed <= came);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        // Nothing is left half done when a holder panics.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn settle(&mut self, losses: u64, concern: impl FnOnce(u64, u64) -> bool) {
        let WriteLoss { wrote, known } = &*self.write_loss;
        let before = known.load(Ordering::SeqCst);
        if before >= losses {
            return;
        }
        // A write that ended before and does not see the loss has its stamp seen here.
        let wrote = wrote.load(Ordering::SeqCst);
        if concern(wrote, before) {
            self.owed = self.owed.max(Some(wrote));
        }
        known.store(losses, Ordering::SeqCst);
    }
}

impl Told {
    fn of(&mut self, storage: u64, host: &Nqn) -> Option<&mut Entry> {
        let hosts = self.storages.get_mut(&storage);
        hosts.and_then(|hosts| hosts.get_mut(host))
    }

    fn forget(&mut self, but: &BTreeSet<u64>) {
        self.storages.retain(|storage, _| but.contains(storage));
        self.len = self.storages.values().map(BTreeMap::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that was written before may be lost.
    fn all(wrote: u64, _known: u64) -> bool {
        wrote > 0
    }

    /// Everything was stable by then.
    fn none(_wrote: u64, _known: u64) -> bool {
        false
    }

    fn tell(writers: &Writers, storage: u64, host: &Nqn, losses: u64) -> bool {
        let owed = writers.owed(storage, host, losses, all);
        assert_eq!(
            writers.owed(storage, host, losses, all),
            owed,
            "it may not have heard"
        );
        writers.heard(storage, host, 1);
        owed.is_some()
    }

    fn owes(
        writers: &Writers,
        storage: u64,
        host: &Nqn,
        losses: u64,
        concern: impl FnOnce(u64, u64) -> bool,
    ) -> bool {
        writers.owed(storage, host, losses, concern).is_some()
    }

    fn join(writers: &Writers, storage: u64, host: &Nqn, losses: u64) -> Option<Arc<WriteLoss>> {
        writers.join(storage, host, losses, || (0..10).collect())
    }

    fn write(writers: &Writers, storage: u64, host: &Nqn, losses: u64) {
        join(writers, storage, host, losses).unwrap().wrote(1);
    }

    fn host(number: usize) -> Nqn {
        Nqn::new(&format!("nqn.2026-11.org.example:host{number}")).unwrap()
    }

    #[test]
    fn each_host_that_wrote_is_told_once_of_what_was_lost_since() {
        let writers = Writers::default();
        write(&writers, 1, &host(1), 0);
        write(&writers, 1, &host(2), 0);
        write(&writers, 2, &host(1), 0);
        assert!(!tell(&writers, 1, &host(1), 0));
        assert!(tell(&writers, 1, &host(1), 1) && !tell(&writers, 1, &host(1), 1));
        assert!(tell(&writers, 1, &host(2), 3) && !tell(&writers, 1, &host(2), 3));
        assert!(tell(&writers, 1, &host(1), 3), "and of the next");
        assert!(!tell(&writers, 1, &host(3), 3), "it wrote nothing");
        assert!(!tell(&writers, 2, &host(1), 0), "that is another");
        // One that comes later has lost nothing by then, and one that comes again has.
        write(&writers, 1, &host(3), 3);
        write(&writers, 2, &host(1), 1);
        assert!(!tell(&writers, 1, &host(3), 3));
        assert!(tell(&writers, 2, &host(1), 1));
    }

    #[test]
    fn a_host_whose_writes_were_stable_is_not_told() {
        let writers = Writers::default();
        write(&writers, 1, &host(1), 0);
        assert!(!owes(&writers, 1, &host(1), 1, none));
        assert!(!owes(&writers, 1, &host(1), 1, all), "that is settled");
        assert!(owes(&writers, 1, &host(1), 2, all));
        assert!(owes(&writers, 1, &host(1), 3, none), "until it is told");
        writers.heard(1, &host(1), 1);
        assert!(!owes(&writers, 1, &host(1), 3, all));
    }

    #[test]
    fn only_answered_writes_that_are_not_stable_are_to_be_flushed() {
        let writers = Writers::default();
        let until = |stable| move |wrote| wrote <= stable;
        assert!(!writers.has_unflushed(1, &host(1), until(0)), "a stranger");
        let write_loss = join(&writers, 1, &host(1), 0).unwrap();
        assert!(
            !writers.has_unflushed(1, &host(1), until(0)),
            "nothing ended"
        );
        write_loss.wrote(5);
        drop(write_loss);
        assert!(
            writers.has_unflushed(1, &host(1), until(4)),
            "its queue is gone"
        );
        assert!(!writers.has_unflushed(1, &host(1), until(5)));
        assert!(!writers.has_unflushed(2, &host(1), until(0)));
        assert!(!writers.has_unflushed(1, &host(2), until(0)));
    }

    #[test]
    fn before_a_host_goes_on_writing_it_is_settled_what_it_lost() {
        let writers = Writers::default();
        let write_loss = join(&writers, 1, &host(1), 0).unwrap();
        write_loss.wrote(7);
        assert!(write_loss.knows(0) && !write_loss.knows(2));
        writers.settle(1, &host(1), 2, |wrote, known| {
            assert_eq!((wrote, known), (7, 0));
            true
        });
        assert!(write_loss.knows(2));
        // It is asked once, and the last write counts.
        writers.settle(1, &host(1), 2, |_, _| panic!("it is settled"));
        write_loss.wrote(9);
        write_loss.wrote(8);
        let asked = |wrote, known| {
            assert_eq!((wrote, known), (9, 2));
            false
        };
        assert!(owes(&writers, 1, &host(1), 3, asked), "of what was before");
        // The writes that came later are no longer among them.
        writers.heard(1, &host(1), 7);
        assert!(!owes(&writers, 1, &host(1), 3, none));
    }

    #[test]
    fn a_flush_says_nothing_about_what_was_written_after_it_came() {
        let writers = Writers::default();
        let write_loss = join(&writers, 1, &host(1), 0).unwrap();
        write_loss.wrote(7);
        assert!(owes(&writers, 1, &host(1), 1, all));
        for came in [6, 5] {
            writers.heard(1, &host(1), came);
            assert!(owes(&writers, 1, &host(1), 1, none));
        }
        // A write during which something was lost, by whomever that was settled.
        writers.owe(1, &host(1), 8);
        writers.heard(1, &host(1), 7);
        assert!(owes(&writers, 1, &host(1), 1, none));
        writers.heard(1, &host(1), 8);
        assert!(!owes(&writers, 1, &host(1), 1, none));
    }

    #[test]
    fn who_is_too_many_has_to_write_through() {
        let writers = Writers::default();
        for number in 0..MOST_OF_ONE {
            assert!(join(&writers, 1, &host(number), 0).is_some());
        }
        let another = host(MOST_OF_ONE);
        assert!(join(&writers, 1, &another, 0).is_none());
        assert!(join(&writers, 1, &host(0), 0).is_some());
        assert!(join(&writers, 2, &another, 0).is_some());
        // All that there may be, of storages that are gone by now.
        for number in 10..10 + MOST {
            let _ = join(&writers, number as u64, &another, 0);
            let told = writers.lock();
            assert!(told.len <= MOST);
            if told.refused > 0 {
                break;
            }
        }
        assert_eq!(writers.lock().refused, 1);
        assert!(
            join(&writers, 3, &another, 0).is_some(),
            "theirs were of no use"
        );
        let told = writers.lock();
        assert_eq!(told.len, MOST_OF_ONE + 3);
        assert_eq!(
            told.len,
            told.storages.values().map(BTreeMap::len).sum::<usize>()
        );
    }
}
