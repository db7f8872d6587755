//! Waiting with a time limit.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time limit of each wait, also on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

/// Calls `ask` until it returns a value; `None` after [`TIMEOUT`].
pub fn eventually<T>(mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(response) = ask() {
            return Some(response);
        }
        if start.elapsed() > TIMEOUT {
            return None;
        }
        sleep(PAUSE);
    }
}
