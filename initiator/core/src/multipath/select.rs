//! Which path a command takes.

use std::time::Duration;

/// How to choose among the paths of the best state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathPolicy {
    /// The nearest path by NUMA distance, always the same one.
    Numa,
    /// One after the other.
    #[default]
    RoundRobin,
    /// The path with the fewest outstanding bytes.
    QueueDepth,
    /// The path with the shortest mean latency. Another one replaces it when it is shorter by a
    /// fifth.
    Latency,
}

/// Whether a path can access a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathAccess {
    /// It cannot: not connected, or in another ANA state.
    None,
    /// It can, at a cost (ANA Non-Optimized).
    NonOptimized,
    /// It can (ANA Optimized, or no ANA).
    Optimized,
}

/// What is known of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Its access to the namespace.
    pub access: PathAccess,
    /// Whether it has been connected long enough to be preferred; see
    /// [`Reconnect::settled_at`](super::Reconnect::settled_at).
    pub is_settled: bool,
    /// Bytes of commands in flight.
    pub outstanding: u64,
    /// Mean latency of its commands; `None` if it was not measured lately.
    pub latency: Option<Duration>,
    /// NUMA distance of its device; 10 is local.
    pub distance: u32,
}

/// Chooses paths.
#[derive(Clone, Debug, Default)]
pub struct PathSelector {
    policy: PathPolicy,
    /// The last choice.
    last: usize,
}

impl PathSelector {
    /// A selector with that policy.
    #[must_use]
    pub fn new(policy: PathPolicy) -> Self {
        Self { policy, last: 0 }
    }

    /// The index of the path that the next command takes. `None` if none can access the
    /// namespace. Settled paths come before others of the same access, optimized before
    /// non-optimized ones whatever the policy.
    pub fn select(&mut self, paths: &[Path]) -> Option<usize> {
        let rank = |path: &Path| (path.access, path.is_settled);
        let best = paths.iter().map(rank).max()?;
        if best.0 == PathAccess::None {
            return None;
        }
        let candidates = || {
            let all = paths.iter().enumerate();
            all.filter(|(_, path)| rank(path) == best)
        };
        // In turn, beginning after the last choice.
        let last = self.last;
        let turn = |at: usize| (at <= last, at);
        let chosen = match self.policy {
            PathPolicy::Numa => candidates().min_by_key(|(at, path)| (path.distance, *at)),
            PathPolicy::RoundRobin => candidates().min_by_key(|(at, _)| turn(*at)),
            PathPolicy::QueueDepth => {
                candidates().min_by_key(|(at, path)| (path.outstanding, turn(*at)))
            }
            // One that was not measured comes first.
            PathPolicy::Latency => {
                let fastest = candidates().min_by_key(|(at, path)| (path.latency, turn(*at)));
                let current = candidates().find(|(at, _)| *at == last);
                match (fastest, current) {
                    (Some((_, fast)), Some(current)) if !is_faster(fast, current.1) => {
                        Some(current)
                    }
                    (fastest, _) => fastest,
                }
            }
        };
        let (at, _) = chosen?;
        self.last = at;
        Some(at)
    }
}

/// Choices that remain valid until a path changes: they need neither a clock nor a look at the
/// paths.
#[derive(Clone, Debug)]
pub struct Rotation {
    turns: Vec<usize>,
    next: usize,
}

impl Rotation {
    /// The choices of `policy` among `paths`. `None` if each choice depends on time or load: a path
    /// of the best access is not settled, or several paths have it and the policy compares their
    /// outstanding bytes or latencies.
    #[must_use]
    pub fn of(policy: PathPolicy, paths: &[Path]) -> Option<Self> {
        let best = paths.iter().map(|path| path.access).max()?;
        if best == PathAccess::None {
            return None;
        }
        let best = || {
            let all = paths.iter().enumerate();
            all.filter(move |(_, path)| path.access == best)
        };
        let is_fixed = matches!(policy, PathPolicy::Numa | PathPolicy::RoundRobin);
        if best().any(|(_, path)| !path.is_settled) || (!is_fixed && best().count() > 1) {
            return None;
        }
        let turns = match policy {
            PathPolicy::Numa => {
                let nearest = best().min_by_key(|(at, path)| (path.distance, *at));
                nearest.into_iter().map(|(at, _)| at).collect()
            }
            _ => best().map(|(at, _)| at).collect(),
        };
        Some(Self { turns, next: 0 })
    }

