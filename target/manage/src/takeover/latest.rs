//! A thread that executes one job at a time. A new job replaces one that has not begun: calls may
//! wait for a cluster without a limit, and what was asked for before does not matter any more.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// The thread. It ends when this is dropped, after the job that it executes.
pub(super) struct Latest<J> {
    shared: Arc<Shared<J>>,
    _thread: JoinHandle<()>,
}

struct Shared<J> {
    next: Mutex<Next<J>>,
    changed: Condvar,
}

struct Next<J> {
    job: Option<J>,
    has_ended: bool,
}

impl<J: Send + 'static> Latest<J> {
    /// Starts a thread that calls `execute` for each job.
    pub(super) fn start(
        name: &str,
        mut execute: impl FnMut(J) + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            next: Mutex::new(Next {
                job: None,
                has_ended: false,
            }),
            changed: Condvar::new(),
        });
        let jobs = Arc::clone(&shared);
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            while let Some(job) = jobs.wait() {
                execute(job);
            }
        })?;
        Ok(Self {
            shared,
            _thread: thread,
        })
    }

    /// Executes `job` next.
    pub(super) fn submit(&self, job: J) {
        self.shared.next().job = Some(job);
        self.shared.changed.notify_one();
    }
}

impl<J> Shared<J> {
    fn next(&self) -> MutexGuard<'_, Next<J>> {
        // A panic of a holder leaves nothing inconsistent.
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) -> Option<J> {
        let mut next = self.next();
        loop {
            if let Some(job) = next.job.take() {
                return Some(job);
            }
            if next.has_ended {
                return None;
            }
            let waited = self.changed.wait(next);
            next = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<J> Drop for Latest<J> {
    fn drop(&mut self) {
        self.shared.next().has_ended = true;
        self.shared.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn job_that_has_not_begun_is_replaced() {
        let (begun, is_begun) = channel();
        let (go, may_go) = channel::<()>();
        let latest = Latest::start("test", move |job: u32| {
            begun.send(job).unwrap();
            may_go.recv().unwrap();
        })
        .unwrap();
        latest.submit(1);
        assert_eq!(is_begun.recv(), Ok(1));
        latest.submit(2);
        latest.submit(3);
        go.send(()).unwrap();
        assert_eq!(is_begun.recv(), Ok(3));
        // The last job is executed although no other one can follow.
        latest.submit(4);
        drop(latest);
        go.send(()).unwrap();
        assert_eq!(is_begun.recv(), Ok(4));
        go.send(()).unwrap();
        assert!(is_begun.recv().is_err());
    }
}
