//! Latency histograms of commands, and their quantiles.

use std::time::Duration;

use nvmeof_target_core::metrics;
use serde::{Deserialize, Serialize};

/// Latency histogram of the commands of one class.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// Sum of all latencies, in nanoseconds.
    pub sum_ns: u64,
    /// Non-empty buckets in ascending order: upper bound in microseconds (exclusive; none for 16 s
    /// or more) and number of commands.
    pub buckets: Vec<(Option<u64>, u64)>,
}

impl From<&metrics::Latency> for Latency {
    fn from(counted: &metrics::Latency) -> Self {
        Self {
            sum_ns: counted.sum_ns,
            buckets: counted.buckets().collect(),
        }
    }
}

impl Latency {
    /// Number of commands.
    #[must_use]
    pub fn count(&self) -> u64 {
        let counts = self.buckets.iter().map(|(_, count)| *count);
        counts.fold(0, u64::saturating_add)
    }

    /// Adds the commands of `other`.
    pub fn add(&mut self, other: &Self) {
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        for (end, count) in &other.buckets {
            let at = self
                .buckets
                .binary_search_by_key(&key(*end), |it| key(it.0));
            match at {
                Ok(at) => {
                    if let Some((_, sum)) = self.buckets.get_mut(at) {
                        *sum = sum.saturating_add(*count);
                    }
                }
                Err(at) => self.buckets.insert(at, (*end, *count)),
            }
        }
    }

    /// The commands since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |end: Option<u64>| {
            let found = earlier.buckets.iter().find(|(one, _)| *one == end);
            found.map_or(0, |(_, count)| *count)
        };
        let buckets = self.buckets.iter();
        let buckets = buckets.map(|(end, count)| (*end, count.saturating_sub(before(*end))));
        Self {
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
            buckets: buckets.filter(|(_, count)| *count > 0).collect(),
        }
    }

    /// The `q`-quantile (0 to 1), accurate within a quarter above 4 µs; `None` without commands.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let all = self.count();
        let wanted = rank(q, all);
        let mut seen = 0;
        for (end, count) in &self.buckets {
            if seen + count >= wanted {
                // Linear interpolation within the bucket.
                let (start, end) = bounds(*end);
                let (width, at) = (u128::from(end - start) * 1000, u128::from(wanted - seen));
                let within = width * at / u128::from(*count).max(1);
                let within = u64::try_from(within).unwrap_or(u64::MAX);
                return Some(Duration::from_nanos(start * 1000 + within));
            }
            seen += count;
        }
        None
    }

    /// Number of commands in each power of two of microseconds up to 16 s, with its upper bound.
    pub fn octaves(&self) -> impl Iterator<Item = (u64, u64)> {
        (0..=LONGEST).map(|power| {
            let end = 1 << power;
            let start = end / 2;
            let its = |at: Option<u64>| at.is_some_and(|at| at > start && at <= end);
            let counts = self.buckets.iter().filter(|(at, _)| its(*at));
            (end, counts.map(|(_, count)| *count).sum())
        })
    }

    /// Number of commands that took 16 s or more.
    #[must_use]
    pub fn beyond(&self) -> u64 {
        let last = self.buckets.iter().filter(|(end, _)| end.is_none());
        last.map(|(_, count)| *count).sum()
    }
}

/// 2 to this power microseconds (16 s) is the highest bound.
const LONGEST: u32 = 24;

fn key(end: Option<u64>) -> u64 {
    end.unwrap_or(u64::MAX)
}

/// The rank of a quantile among `count` commands, from 1.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a rank among counted commands, kept between 1 and their count"
)]
fn rank(q: f64, count: u64) -> u64 {
    ((q * count as f64).ceil() as u64).clamp(1, count.max(1))
}

/// Lower and upper bound of a bucket, in microseconds.
fn bounds(end: Option<u64>) -> (u64, u64) {
    let Some(end) = end else {
        return (1 << LONGEST, 1 << LONGEST);
    };
    if end <= 4 {
        return (end.saturating_sub(1), end);
    }
    // A quarter of the power of two below.
    let width = ((end - 1).checked_ilog2().unwrap_or(2)).max(2) - 2;
    (end - (1 << width), end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Option<Duration> {
        Some(Duration::from_micros(us))
    }

    fn of(buckets: &[(Option<u64>, u64)]) -> Latency {
        Latency {
            sum_ns: 0,
            buckets: buckets.to_vec(),
        }
    }

    #[test]
    fn quantiles_are_within_their_bucket() {
        assert_eq!(Latency::default().quantile(0.5), None);
        let one = of(&[(Some(96), 1)]);
        assert_eq!((one.quantile(0.0), one.quantile(1.0)), (us(96), us(96)));
        // 80 to 96 and 8192 to 10240.
        let two = of(&[(Some(96), 98), (Some(10240), 2)]);
        let median = two.quantile(0.5).unwrap();
        assert!(
            median > us(87).unwrap() && median < us(89).unwrap(),
            "{median:?}"
        );
        assert_eq!(two.quantile(0.99), us(9216));
        assert_eq!(two.quantile(1.0), us(10240));
        assert_eq!(of(&[(None, 1)]).quantile(0.5), us(1 << 24));
        assert_eq!(bounds(Some(1)), (0, 1));
        assert_eq!(bounds(Some(5)), (4, 5));
        assert_eq!(bounds(Some(8)), (7, 8));
        assert_eq!(bounds(Some(10)), (8, 10));
        assert_eq!(bounds(Some(16)), (14, 16));
    }

    #[test]
    fn commands_since_a_snapshot_are_the_difference() {
        let earlier = of(&[(Some(1), 3), (Some(96), 1)]);
        let mut now = of(&[(Some(1), 1), (Some(2), 7), (None, 1)]);
        now.add(&earlier);
        let all = [(Some(1), 4), (Some(2), 7), (Some(96), 1), (None, 1)];
        assert_eq!(now.buckets, all);
        let since = now.since(&earlier);
        assert_eq!(since.buckets, [(Some(1), 1), (Some(2), 7), (None, 1)]);
        assert_eq!(since.count(), 9);
    }

    #[test]
    fn octaves_count_every_command_once() {
        let some = of(&[(Some(1), 1), (Some(2), 2), (Some(3), 4), (Some(4), 8)]);
        let octaves: Vec<_> = some.octaves().take(4).collect();
        assert_eq!(octaves, [(1, 1), (2, 2), (4, 12), (8, 0)]);
        let most = of(&[(Some(10), 1), (Some(16), 2), (Some(1 << 24), 4), (None, 8)]);
        let counted: u64 = most.octaves().map(|(_, count)| count).sum();
        assert_eq!((counted, most.beyond()), (7, 8));
        assert_eq!(most.octaves().last(), Some((1 << 24, 4)));
    }
}
