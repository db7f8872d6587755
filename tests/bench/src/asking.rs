//! The initiator side of yardsticks over any medium: keeps operations in flight, and
//! measures them.

use std::io;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::tally::Tally;
use crate::tcp::Shape;

/// Polls without progress before the thread yields the core.
const SPINS: u32 = 64;
/// The same if both sides share a core.
const SPINS_TOGETHER: u32 = 1;

/// The medium of operations.
pub(crate) trait Medium {
    /// Sends operation `slot`, immediately or with the next poll.
    fn push(&mut self, slot: u16);

    /// Sends pending operations, and adds completed ones to `completed`. Returns whether
    /// there was progress.
    ///
    /// # Errors
    /// When the other side is gone.
    fn poll_once(&mut self, completed: &mut Vec<u16>) -> io::Result<bool>;
}

/// Measures for `runtime`; operations in flight at its end count as well.
pub(crate) fn measure(
    medium: &mut impl Medium,
    shape: Shape,
    runtime: Duration,
) -> io::Result<Value> {
    let mut started = vec![Duration::ZERO; usize::from(shape.depth)];
    let mut idle: Vec<u16> = (0..shape.depth).collect();
    let mut completed = Vec::with_capacity(started.len());
    let mut tally = Tally::default();
    let mut spins = Spins::new(shape);
    let start = Instant::now();
    let mut now = Duration::ZERO;
    loop {
        if now < runtime {
            for slot in idle.drain(..) {
                medium.push(slot);
                if let Some(started) = started.get_mut(usize::from(slot)) {
                    *started = now;
                }
            }
        } else if idle.len() == started.len() {
            break;
        }
        let progress = medium.poll_once(&mut completed)?;
        now = start.elapsed();
        for slot in completed.drain(..) {
            let started = started.get(usize::from(slot)).copied().unwrap_or(now);
            tally.record(now.saturating_sub(started));
            idle.push(slot);
        }
        spins.spin(progress);
    }
    Ok(tally.report(shape.bytes, now))
}

/// Counts polls without progress.
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

    pub(crate) fn spin(&mut self, progress: bool) {
        if progress {
            self.count = 0;
            return;
        }
        self.count = self.count.wrapping_add(1);
        if self.yields() {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }

    fn yields(&self) -> bool {
        self.count.is_multiple_of(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::Direction;

    #[test]
    fn shared_core_is_yielded_after_each_poll() {
        let shape = |block| Shape {
            direction: Direction::Read,
            bytes: 4096,
            depth: 1,
            block,
            zerocopy: false,
        };
        let polls_until_it_yields = |block| {
            let mut spins = Spins::new(shape(block));
            let mut spun = 0;
            loop {
                spins.spin(false);
                spun += 1;
                if spins.yields() {
                    return spun;
                }
            }
        };
        assert_eq!(polls_until_it_yields(true), 1);
        assert_eq!(polls_until_it_yields(false), SPINS);
    }
}
