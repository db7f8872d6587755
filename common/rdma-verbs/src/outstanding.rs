//! The outstanding work requests of one queue, in order: which of them are complete, although
//! only some are signaled, and which returns next.
//!
//! An unsignaled send or write is complete when a later one is. An RDMA Read is complete when
//! its own completion arrives and not before: iWARP devices may complete a later send first
//! (RFC 5040, section 5.5, orders the data, not the completions).

use std::collections::VecDeque;
use std::io;

use nvmeof_memory::Buf;
use nvmeof_rdma::{CloseReason, Outcome, RemoteKey, Tag, WorkKind};

use crate::sys::MemoryRegion;

/// Work requests that are posted and not returned yet.
#[derive(Debug)]
pub(crate) struct Outstanding<T> {
    /// What the IDs of its work requests have in common; the rest is their number.
    ids: u64,
    /// Number of the oldest one.
    first: u64,
    entries: VecDeque<Entry<T>>,
    /// Every entry before this number is complete, unless only its own completion completes it.
    covered: u64,
    /// A request returned undone: from then on none succeeds.
    ended: bool,
}

#[derive(Debug)]
struct Entry<T> {
    item: T,
    /// Completed only by its own completion.
    alone: bool,
    end: Option<Outcome>,
}

/// An outstanding receive.
#[derive(Debug)]
pub(crate) struct RecvItem {
    pub(crate) tag: Tag,
    pub(crate) buf: Buf,
    /// Result of its completion: length of the message, and the local key that it
    /// invalidated.
    pub(crate) len: usize,
    pub(crate) invalidated: Option<RemoteKey>,
}

/// An outstanding entry of a send queue.
#[derive(Debug)]
pub(crate) enum SendItem {
    /// The caller's work.
    Work {
        tag: Tag,
        kind: WorkKind,
        buf: Option<Buf>,
        /// Entries of the queue that it takes: two for an RDMA Write and its Send.
        entries: u32,
        /// Whether it has [`Kept`] memory.
        keeps: bool,
    },
    /// Bind of a window whose completion matters.
    Bind(RemoteKey),
    /// Invalidation of a window.
    Invalidate(RemoteKey),
    /// Another bind, or a nudge to a silent peer.
    Internal,
}

/// Memory of a request besides its buffer. Few requests have any: it is not in the item, which
/// moves often.
#[derive(Debug)]
pub(crate) enum Kept {
    /// Memory that an iWARP peer may write for a read: closed before the buffer returns.
    Sink(MemoryRegion),
    /// Registered copy of a message's head, kept until the device has read it.
    Head(Buf),
}

impl Kept {
    /// Ends the access of the device.
    ///
    /// # Errors
    /// If the device fails to close what an iWARP peer wrote to.
    pub(crate) fn close(self) -> io::Result<()> {
        match self {
            Self::Sink(region) => region.close(),
            Self::Head(buf) => {
                drop(buf);
                Ok(())
            }
        }
    }
}

/// Bits of a number in a work request ID.
pub(crate) const NUMBER_BITS: u32 = 24;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;

impl<T> Outstanding<T> {
    /// For work requests with these [IDs](crate::work_id::WorkId::of).
    pub(crate) fn new(ids: u64) -> Self {
        Self {
            ids,
            first: 0,
            entries: VecDeque::new(),
            covered: 0,
            ended: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of returned requests.
    pub(crate) fn returned(&self) -> u64 {
        self.first
    }

    /// Adds a work request; returns its ID.
    pub(crate) fn push(&mut self, item: T, alone: bool) -> u64 {
        let number = self.first + self.entries.len() as u64;
        self.entries.push_back(Entry {
            item,
            alone,
            end: None,
        });
        self.id(number)
    }

    fn id(&self, number: u64) -> u64 {
        self.ids | number & NUMBER_MASK
    }

    /// The index of a work request, by its ID or its number.
    fn index(&self, number: u64) -> Option<usize> {
        let index = number.wrapping_sub(self.first) & NUMBER_MASK;
        let index = usize::try_from(index).ok()?;
        (index < self.entries.len()).then_some(index)
    }

    /// The work request of a completion, to record its result.
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let index = self.index(number)?;
        let entry = self.entries.get_mut(index)?;
        Some(&mut entry.item)
    }

    /// All outstanding requests, oldest first, with their IDs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let ids = (self.first..).map(|number| self.id(number));
        ids.zip(self.entries.iter().map(|entry| &entry.item))
    }

