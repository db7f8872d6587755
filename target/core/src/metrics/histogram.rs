//! Latency histograms with four buckets per power of two.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::tally::{add, get};

/// Values below this, in microseconds, have one bucket each.
const LINEAR: u64 = 4;
/// Buckets of each power of two.
const PARTS: u32 = 4;
/// Values of 2 to this power microseconds (16 s) and more are in the last
/// bucket.
const LONGEST: u32 = 24;
const BUCKETS: usize = (PARTS * (LONGEST - 1)) as usize + 1;

/// Latencies of one class of commands, with a single writer.
#[derive(Debug)]
pub(super) struct Histogram {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

/// The latency of a command, and its bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatencySample {
    ns: u64,
    bucket: usize,
}

impl LatencySample {
    #[inline]
    pub(crate) fn new(time: Duration) -> Self {
        // The command began and completed in the same iteration of the reactor: nearly all
        // commands, with fast backing stores.
        if time.is_zero() {
            return Self { ns: 0, bucket: 0 };
        }
        // 584 years.
        let ns = time.as_secs().wrapping_mul(1_000_000_000);
        let ns = ns.wrapping_add(time.subsec_nanos().into());
        let bucket = bucket_of(ns / 1000);
        Self { ns, bucket }
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; BUCKETS],
            sum_ns: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    /// Adds a command.
    #[inline]
    pub(super) fn add(&self, took: LatencySample) {
        if let Some(count) = self.counts.get(took.bucket) {
            add(count, 1);
        }
        if took.ns > 0 {
            add(&self.sum_ns, took.ns);
        }
    }

    /// Number of commands.
    pub(super) fn count(&self) -> u64 {
        self.counts.iter().map(get).fold(0, u64::wrapping_add)
    }

    /// Adds the counts to `sum`.
    pub(super) fn add_to(&self, sum: &mut Latency) {
        for (to, from) in sum.counts.iter_mut().zip(&self.counts) {
            *to = to.wrapping_add(get(from));
        }
        sum.sum_ns = sum.sum_ns.wrapping_add(get(&self.sum_ns));
    }
}

/// A snapshot of the latencies of one class of commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    counts: [u64; BUCKETS],
    /// Their sum in nanoseconds.
    pub sum_ns: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            counts: [0; BUCKETS],
            sum_ns: 0,
        }
    }
}

impl Latency {
    /// The buckets that are not empty, ascending: upper bound in microseconds, exclusive
    /// (`None`: 16 s or more), and count.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let all = self.counts.iter().enumerate();
        let there = all.filter(|(_, count)| **count > 0);
        there.map(|(bucket, count)| (end_of(bucket), *count))
    }

    /// Adds the counts of `other`.
    pub(super) fn merge(&mut self, other: &Self) {
        for (to, from) in self.counts.iter_mut().zip(&other.counts) {
            *to = to.wrapping_add(*from);
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }
}

#[inline]
fn bucket_of(us: u64) -> usize {
    if us < LINEAR {
        return usize::try_from(us).unwrap_or(0);
    }
    let power = us.ilog2().min(LONGEST);
    if power == LONGEST {
        return BUCKETS - 1;
    }
    let part = (us >> (power - 2)) & 3;
    let first = usize::try_from(PARTS * (power - 1)).unwrap_or(0);
    first + usize::try_from(part).unwrap_or(0)
}

/// The first value in microseconds that is beyond a bucket.
fn end_of(bucket: usize) -> Option<u64> {
    let bucket = u64::try_from(bucket).ok()?;
    if bucket < LINEAR {
        return Some(bucket + 1);
    }
    let (row, part) = (bucket / 4, bucket % 4);
    let power = u32::try_from(row + 1).ok()?;
    (power < LONGEST).then(|| (LINEAR + part + 1) << (power - 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_below_the_end_of_its_bucket_and_not_of_the_one_before() {
        let mut values: Vec<u64> = (0..5000).collect();
        for power in 12..LONGEST {
            let one = 1u64 << power;
            values.extend([one - 1, one, one + 1, one + one / 4, one + one / 2]);
        }
        for us in values {
            let bucket = bucket_of(us);
            assert!(end_of(bucket).unwrap() > us, "{us} in {bucket}");
            if bucket > 0 {
                assert!(end_of(bucket - 1).unwrap() <= us, "{us} in {bucket}");
            }
        }
    }

    #[test]
    fn what_takes_very_long_is_in_the_last_bucket() {
        let ends = [(1 << LONGEST) - 1, 1 << LONGEST, u64::MAX].map(|us| end_of(bucket_of(us)));
        assert_eq!(ends, [Some(1 << LONGEST), None, None]);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_bucket_is_at_most_a_quarter_of_its_values_wide() {
        for bucket in 4..BUCKETS - 1 {
            let (start, end) = (end_of(bucket - 1).unwrap(), end_of(bucket).unwrap());
            assert!((end - start) * 4 <= start, "{bucket}: {start} to {end}");
        }
    }

    #[test]
    fn times_add_up() {
        let one = Histogram::default();
        let times = [0, 0, 1_500, 1_999, 9_000_000];
        let took = |ns| LatencySample::new(Duration::from_nanos(ns));
        times.into_iter().for_each(|ns| one.add(took(ns)));
        let mut sum = Latency::default();
        one.add_to(&mut sum);
        one.add_to(&mut sum);
        let buckets: Vec<_> = sum.buckets().collect();
        assert_eq!(buckets, [(Some(1), 4), (Some(2), 4), (Some(10240), 2)]);
        assert_eq!(sum.sum_ns, 2 * 9_003_499);
    }
}
