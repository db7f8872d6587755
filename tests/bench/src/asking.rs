//! The side that asks, over any medium: keeps operations in flight, and
//! measures them.

use std::io;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::tally::Tally;
use crate::tcp::Shape;

/// Polls without progress after which others get the core.
const SPINS: u32 = 64;
/// The same where both sides have one core: the other one could have used each of them.
const SPINS_TOGETHER: u32 = 1;

/// What operations go through.
pub(crate) trait Medium {
    /// Asks for operation `slot`, now or with the next turn.
    fn push(&mut self, slot: u16);

    /// Sends what there is and adds to `whole` what was answered. Returns
    /// whether there was anything.
    ///
    /// # Errors
    /// When the other side is gone.
    fn turn(&mut self, whole: &mut Vec<u16>) -> io::Result<bool>;
}

/// Measures for as long as said; what is in flight then still counts.
pub(crate) fn measure(
    medium: &mut impl Medium,
    shape: Shape,
    runtime: Duration,
) -> io::Result<Value> {
    let mut begun = vec![Duration::ZERO; usize::from(shape.depth)];
    let mut idle: Vec<u16> = (0..shape.depth).collect();
    let mut whole = Vec::with_capacity(begun.len());
    let mut tally = Tally::default();
    let mut spins = Spins::new(shape);
    let start = Instant::now();
    let mut now = Duration::ZERO;
    loop {
        if now < runtime {
            for slot in idle.drain(..) {
                medium.push(slot);
                if let Some(begun) = begun.get_mut(usize::from(slot)) {
                    *begun = now;
                }
            }
        } else if idle.len() == begun.len() {
            break;
        }
        let progress = medium.turn(&mut whole)?;
        now = start.elapsed();
        for slot in whole.drain(..) {
            let begun = begun.get(usize::from(slot)).copied().unwrap_or(now);
            tally.record(now.saturating_sub(begun));
            idle.push(slot);
        }
        spins.turn(progress);
    }
    Ok(tally.report(shape.bytes, now))
}

/// Counts polls that brought nothing.
#[derive(Debug)]
pub(crate) struct Spins {
    count: u32,
    most: u32,
}

impl Spins {
    pub(crate) fn new(shape: Shape) -> Self {
        let most = if shape.block { SPINS_TOGETHER } else { SPINS };
        Self { count: 0, most }
    }

    pub(crate) fn turn(&mut self, progress: bool) {
        if progress {
            self.count = 0;
            return;
        }
        self.count = self.count.wrapping_add(1);
        if self.gives_way() {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }

    fn gives_way(&self) -> bool {
        self.count.is_multiple_of(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::Direction;

    #[test]
    fn on_one_core_the_other_side_gets_it_at_once() {
        let shape = |block| Shape {
            direction: Direction::Read,
            bytes: 4096,
            depth: 1,
            block,
            zerocopy: false,
        };
        let turns_until_it_gives_way = |block| {
            let mut spins = Spins::new(shape(block));
            let mut turns = 0;
            loop {
                spins.turn(false);
                turns += 1;
                if spins.gives_way() {
                    return turns;
                }
            }
        };
        assert_eq!(turns_until_it_gives_way(true), 1);
        assert_eq!(turns_until_it_gives_way(false), SPINS);
    }
}
