//! Queries about a backing store, with a time limit in case it is unresponsive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Time limit for a query about a backing store that is open, or that is not opened.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(1);

/// The backing store did not respond in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no response within {} s from its device, the server of its file system or its cluster",
    .0.as_secs()
)]
pub struct QueryTimeout(pub Duration);

/// Queries about one backing store, one at a time. Each runs in a thread that is abandoned when
/// the time is over.
#[derive(Debug, Default)]
pub struct Queries {
    waiting: Arc<AtomicBool>,
}

impl Queries {
    /// The result of `ask` about the backing store `name`. While an earlier query is pending, no
    /// other one is started.
    ///
    /// # Errors
    /// [`QueryTimeout`] if there is no result in that time, or an earlier query is pending.
    pub fn ask<T: Send + 'static>(
        &self,
        name: &Arc<str>,
        timeout: Duration,
        ask: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, QueryTimeout> {
        let none = QueryTimeout(timeout);
        if self.waiting.swap(true, Ordering::AcqRel) {
            return Err(none);
        }
        let (waiting, path) = (Arc::clone(&self.waiting), Arc::clone(name));
        let gave_up = Arc::new(OnceLock::new());
        let late = Arc::clone(&gave_up);
        let answered = within(timeout, move || {
            let answer = ask();
            waiting.store(false, Ordering::Release);
            if late.get().is_some() {
                tracing::warn!(%path, "backing store recovered");
            }
            answer
        });
        answered.ok_or_else(|| {
            let _ = gave_up.set(());
            tracing::error!(path = %name, "backing store unresponsive: {none}; its namespace \
                waits, others are served");
            none
        })
    }
}

/// The result of `ask` within that time; `None`: its thread still runs and is abandoned.
pub fn within<T: Send + 'static>(
    timeout: Duration,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (answer, receiver) = sync_channel(1);
    let log = tracing::dispatcher::get_default(Clone::clone);
    let thread = std::thread::Builder::new().name("ask".to_owned());
    let started = thread.spawn(move || {
        tracing::dispatcher::with_default(&log, || {
            // If the caller has given up, the result is dropped here.
            let _ = answer.send(ask());
        });
    });
    if let Err(error) = started {
        tracing::warn!(%error, "cannot start a thread to query a backing store");
        return None;
    }
    receiver.recv_timeout(timeout).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn query_that_timed_out_is_not_repeated_while_pending() {
        let (questions, name) = (Queries::default(), Arc::from("/mnt/a"));
        let (answer, waits) = channel::<()>();
        let short = Duration::from_millis(10);
        let pending = move || waits.recv().unwrap_or_default();
        assert_eq!(
            questions.ask(&name, short, pending),
            Err(QueryTimeout(short))
        );
        let never = || unreachable!("the first still waits");
        assert_eq!(
            questions.ask(&name, short, never),
            Err::<(), _>(QueryTimeout(short))
        );
        drop(answer);
        while questions.waiting.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let long = Duration::from_secs(60);
        assert_eq!(questions.ask(&name, long, || 7), Ok(7));
    }
}
