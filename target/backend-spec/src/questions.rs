//! How to ask storage that may hang without waiting for ever.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a question may take about what is open, or is only looked at.
pub const ANSWERING: Duration = Duration::from_secs(1);

/// It did not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no answer within {} s; the server of its file system or its device hangs", .0.as_secs())]
pub struct NoAnswer(pub Duration);

/// Questions to one storage: one at a time, each in a thread that may be left behind.
#[derive(Debug, Default)]
pub struct Questions {
    waiting: Arc<AtomicBool>,
}

impl Questions {
    /// What `ask` says of `name`. While an earlier question has no answer there is no other.
    ///
    /// # Errors
    /// [`NoAnswer`] when there is none in that time, or still none to the one before.
    pub fn ask<T: Send + 'static>(
        &self,
        name: &Arc<str>,
        patience: Duration,
        ask: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let none = NoAnswer(patience);
        if self.waiting.swap(true, Ordering::AcqRel) {
            return Err(none);
        }
        let (waiting, path) = (Arc::clone(&self.waiting), Arc::clone(name));
        let gave_up = Arc::new(OnceLock::new());
        let late = Arc::clone(&gave_up);
        let answered = within(patience, move || {
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

/// What `ask` gives within that time, in a thread that is left behind otherwise.
pub fn within<T: Send + 'static>(
    patience: Duration,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (answer, hears) = sync_channel(1);
    let log = tracing::dispatcher::get_default(Clone::clone);
    let thread = std::thread::Builder::new().name("ask".to_owned());
    let started = thread.spawn(move || {
        tracing::dispatcher::with_default(&log, || {
            // Nobody may be there any more: then it is dropped here.
            let _ = answer.send(ask());
        });
    });
    if let Err(error) = started {
        tracing::warn!(%error, "cannot start a thread to query a backing store");
        return None;
    }
    hears.recv_timeout(patience).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn unanswered_question_is_given_up_and_not_repeated() {
        let (questions, name) = (Questions::default(), Arc::from("/mnt/a"));
        let (answer, waits) = channel::<()>();
        let short = Duration::from_millis(10);
        let hangs = move || waits.recv().unwrap_or_default();
        assert_eq!(questions.ask(&name, short, hangs), Err(NoAnswer(short)));
        let never = || unreachable!("the first still waits");
        assert_eq!(
            questions.ask(&name, short, never),
            Err::<(), _>(NoAnswer(short))
        );
        drop(answer);
        while questions.waiting.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let long = Duration::from_secs(60);
        assert_eq!(questions.ask(&name, long, || 7), Ok(7));
    }
}
