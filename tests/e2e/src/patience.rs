//! Waiting with a time limit.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time limit of each wait, also on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

/// Calls `ask` until it returns a value; `None` after [`PATIENCE`].
pub fn eventually<T>(mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if start.elapsed() > PATIENCE {
            return None;
        }
        sleep(PAUSE);
    }
}