    /// The index of the path that the next command takes; `None` never occurs.
    #[inline]
    pub fn take_turn(&mut self) -> Option<usize> {
        let at = self.next;
        self.next = match at + 1 {
            next if next < self.turns.len() => next,
            _ => 0,
        };
        self.turns.get(at).copied()
    }
}

/// Whether `path` is faster than `current` by a fifth at least, or was not measured.
fn is_faster(path: &Path, current: &Path) -> bool {
    match (path.latency, current.latency) {
        (Some(latency), Some(current)) => latency < current.saturating_mul(4) / 5,
        (None, Some(_)) => true,
        (_, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn path(access: PathAccess) -> Path {
        Path {
            access,
            is_settled: true,
            outstanding: 0,
            latency: Some(MS(10)),
            distance: 10,
        }
    }

    const GOOD: fn() -> Path = || path(PathAccess::Optimized);

    fn choices(policy: PathPolicy, paths: &[Path], count: usize) -> Vec<usize> {
        let mut selector = PathSelector::new(policy);
        (0..count)
            .map(|_| selector.select(paths).unwrap())
            .collect()
    }

    #[test]
    fn optimized_paths_come_first_whatever_the_policy() {
        let mut busy = GOOD();
        (busy.outstanding, busy.latency, busy.distance) = (1 << 30, Some(MS(999)), 99);
        let paths = [path(PathAccess::NonOptimized), path(PathAccess::None), busy];
        for policy in [
            PathPolicy::Numa,
            PathPolicy::RoundRobin,
            PathPolicy::QueueDepth,
            PathPolicy::Latency,
        ] {
            assert_eq!(choices(policy, &paths, 3), [2, 2, 2]);
            assert_eq!(choices(policy, &paths[..2], 2), [0, 0]);
            assert_eq!(PathSelector::new(policy).select(&paths[1..2]), None);
            assert_eq!(PathSelector::new(policy).select(&[]), None);
        }
    }

    #[test]
    fn path_that_has_just_come_back_waits_while_others_are_there() {
        let mut fresh = GOOD();
        fresh.is_settled = false;
        assert_eq!(
            choices(PathPolicy::RoundRobin, &[fresh, GOOD()], 3),
            [1, 1, 1]
        );
        assert_eq!(choices(PathPolicy::RoundRobin, &[fresh], 1), [0]);
        // An unsettled optimized path is better than one that is not optimized.
        let paths = [path(PathAccess::NonOptimized), fresh];
        assert_eq!(choices(PathPolicy::RoundRobin, &paths, 1), [1]);
    }

    #[test]
    fn policies_choose_by_turn_bytes_latency_and_distance() {
        let paths = [GOOD(), GOOD(), GOOD()];
        assert_eq!(choices(PathPolicy::RoundRobin, &paths, 4), [1, 2, 0, 1]);
        let mut loaded = paths;
        (loaded[0].outstanding, loaded[1].outstanding) = (4096, 512);
        loaded[2].outstanding = 8192;
        assert_eq!(choices(PathPolicy::QueueDepth, &loaded, 2), [1, 1]);
        let mut far = paths;
        (far[0].distance, far[1].distance) = (21, 21);
        assert_eq!(choices(PathPolicy::Numa, &far, 2), [2, 2]);
    }

    #[test]
    fn latency_changes_path_only_for_a_fifth() {
        let mut selector = PathSelector::new(PathPolicy::Latency);
        let mut paths = [GOOD(), GOOD()];
        paths[1].latency = Some(MS(8));
        assert_eq!(selector.select(&paths), Some(0));
        paths[1].latency = Some(MS(7));
        assert_eq!(selector.select(&paths), Some(1));
        paths[0].latency = Some(MS(6));
        assert_eq!(selector.select(&paths), Some(1));
        // One that was not measured lately is tried.
        paths[0].latency = None;
        assert_eq!(selector.select(&paths), Some(0));
    }

    #[test]
    fn rotation_exists_only_without_a_dependence_on_time_or_load() {
        let all = [GOOD(), path(PathAccess::NonOptimized), GOOD()];
        for (policy, exists) in [
            (PathPolicy::Numa, true),
            (PathPolicy::RoundRobin, true),
            (PathPolicy::QueueDepth, false),
            (PathPolicy::Latency, false),
        ] {
            assert_eq!(Rotation::of(policy, &all).is_some(), exists, "{policy:?}");
            let mut alone = Rotation::of(policy, &all[..2]).unwrap();
            assert_eq!([alone.take_turn(), alone.take_turn()], [Some(0), Some(0)]);
            let mut unsettled = all;
            unsettled[2].is_settled = false;
            assert!(Rotation::of(policy, &unsettled).is_none(), "{policy:?}");
            // The best access decides, also if that path has just come back.
            assert!(Rotation::of(policy, &unsettled[1..]).is_none());
            assert!(Rotation::of(policy, &[path(PathAccess::None)]).is_none());
            assert!(Rotation::of(policy, &[]).is_none());
        }
    }

    proptest! {
        /// A rotation takes the paths that the selector chooses, each as often.
        #[test]
        fn rotation_takes_the_paths_of_the_selector(
            states in proptest::collection::vec((0u8..3, 10u32..13), 1..8),
            policy in 0usize..2,
        ) {
            let access = [PathAccess::None, PathAccess::NonOptimized, PathAccess::Optimized];
            let paths: Vec<_> = states.iter().map(|(state, distance)| Path {
                distance: *distance,
                ..path(access[usize::from(*state)])
            }).collect();
            let policy = [PathPolicy::Numa, PathPolicy::RoundRobin][policy];
            let Some(mut rotation) = Rotation::of(policy, &paths) else {
                prop_assert_eq!(PathSelector::new(policy).select(&paths), None);
                return Ok(());
            };
            let count = rotation.turns.len() * 2;
            let mut taken: Vec<_> = (0..count).map(|_| rotation.take_turn().unwrap()).collect();
            let mut chosen = choices(policy, &paths, count);
            taken.sort_unstable();
            chosen.sort_unstable();
            prop_assert_eq!(taken, chosen);
        }

        /// A chosen path can access the namespace, and no path of better access was passed over.
        #[test]
        fn best_access_is_chosen(
            states in proptest::collection::vec((0u8..3, any::<bool>(), any::<u16>()), 0..8),
            policy in 0usize..4,
        ) {
            let access = [PathAccess::None, PathAccess::NonOptimized, PathAccess::Optimized];
            let paths: Vec<_> = states.iter().map(|(state, is_settled, bytes)| Path {
                is_settled: *is_settled,
                outstanding: (*bytes).into(),
                latency: (bytes % 3 > 0).then(|| MS((*bytes).into())),
                ..path(access[usize::from(*state)])
            }).collect();
            let policy = [
                PathPolicy::Numa,
                PathPolicy::RoundRobin,
                PathPolicy::QueueDepth,
                PathPolicy::Latency,
            ][policy];
            let best = paths.iter().map(|path| path.access).max();
            match PathSelector::new(policy).select(&paths) {
                Some(at) => prop_assert_eq!(Some(paths[at].access), best),
                None => prop_assert!(best.is_none_or(|best| best == PathAccess::None)),
            }
        }
    }
}
