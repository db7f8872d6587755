//! Counters of faults of namespaces, by cause.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Why a namespace is faulted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The kernel reports that the device was removed.
    Removed,
    /// The cluster has blocklisted this client.
    Fenced,
    /// Not even one block can be read.
    Unreadable,
    /// Its size is 0, or cannot be served.
    Size,
}

impl Cause {
    const ALL: [Self; 4] = [Self::Removed, Self::Fenced, Self::Unreadable, Self::Size];

    /// Value of the label `cause`.
    fn name(self) -> &'static str {
        match self {
            Self::Removed => "removed",
            Self::Fenced => "fenced",
            Self::Unreadable => "unreadable",
            Self::Size => "size",
        }
    }
}

type Counts = BTreeMap<(String, u32), [u64; Cause::ALL.len()]>;

/// Counters of one target. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct FaultCounts {
    /// One entry for each namespace that had a fault; the configuration bounds their number.
    counts: Arc<Mutex<Counts>>,
}

impl FaultCounts {
    /// Counts one fault of a namespace.
    pub(crate) fn add(&self, subsystem: &str, nsid: u32, cause: Cause) {
        let mut counts = self.lock();
        let counts = counts.entry((subsystem.to_owned(), nsid)).or_default();
        if let Some(count) = counts.get_mut(cause as usize) {
            *count += 1;
        }
    }

    /// The faults of one namespace, for each cause.
    pub fn of(&self, subsystem: &str, nsid: u32) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.lock().get(&(subsystem.to_owned(), nsid)).copied();
        let names = Cause::ALL.map(Cause::name);
        names.into_iter().zip(counts.unwrap_or_default())
    }

    /// The faults of all namespaces.
    pub(crate) fn total(&self) -> u64 {
        self.lock().values().flatten().sum()
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        // A panic of a holder leaves nothing inconsistent.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
