//! Random numbers for faults and tests, identical everywhere for the same seed.

/// A chance of one in this number; never when 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OneIn(pub u32);

/// Random numbers from a seed (splitmix64): small and fast, not for secrets.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Starts from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, any of 64 bits.
    #[must_use]
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    #[must_use]
    pub fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap_or(u64::MAX);
        usize::try_from(self.roll() % end.max(1)).unwrap_or(0)
    }

    /// Whether it happens this time. Draws a number only if it can happen, so that enabling
    /// one chance does not change the others.
    #[must_use]
    pub fn happens(&mut self, chance: OneIn) -> bool {
        chance.0 != 0 && self.roll().is_multiple_of(u64::from(chance.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_depend_on_seed_and_stay_in_range() {
        let numbers = |seed| {
            let mut dice = Dice::new(seed);
            (0..1000).map(|_| dice.below(10)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
        let seen = numbers(3);
        assert!((0..10).all(|number| seen.contains(&number)));
        assert_eq!(Dice::new(1).below(0), 0);
    }

    #[test]
    fn chance_has_its_frequency() {
        let mut dice = Dice::new(5);
        let times = (0..10_000).filter(|_| dice.happens(OneIn(10))).count();
        assert!((800..1200).contains(&times), "{times} of 10000");
        assert!(!(0..1000).any(|_| dice.happens(OneIn(0))));
    }
}
