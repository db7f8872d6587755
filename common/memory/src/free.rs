//! Which pieces of a pool nobody holds: a stack, so that the piece given back
//! last, which is still in the processor's cache, is taken next.

use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers from 0 to a count, each in the stack at most once. Any thread may
/// push and pop; nobody waits for anybody.
///
/// The head says which number is on top and how often it changed. Without the
/// second a thread could be held up between looking at what is below the top
/// and taking the top, and not notice that the top was taken and came back.
#[derive(Debug)]
pub(crate) struct FreeList {
    /// Changes in the upper half, the number on top in the lower.
    head: AtomicU64,
    /// For each number in the stack: how many there are from it downwards in
    /// the upper half, the number below it in the lower.
    nodes: Box<[AtomicU64]>,
}

/// No number: below the last, and on top of an empty stack.
const NONE: u32 = u32::MAX;

fn pack(upper: u32, lower: u32) -> u64 {
    u64::from(upper) << 32 | u64::from(lower)
}

#[allow(clippy::cast_possible_truncation, reason = "the halves of a number")]
fn unpack(both: u64) -> (u32, u32) {
    ((both >> 32) as u32, both as u32)
}

impl FreeList {
    /// All numbers below `count`, the lowest on top.
    pub(crate) fn full(count: u32) -> Self {
        let nodes = (0..count).map(|number| {
            let below = number + 1;
            AtomicU64::new(pack(
                count - number,
                if below == count { NONE } else { below },
            ))
        });
        Self {
            head: AtomicU64::new(pack(0, if count == 0 { NONE } else { 0 })),
            nodes: nodes.collect(),
        }
    }

    fn node(&self, number: u32) -> Option<&AtomicU64> {
        self.nodes.get(number as usize)
    }

    /// Takes a number; `None` when the stack is empty.
    #[inline]
    pub(crate) fn pop(&self) -> Option<u32> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let (changes, number) = unpack(head);
            // What is read here may be of another moment; then the head has
            // changed as well.
            let (_, below) = unpack(self.node(number)?.load(Ordering::Relaxed));
            match self.head.compare_exchange_weak(
                head,
                pack(changes.wrapping_add(1), below),
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(number),
                Err(now) => head = now,
            }
        }
    }

    /// Gives a number back. It is one that was popped and not given back yet.
    #[inline]
    pub(crate) fn push(&self, number: u32) {
        let Some(node) = self.node(number) else {
            debug_assert!(false, "{number} was never in the list");
            return;
        };
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let (changes, top) = unpack(head);
            node.store(pack(self.depth(top) + 1, top), Ordering::Relaxed);
            // Release: whoever pops it sees the node, and what its last holder
            // wrote into the piece.
            match self.head.compare_exchange_weak(
                head,
                pack(changes.wrapping_add(1), number),
                Ordering::Release,
                Ordering::Acquire,
            ) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Numbers in the stack at this moment.
    pub(crate) fn len(&self) -> usize {
        let (_, top) = unpack(self.head.load(Ordering::Acquire));
        self.depth(top) as usize
    }

    fn depth(&self, number: u32) -> u32 {
        let node = self.node(number);
        node.map_or(0, |node| unpack(node.load(Ordering::Relaxed)).0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn what_came_back_last_is_taken_first() {
        let list = FreeList::full(3);
        assert_eq!(
            [(); 4].map(|()| list.pop()),
            [Some(0), Some(1), Some(2), None]
        );
        assert_eq!(list.len(), 0);
        list.push(1);
        list.push(0);
        assert_eq!((list.len(), list.pop(), list.len()), (2, Some(0), 1));
        list.push(2);
        assert_eq!([(); 3].map(|()| list.pop()), [Some(2), Some(1), None]);
        assert_eq!(FreeList::full(0).pop(), None);
    }

    /// Every number has one holder, whoever takes and gives at the same time:
    /// holders sign a place for each number, and see whether it was free.
    #[test]
    fn no_number_has_two_holders() {
        const NUMBERS: u32 = 5;
        const THREADS: u32 = 4;
        const ROUNDS: u32 = 200_000;
        let list = Arc::new(FreeList::full(NUMBERS));
        let signed: Arc<[AtomicU32]> = (0..NUMBERS).map(|_| AtomicU32::new(0)).collect();
        let threads = (1..=THREADS).map(|me| {
            let (list, signed) = (Arc::clone(&list), Arc::clone(&signed));
            std::thread::spawn(move || {
                for round in 0..ROUNDS {
                    let held: Vec<u32> = (0..=round % 3).filter_map(|_| list.pop()).collect();
                    for number in &held {
                        assert_eq!(signed[*number as usize].swap(me, Ordering::Relaxed), 0);
                    }
                    for number in held {
                        assert_eq!(signed[number as usize].swap(0, Ordering::Relaxed), me);
                        list.push(number);
                    }
                }
            })
        });
        for thread in threads.collect::<Vec<_>>() {
            thread.join().unwrap();
        }
        assert_eq!(list.len(), NUMBERS as usize);
        let all: HashSet<u32> = std::iter::from_fn(|| list.pop()).collect();
        assert_eq!(all, (0..NUMBERS).collect());
    }
}
