//! Threads for calls that wait in the kernel, so that the thread of a provider
//! never does.
//!
//! Linux `siw` makes its TCP connection inside `rdma_connect` and waits for
//! it: not at all for a peer that refuses, two minutes (`tcp_syn_retries`) for
//! one that is silent, and no option of an id changes that. Later, destroying
//! an id or its queue pair waits until the peer's MPA reply is there or its
//! time-out of ten seconds: that is connection management of iWARP as such, so
//! every driver may do it. One silent peer would hold up all connections of a
//! provider, hence a few threads and not one; each lasts as long as there is
//! work.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

use nvmeof_rdma::explain;

use crate::lock::lock;

/// Calls at a time; more wait for one of these to end.
const THREADS: usize = 16;
/// They call one function of C, and nothing deep.
const STACK: usize = 128 << 10;

type Job = Box<dyn FnOnce() + Send>;

/// Does what is asked of it in other threads, which end by themselves.
#[derive(Default)]
pub(crate) struct BlockingCalls(Mutex<Jobs>);

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    threads: usize,
}

impl std::fmt::Debug for BlockingCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Aside").finish_non_exhaustive()
    }
}

impl BlockingCalls {
    /// Has `job` done, at once unless all threads are in a call.
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
            // Late is better than never.
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

    /// The next job. Without one the thread that asks is done.
    fn next(&self) -> Option<Job> {
        let mut jobs = lock(&self.0);
        let job = jobs.waiting.pop_front();
        if job.is_none() {
            jobs.threads -= 1;
        }
        job
    }
}

/// A call that another thread makes on behalf of one that does not wait for
/// it. Whoever is the last to need what the call uses cleans up: the thread,
/// if it was left to it before the call came back.
#[derive(Debug)]
pub(crate) struct Calling<T>(Mutex<State<T>>);

#[derive(Debug)]
enum State<T> {
    UnderWay,
    Back,
    /// Nobody waits for the call; this is to be settled after it.
    Left(T),
}

/// How a call ended.
#[derive(Debug)]
pub(crate) enum Called<T> {
    /// With this result.
    Back(io::Result<()>),
    /// This was left meanwhile.
    Left(T),
}

impl<T> Calling<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State::UnderWay))
    }

    pub(crate) fn is_under_way(&self) -> bool {
        matches!(*lock(&self.0), State::UnderWay)
    }

    /// Leaves `what` to the thread of the call.
    ///
    /// # Errors
    /// Gives it back when the call is back already.
    pub(crate) fn leave(&self, what: T) -> Result<(), T> {
        let mut state = lock(&self.0);
        match *state {
            State::UnderWay => {
                *state = State::Left(what);
                Ok(())
            }
            State::Back | State::Left(_) => Err(what),
        }
    }

    /// Makes the call, unless nobody waits for it any more. In the other
    /// thread.
    pub(crate) fn make(&self, call: impl FnOnce() -> io::Result<()>) -> Called<T> {
        // Short: the lock is not held during the call.
        let result = if self.is_under_way() {
            call()
        } else {
            drop(call);
            Ok(())
        };
        match std::mem::replace(&mut *lock(&self.0), State::Back) {
            State::Left(what) => Called::Left(what),
            State::UnderWay | State::Back => Called::Back(result),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn jobs_run_elsewhere_and_a_stuck_one_holds_up_nobody() {
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
    fn what_is_left_under_a_call_is_settled_by_its_thread() {
        let calling = Calling::new();
        assert!(calling.is_under_way());
        let called = calling.make(|| {
            assert!(calling.leave(7).is_ok());
            Err(io::ErrorKind::TimedOut.into())
        });
        assert!(matches!(called, Called::Left(7)), "{called:?}");
    }

    #[test]
    fn a_call_that_nobody_waits_for_is_not_made() {
        let calling = Calling::new();
        assert!(calling.leave(7).is_ok());
        let called = calling.make(|| unreachable!("nobody waits"));
        assert!(matches!(called, Called::Left(7)), "{called:?}");
    }

    #[test]
    fn nothing_can_be_left_to_a_call_that_is_back() {
        let calling = Calling::new();
        let called = calling.make(|| Err(io::ErrorKind::ConnectionRefused.into()));
        assert!(matches!(called, Called::Back(Err(_))), "{called:?}");
        assert!(!calling.is_under_way());
        assert_eq!(calling.leave(7), Err(7));
    }
}