    /// Records a completion. Returns whether it belongs to an outstanding request.
    pub(crate) fn complete(&mut self, number: u64, end: Outcome) -> bool {
        let Some(index) = self.index(number) else {
            return false;
        };
        // Unsignaled requests before it are complete if this one is complete or failed by
        // itself, because a queue works in order; their outcome is unknown if this one was
        // never attempted.
        if end == Outcome::Flushed {
            self.flush_before(index);
        }
        self.covered = self.covered.max(self.first + index as u64);
        if let Some(entry) = self.entries.get_mut(index) {
            entry.end.get_or_insert(end);
        }
        true
    }

    /// No further request succeeds.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Takes the oldest request if it is `number` and completed successfully.
    #[inline]
    pub(crate) fn take_oldest(&mut self, number: u64) -> Option<T> {
        if number != self.first & NUMBER_MASK || self.ended {
            return None;
        }
        let entry = self.entries.pop_front()?;
        self.first += 1;
        Some(entry.item)
    }

    #[cold]
    fn flush_before(&mut self, index: usize) {
        let covered = self.covered.saturating_sub(self.first);
        let covered = usize::try_from(covered).unwrap_or(usize::MAX);
        let unsettled = self.entries.iter_mut().take(index).skip(covered);
        for entry in unsettled.filter(|entry| !entry.alone) {
            entry.end.get_or_insert(Outcome::Flushed);
        }
    }

    /// The next request to return, if it is complete.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(T, Outcome)> {
        let oldest = self.entries.front()?;
        match oldest.end.is_some() || self.is_covered(oldest) {
            true => self.pop_anyway(),
            false => None,
        }
    }

    /// Whether a later completion completed the oldest request.
    fn is_covered(&self, oldest: &Entry<T>) -> bool {
        self.first < self.covered && !oldest.alone
    }

    /// The next request to return, complete or not: there are no completions any more.
    #[inline]
    pub(crate) fn pop_anyway(&mut self) -> Option<(T, Outcome)> {
        let entry = self.entries.pop_front()?;
        let is_done = match &entry.end {
            Some(end) => end.is_success(),
            None => self.is_covered(&entry),
        };
        self.first += 1;
        let end = match is_done && !self.ended {
            true => Outcome::Success,
            false => self.end_with(entry.end),
        };
        Some((entry.item, end))
    }

    /// The outcome of a request that did not succeed: none does from then on.
    #[cold]
    fn end_with(&mut self, end: Option<Outcome>) -> Outcome {
        self.ended = true;
        match end {
            Some(Outcome::Failed(reason)) => Outcome::Failed(reason),
            _ => Outcome::Flushed,
        }
    }
}

