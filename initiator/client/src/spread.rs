//! Spreads calls over the I/O queues of a controller.

use std::sync::atomic::{AtomicUsize, Ordering};

/// What a queue does with one more call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Availability {
    /// Sends it together with others: it has no call in flight, or has collected a few since its
    /// last poll.
    Collecting,
    /// Sends it behind calls that are in flight.
    Open,
    /// Keeps it until others have ended.
    Full,
    /// It is not connected.
    Lost,
}

/// Chooses queues. A thread stays with a queue until the queue has sent its calls, or has collected
/// enough of them: calls that are made at the same time are sent together, and one call at a time
/// uses one queue. Then the next queue with room follows, in round-robin order.
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

    /// Index of the queue for a call of this thread. `None` if no queue is connected.
    pub(crate) fn choose(&self, availability: impl Fn(usize) -> Availability) -> Option<usize> {
        let queues = self.last.len();
        let thread = THREAD.with(|number| *number);
        let last = &self.last.get(thread.checked_rem(queues)?)?.0;
        let before = last.load(Ordering::Relaxed);
        if availability(before) == Availability::Collecting {
            return Some(before);
        }
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
    fn calls_beside_others_go_to_all_queues_in_turn() {
        let indices = [1, 2, 0, 1].map(Some);
        assert_eq!(chosen(&[Open; 3], 4), indices);
    }

    #[test]
    fn calls_stay_with_a_queue_that_collects() {
        assert_eq!(chosen(&[Collecting, Collecting, Open], 3), [Some(0); 3]);
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
