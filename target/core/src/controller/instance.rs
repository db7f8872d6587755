//! Which incarnation of a controller it is: CIU and CIRN (NVMe Base 2.3, figure 328).

use std::hash::{BuildHasher, RandomState};

/// Names one incarnation of a controller, so that a host cannot reset a later one by
/// mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    /// Controller Instance Uniquifier, 1 to 255.
    pub(crate) ciu: u8,
    /// Controller Instance Random Number.
    pub(crate) cirn: u64,
}

/// The incarnations of one controller.
#[derive(Debug)]
pub(crate) struct Instances {
    /// Random, and never the same in two controllers.
    random: RandomState,
    count: u64,
    current: Option<Instance>,
}

impl Default for Instances {
    fn default() -> Self {
        let random = RandomState::new();
        // A controller that has the identifier of an earlier one begins elsewhere.
        let count = random.hash_one(u64::MAX) >> 1;
        Self {
            random,
            count,
            current: None,
        }
    }
}

impl Instances {
    /// The controller becomes ready (CSTS.RDY): a new incarnation.
    pub(crate) fn begin(&mut self) {
        self.count += 1;
        let [ciu, ..] = (self.count % 255).to_le_bytes();
        self.current = Some(Instance {
            ciu: ciu + 1,
            cirn: self.random.hash_one(self.count),
        });
    }

    /// The present one, unless the controller was never ready.
    pub(crate) fn current(&self) -> Option<Instance> {
        self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ciu_increments_and_is_never_zero() {
        let mut instances = Instances::default();
        assert_eq!(instances.current(), None);
        let mut seen = std::collections::BTreeSet::new();
        let mut before = None;
        for _ in 0..600 {
            instances.begin();
            let Instance { ciu, cirn } = instances.current().unwrap();
            assert!(ciu != 0 && seen.insert(cirn));
            if let Some(before) = before {
                assert_eq!(ciu, if before == 255 { 1 } else { before + 1 });
            }
            before = Some(ciu);
        }
        let other = Instances::default();
        assert_ne!(other.random.hash_one(1), instances.random.hash_one(1));
    }
}
