//! Which hosts wrote to a storage, and which of them have to be told that it lost
//! something.
//!
//! Base 2.1, 7.2: a Flush is answered with success when what was written before is on
//! non-volatile media. When that fails the kernel says so to one who asks, for all that
//! wrote. So the next Flush of each of them fails, once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_wire::Nqn;

/// Those of one target. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Writers {
    told: Arc<Mutex<Told>>,
}

#[derive(Debug, Default)]
struct Told {
    /// By storage, then by host: of how many losses it was told.
    storages: BTreeMap<u64, BTreeMap<Nqn, u64>>,
    /// Hosts of all of them.
    len: usize,
    /// Hosts that found no place since it was looked last whose place is of no use.
    refused: usize,
}

/// Hosts that are remembered of one storage.
const MOST_OF_ONE: usize = 4096;
/// And of all, which takes some 20 MiB.
const MOST: usize = 65_536;
/// After so many that found no place it is looked again.
const PATIENCE: usize = 1024;

impl Writers {
    /// `host` is going to write to `storage`, which has lost something `losses` times so
    /// far. False when there are too many others: what it writes has to be stable before
    /// it is answered. `counted` says which storages are there or lost something.
    #[must_use]
    pub fn join(
        &self,
        storage: u64,
        host: &Nqn,
        losses: u64,
        counted: impl FnOnce() -> BTreeSet<u64>,
    ) -> bool {
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
        if hosts.contains_key(host) {
            return true;
        }
        if is_full || hosts.len() >= MOST_OF_ONE {
            return false;
        }
        hosts.insert(*host, losses);
        *len += 1;
        true
    }

    /// Whether `host`, whose Flush is done, is to be told that something was lost.
    #[must_use]
    pub fn owes(&self, storage: u64, host: &Nqn, losses: u64) -> bool {
        let mut told = self.lock();
        told.of(storage, host).is_some_and(|known| *known < losses)
    }

    /// The host has its answer: it was told.
    pub fn tell(&self, storage: u64, host: &Nqn, losses: u64) {
        if let Some(known) = self.lock().of(storage, host) {
            *known = losses.max(*known);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        // Nothing is left half done when a holder panics.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    fn of(&mut self, storage: u64, host: &Nqn) -> Option<&mut u64> {
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

    fn tell(writers: &Writers, storage: u64, host: &Nqn, losses: u64) -> bool {
        let owed = writers.owes(storage, host, losses);
        assert_eq!(
            writers.owes(storage, host, losses),
            owed,
            "it may not have heard"
        );
        writers.tell(storage, host, losses);
        owed
    }

    fn join(writers: &Writers, storage: u64, host: &Nqn, losses: u64) -> bool {
        writers.join(storage, host, losses, || (0..10).collect())
    }

    fn host(number: usize) -> Nqn {
        Nqn::new(&format!("nqn.2026-11.org.example:host{number}")).unwrap()
    }

    #[test]
    fn each_host_that_wrote_is_told_once_of_what_was_lost_since() {
        let writers = Writers::default();
        assert!(join(&writers, 1, &host(1), 0) && join(&writers, 1, &host(2), 0));
        assert!(join(&writers, 2, &host(1), 0));
        assert!(!tell(&writers, 1, &host(1), 0));
        assert!(tell(&writers, 1, &host(1), 1) && !tell(&writers, 1, &host(1), 1));
        assert!(tell(&writers, 1, &host(2), 3) && !tell(&writers, 1, &host(2), 3));
        assert!(tell(&writers, 1, &host(1), 3), "and of the next");
        assert!(!tell(&writers, 1, &host(3), 3), "it wrote nothing");
        assert!(!tell(&writers, 2, &host(1), 0), "that is another");
        // One that comes later has lost nothing by then, and one that comes again has.
        assert!(join(&writers, 1, &host(3), 3) && join(&writers, 2, &host(1), 1));
        assert!(!tell(&writers, 1, &host(3), 3));
        assert!(tell(&writers, 2, &host(1), 1));
    }

    #[test]
    fn who_is_too_many_has_to_write_through() {
        let writers = Writers::default();
        for number in 0..MOST_OF_ONE {
            assert!(join(&writers, 1, &host(number), 0));
        }
        let another = host(MOST_OF_ONE);
        assert!(!join(&writers, 1, &another, 0));
        assert!(join(&writers, 1, &host(0), 0) && join(&writers, 2, &another, 0));
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
        assert!(join(&writers, 3, &another, 0), "theirs were of no use");
        let told = writers.lock();
        assert_eq!(told.len, MOST_OF_ONE + 3);
        assert_eq!(
            told.len,
            told.storages.values().map(BTreeMap::len).sum::<usize>()
        );
    }
}
