//! The error information log: the last failures, newest first.

use std::collections::VecDeque;

use nvmeof_wire::Status;

/// Number of entries (ELPE, 0's based).
pub(crate) const CAPACITY: usize = 64;

/// One failed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ErrorEntry {
    /// Counts failures from 1 over the life of the controller.
    pub(crate) count: u64,
    pub(crate) sqid: u16,
    pub(crate) cid: u16,
    pub(crate) status: Status,
    /// Byte of the command with the error; `None` if there is no single one.
    pub(crate) location: Option<u16>,
    pub(crate) lba: u64,
    pub(crate) nsid: u32,
}

/// The last [`CAPACITY`] failures.
#[derive(Debug, Default)]
pub(crate) struct ErrorRing {
    entries: VecDeque<ErrorEntry>,
    count: u64,
}

impl ErrorRing {
    /// Adds a failure and sets its `count`.
    pub(crate) fn push(&mut self, mut entry: ErrorEntry) {
        self.count += 1;
        entry.count = self.count;
        self.entries.truncate(CAPACITY - 1);
        self.entries.push_front(entry);
    }

    /// Newest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ErrorEntry> {
        self.entries.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_entries_come_first_and_old_ones_are_dropped() {
        let mut ring = ErrorRing::default();
        for cid in 0..100 {
            ring.push(ErrorEntry {
                count: 0,
                sqid: 1,
                cid,
                status: Status::INVALID_FIELD,
                location: None,
                lba: 0,
                nsid: 1,
            });
        }
        assert_eq!(ring.iter().count(), CAPACITY);
        let newest = ring.iter().next().unwrap();
        assert_eq!((newest.count, newest.cid), (100, 99));
    }
}
