//! A bounded set of objects that outlive their owner, each until it is removed or its
//! deadline passes.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;

/// Lingering objects, ordered by their deadlines.
#[derive(Debug)]
pub(crate) struct Lingering<K, T> {
    by_deadline: BTreeMap<(Duration, K), T>,
    deadlines: HashMap<K, Duration>,
}

/// Capacity; beyond it, the one with the next deadline is removed.
const MOST: usize = 1024;

impl<K: Copy + Ord + Hash, T> Lingering<K, T> {
    pub(crate) fn new() -> Self {
        Self {
            by_deadline: BTreeMap::new(),
            deadlines: HashMap::new(),
        }
    }

    /// Adds one. Returns the one that was removed for it.
    pub(crate) fn add(&mut self, key: K, deadline: Duration, what: T) -> Option<T> {
        let same = self.take(key);
        let full = self.by_deadline.len() >= MOST;
        let pushed_out = if full { self.take_first() } else { None };
        self.deadlines.insert(key, deadline);
        self.by_deadline.insert((deadline, key), what);
        same.or(pushed_out)
    }

    /// Removes one.
    pub(crate) fn take(&mut self, key: K) -> Option<T> {
        let deadline = self.deadlines.remove(&key)?;
        self.by_deadline.remove(&(deadline, key))
    }

    fn take_first(&mut self) -> Option<T> {
        let ((_, key), what) = self.by_deadline.pop_first()?;
        self.deadlines.remove(&key);
        Some(what)
    }

    /// Removes one whose deadline has passed.
    pub(crate) fn take_due(&mut self, now: Duration) -> Option<T> {
        let due = self.next_deadline().is_some_and(|first| first <= now);
        if due { self.take_first() } else { None }
    }

    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.by_deadline
            .first_key_value()
            .map(|((deadline, _), _)| *deadline)
    }

    pub(crate) fn clear(&mut self) {
        self.by_deadline.clear();
        self.deadlines.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn each_is_removed_at_deadline_or_before() {
        let mut all = Lingering::new();
        for (key, deadline) in [(1, 30), (2, 10), (3, 20), (4, 10)] {
            assert_eq!(all.add(key, seconds(deadline), key), None);
        }
        assert_eq!(all.next_deadline(), Some(seconds(10)));
        assert_eq!(all.take(2), Some(2));
        assert_eq!(all.take(2), None);
        assert_eq!(all.take_due(seconds(9)), None);
        assert_eq!(all.take_due(seconds(20)), Some(4));
        assert_eq!(all.take_due(seconds(20)), Some(3));
        assert_eq!(all.take_due(seconds(20)), None);
        assert_eq!(all.next_deadline(), Some(seconds(30)));
        all.clear();
        assert_eq!((all.take(1), all.next_deadline()), (None, None));
    }

    #[test]
    fn oldest_is_removed_at_capacity() {
        let mut all = Lingering::new();
        for key in 0..MOST as u64 {
            assert_eq!(all.add(key, seconds(key), key), None);
        }
        assert_eq!(all.add(5000, seconds(5000), 5000), Some(0));
        assert_eq!(all.take(0), None);
        assert_eq!(all.add(5000, seconds(6000), 5001), Some(5000), "same key");
        assert_eq!(all.by_deadline.len(), MOST);
        assert_eq!(all.deadlines.len(), MOST);
    }
}