/// The outcome of the work request that caused the failure of a queue pair.
pub(crate) fn failed(reason: &CloseReason) -> Outcome {
    Outcome::Failed(Box::new(reason.clone()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drain(outstanding: &mut Outstanding<u32>) -> Vec<(u32, Outcome)> {
        std::iter::from_fn(|| outstanding.pop()).collect()
    }

    #[test]
    fn completion_completes_earlier_requests() {
        let mut outstanding = Outstanding::new(0);
        let numbers: Vec<u64> = (0..4).map(|item| outstanding.push(item, false)).collect();
        assert!(outstanding.pop().is_none());
        assert!(outstanding.complete(numbers[2], Outcome::Success));
        let done = drain(&mut outstanding);
        assert_eq!(done.len(), 3);
        assert!(done.iter().all(|(_, end)| end.is_success()));
        assert_eq!(outstanding.len(), 1);
        assert!(!outstanding.complete(numbers[0], Outcome::Success), "stale");
        assert!(
            !outstanding.complete(numbers[3] + 1, Outcome::Success),
            "foreign"
        );
    }

    #[test]
    fn read_waits_for_own_completion_and_delays_later_ones() {
        let mut outstanding = Outstanding::new(0);
        let read = outstanding.push(0, true);
        outstanding.push(1, false);
        let send = outstanding.push(2, false);
        assert!(outstanding.complete(send, Outcome::Success));
        assert!(drain(&mut outstanding).is_empty());
        assert!(outstanding.complete(read, Outcome::Success));
        assert_eq!(drain(&mut outstanding).len(), 3);
    }

    #[test]
    fn flushed_request_does_not_complete_earlier_ones() {
        let mut outstanding = Outstanding::new(0);
        outstanding.push(0, false);
        let second = outstanding.push(1, false);
        outstanding.push(2, false);
        outstanding.complete(second, Outcome::Flushed);
        let ends: Vec<_> = drain(&mut outstanding);
        assert_eq!(ends, [(0, Outcome::Flushed), (1, Outcome::Flushed)]);
        assert_eq!(outstanding.pop_anyway(), Some((2, Outcome::Flushed)));
    }

    #[test]
    fn requests_before_failure_are_complete() {
        let mut outstanding = Outstanding::new(0);
        outstanding.push(0, false);
        let second = outstanding.push(1, false);
        let third = outstanding.push(2, false);
        outstanding.complete(second, failed(&CloseReason::Peer));
        outstanding.complete(third, Outcome::Success);
        let ends: Vec<_> = drain(&mut outstanding)
            .into_iter()
            .map(|(_, end)| end)
            .collect();
        let expected = [
            Outcome::Success,
            failed(&CloseReason::Peer),
            Outcome::Flushed,
        ];
        assert_eq!(ends, expected, "nothing succeeds after a failure");
    }

    #[test]
    fn numbers_wrap() {
        let mut outstanding = Outstanding::new(0);
        outstanding.first = NUMBER_MASK;
        outstanding.covered = outstanding.first;
        let last = outstanding.push(0, false);
        let next = outstanding.push(1, false);
        assert_eq!((last, next), (NUMBER_MASK, 0));
        assert!(outstanding.complete(next, Outcome::Success));
        assert_eq!(drain(&mut outstanding).len(), 2);
    }

    #[test]
    fn oldest_request_is_taken_until_one_fails() {
        let mut outstanding = Outstanding::new(0);
        let numbers = [0, 1, 2].map(|item| outstanding.push(item, true));
        assert_eq!(outstanding.take_oldest(numbers[1]), None, "not the oldest");
        assert_eq!(outstanding.take_oldest(numbers[0]), Some(0));
        assert_eq!(outstanding.take_oldest(numbers[0]), None, "stale");
        outstanding.complete(numbers[1], failed(&CloseReason::Peer));
        assert_eq!(drain(&mut outstanding).len(), 1);
        assert_eq!(outstanding.take_oldest(numbers[2]), None, "after a failure");
        assert_eq!(outstanding.len(), 1);
    }

    proptest! {
        /// For any order of completions, each request returns once, in order, and reads only
        /// after their own completion.
        #[test]
        fn every_request_returns_once_in_order(
            kinds in prop::collection::vec(any::<bool>(), 1..40),
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..80),
        ) {
            let mut outstanding = Outstanding::new(0);
            let numbers: Vec<u64> = kinds.iter().enumerate()
                .map(|(item, alone)| outstanding.push(item, *alone)).collect();
            let mut completed = vec![false; kinds.len()];
            let mut back = Vec::new();
            for index in order {
                let index = index.index(kinds.len());
                outstanding.complete(numbers[index], Outcome::Success);
                completed[index] = true;
                while let Some((item, end)) = outstanding.pop() {
                    prop_assert!(end.is_success());
                    let own = completed[item];
                    let later = !kinds[item] && completed[item..].iter().any(|done| *done);
                    prop_assert!(own || later);
                    back.push(item);
                }
            }
            while let Some((item, _)) = outstanding.pop_anyway() {
                back.push(item);
            }
            prop_assert_eq!(back, (0..kinds.len()).collect::<Vec<_>>());
        }
    }
}
