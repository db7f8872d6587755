//! Closing images and connections in threads of their own: it waits for calls in flight and for
//! the cluster, and must not happen in a thread of the libraries.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Names of images that are being closed.
static CLOSING: Mutex<Vec<String>> = Mutex::new(Vec::new());
static CLOSED: Condvar = Condvar::new();

fn closing() -> MutexGuard<'static, Vec<String>> {
    // A list of names is consistent also after a panic of another holder.
    CLOSING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `close` in a thread of its own. If that cannot be started, the image stays open until the
/// process ends.
pub(crate) fn close_elsewhere(name: &str, close: impl FnOnce() + Send + 'static) {
    closing().push(name.to_owned());
    let ends = Ends(name.to_owned());
    let thread = std::thread::Builder::new().name("ceph-close".to_owned());
    let log = tracing::dispatcher::get_default(Clone::clone);
    let started = thread.spawn(move || {
        tracing::dispatcher::with_default(&log, close);
        drop(ends);
    });
    if let Err(error) = started {
        tracing::error!(%error, "{name}: cannot be closed: no thread");
    }
}

/// Removes the name at the end, however it comes.
struct Ends(String);

impl Drop for Ends {
    fn drop(&mut self) {
        let mut closing = closing();
        if let Some(at) = closing.iter().position(|one| *one == self.0) {
            closing.swap_remove(at);
        }
        CLOSED.notify_all();
    }
}

/// Waits until the image `name` is closed, or all images if it is `None`. False if that takes
/// longer than `timeout`, because the cluster does not respond.
#[must_use]
pub fn wait_closed(name: Option<&str>, timeout: Duration) -> bool {
    let end = Instant::now() + timeout;
    let mut closing = closing();
    loop {
        let is_closing = match name {
            Some(name) => closing.iter().any(|one| one == name),
            None => !closing.is_empty(),
        };
        if !is_closing {
            return true;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let waited = CLOSED.wait_timeout(closing, left);
        closing = waited.map_or_else(|poisoned| poisoned.into_inner().0, |(guard, _)| guard);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn wait_ends_with_the_closing_of_that_name() {
        let (end, ended) = channel::<()>();
        close_elsewhere("slow", move || {
            let _ = ended.recv();
        });
        assert!(wait_closed(Some("other"), Duration::ZERO));
        assert!(!wait_closed(Some("slow"), Duration::from_millis(1)));
        assert!(!wait_closed(None, Duration::from_millis(1)));
        drop(end);
        assert!(wait_closed(Some("slow"), Duration::from_secs(60)));
    }

    #[test]
    fn panic_while_closing_ends_it() {
        close_elsewhere("panics", || std::panic::resume_unwind(Box::new(())));
        assert!(wait_closed(Some("panics"), Duration::from_secs(60)));
    }
}
