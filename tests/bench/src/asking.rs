//! The side that asks, over any medium: keeps operations in flight, and
//! measures them.

use std::io;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::tally::Tally;
use crate::tcp::Shape;

/// Polls without progress after which others get the core.
const SPINS: u32 = 64;

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
    let mut spins = Spins::default();
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
#[derive(Debug, Default)]
pub(crate) struct Spins(u32);

impl Spins {
    pub(crate) fn turn(&mut self, progress: bool) {
        if progress {
            self.0 = 0;
            return;
        }
        self.0 = self.0.wrapping_add(1);
        if self.0.is_multiple_of(SPINS) {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}
