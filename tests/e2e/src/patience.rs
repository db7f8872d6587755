//! Waiting: never longer than a test may take.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long anything may take, on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

/// Asks until there is an answer; `None` when patience ends first.
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
