//! The worker threads of a target.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use nvmeof_dhchap::{Exchange, Random, SystemRandom};
use nvmeof_wire::auth::GroupId;

use super::fair::JobQueue;
use super::pairs::Pairs;
use super::{ComputeJob, ComputeWorkers};

/// Threads that run the computations of all reactors of a target. Dropping it waits for the
/// computations in progress, a few tens of milliseconds, and refuses all others.
pub struct WorkerPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wakeup: Condvar,
}

#[derive(Default)]
struct State {
    jobs: JobQueue,
    pairs: Pairs,
    is_stopping: bool,
}

/// What a worker does next.
enum Task {
    Run(Box<ComputeJob>, Option<Exchange>),
    Generate(GroupId),
}

impl WorkerPool {
    /// Starts `threads` workers, at least one. They inherit the CPU affinity of the caller.
    ///
    /// # Errors
    /// If the kernel cannot create a thread.
    pub fn start(threads: usize) -> io::Result<Arc<Self>> {
        Self::start_with(threads, || SystemRandom)
    }

    /// As [`start`](Self::start); each worker has random numbers of its own.
    fn start_with<R: Random>(
        threads: usize,
        random: impl Fn() -> R + Clone + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let mut pool = Self {
            shared: Arc::default(),
            threads: Vec::new(),
        };
        for number in 0..threads.max(1) {
            let (shared, random) = (Arc::clone(&pool.shared), random.clone());
            let thread = std::thread::Builder::new()
                .name(format!("authenticator-{number}"))
                .spawn(move || shared.serve(&mut random()))?;
            pool.threads.push(thread);
        }
        Ok(Arc::new(pool))
    }
}

