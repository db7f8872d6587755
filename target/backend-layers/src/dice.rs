//! Pseudo-random numbers from a seed.

/// A sequence of numbers (splitmix64).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `end`, 0 when that is 0.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        let remainder = bits.checked_rem(u64::from(end)).unwrap_or(0);
        u32::try_from(remainder).unwrap_or(0)
    }

    /// True once in `count` times on average; never for 0.
    pub(crate) fn one_in(&mut self, count: u32) -> bool {
        count > 0 && self.below(count) == 0
    }
}
