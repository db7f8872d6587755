//! Random sizes and times.

use std::ops::RangeInclusive;
use std::time::Duration;

use nvmeof_rdma_layers::Dice;

/// A number in `range`.
pub(crate) fn size(dice: &mut Dice, range: &RangeInclusive<usize>) -> usize {
    let span = range.end().saturating_sub(*range.start());
    range.start() + dice.below(span.saturating_add(1))
}

/// A time in `range`, in whole nanoseconds.
pub(crate) fn time(dice: &mut Dice, range: &RangeInclusive<Duration>) -> Duration {
    let span = range.end().saturating_sub(*range.start()).as_nanos();
    let span = u64::try_from(span).unwrap_or(u64::MAX);
    *range.start() + Duration::from_nanos(dice.roll() % span.saturating_add(1).max(1))
}

/// The length of a piece: often long, sometimes a few bytes.
pub(crate) fn piece(dice: &mut Dice, longest: usize) -> usize {
    let most = match dice.below(16) {
        0 => 1,
        1 => 24,
        2..=4 => 1460,
        _ => usize::MAX,
    };
    size(dice, &(1..=longest.max(1))).min(most)
}
