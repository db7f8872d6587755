//! Division of a reactor's buffers: the limit of one host or one port while there are
//! others.

use nvmeof_memory::Classes;
use nvmeof_target_core::Limits;

use super::account::KINDS;

/// Limits of one host or port while there are others.
#[derive(Clone, Copy, Debug)]
pub(super) struct HolderLimits {
    /// Buffers of each kind, shortest first.
    pub(super) held: [u32; KINDS],
    pub(super) capsules: CapsuleDivision,
}

/// Division of the capsules of a reactor.
#[derive(Clone, Copy, Debug)]
pub(super) struct CapsuleDivision {
    /// The limit of one host or port while there are others.
    most: usize,
    /// Capsules reserved for one that has none.
    pub(super) newcomer: usize,
}

impl HolderLimits {
    /// With `percent` of so many capsules and of these buffers.
    pub(super) fn of(percent: u8, limits: &Limits, buffers: &Classes, capsules: usize) -> Self {
        let percent = usize::from(percent.min(100));
        let mut held = [u32::MAX; KINDS];
        for (most, count) in held.iter_mut().zip(buffers.counts()) {
            // With 100 percent there is no limit: a host may hold longer buffers as well.
            if percent < 100 {
                let part = (count * percent / 100).max(1);
                *most = u32::try_from(part).unwrap_or(u32::MAX);
            }
        }
        let capsules = CapsuleDivision::of(percent, limits, capsules);
        Self { held, capsules }
    }
}

impl CapsuleDivision {
    fn of(percent: usize, limits: &Limits, capsules: usize) -> Self {
        let others = capsules * (100 - percent) / 100;
        // An admin queue and an I/O queue of maximum length.
        let one = usize::from(limits.queue_depth) + usize::from(Limits::ADMIN_DEPTH);
        Self {
            most: capsules - others,
            newcomer: others.min(one),
        }
    }

    /// For the case that all hosts or ports have some.
    pub(super) fn without_newcomers(self) -> Self {
        let newcomer = 0;
        Self { newcomer, ..self }
    }

    /// Whether one that holds `held` may have `needed` more of those that are `free`;
    /// `several`: it is not alone. A single one may have all except what the next one
    /// needs, which could not be taken back from a queue.
    pub(super) fn allow(&self, held: usize, several: bool, needed: usize, free: usize) -> bool {
        let part = !several || held.saturating_add(needed) <= self.most;
        held == 0 || (part && free >= needed.saturating_add(self.reserved_for_others(held)))
    }

    /// Capsules that one that holds `held` cannot have.
    pub(super) fn reserved_for_others(&self, held: usize) -> usize {
        if held == 0 { 0 } else { self.newcomer }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIVISION: CapsuleDivision = CapsuleDivision {
        most: 100,
        newcomer: 60,
    };

    #[test]
    fn newcomer_is_left_a_queue_or_the_percentage() {
        let limits = Limits {
            queue_depth: 256,
            ..Limits::default()
        };
        let rows = [
            (75, 4096, 3072, 256 + 32),
            (75, 256, 192, 64),
            (100, 4096, 4096, 0),
            (1, 1000, 10, 256 + 32),
        ];
        for (percent, count, most, newcomer) in rows {
            let division = CapsuleDivision::of(percent, &limits, count);
            assert_eq!(
                (division.most, division.newcomer),
                (most, newcomer),
                "{percent}"
            );
        }
    }

    proptest! {
        /// Whatever hosts request in whatever order: a single one gets all except what
        /// the next one needs, one of several no more than its share, and what is
        /// reserved for newcomers goes only to them.
        #[test]
        fn newcomer_always_finds_its_reserve(
            steps in prop::collection::vec((0..4usize, 1..60usize, 0..5u8), 1..200),
        ) {
            let (mut held, mut first) = ([0usize; 4], [0usize; 4]);
            for (host, needed, leaves) in steps {
                let free = 400 - held.iter().sum::<usize>();
                if leaves == 0 {
                    (held[host], first[host]) = (0, 0);
                    continue;
                }
                let others = held.iter().zip(0..).any(|(held, at)| *held > 0 && at != host);
                let allowed = DIVISION.allow(held[host], others, needed, free);
                if held[host] == 0 {
                    prop_assert!(allowed, "refused to a host that has nothing");
                    if needed <= free {
                        (held[host], first[host]) = (needed, needed);
                    }
                } else if allowed {
                    held[host] += needed;
                    prop_assert!(!others || held[host] <= DIVISION.most);
                } else if !others {
                    prop_assert!(free < needed + DIVISION.newcomer, "refused for nobody");
                }
                let left = 400 - held.iter().sum::<usize>();
                prop_assert!(left + first.iter().sum::<usize>() >= DIVISION.newcomer);
            }
        }
    }
}
