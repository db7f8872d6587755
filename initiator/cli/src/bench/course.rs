//! Where the operations of a benchmark go, and what is written there.

use super::job::Plan;

/// The operations of one of several that share a namespace, in order.
#[derive(Debug)]
pub(super) struct Course {
    chance: Chance,
    next: u64,
}

impl Course {
    /// The course of number `at` of `all`: those that go one after the other
    /// start at different places.
    pub(super) fn new(plan: &Plan, at: u64, all: u64) -> Self {
        Self {
            chance: Chance((at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            next: plan.places / all.max(1) * at,
        }
    }

    /// The next operation: whether it reads, and its first block.
    pub(super) fn next(&mut self, plan: &Plan) -> (bool, u64) {
        let reads = self.chance.below(100) < u64::from(plan.reads);
        (reads, self.place(plan) * plan.blocks)
    }

    fn place(&mut self, plan: &Plan) -> u64 {
        if plan.kind.is_random() {
            return self.chance.below(plan.places);
        }
        let place = self.next % plan.places;
        self.next = place + 1;
        place
    }

    /// Fills `buf` with data that does not compress.
    pub(super) fn fill(&mut self, buf: &mut [u8]) {
        for word in buf.chunks_exact_mut(8) {
            word.copy_from_slice(&self.chance.next().to_le_bytes());
        }
    }
}

/// Pseudo-random numbers (splitmix64): the same for every run.
#[derive(Debug)]
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which is not 0, all about as likely.
    fn below(&mut self, limit: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(limit);
        u64::try_from(wide >> 64).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_stays_below_its_limit_and_reaches_all() {
        let mut chance = Chance(1);
        let mut seen = [false; 7];
        for _ in 0..1000 {
            seen[usize::try_from(chance.below(7)).unwrap()] = true;
        }
        assert_eq!(seen, [true; 7]);
        assert_eq!(Chance(5).below(1), 0);
    }
}
