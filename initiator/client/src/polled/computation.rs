//! Computations of authentications. Exponentiations run on threads of their own, so that other
//! connections of the polling thread do not wait for them.

use std::collections::VecDeque;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use nvmeof_initiator_core::SetupError;
use nvmeof_initiator_core::dhchap::{Refusal, SystemRandom, Work, WorkError, WorkResult};
use nvmeof_wire::auth::GroupId;

/// How often a computation is looked at: it takes from 2 ms to 70 ms.
const LOOK: Duration = Duration::from_millis(1);

/// Threads of the process that compute at a time: half of its processors, and at least two, so that
/// many queues that authenticate at once leave processors to others.
fn most_threads() -> usize {
    let processors = thread::available_parallelism().map_or(2, NonZero::get);
    (processors / 2).max(2)
}

/// The computations of one queue, one at a time.
#[derive(Debug, Default)]
pub(super) struct Computation {
    state: State,
    look_at: Option<Duration>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Ended(WorkResult),
    /// With a token: a thread does not begin a computation for which nobody waits any more.
    Running(Receiver<WorkResult>, Arc<()>),
}

impl Computation {
    /// Starts to run `work`.
    ///
    /// # Errors
    /// [`SetupError::Authentication`]: the system has no thread for it.
    pub(super) fn start(&mut self, work: Work) -> Result<(), SetupError> {
        self.state = match work.group() {
            // A few hashes.
            GroupId::NULL => State::Ended(work.run(&mut SystemRandom)),
            _ => {
                let ((sender, receiver), token) = (sync_channel(1), Arc::new(()));
                let job = Job {
                    work,
                    sender,
                    token: Arc::downgrade(&token),
                };
                push(job)?;
                State::Running(receiver, token)
            }
        };
        Ok(())
    }

    /// The result, once there is one.
    ///
    /// # Errors
    /// [`SetupError::Authentication`]: the thread has ended without one.
    pub(super) fn take_result(&mut self, now: Duration) -> Result<Option<WorkResult>, SetupError> {
        self.look_at = None;
        match std::mem::take(&mut self.state) {
            State::Idle => Ok(None),
            State::Ended(result) => Ok(Some(result)),
            State::Running(receiver, token) => match receiver.try_recv() {
                Ok(result) => Ok(Some(result)),
                Err(TryRecvError::Empty) => {
                    self.look_at = Some(now.saturating_add(LOOK));
                    self.state = State::Running(receiver, token);
                    Ok(None)
                }
                Err(TryRecvError::Disconnected) => {
                    Err(not_run("its thread has ended without a result"))
                }
            },
        }
    }

    /// When to look for the result, if it is being computed.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.look_at
    }
}

/// A computation for a thread.
#[derive(Debug)]
struct Job {
    work: Work,
    sender: SyncSender<WorkResult>,
    token: Weak<()>,
}

/// The computations of the process.
#[derive(Debug)]
struct Jobs {
    waiting: VecDeque<Job>,
    /// Threads that take them. A thread ends when there is none left.
    threads: usize,
}

static JOBS: Mutex<Jobs> = Mutex::new(Jobs {
    waiting: VecDeque::new(),
    threads: 0,
});

/// Has a thread run the job. It ends: threads wait for nothing, and each job takes at most 100 ms.
fn push(job: Job) -> Result<(), SetupError> {
    let mut jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner);
    jobs.waiting.push_back(job);
    if jobs.threads >= most_threads() {
        return Ok(());
    }
    let thread = thread::Builder::new().name("nvmeof-auth".to_owned());
    match thread.spawn(run_jobs) {
        Ok(_detached) => jobs.threads += 1,
        // Another one takes it.
        Err(_) if jobs.threads > 0 => {}
        Err(_) => {
            jobs.waiting.pop_back();
            return Err(not_run("the system has no thread for it"));
        }
    }
    Ok(())
}

fn run_jobs() {
    loop {
        let mut jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(job) = jobs.waiting.pop_front() else {
            jobs.threads = jobs.threads.saturating_sub(1);
            return;
        };
        drop(jobs);
        if job.token.strong_count() > 0 {
            // Without a result, the queue fails. A panic must not cost the thread, for which the
            // jobs of other queues wait.
            let run = AssertUnwindSafe(|| job.work.run(&mut SystemRandom));
            if let Ok(result) = catch_unwind(run) {
                // Without a receiver, the queue is gone.
                let _ = job.sender.send(result);
            }
        }
    }
}

fn not_run(why: &'static str) -> SetupError {
    SetupError::Authentication(Box::new(Refusal::Work(WorkError::NotRun(why))))
}
