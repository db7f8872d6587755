//! Which hosts wrote to a storage, and to which of them a write loss must be reported.
//!
//! Base 2.1, 7.2: a Flush succeeds only if earlier writes are on non-volatile media. When
//! writeback fails, the kernel reports it to one caller, for the data of all writers. The
//! next Flush of every host whose data may be lost therefore fails, once on each queue,
//! until the host must have received the error.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_wire::Nqn;

/// The writers of one target. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Writers {
    table: Arc<Mutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    /// By storage, then by host.
    storages: BTreeMap<u64, BTreeMap<Nqn, Entry>>,
    /// Number of entries of all storages.
    len: usize,
    /// Hosts that were refused an entry since unused ones were last removed.
    refused: usize,
}

#[derive(Debug)]
struct Entry {
    write_loss: Arc<WriteLoss>,
    /// The stamp of the last write that may be lost and was not reported to the host.
    unreported: Option<u64>,
}

/// Writes of one host to one storage that may be lost. All queues of the host share it.
#[derive(Debug)]
pub struct WriteLoss {
    /// The stamp of its last write that may be lost; 0 if there is none.
    wrote: AtomicU64,
    /// Number of losses of the storage that have been evaluated for this host.
    known: AtomicU64,
}

impl WriteLoss {
    /// A write that may be lost has completed and will be acknowledged. `stamp` was taken
    /// after its completion. Check afterwards whether the storage lost writes since it
    /// began; if so, call [`Writers::mark_lost`].
    #[inline]
    pub fn record_write(&self, stamp: u64) {
        // It rarely changes: mostly, queues on several CPUs only read it.
        if self.wrote.load(Ordering::SeqCst) < stamp {
            self.wrote.fetch_max(stamp, Ordering::SeqCst);
        }
    }

    /// Whether all `losses` of the storage have been evaluated for this host. If not, call
    /// [`Writers::evaluate`] before the next write.
    #[inline]
    #[must_use]
    pub fn is_current(&self, losses: u64) -> bool {
        self.known.load(Ordering::SeqCst) == losses
    }
}

/// Hosts per storage, at most.
const MAX_PER_STORAGE: usize = 4096;
/// Entries of all storages, at most; they use about 20 MiB.
const MAX_ENTRIES: usize = 65_536;
/// Unused entries are removed once per this many refusals.
const CLEANUP_INTERVAL: usize = 1024;

impl Writers {
    /// `host` is going to write to `storage`, which has `losses` losses so far. `None` if
    /// the table is full: each write of the host must be stable before it completes.
    /// `counted` returns the storages that are open or had a loss.
    #[must_use]
    pub fn join(
        &self,
        storage: u64,
        host: &Nqn,
        losses: u64,
        counted: impl FnOnce() -> BTreeSet<u64>,
    ) -> Option<Arc<WriteLoss>> {
        let mut table = self.lock();
        if table.len >= MAX_ENTRIES {
            table.refused += 1;
            if table.refused % CLEANUP_INTERVAL == 1 {
                table.forget(&counted());
            }
        }
        let is_full = table.len >= MAX_ENTRIES;
        let Table { storages, len, .. } = &mut *table;
        let hosts = storages.entry(storage).or_default();
        if let Some(entry) = hosts.get(host) {
            return Some(Arc::clone(&entry.write_loss));
        }
        if is_full || hosts.len() >= MAX_PER_STORAGE {
            return None;
        }
        let write_loss = Arc::new(WriteLoss {
            wrote: AtomicU64::new(0),
            known: AtomicU64::new(losses),
        });
        let entry = Entry {
            write_loss: Arc::clone(&write_loss),
            unreported: None,
        };
        hosts.insert(*host, entry);
        *len += 1;
        Some(write_loss)
    }

    /// `storage` has `losses` losses by now: evaluates whether they affect `host`.
    /// `concern` returns whether writes up to a stamp may be among those lost since a
    /// count of losses.
    pub fn evaluate(
        &self,
        storage: u64,
        host: &Nqn,
        losses: u64,
        concern: impl FnOnce(u64, u64) -> bool,
    ) {
        if let Some(entry) = self.lock().of(storage, host) {
            entry.evaluate(losses, concern);
        }
    }

