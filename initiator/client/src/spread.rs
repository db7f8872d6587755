//! Spreads calls over the I/O queues of a controller.

use std::sync::atomic::{AtomicUsize, Ordering};

/// What a queue does with one more call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Availability {
    /// Sends it together with calls that it has collected since its last poll.
    Collecting,
    /// Sends it; it has no new calls.
    Open,
    /// Keeps it until others have ended.
    Full,
    /// It is not connected.
    Lost,
}

/// Chooses queues. Calls that a thread makes between two polls of a queue share it, as far as it
/// has room, so that they are sent together. Others go to the next queue with room, in
/// round-robin order.
pub(crate) struct Spread {
    /// Index of the last queue, by number of the thread.
    last: Box<[Last]>,
}

/// In a cache line of its own, and not in the one that is fetched with it.
#[repr(align(128))]
struct Last(AtomicUsize);

impl Spread {
    /// For `queues` queues.
    pub(crate) fn new(queues: usize) -> Self {
        let last = (0..queues).map(|index| Last(AtomicUsize::new(index)));
        Self {
            last: last.collect(),
        }
    }

    /// Index of the last queue of this thread, if calls that are made now join others there.
    pub(crate) fn collecting(&self, availability: impl Fn(usize) -> Availability) -> Option<usize> {
        let last = self.last()?.load(Ordering::Relaxed);
        (availability(last) == Availability::Collecting).then_some(last)
    }

    fn last(&self) -> Option<&AtomicUsize> {
        let thread = THREAD.with(|number| *number);
        let last = self.last.get(thread.checked_rem(self.last.len())?)?;
        Some(&last.0)
    }

    /// Index of the queue for a call of this thread. `None` if no queue is connected.
    pub(crate) fn choose(&self, availability: impl Fn(usize) -> Availability) -> Option<usize> {
        if let Some(last) = self.collecting(&availability) {
            return Some(last);
        }
        let last = self.last()?;
        let (before, queues) = (last.load(Ordering::Relaxed), self.last.len());
        let mut chosen = None;
        for index in (before + 1..queues).chain(0..=before) {
            match availability(index) {
                Availability::Lost => {}
                Availability::Full => chosen = chosen.or(Some(index)),
                Availability::Collecting | Availability::Open => {
                    chosen = Some(index);
                    break;
                }
            }
        }
        last.store(chosen?, Ordering::Relaxed);
        chosen
    }
}

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Number of this thread, in the order of their first calls.
    static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use Availability::{Collecting, Full, Lost, Open};

    /// The queues of successive calls while availability does not change.
    fn chosen<const N: usize>(queues: &[Availability; N], calls: usize) -> Vec<Option<usize>> {
        let spread = Spread::new(N);
        // Tests run in threads of their own.
        spread
            .last
            .iter()
            .for_each(|last| last.0.store(0, Ordering::Relaxed));
        let choose = |_| spread.choose(|index| queues[index]);
        (0..calls).map(choose).collect()
    }

    #[test]
    fn single_calls_go_to_all_queues_in_turn() {
        let indices = [1, 2, 0, 1].map(Some);
        assert_eq!(chosen(&[Open; 3], 4), indices);
    }

    #[test]
    fn calls_join_those_that_are_not_sent() {
        assert_eq!(chosen(&[Collecting, Open, Open], 3), [Some(0); 3]);
        assert_eq!(chosen(&[Open, Collecting, Open], 3), [Some(1); 3]);
    }

    #[test]
    fn full_queue_passes_calls_to_the_next_with_room() {
        assert_eq!(chosen(&[Full, Full, Open, Open], 1), [Some(2)]);
        assert_eq!(chosen(&[Full; 2], 3), [1, 0, 1].map(Some));
    }

    #[test]
    fn lost_queue_gets_no_call() {
        assert_eq!(chosen(&[Open, Lost, Full], 3), [Some(0); 3]);
        assert_eq!(chosen(&[Lost; 2], 1), [None]);
        assert_eq!(chosen(&[], 1), [None]);
    }

    #[test]
    fn threads_start_at_different_queues() {
        let spread = Spread::new(64);
        let first = || spread.choose(|_| Open);
        std::thread::scope(|scope| {
            let other = scope.spawn(first).join().unwrap();
            assert_ne!(first(), other);
        });
    }
}
