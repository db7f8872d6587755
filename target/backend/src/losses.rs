//! How often a storage may have lost what was answered as done.
//!
//! The kernel tells one who asks for stable storage that it could not be had, and forgets
//! it then (fsync(2)): whoever asks next hears that all is well. So it is counted here,
//! for those who wrote and did not ask.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Storage;
use crate::syncs::Syncs;

/// A count that only grows. It goes on when the same file or device is opened again.
#[derive(Debug)]
pub(crate) struct Losses {
    number: u64,
    count: AtomicU64,
    syncs: Syncs,
}

/// Such a count at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Of what it is: no other file or device of this process has it. 0 for memory,
    /// which loses nothing.
    pub storage: u64,
    /// How often.
    pub count: u64,
}

/// One that is counted on if it is opened again.
struct Known {
    name: Arc<str>,
    storage: Storage,
    losses: Arc<Losses>,
}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(1);

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

impl Losses {
    /// Of memory, which loses nothing.
    pub(crate) fn of_memory() -> Arc<Self> {
        Self::numbered(0)
    }

    fn numbered(number: u64) -> Arc<Self> {
        Arc::new(Self {
            number,
            count: AtomicU64::new(0),
            syncs: Syncs::default(),
        })
    }

    /// Of that file or device, under that name.
    pub(crate) fn of(name: &Arc<str>, storage: Storage) -> Arc<Self> {
        // Nothing is left half done when a holder panics.
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        forget(&mut known);
        let its = |one: &&Known| one.storage.is_of(storage) && one.name == *name;
        if let Some(one) = known.iter().find(its) {
            return Arc::clone(&one.losses);
        }
        let losses = Self::numbered(NEXT.fetch_add(1, Ordering::Relaxed));
        known.push(Known {
            name: Arc::clone(name),
            storage,
            losses: Arc::clone(&losses),
        });
        losses
    }

    /// Once more.
    pub(crate) fn add(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// What makes it stable at this moment.
    pub(crate) fn syncs(&self) -> &Syncs {
        &self.syncs
    }

    pub(crate) fn now(&self) -> Lost {
        Lost {
            storage: self.number,
            count: self.count.load(Ordering::Acquire),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_is_known_when_it_is_opened_again() {
        let [name, other] = ["/disks/a", "/disks/b"].map(Arc::<str>::from);
        let file = Storage::File(0xa_0000_0001);
        let losses = Losses::of(&name, file);
        assert_eq!(losses.now().count, 0);
        losses.add();
        let before = losses.now();
        assert_eq!(before.count, 1);
        drop(losses);
        assert_eq!(Losses::of(&name, file).now(), before);
        for another in [
            Losses::of(&other, file),
            Losses::of(&name, Storage::File(0xa_0000_0002)),
            Losses::of(&name, Storage::Device(0xa_0000_0001, 512)),
            Losses::of(&name, Storage::Device(0xa_0000_0002, 512)),
            Losses::of_memory(),
        ] {
            assert_eq!(another.now().count, 0);
            assert_ne!(another.now().storage, before.storage);
        }
        assert!(counted().contains(&before.storage));
        // A device that has another size by now.
        let [smaller, larger] = [512, 1024].map(|size| Storage::Device(0xa_0000_0003, size));
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