    /// A write of `host` to `storage` was in flight during a loss, and succeeded with
    /// this stamp.
    pub fn mark_lost(&self, storage: u64, host: &Nqn, stamp: u64) {
        if let Some(entry) = self.lock().of(storage, host) {
            entry.unreported = entry.unreported.max(Some(stamp));
        }
    }

    /// The stamp of the last write of `host` that may be lost and whose report it is not
    /// known to have [received](Self::confirm_report). Call it when a Flush of the host completes;
    /// it [evaluates](Self::evaluate) the losses first.
    #[must_use]
    pub fn unreported_loss(
        &self,
        storage: u64,
        host: &Nqn,
        losses: u64,
        concern: impl FnOnce(u64, u64) -> bool,
    ) -> Option<u64> {
        let mut table = self.lock();
        let entry = table.of(storage, host)?;
        entry.evaluate(losses, concern);
        entry.unreported
    }

    /// Whether `host` has acknowledged writes to `storage` that are not known to be
    /// stable. `stable` is called with the stamp of the last one. Writes of a host without
    /// an entry were stable before they completed ([`join`](Self::join)).
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

    /// The host must have received the error of a Flush that arrived at stamp `came`. It
    /// covers the writes that completed before, not later ones.
    pub fn confirm_report(&self, storage: u64, host: &Nqn, came: u64) {
        if let Some(entry) = self.lock().of(storage, host) {
            entry.unreported.take_if(|stamp| *stamp <= came);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing is left half done when a holder panics.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn evaluate(&mut self, losses: u64, concern: impl FnOnce(u64, u64) -> bool) {
        let WriteLoss { wrote, known } = &*self.write_loss;
        let before = known.load(Ordering::SeqCst);
        if before >= losses {
            return;
        }
        // A write that completed before, and does not see the loss, has stored its stamp.
        let wrote = wrote.load(Ordering::SeqCst);
        if concern(wrote, before) {
            self.unreported = self.unreported.max(Some(wrote));
        }
        known.store(losses, Ordering::SeqCst);
    }
}

impl Table {
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

    /// All earlier writes may be lost.
    fn all(wrote: u64, _known: u64) -> bool {
        wrote > 0
    }

    /// Everything was stable by then.
    fn none(_wrote: u64, _known: u64) -> bool {
        false
    }

    fn report(writers: &Writers, storage: u64, host: &Nqn, losses: u64) -> bool {
        let unreported_loss = writers.unreported_loss(storage, host, losses, all);
        assert_eq!(
            writers.unreported_loss(storage, host, losses, all),
            unreported_loss,
            "it may not have received it"
        );
        writers.confirm_report(storage, host, 1);
        unreported_loss.is_some()
    }

    fn owes(
        writers: &Writers,
        storage: u64,
        host: &Nqn,
        losses: u64,
        concern: impl FnOnce(u64, u64) -> bool,
    ) -> bool {
        writers
            .unreported_loss(storage, host, losses, concern)
            .is_some()
    }

    fn join(writers: &Writers, storage: u64, host: &Nqn, losses: u64) -> Option<Arc<WriteLoss>> {
        writers.join(storage, host, losses, || (0..10).collect())
    }

    fn write(writers: &Writers, storage: u64, host: &Nqn, losses: u64) {
        join(writers, storage, host, losses)
            .unwrap()
            .record_write(1);
    }

    fn host(number: usize) -> Nqn {
        Nqn::new(&format!("nqn.2026-11.org.example:host{number}")).unwrap()
    }

    #[test]
    fn write_loss_is_reported_once_to_each_writer() {
        let writers = Writers::default();
        write(&writers, 1, &host(1), 0);
        write(&writers, 1, &host(2), 0);
        write(&writers, 2, &host(1), 0);
        assert!(!report(&writers, 1, &host(1), 0));
        assert!(report(&writers, 1, &host(1), 1) && !report(&writers, 1, &host(1), 1));
        assert!(report(&writers, 1, &host(2), 3) && !report(&writers, 1, &host(2), 3));
        assert!(report(&writers, 1, &host(1), 3), "and of the next");
        assert!(!report(&writers, 1, &host(3), 3), "it wrote nothing");
        assert!(!report(&writers, 2, &host(1), 0), "another storage");
        // A later host has lost nothing so far, a returning one has.
        write(&writers, 1, &host(3), 3);
        write(&writers, 2, &host(1), 1);
        assert!(!report(&writers, 1, &host(3), 3));
        assert!(report(&writers, 2, &host(1), 1));
    }

    #[test]
    fn loss_is_not_reported_to_host_with_stable_writes() {
        let writers = Writers::default();
        write(&writers, 1, &host(1), 0);
        assert!(!owes(&writers, 1, &host(1), 1, none));
        assert!(!owes(&writers, 1, &host(1), 1, all), "that is settled");
        assert!(owes(&writers, 1, &host(1), 2, all));
        assert!(owes(&writers, 1, &host(1), 3, none), "until it is reported");
        writers.confirm_report(1, &host(1), 1);
        assert!(!owes(&writers, 1, &host(1), 3, all));
    }

    #[test]
    fn only_acknowledged_unstable_writes_are_unflushed() {
        let writers = Writers::default();
        let until = |stable| move |wrote| wrote <= stable;
        assert!(!writers.has_unflushed(1, &host(1), until(0)), "a stranger");
        let write_loss = join(&writers, 1, &host(1), 0).unwrap();
        assert!(
            !writers.has_unflushed(1, &host(1), until(0)),
            "nothing ended"
        );
        write_loss.record_write(5);
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
    fn losses_are_evaluated_before_the_next_write() {
        let writers = Writers::default();
        let write_loss = join(&writers, 1, &host(1), 0).unwrap();
        write_loss.record_write(7);
        assert!(write_loss.is_current(0) && !write_loss.is_current(2));
        writers.evaluate(1, &host(1), 2, |wrote, known| {
            assert_eq!((wrote, known), (7, 0));
            true
        });
        assert!(write_loss.is_current(2));
        // Each loss is evaluated once, with the last write.
        writers.evaluate(1, &host(1), 2, |_, _| panic!("it is settled"));
        write_loss.record_write(9);
        write_loss.record_write(8);
        let asked = |wrote, known| {
            assert_eq!((wrote, known), (9, 2));
            false
        };
        assert!(owes(&writers, 1, &host(1), 3, asked), "earlier writes");
        // Later writes are not among them.
        writers.confirm_report(1, &host(1), 7);
        assert!(!owes(&writers, 1, &host(1), 3, none));
    }

    #[test]
    fn flush_error_does_not_cover_later_writes() {
        let writers = Writers::default();
        let write_loss = join(&writers, 1, &host(1), 0).unwrap();
        write_loss.record_write(7);
        assert!(owes(&writers, 1, &host(1), 1, all));
        for came in [6, 5] {
            writers.confirm_report(1, &host(1), came);
            assert!(owes(&writers, 1, &host(1), 1, none));
        }
        // A write in flight during a loss that was evaluated by another queue.
        writers.mark_lost(1, &host(1), 8);
        writers.confirm_report(1, &host(1), 7);
        assert!(owes(&writers, 1, &host(1), 1, none));
        writers.confirm_report(1, &host(1), 8);
        assert!(!owes(&writers, 1, &host(1), 1, none));
    }

    #[test]
    fn host_without_an_entry_must_write_through() {
        let writers = Writers::default();
        for number in 0..MAX_PER_STORAGE {
            assert!(join(&writers, 1, &host(number), 0).is_some());
        }
        let another = host(MAX_PER_STORAGE);
        assert!(join(&writers, 1, &another, 0).is_none());
        assert!(join(&writers, 1, &host(0), 0).is_some());
        assert!(join(&writers, 2, &another, 0).is_some());
        // Fill the table with storages that are gone.
        for number in 10..10 + MAX_ENTRIES {
            let _ = join(&writers, number as u64, &another, 0);
            let table = writers.lock();
            assert!(table.len <= MAX_ENTRIES);
            if table.refused > 0 {
                break;
            }
        }
        assert_eq!(writers.lock().refused, 1);
        assert!(
            join(&writers, 3, &another, 0).is_some(),
            "unused entries were removed"
        );
        let table = writers.lock();
        assert_eq!(table.len, MAX_PER_STORAGE + 3);
        assert_eq!(
            table.len,
            table.storages.values().map(BTreeMap::len).sum::<usize>()
        );
    }
}
