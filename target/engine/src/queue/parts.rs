//! How a reactor's buffers are divided: what one may hold while there are others, a
//! host or all that came by one port.

use nvmeof_memory::Classes;
use nvmeof_target_core::Limits;

use super::account::KINDS;

/// How much one may hold while there are others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    /// Of each kind of buffer, shortest first.
    pub(super) held: [u32; KINDS],
    pub(super) capsules: Parts,
}

/// How the capsules of a reactor are divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    /// Of all, how many one may have while there are others.
    most: usize,
    /// Those that are left to one which has none.
    pub(super) newcomer: usize,
}

impl Most {
    /// With `percent` of so many capsules and of these buffers.
    pub(super) fn of(percent: u8, limits: &Limits, buffers: &Classes, capsules: usize) -> Self {
        let percent = usize::from(percent.min(100));
        let mut held = [u32::MAX; KINDS];
        for (most, count) in held.iter_mut().zip(buffers.counts()) {
            // Who may have all of a kind may have longer ones besides.
            if percent < 100 {
                let part = (count * percent / 100).max(1);
                *most = u32::try_from(part).unwrap_or(u32::MAX);
            }
        }
        let capsules = Parts::of(percent, limits, capsules);
        Self { held, capsules }
    }
}

impl Parts {
    fn of(percent: usize, limits: &Limits, capsules: usize) -> Self {
        let others = capsules * (100 - percent) / 100;
        // An admin queue and an I/O queue, as long as they may be.
        let one = usize::from(limits.queue_depth) + usize::from(Limits::ADMIN_DEPTH);
        Self {
            most: capsules - others,
            newcomer: others.min(one),
        }
    }

    /// When everybody who may come has some.
    pub(super) fn without_newcomers(self) -> Self {
        let newcomer = 0;
        Self { newcomer, ..self }
    }

    /// Whether one that holds so many may have `needed` more of those that are
    /// `free`; `several`: it is not alone. Alone it may have all of them but what
    /// the next one needs, which cannot be taken back from a queue by then.
    pub(super) fn allow(&self, held: usize, several: bool, needed: usize, free: usize) -> bool {
        let part = !several || held.saturating_add(needed) <= self.most;
        held == 0 || (part && free >= needed.saturating_add(self.kept_from(held)))
    }

    /// How many are not for one that holds so many.
    pub(super) fn kept_from(&self, held: usize) -> usize {
        if held == 0 { 0 } else { self.newcomer }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARTS: Parts = Parts {
        most: 100,
        newcomer: 60,
    };

    #[test]
    fn the_next_host_is_left_a_queue_or_what_the_percentage_says() {
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
            let parts = Parts::of(percent, &limits, count);
            assert_eq!((parts.most, parts.newcomer), (most, newcomer), "{percent}");
        }
    }

    proptest! {
        /// Whatever hosts ask for in whatever order: one that is alone gets all
        /// but what the next one needs, one with others no more than its part, and
        /// what is left for those who have nothing only those take.
        #[test]
        fn whoever_comes_finds_something_left(
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
                let allowed = PARTS.allow(held[host], others, needed, free);
                if held[host] == 0 {
                    prop_assert!(allowed, "refused to a host that has nothing");
                    if needed <= free {
                        (held[host], first[host]) = (needed, needed);
                    }
                } else if allowed {
                    held[host] += needed;
                    prop_assert!(!others || held[host] <= PARTS.most);
                } else if !others {
                    prop_assert!(free < needed + PARTS.newcomer, "refused for nobody");
                }
                let left = 400 - held.iter().sum::<usize>();
                prop_assert!(left + first.iter().sum::<usize>() >= PARTS.newcomer);
            }
        }
    }
}
