//! The free list of a pool: the number that was returned last is taken first.
//!
//! A piece that is taken soon after its return is still in the cache of the CPU. First in,
//! first out would touch all memory of a large pool.

use std::sync::atomic::{AtomicU64, Ordering};

/// A lock-free stack (Treiber, 1986). A link is a number plus 1, or 0 for none.
#[derive(Debug)]
pub(crate) struct Free {
    /// Lower half: link to the number on top. Upper half: changes with every call, so that a
    /// top that was taken and returned meanwhile is detected (the ABA problem). Its lowest bit is
    /// [`AWAITED`].
    top: AtomicU64,
    /// For each number in the stack the link to the one below it, and the count of those
    /// below.
    below: Box<[AtomicU64]>,
}

/// Flag in the upper half of `top`: a task may wait for a number, so none is pushed. It is part
/// of `top`, so that a push detects it without a further access to memory.
const AWAITED: u32 = 1;
/// What each call adds to the upper half of `top`.
const CHANGE: u32 = 2;

impl Free {
    /// All numbers below `count`, 0 on top.
    pub(crate) fn new(count: u32) -> Self {
        let free = Self {
            top: AtomicU64::new(0),
            below: (0..count).map(|_| AtomicU64::new(0)).collect(),
        };
        for number in (0..count).rev() {
            free.push(number);
        }
        free
    }

    pub(crate) fn pop(&self) -> Option<u32> {
        let mut top = self.top.load(Ordering::Acquire);
        loop {
            let (changes, link) = split(top);
            let number = link.checked_sub(1)?;
            // If this number is no longer on top, the value is not used.
            let (_, below) = split(self.below.get(number as usize)?.load(Ordering::Relaxed));
            match self.change(top, join(changes.wrapping_add(CHANGE), below)) {
                Ok(()) => return Some(number),
                Err(now) => top = now,
            }
        }
    }

    /// Returns `number`, which was taken. Does nothing and returns false if a task may wait for
    /// a number.
    #[inline]
    pub(crate) fn push(&self, number: u32) -> bool {
        let Some(slot) = self.below.get(number as usize) else {
            debug_assert!(false, "the number is one of this list");
            return true;
        };
        let mut top = self.top.load(Ordering::Acquire);
        loop {
            let (changes, link) = split(top);
            if changes & AWAITED != 0 {
                return false;
            }
            slot.store(join(self.depth(link), link), Ordering::Relaxed);
            match self.change(top, join(changes.wrapping_add(CHANGE), number + 1)) {
                Ok(()) => return true,
                Err(now) => top = now,
            }
        }
    }

    /// Sets whether a task may wait for a number. Numbers that were pushed before are in the list.
    #[cold]
    pub(crate) fn set_awaited(&self, is_awaited: bool) {
        let flag = join(AWAITED, 0);
        match is_awaited {
            true => self.top.fetch_or(flag, Ordering::AcqRel),
            false => self.top.fetch_and(!flag, Ordering::AcqRel),
        };
    }

    /// Count of numbers.
    pub(crate) fn len(&self) -> usize {
        let (_, link) = split(self.top.load(Ordering::Acquire));
        self.depth(link) as usize
    }

    /// Count of numbers from this one down.
    fn depth(&self, link: u32) -> u32 {
        let slot = link.checked_sub(1).and_then(|n| self.below.get(n as usize));
        slot.map_or(0, |slot| split(slot.load(Ordering::Relaxed)).0 + 1)
    }

    /// Release, so that the thread that takes a piece sees all earlier accesses to it. All
    /// changes are read-modify-writes, so this holds for the pieces further down as well.
    fn change(&self, from: u64, to: u64) -> Result<(), u64> {
        let changed = self
            .top
            .compare_exchange_weak(from, to, Ordering::AcqRel, Ordering::Acquire);
        changed.map(|_| ())
    }
}

fn join(upper: u32, lower: u32) -> u64 {
    u64::from(upper) << 32 | u64::from(lower)
}

fn split(both: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = both.to_be_bytes();
    (
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn pop_returns_last_pushed() {
        let free = Free::new(3);
        assert_eq!((free.pop(), free.pop(), free.len()), (Some(0), Some(1), 1));
        free.push(0);
        assert_eq!((free.len(), free.pop(), free.pop()), (2, Some(0), Some(2)));
        assert_eq!((free.pop(), free.len()), (None, 0));
    }

    #[test]
    fn push_is_refused_while_a_number_is_awaited() {
        let free = Free::new(2);
        let number = free.pop().unwrap();
        free.set_awaited(true);
        assert!(!free.push(number));
        assert_eq!((free.pop(), free.pop(), free.len()), (Some(1), None, 0));
        free.set_awaited(false);
        assert!(free.push(number) && free.push(1));
        assert_eq!(free.len(), 2);
    }

    #[test]
    fn reused_top_is_detected() {
        let free = Free::new(3);
        let before = free.top.load(Ordering::Relaxed);
        let (first, second) = (free.pop().unwrap(), free.pop().unwrap());
        free.push(first);
        // A thread that began to take `first` before all this assumes that `second` is
        // below.
        assert_eq!((first, second), (0, 1));
        assert!(free.change(before, join(9, second + 1)).is_err());
    }

    #[test]
    fn concurrent_pops_return_distinct_numbers() {
        const NUMBERS: u32 = 5;
        let free = Free::new(NUMBERS);
        let out: Vec<AtomicBool> = (0..NUMBERS).map(|_| AtomicBool::new(false)).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (free, out) = (&free, &out);
                scope.spawn(move || {
                    let mut held = Vec::new();
                    for round in 0..if cfg!(miri) { 50 } else { 20_000 } {
                        if (round + thread) % 3 < 2
                            && let Some(number) = free.pop()
                        {
                            let was = out[number as usize].swap(true, Ordering::Relaxed);
                            assert!(!was, "{number} is out twice");
                            held.push(number);
                        } else if let Some(number) = held.pop() {
                            out[number as usize].store(false, Ordering::Relaxed);
                            free.push(number);
                        }
                    }
                    for number in held {
                        out[number as usize].store(false, Ordering::Relaxed);
                        free.push(number);
                    }
                });
            }
        });
        assert_eq!(free.len(), NUMBERS as usize);
        let mut all: Vec<u32> = std::iter::from_fn(|| free.pop()).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4]);
    }
}