impl ComputeWorkers for WorkerPool {
    fn submit(&self, job: ComputeJob) {
        self.shared.state().jobs.push(job);
        self.shared.wakeup.notify_one();
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        let refused = {
            let mut state = self.shared.state();
            state.is_stopping = true;
            // Dropped without the lock.
            std::mem::take(&mut state.jobs)
        };
        self.shared.wakeup.notify_all();
        drop(refused);
        for thread in self.threads.drain(..) {
            // A worker survives what it runs.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop of a worker.
    fn serve(&self, random: &mut dyn Random) {
        while let Some(task) = self.next() {
            match task {
                Task::Run(job, prepared) => run(*job, prepared, random),
                Task::Generate(group) => {
                    let generate = AssertUnwindSafe(|| Exchange::generate(group, random).ok());
                    let exchange = catch_unwind(generate).unwrap_or_default();
                    self.state().pairs.generated(group, exchange);
                }
            }
        }
    }

    /// Waits for the next task. Jobs come before exchanges for later. `None`: the pool stops.
    fn next(&self) -> Option<Task> {
        let mut state = self.state();
        loop {
            if state.is_stopping {
                return None;
            }
            if let Some(job) = state.jobs.pop() {
                let prepared = job.generates().and_then(|group| state.pairs.take(group));
                return Some(Task::Run(Box::new(job), prepared));
            }
            if let Some(group) = state.pairs.begin() {
                return Some(Task::Generate(group));
            }
            let waited = self.wakeup.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Runs a job. If it panics, the job is dropped, which refuses it.
fn run(job: ComputeJob, prepared: Option<Exchange>, random: &mut dyn Random) {
    let group = job.group().name();
    if catch_unwind(AssertUnwindSafe(|| job.run_with(prepared, random))).is_err() {
        tracing::error!(
            group,
            "authentication failed: its computation panicked; please report this"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use nvmeof_dhchap::RandomError;

    use super::super::PendingJob;
    use super::super::pairs::KEPT;
    use super::super::testing::{host, job, results, unproven};
    use super::*;
    use crate::{Mail, Mailbox};

    /// Waits until `done`.
    fn until(mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "it takes too long"
            );
            std::thread::yield_now();
        }
    }

    /// Submits a job and waits for its result.
    fn result(pool: &WorkerPool, mailbox: &Mailbox, group: GroupId) -> (u16, bool) {
        let (job, _pending) = job(group, unproven(1), mailbox, 1);
        pool.submit(job);
        until(|| mailbox.take().contains(Mail::ORDERS));
        results(mailbox)[0]
    }

    #[test]
    fn result_wakes_the_reactor() {
        let pool = WorkerPool::start(2).unwrap();
        let mailbox = Mailbox::new().unwrap();
        for group in [GroupId::NULL, GroupId::FFDHE2048] {
            assert_eq!(result(&pool, &mailbox, group), (1, true));
        }
    }

    #[test]
    fn used_group_is_refilled_when_idle() {
        let pool = WorkerPool::start(1).unwrap();
        let mailbox = Mailbox::new().unwrap();
        let count = |group| pool.shared.state().pairs.count(group);
        assert_eq!(result(&pool, &mailbox, GroupId::FFDHE2048), (1, true));
        until(|| count(GroupId::FFDHE2048) == KEPT);
        assert_eq!(count(GroupId::FFDHE3072), 0);
    }

    /// Counts what it is asked for: an exponent is 64 bytes.
    #[derive(Clone)]
    struct Counting(Arc<Mutex<Vec<usize>>>);

    impl Random for Counting {
        fn fill(&mut self, bytes: &mut [u8]) -> Result<(), RandomError> {
            self.0.lock().unwrap().push(bytes.len());
            SystemRandom.fill(bytes)
        }
    }

    #[test]
    fn challenge_with_prepared_exchange_generates_none() {
        let counting = Counting(Arc::default());
        let random = counting.clone();
        let pool = WorkerPool::start_with(1, move || random.clone()).unwrap();
        let mailbox = Mailbox::new().unwrap();
        let full = |pool: &WorkerPool| {
            let state = pool.shared.state();
            state.pairs.count(GroupId::FFDHE2048) == KEPT
        };
        assert_eq!(result(&pool, &mailbox, GroupId::FFDHE2048), (1, true));
        until(|| full(&pool));
        counting.0.lock().unwrap().clear();
        assert_eq!(result(&pool, &mailbox, GroupId::FFDHE2048), (1, true));
        until(|| full(&pool));
        // Challenge and sequence number, then the exponent of the refill.
        assert_eq!(*counting.0.lock().unwrap(), [32, 4, 64]);
    }

    struct Panicking;

    impl Random for Panicking {
        fn fill(&mut self, _: &mut [u8]) -> Result<(), RandomError> {
            panic!("as the test wants")
        }
    }

    #[test]
    fn panicking_job_is_refused_and_its_worker_survives() {
        let pool = WorkerPool::start_with(1, || Panicking).unwrap();
        let mailbox = Mailbox::new().unwrap();
        for _ in 0..3 {
            assert_eq!(result(&pool, &mailbox, GroupId::FFDHE2048), (1, false));
        }
    }

    /// Random numbers that are not available before the gate is open.
    #[derive(Clone, Default)]
    struct Gated(Arc<(Mutex<bool>, Condvar)>);

    impl Gated {
        fn open(&self) {
            let (is_open, opened) = &*self.0;
            *is_open.lock().unwrap() = true;
            opened.notify_all();
        }
    }

    impl Random for Gated {
        fn fill(&mut self, bytes: &mut [u8]) -> Result<(), RandomError> {
            let (is_open, opened) = &*self.0;
            let is_open = is_open.lock().unwrap();
            drop(opened.wait_while(is_open, |is_open| !*is_open).unwrap());
            SystemRandom.fill(bytes)
        }
    }

    #[test]
    fn stopping_ends_the_job_in_progress_and_refuses_all_others() {
        let gate = Gated::default();
        let random = gate.clone();
        let pool = WorkerPool::start_with(1, move || random.clone()).unwrap();
        let shared = Arc::clone(&pool.shared);
        let mailbox = Mailbox::new().unwrap();
        let jobs = (0..50).map(|number| job(GroupId::FFDHE2048, host(1), &mailbox, number));
        let pending: Vec<PendingJob> = jobs
            .map(|(job, pending)| {
                pool.submit(job);
                pending
            })
            .collect();
        until(|| shared.state().jobs.len() == 49);
        let stopper = std::thread::spawn(move || drop(pool));
        until(|| shared.state().is_stopping);
        gate.open();
        stopper.join().unwrap();
        let results = results(&mailbox);
        assert_eq!(results.len(), pending.len(), "each has one");
        let succeeded: Vec<u16> = results
            .iter()
            .filter(|one| one.1)
            .map(|one| one.0)
            .collect();
        assert_eq!(succeeded, [0]);
    }
}
