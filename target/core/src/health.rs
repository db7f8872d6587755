//! What a subsystem counts over its life, for the SMART log page.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counters of one subsystem. They are read only for the log page, so that no
/// order between them is needed.
#[derive(Debug, Default)]
pub(crate) struct Health {
    queues: Mutex<Queues>,
    media_errors: AtomicU64,
    error_entries: AtomicU64,
}

/// What queues count. Each has counters of its own, so that counting a command
/// takes no atomic operation that other cores notice.
#[derive(Debug, Default)]
struct Queues {
    there: Vec<Arc<Tally>>,
    /// What those counted that are gone.
    gone: Moved,
}

/// The counters of one queue, which alone writes them.
#[derive(Debug, Default)]
struct Tally {
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
}

/// What was read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) moved: Moved,
    pub(crate) media_errors: u64,
    pub(crate) error_entries: u64,
}

/// A queue's part in the counters of its subsystem. What it counted stays when
/// it goes.
#[derive(Debug)]
pub(crate) struct Counting {
    health: Arc<Health>,
    tally: Arc<Tally>,
}

impl Health {
    /// One more queue counts.
    pub(crate) fn join(self: &Arc<Self>) -> Counting {
        let tally = Arc::new(Tally::default());
        self.queues().there.push(Arc::clone(&tally));
        let health = Arc::clone(self);
        Counting { health, tally }
    }

    /// An entry was made in an error log.
    pub(crate) fn error_entry(&self) {
        self.error_entries.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> Counts {
        let queues = self.queues();
        let there = queues.there.iter().map(|tally| tally.moved());
        Counts {
            moved: there.fold(queues.gone, Moved::plus),
            media_errors: self.media_errors.load(Ordering::Relaxed),
            error_entries: self.error_entries.load(Ordering::Relaxed),
        }
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        // Nobody leaves them half changed.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counting {
    /// A Read or Compare of `bytes` was done.
    #[inline]
    pub(crate) fn read(&mut self, bytes: u64) {
        add(&self.tally.reads, 1);
        add(&self.tally.bytes_read, bytes);
    }

    /// A Write of `bytes` was done.
    #[inline]
    pub(crate) fn written(&mut self, bytes: u64) {
        add(&self.tally.writes, 1);
        add(&self.tally.bytes_written, bytes);
    }

    /// A disk failed.
    pub(crate) fn media_error(&self) {
        self.health.media_errors.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let mut queues = self.health.queues();
        queues.gone = queues.gone.plus(self.tally.moved());
        queues.there.retain(|one| !Arc::ptr_eq(one, &self.tally));
    }
}

impl Tally {
    fn moved(&self) -> Moved {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Moved {
            bytes_read: get(&self.bytes_read),
            bytes_written: get(&self.bytes_written),
            reads: get(&self.reads),
            writes: get(&self.writes),
        }
    }
}

impl Moved {
    fn plus(self, other: Self) -> Self {
        Self {
            bytes_read: self.bytes_read.wrapping_add(other.bytes_read),
            bytes_written: self.bytes_written.wrapping_add(other.bytes_written),
            reads: self.reads.wrapping_add(other.reads),
            writes: self.writes.wrapping_add(other.writes),
        }
    }
}

/// Adds to a counter that nobody else writes.
fn add(counter: &AtomicU64, n: u64) {
    let sum = counter.load(Ordering::Relaxed).wrapping_add(n);
    counter.store(sum, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_queues_counted_stays_when_they_go() {
        let health = Arc::new(Health::default());
        let [mut one, mut two] = [(); 2].map(|()| health.join());
        one.read(4096);
        two.read(512);
        two.written(1024);
        two.media_error();
        health.error_entry();
        let moved = Moved {
            bytes_read: 4608,
            bytes_written: 1024,
            reads: 2,
            writes: 1,
        };
        let expected = Counts {
            moved,
            media_errors: 1,
            error_entries: 1,
        };
        assert_eq!(health.counts(), expected);
        drop(two);
        assert_eq!(health.counts(), expected);
        one.written(1);
        drop(one);
        let counts = health.counts();
        assert_eq!((counts.moved.writes, counts.moved.bytes_written), (2, 1025));
        assert!(health.queues().there.is_empty());
    }
}
