//! Which hosts wrote to a storage, and which of them have to be told that it lost
//! something.
//!
//! Base 2.1, 7.2: a Flush is answered with success when what was written before is on
//! non-volatile media. When that fails the kernel says so to one who asks, for all that
//! wrote. So the next Flush of each of them fails, once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_wire::Nqn;

/// Those of one target. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Writers {
    /// By storage, then by host: of how many losses it was told.
    told: Arc<Mutex<BTreeMap<u64, BTreeMap<Nqn, u64>>>>,
}

/// Hosts that are remembered of one storage.
const MOST: usize = 4096;

impl Writers {
    /// `host` is going to write to `storage`, which has lost something `losses` times so
    /// far. False when there are too many others: what it writes has to be stable before
    /// it is answered.
    #[must_use]
    pub fn join(&self, storage: u64, host: &Nqn, losses: u64) -> bool {
        let mut told = self.lock();
        let hosts = told.entry(storage).or_default();
        if hosts.len() >= MOST && !hosts.contains_key(host) {
            return false;
        }
        hosts.entry(*host).or_insert(losses);
        true
    }

    /// `host` is about to be told what became of its Flush. Whether it has to be told
    /// that something was lost; from here on it was.
    #[must_use]
    pub fn tell(&self, storage: u64, host: &Nqn, losses: u64) -> bool {
        let mut told = self.lock();
        let known = told.get_mut(&storage).and_then(|hosts| hosts.get_mut(host));
        known.is_some_and(|known| std::mem::replace(known, losses) < losses)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, BTreeMap<Nqn, u64>>> {
        // Nothing is left half done when a holder panics.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: usize) -> Nqn {
        Nqn::new(&format!("nqn.2026-11.org.example:host{number}")).unwrap()
    }

    #[test]
    fn each_host_that_wrote_is_told_once_of_what_was_lost_since() {
        let writers = Writers::default();
        assert!(writers.join(1, &host(1), 0) && writers.join(1, &host(2), 0));
        assert!(writers.join(2, &host(1), 0));
        assert!(!writers.tell(1, &host(1), 0));
        assert!(writers.tell(1, &host(1), 1) && !writers.tell(1, &host(1), 1));
        assert!(writers.tell(1, &host(2), 3) && !writers.tell(1, &host(2), 3));
        assert!(writers.tell(1, &host(1), 3), "and of the next");
        assert!(!writers.tell(1, &host(3), 3), "it wrote nothing");
        assert!(!writers.tell(2, &host(1), 0), "that is another");
        // One that comes later has lost nothing by then, and one that comes again has.
        assert!(writers.join(1, &host(3), 3) && writers.join(2, &host(1), 1));
        assert!(!writers.tell(1, &host(3), 3));
        assert!(writers.tell(2, &host(1), 1));
    }

    #[test]
    fn who_is_too_many_has_to_write_through() {
        let writers = Writers::default();
        for number in 0..MOST {
            assert!(writers.join(1, &host(number), 0));
        }
        assert!(!writers.join(1, &host(MOST), 0));
        assert!(writers.join(1, &host(0), 0) && writers.join(2, &host(MOST), 0));
    }
}
