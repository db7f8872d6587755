//! Access pattern and data of a benchmark.

use super::job::Plan;

/// The sequence of operations of one queue or task.
#[derive(Debug)]
pub(super) struct Pattern {
    random: Random,
    next: u64,
}

impl Pattern {
    /// The pattern of number `at` of `all`. Sequential patterns start at different offsets.
    pub(super) fn new(plan: &Plan, at: u64, all: u64) -> Self {
        Self {
            random: Random((at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            next: plan.offsets / all.max(1) * at,
        }
    }

    /// The next operation: whether it reads, and its first block.
    pub(super) fn next(&mut self, plan: &Plan) -> (bool, u64) {
        let reads = self.random.below(100) < u64::from(plan.reads);
        (reads, self.offset(plan) * plan.blocks)
    }

    fn offset(&mut self, plan: &Plan) -> u64 {
        if plan.kind.is_random() {
            return self.random.below(plan.offsets);
        }
        let offset = self.next % plan.offsets;
        self.next = offset + 1;
        offset
    }

    /// Fills `buf` with incompressible data.
    pub(super) fn fill(&mut self, buf: &mut [u8]) {
        for word in buf.chunks_exact_mut(8) {
            word.copy_from_slice(&self.random.next().to_le_bytes());
        }
    }
}

/// Pseudo-random numbers (splitmix64), the same in every run.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A uniformly distributed number below `limit`, which is not 0.
    fn below(&mut self, limit: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(limit);
        u64::try_from(wide >> 64).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_cover_the_range_below_the_limit() {
        let mut random = Random(1);
        let mut seen = [false; 7];
        for _ in 0..1000 {
            seen[usize::try_from(random.below(7)).unwrap()] = true;
        }
        assert_eq!(seen, [true; 7]);
        assert_eq!(Random(5).below(1), 0);
    }
}
