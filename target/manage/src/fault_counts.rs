//! How often what is behind a namespace was gone, and why it was taken for that.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Why storage is taken for gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The kernel says that it is not there any more.
    Removed,
    /// Nothing of it can be read.
    Unreadable,
    /// It has no size, or one that cannot be served.
    Size,
}

impl Cause {
    const ALL: [Self; 3] = [Self::Removed, Self::Unreadable, Self::Size];

    /// A word for labels.
    fn name(self) -> &'static str {
        match self {
            Self::Removed => "removed",
            Self::Unreadable => "unreadable",
            Self::Size => "size",
        }
    }
}

type Counts = BTreeMap<(String, u32), [u64; Cause::ALL.len()]>;

/// Counts of one target. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct FaultCounts {
    /// Of namespaces that had any: as many as an administrator made.
    counts: Arc<Mutex<Counts>>,
}

impl FaultCounts {
    /// It happened to a namespace.
    pub(crate) fn add(&self, subsystem: &str, nsid: u32, cause: Cause) {
        let mut counts = self.lock();
        let counts = counts.entry((subsystem.to_owned(), nsid)).or_default();
        if let Some(count) = counts.get_mut(cause as usize) {
            *count += 1;
        }
    }

    /// How often it happened to one, for each cause.
    pub fn of(&self, subsystem: &str, nsid: u32) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.lock().get(&(subsystem.to_owned(), nsid)).copied();
        let names = Cause::ALL.map(Cause::name);
        names.into_iter().zip(counts.unwrap_or_default())
    }

    /// How often it happened.
    pub(crate) fn total(&self) -> u64 {
        self.lock().values().flatten().sum()
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        // Nothing is left half done when a holder panics.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
