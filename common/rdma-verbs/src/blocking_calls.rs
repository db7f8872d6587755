//! Threads for blocking system calls, so that the thread of a provider never blocks.
//!
//! Linux `siw` makes its TCP connection inside `rdma_connect` and blocks for its duration:
//! briefly for a peer that refuses, two minutes (`tcp_syn_retries`) for one that is silent,
//! and no option of an id changes that. Later, destroying an id or its queue pair blocks
//! until the peer's MPA reply arrives or times out after ten seconds: that is generic iWARP
//! connection management, so every driver may do it. One silent peer would delay all
//! connections of a provider, so there are several threads; each exists only while there is
//! work.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

use nvmeof_rdma::explain;

use crate::lock::lock;

/// Maximum number of concurrent calls; further ones are queued.
const THREADS: usize = 16;
/// Stack size: they only call one C function.
const STACK: usize = 128 << 10;

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs in other threads, which end when there are no more.
#[derive(Default)]
pub(crate) struct BlockingCalls(Mutex<Jobs>);

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    threads: usize,
}

impl std::fmt::Debug for BlockingCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockingCalls").finish_non_exhaustive()
    }
}

impl BlockingCalls {
    /// Runs `job`, immediately unless all threads are busy.
    pub(crate) fn run(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        let mut jobs = lock(&self.0);
        jobs.waiting.push_back(Box::new(job));
        if jobs.threads >= THREADS {
            return;
        }
        jobs.threads += 1;
        drop(jobs);
        let this = Arc::clone(self);
        let thread = std::thread::Builder::new()
            .name("rdma-wait".to_owned())
            .stack_size(STACK)
            .spawn(move || this.work());
        if let Err(error) = thread {
            // The job stays queued for another thread.
            let error = explain(&error);
            tracing::warn!("cannot start a thread for a blocking call: {error}");
            self.work();
        }
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            job();
        }
    }

    /// The next job. Without one the calling thread ends.
    fn next(&self) -> Option<Job> {
        let mut jobs = lock(&self.0);
        let job = jobs.waiting.pop_front();
        if job.is_none() {
            jobs.threads -= 1;
        }
        job
    }
}

/// A call that another thread makes for a thread that does not wait for it. The last one to
/// use its objects cleans up: the thread, if they were left to it before the call returned.
#[derive(Debug)]
pub(crate) struct PendingCall<T>(Mutex<State<T>>);

#[derive(Debug)]
enum State<T> {
    InProgress,
    Returned,
    /// The caller does not wait any more; the thread cleans this up after the call.
    Left(T),
}

/// Outcome of a call.
#[derive(Debug)]
pub(crate) enum CallOutcome<T> {
    /// The call returned this result.
    Returned(io::Result<()>),
    /// The caller left these objects meanwhile.
    Left(T),
}

impl<T> PendingCall<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State::InProgress))
    }

    pub(crate) fn is_in_progress(&self) -> bool {
        matches!(*lock(&self.0), State::InProgress)
    }

    /// Leaves `what` to the thread of the call, which cleans it up.
    ///
    /// # Errors
    /// Returns it if the call has returned already.
    pub(crate) fn leave(&self, what: T) -> Result<(), T> {
        let mut state = lock(&self.0);
        match *state {
            State::InProgress => {
                *state = State::Left(what);
                Ok(())
            }
            State::Returned | State::Left(_) => Err(what),
        }
    }

    /// Makes the call, unless the caller does not wait for it any more. Runs in the other
    /// thread.
    pub(crate) fn make(&self, call: impl FnOnce() -> io::Result<()>) -> CallOutcome<T> {
        // The lock is not held during the call.
        let result = if self.is_in_progress() {
            call()
        } else {
            drop(call);
            Ok(())
        };
        match std::mem::replace(&mut *lock(&self.0), State::Returned) {
            State::Left(what) => CallOutcome::Left(what),
            State::InProgress | State::Returned => CallOutcome::Returned(result),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn jobs_run_in_threads_and_stuck_one_delays_no_other() {
        let blocking_calls = Arc::new(BlockingCalls::default());
        let (release, stuck) = mpsc::channel::<()>();
        let (done, results) = mpsc::channel();
        blocking_calls.run(move || {
            let _ = stuck.recv();
        });
        let me = std::thread::current().id();
        for number in 0..2 * THREADS {
            let done = done.clone();
            blocking_calls.run(move || {
                done.send((number, std::thread::current().id() != me))
                    .unwrap();
            });
        }
        let mut all: Vec<_> = (0..2 * THREADS).map(|_| results.recv().unwrap()).collect();
        all.sort_unstable();
        let expected: Vec<_> = (0..2 * THREADS).map(|number| (number, true)).collect();
        assert_eq!(all, expected);
        drop(release);
        while lock(&blocking_calls.0).threads > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn threads_are_bounded() {
        let blocking_calls = Arc::new(BlockingCalls::default());
        let (release, stuck) = mpsc::channel::<()>();
        let stuck = Arc::new(Mutex::new(stuck));
        for _ in 0..3 * THREADS {
            let stuck = Arc::clone(&stuck);
            blocking_calls.run(move || {
                let _ = lock(&stuck).recv();
            });
        }
        assert_eq!(lock(&blocking_calls.0).threads, THREADS);
        drop(release);
        while lock(&blocking_calls.0).threads > 0 {
            std::thread::yield_now();
        }
        assert!(lock(&blocking_calls.0).waiting.is_empty());
    }

    #[test]
    fn objects_left_during_call_are_settled_by_its_thread() {
        let pending = PendingCall::new();
        assert!(pending.is_in_progress());
        let outcome = pending.make(|| {
            assert!(pending.leave(7).is_ok());
            Err(io::ErrorKind::TimedOut.into())
        });
        assert!(matches!(outcome, CallOutcome::Left(7)), "{outcome:?}");
    }

    #[test]
    fn abandoned_call_is_not_made() {
        let pending = PendingCall::new();
        assert!(pending.leave(7).is_ok());
        let outcome = pending.make(|| unreachable!("no caller waits"));
        assert!(matches!(outcome, CallOutcome::Left(7)), "{outcome:?}");
    }

    #[test]
    fn objects_cannot_be_left_to_returned_call() {
        let pending = PendingCall::new();
        let outcome = pending.make(|| Err(io::ErrorKind::ConnectionRefused.into()));
        assert!(
            matches!(outcome, CallOutcome::Returned(Err(_))),
            "{outcome:?}"
        );
        assert!(!pending.is_in_progress());
        assert_eq!(pending.leave(7), Err(7));
    }
}
