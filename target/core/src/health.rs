//! What a subsystem counts over its life, for the SMART log page.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one subsystem. Every queue adds to them; they are read only
/// for the log page, so that no order between them is needed.
#[derive(Debug, Default)]
pub(crate) struct Health {
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    media_errors: AtomicU64,
    error_entries: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) media_errors: u64,
    pub(crate) error_entries: u64,
}

impl Health {
    /// A Read or Compare of `bytes` was done.
    pub(crate) fn read(&self, bytes: u64) {
        add(&self.reads, 1);
        add(&self.bytes_read, bytes);
    }

    /// A Write of `bytes` was done.
    pub(crate) fn written(&self, bytes: u64) {
        add(&self.writes, 1);
        add(&self.bytes_written, bytes);
    }

    /// A disk failed.
    pub(crate) fn media_error(&self) {
        add(&self.media_errors, 1);
    }

    /// An entry was made in an error log.
    pub(crate) fn error_entry(&self) {
        add(&self.error_entries, 1);
    }

    pub(crate) fn counts(&self) -> Counts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            bytes_read: get(&self.bytes_read),
            bytes_written: get(&self.bytes_written),
            reads: get(&self.reads),
            writes: get(&self.writes),
            media_errors: get(&self.media_errors),
            error_entries: get(&self.error_entries),
        }
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
