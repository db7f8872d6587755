//! A polled queue shared between the tasks that call it and the task that
//! drives it.

mod queues;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_initiator_core::ControllerEvent;
use nvmeof_initiator_core::dhchap::HostKeys;
use nvmeof_memory::Buf;
use nvmeof_polling::{NextStep, Polling, PollingConfig};
use nvmeof_rdma::Refused;
use slab::Slab;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use crate::deadline::Deadline;
use crate::error::{Awaited, Error, MachineError, UsageError};
use crate::pollable::Pollable;
use crate::polled::{AdminQueue, Call, Done, IoQueue, SubmitError, Withdrawn};
use crate::spread::Availability;

/// A queue that a task can drive.
pub(crate) trait Drive: Pollable + Send + 'static {
    fn submit(&mut self, call: Call, now: Duration) -> Result<(), Refused<Call, SubmitError>>;
    fn submit_now(&mut self, now: Duration);
    fn in_flight(&self) -> usize;
    fn is_ready(&self) -> bool;
    /// The task of call `user` waits no more: the call is not sent again. Returns it if none of
    /// its commands is in flight.
    fn withdraw(&mut self, user: u64) -> Option<Withdrawn>;
    /// Whether an asynchronous event is pending.
    fn has_event(&self) -> bool {
        false
    }
    /// Requests that the queue is authenticated again.
    fn reauthenticate(&mut self, keys: Option<Arc<HostKeys>>) -> Result<(), Error>;
    /// Whether that has ended.
    fn has_reauthentication(&self) -> bool;
    /// Its result, once.
    fn take_reauthentication(&mut self) -> Option<Result<(), Error>>;
    /// Shuts the queue down.
    fn finish(&mut self, now: Duration);
    /// Closes the queue because of `why`.
    fn fail(&mut self, why: Error);
    /// Closes the queue because its runtime has ended.
    fn abandon(&mut self);
}

/// A queue, its calls, and the notification of its driver.
pub(crate) struct Shared<Q> {
    state: Mutex<State<Q>>,
    /// Wakes the driver.
    notify: Notify,
    /// The time 0 of the queue.
    start: Instant,
    /// Time that the driver polls before it sleeps.
    spin: Duration,
}

struct State<Q> {
    queue: Q,
    /// Calls since the last poll, and the bytes that they move.
    fresh: usize,
    fresh_bytes: u64,
    /// Calls of the last batch that was not empty.
    last_fresh: usize,
    /// Iterations of the driver without a call in flight.
    unused: u32,
    /// Time of the last poll, unless the driver sleeps: precise enough, and cheaper than
    /// reading the clock.
    polled_at: Option<Duration>,
    tickets: Slab<Ticket>,
    /// Calls that wait for room in the queue, oldest first.
    backlog: VecDeque<Call>,
    done: Vec<Done>,
    /// Tasks that wait for the queue to become ready or closed.
    watchers: Vec<Waker>,
    /// Tasks that wait for an event of the controller, for an authentication, or for the queue to
    /// fail.
    event_watchers: Vec<Waker>,
    /// Whether they were woken because of the authentication that has ended.
    has_told: bool,
}

/// A call in progress, with the waker of its task.
enum Ticket {
    Waiting(Waker),
    Ended(Done),
    /// Its task waits no more: its buffer returns to its pool when it completes.
    Abandoned,
}

/// What became of a call whose task waits no more.
enum GivenUp {
    /// It has ended before.
    Ended(Done),
    /// It is withdrawn: no command of it was sent.
    NotSent(Call),
    /// It waited for the authentication of the queue, and is withdrawn.
    Refused(Withdrawn),
    /// Commands of it were sent: its buffer returns to its pool when they end.
    Sent,
}

/// The result of a call, with its buffer.
pub(crate) type CallResult = (Result<u64, Error>, Option<Buf>);

impl<Q: Drive> Shared<Q> {
    /// Shares `queue`, whose time 0 is `start`, and drives it in a task until it is closed.
    /// While calls are in flight, the task polls for `spin` before it sleeps.
    pub(crate) fn start(queue: Q, start: Instant, spin: Duration) -> Result<Arc<Self>, Error> {
        let fd = queue.wait_fd().map(|fd| fd.try_clone_to_owned());
        let fd = fd.transpose().map_err(no_runtime)?;
        let fd = fd.map(watch).transpose().map_err(no_runtime)?;
        let state = State {
            queue,
            fresh: 0,
            fresh_bytes: 0,
            last_fresh: 0,
            unused: 0,
            polled_at: None,
            tickets: Slab::new(),
            backlog: VecDeque::new(),
            done: Vec::new(),
            watchers: Vec::new(),
            event_watchers: Vec::new(),
            has_told: false,
        };
        let shared = Arc::new(Self {
            state: Mutex::new(state),
            notify: Notify::new(),
            start,
            spin,
        });
        let driver = Driver(Arc::clone(&shared));
        tokio::spawn(async move { drive(&driver.0, fd).await });
        Ok(shared)
    }

    /// Makes a call. Dropping the future withdraws it if no command of it was sent, and does not
    /// cancel it otherwise.
    pub(crate) fn call(self: &Arc<Self>, call: Call) -> Calling<Q> {
        Calling {
            shared: Arc::clone(self),
            step: Step::New(Some(call)),
        }
    }

    /// Accesses the queue.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut Q) -> T) -> T {
        look(&mut self.lock().queue)
    }

    /// Waits until the queue accepts calls.
    pub(crate) async fn ready(&self) -> Result<(), Error> {
        poll_fn(|context| {
            let mut state = self.lock();
            match state.queue.error() {
                // Only when closed: all memory is returned then.
                Some(error) if state.queue.is_closed() => Poll::Ready(Err(error.clone())),
                None if state.queue.is_ready() => Poll::Ready(Ok(())),
                _ => {
                    state.watchers.push(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Waits until the queue is closed; returns the reason.
    pub(crate) async fn closed(&self) -> Option<Error> {
        poll_fn(|context| {
            let mut state = self.lock();
            if state.queue.is_closed() {
                return Poll::Ready(state.queue.error().cloned());
            }
            state.watchers.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Waits until the queue has failed; returns the reason. Its calls may still be in
    /// progress.
    pub(crate) async fn failed(&self) -> Error {
        poll_fn(|context| {
            let mut state = self.lock();
            if let Some(error) = state.queue.error() {
                return Poll::Ready(error.clone());
            }
            state.watch_events(context.waker());
            Poll::Pending
        })
        .await
    }

    /// Authenticates the queue again, with `keys` or those of the last time. One task at a time.
    pub(crate) async fn reauthenticate(&self, keys: Option<Arc<HostKeys>>) -> Result<(), Error> {
        {
            let mut state = self.lock();
            state.queue.reauthenticate(keys)?;
            state.has_told = false;
        }
        self.notify.notify_one();
        poll_fn(|context| {
            let mut state = self.lock();
            if let Some(result) = state.queue.take_reauthentication() {
                return Poll::Ready(result);
            }
            if let Some(error) = state.queue.error() {
                return Poll::Ready(Err(error.clone()));
            }
            state.watch_events(context.waker());
            Poll::Pending
        })
        .await
    }

    /// Shuts the queue down.
    pub(crate) fn finish(&self) {
        let now = self.now();
        self.lock().queue.finish(now);
        self.notify.notify_one();
    }

    /// Closes the queue because of `why`.
    pub(crate) fn fail(&self, why: Error) {
        self.lock().queue.fail(why);
        self.notify.notify_one();
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, State<Q>> {
        // A panic of another thread leaves the queue as consistent as an early return; its
        // calls still complete or fail.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Q: Drive> State<Q> {
    /// Accepts a call for the task of `waker`; returns its ticket.
    fn begin(&mut self, mut call: Call, waker: Waker, now: Duration) -> usize {
        let key = self.tickets.insert(Ticket::Waiting(waker));
        call.user = u64::try_from(key).unwrap_or_default();
        self.fresh += 1;
        self.fresh_bytes = self.fresh_bytes.saturating_add(call.work.bytes());
        if self.backlog.is_empty() {
            self.submit(call, now);
        } else {
            self.backlog.push_back(call);
        }
        key
    }

    /// One iteration of the driver. Returns the next step, whether calls are in flight, and when
    /// to poll at the latest; `None` if the queue is closed and all tasks have been woken.
    fn iterate(
        &mut self,
        polling: &mut Polling,
        now: Duration,
    ) -> Option<(NextStep, bool, Option<Duration>)> {
        if self.lingers() {
            self.polled_at = Some(now);
            return Some((NextStep::Continue, false, None));
        }
        let mut progress = self.poll(now);
        for _ in 0..AGAIN {
            if progress || self.queue.in_flight() == 0 {
                break;
            }
            progress = self.poll(now);
        }
        if self.is_finished() {
            return None;
        }
        let waits = self.queue.in_flight() > 0;
        let next = match polling.after_iteration(progress, now) {
            // Nothing is in flight.
            NextStep::Continue | NextStep::Yield if !progress && !waits => NextStep::Sleep,
            // A queue without calls is likely to get the next one soon: it stays awake while
            // the provider polls by itself.
            NextStep::Sleep if waits && !self.rests(now) => polling.without_sleep(now),
            next => next,
        };
        self.polled_at = (next != NextStep::Sleep).then_some(now);
        Some((next, waits, self.queue.next_deadline()))
    }

    /// Whether the driver only lets other tasks run: the last call has just ended (or the queue is
    /// new), so the next ones are likely, and a sleep would take longer than they do.
    fn lingers(&mut self) -> bool {
        let is_unused = self.fresh == 0 && self.queue.in_flight() == 0;
        self.unused = match is_unused {
            true => self.unused.saturating_add(1),
            false => 0,
        };
        (1..=LINGER).contains(&self.unused)
    }

    /// Whether the queue is closed and every call has ended.
    fn is_finished(&self) -> bool {
        self.queue.is_closed() && self.backlog.is_empty()
    }

    /// Prepares the queue for sleep. Returns false if there is work already.
    fn rests(&mut self, now: Duration) -> bool {
        self.queue.rest();
        self.queue.next_deadline().is_none_or(|at| at > now)
    }

    /// The result of the call, if it has ended; otherwise stores `waker`.
    fn ended(&mut self, key: usize, waker: &Waker) -> Option<Done> {
        match self.tickets.get_mut(key)? {
            Ticket::Ended(_) => {}
            Ticket::Waiting(waiting) => {
                waiting.clone_from(waker);
                return None;
            }
            Ticket::Abandoned => return None,
        }
        match self.tickets.remove(key) {
            Ticket::Ended(done) => Some(done),
            Ticket::Waiting(_) | Ticket::Abandoned => None,
        }
    }

    /// Submits a call to the queue, or keeps it until there is room.
    fn submit(&mut self, call: Call, now: Duration) -> bool {
        let Err(Refused { why, back }) = self.queue.submit(call, now) else {
            return true;
        };
        let error = match why {
            SubmitError::Full => {
                self.backlog.push_front(back);
                return false;
            }
            SubmitError::NotConnected(error) => error,
            SubmitError::Buffer(why) => match MachineError::not_exposed(&why) {
                Some(error) => error.into(),
                None => UsageError::ForeignBuffer.into(),
            },
            why @ (SubmitError::Narrow | SubmitError::Empty) => {
                UsageError::Other(why.to_string()).into()
            }
            why @ (SubmitError::Length { .. } | SubmitError::Refused(_)) => {
                MachineError::Internal(why.to_string()).into()
            }
        };
        self.end(Done {
            user: back.user,
            buf: back.buf,
            result: Err(error),
            work: None,
        });
        true
    }

    /// Polls the queue and wakes the tasks of completed calls. Returns whether there was
    /// progress.
    fn poll(&mut self, now: Duration) -> bool {
        let mut done = std::mem::take(&mut self.done);
        let mut progress = self.queue.poll(now, &mut done);
        if self.fresh > 0 {
            self.last_fresh = std::mem::take(&mut self.fresh);
            self.fresh_bytes = 0;
            progress = true;
        }
        for call in done.drain(..) {
            self.end(call);
        }
        self.done = done;
        while let Some(call) = self.backlog.pop_front() {
            if !self.submit(call, now) {
                break;
            }
            progress = true;
        }
        self.queue.submit_now(now);
        let has_failed = self.queue.error().is_some();
        if has_failed || self.queue.is_ready() {
            self.watchers.drain(..).for_each(Waker::wake);
        }
        // Its task may have been cancelled, and never takes the result.
        let is_new = self.queue.has_reauthentication() && !self.has_told;
        self.has_told |= is_new;
        if has_failed || self.queue.has_event() || is_new {
            self.event_watchers.drain(..).for_each(Waker::wake);
        }
        progress
    }

    fn watch_events(&mut self, waker: &Waker) {
        let watchers = &mut self.event_watchers;
        if !watchers.iter().any(|known| known.will_wake(waker)) {
            watchers.push(waker.clone());
        }
    }

    /// Ends a call whose task waits no more; its ticket is not used any more.
    fn give_up(&mut self, key: usize) -> GivenUp {
        if matches!(self.tickets.get(key), Some(Ticket::Ended(_))) {
            return match self.tickets.remove(key) {
                Ticket::Ended(done) => GivenUp::Ended(done),
                Ticket::Waiting(_) | Ticket::Abandoned => GivenUp::Sent,
            };
        }
        let user = u64::try_from(key).unwrap_or_default();
        if let Some(at) = self.backlog.iter().position(|call| call.user == user)
            && let Some(call) = self.backlog.remove(at)
        {
            self.tickets.remove(key);
            return GivenUp::NotSent(call);
        }
        if let Some(withdrawn) = self.queue.withdraw(user) {
            self.tickets.remove(key);
            return GivenUp::Refused(withdrawn);
        }
        if let Some(ticket) = self.tickets.get_mut(key) {
            *ticket = Ticket::Abandoned;
        }
        GivenUp::Sent
    }

    fn end(&mut self, done: Done) {
        let Ok(key) = usize::try_from(done.user) else {
            return;
        };
        let Some(ticket) = self.tickets.get_mut(key) else {
            return;
        };
        match std::mem::replace(ticket, Ticket::Ended(done)) {
            Ticket::Waiting(waker) => waker.wake(),
            Ticket::Ended(_) => {}
            Ticket::Abandoned => drop(self.tickets.remove(key)),
        }
    }
}

impl Shared<IoQueue> {
    /// What the queue would do with one more call.
    pub(crate) fn availability(&self) -> Availability {
        let state = self.lock();
        let queue = &state.queue;
        if !queue.is_ready() {
            Availability::Lost
        } else if !state.backlog.is_empty() || queue.connection().in_flight() >= queue.depth() {
            Availability::Full
        } else if queue.connection().in_flight() == 0
            || (state.fresh > 0 && state.fresh_bytes < TOGETHER)
        {
            Availability::Collecting
        } else {
            Availability::Open
        }
    }
}

impl Shared<AdminQueue> {
    /// Waits for the next asynchronous event.
    ///
    /// # Errors
    /// The queue has failed or is closed.
    pub(crate) async fn event(&self) -> Result<ControllerEvent, Error> {
        poll_fn(|context| {
            let mut state = self.lock();
            if let Some(event) = state.queue.take_event() {
                return Poll::Ready(Ok(event));
            }
            if let Some(error) = state.queue.error() {
                return Poll::Ready(Err(error.clone()));
            }
            state.watch_events(context.waker());
            Poll::Pending
        })
        .await
    }
}

/// The future of a call.
pub(crate) struct Calling<Q: Drive> {
    shared: Arc<Shared<Q>>,
    step: Step,
}

enum Step {
    New(Option<Call>),
    Made(usize),
    Over,
}

impl<Q: Drive> Shared<Q> {
    /// Makes a call for the task of `waker`; returns its ticket.
    fn make(&self, call: Call, waker: &Waker) -> usize {
        let mut state = self.lock();
        let now = state.polled_at.unwrap_or_else(|| self.now());
        let idle = state.queue.in_flight() == 0;
        let key = state.begin(call, waker.clone(), now);
        // A call that is alone, or whose driver sleeps, is sent immediately. Others wait for the
        // next poll of the driver, so that concurrent calls are sent together.
        if idle && (state.last_fresh <= 1 || state.polled_at.is_none()) {
            state.queue.submit_now(now);
        }
        drop(state);
        self.notify.notify_one();
        key
    }

    /// Ends a call whose task waits no more.
    fn give_up(&self, key: usize) -> GivenUp {
        let given_up = self.lock().give_up(key);
        if matches!(given_up, GivenUp::Refused(_)) {
            // Calls that wait behind it may be sent.
            self.notify.notify_one();
        }
        given_up
    }
}

impl<Q: Drive> Future for Calling<Q> {
    type Output = CallResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CallResult> {
        let Self { shared, step } = &mut *self;
        let waker = context.waker();
        let key = match step {
            Step::New(call) => {
                let Some(call) = call.take() else {
                    return Poll::Pending;
                };
                let key = shared.make(call, waker);
                *step = Step::Made(key);
                return Poll::Pending;
            }
            Step::Made(key) => *key,
            Step::Over => return Poll::Pending,
        };
        let ended = shared.lock().ended(key, waker);
        let Some(done) = ended else {
            return Poll::Pending;
        };
        *step = Step::Over;
        Poll::Ready((done.result, done.buf))
    }
}

impl<Q: Drive> Calling<Q> {
    /// The result, or at `deadline` the error that it has passed.
    pub(crate) async fn until(mut self, deadline: Deadline) -> CallResult {
        let name = self.name();
        if !deadline.has_passed()
            && let Ok(ended) = tokio::time::timeout_at(deadline.at, &mut self).await
        {
            return ended;
        }
        self.give_up(deadline, name)
    }

    /// The name of its command, and whether that changes data. Only before its first poll.
    fn name(&self) -> (&'static str, bool) {
        match &self.step {
            Step::New(Some(call)) => (call.work.name(), call.work.changes_data()),
            Step::New(None) | Step::Made(_) | Step::Over => ("a command", true),
        }
    }

    /// Ends it because its deadline has passed.
    fn give_up(&mut self, deadline: Deadline, (name, changes): (&'static str, bool)) -> CallResult {
        let given_up = match std::mem::replace(&mut self.step, Step::Over) {
            // It was never polled, and did not wait for anything.
            Step::New(Some(call)) => {
                return (Err(deadline.error(Awaited::Submission, false)), call.buf);
            }
            Step::Made(key) => self.shared.give_up(key),
            Step::New(None) | Step::Over => GivenUp::Sent,
        };
        match given_up {
            GivenUp::Ended(done) => (done.result, done.buf),
            GivenUp::NotSent(call) => (Err(deadline.error(Awaited::Room, false)), call.buf),
            GivenUp::Refused(Withdrawn {
                call,
                may_have_executed,
            }) => {
                let error = deadline.error(Awaited::Authentication, changes && may_have_executed);
                (Err(error), call.buf)
            }
            GivenUp::Sent => {
                let error = deadline.error(Awaited::Completion(name), changes);
                (Err(error), None)
            }
        }
    }
}

/// Waits for all of `calls`, at most until `deadline`. Returns their results in order.
pub(crate) async fn all<Q: Drive>(
    mut calls: Vec<Calling<Q>>,
    deadline: Option<Deadline>,
) -> Vec<CallResult> {
    let names: Vec<_> = calls.iter().map(Calling::name).collect();
    let mut results: Vec<Option<CallResult>> = calls.iter().map(|_| None).collect();
    let ended = poll_fn(|context| {
        for (call, result) in calls.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(ended) = Pin::new(call).poll(context)
            {
                *result = Some(ended);
            }
        }
        match results.iter().all(Option::is_some) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    });
    match deadline {
        None => ended.await,
        // The results have what has ended until then.
        Some(deadline) if !deadline.has_passed() => {
            let _ = tokio::time::timeout_at(deadline.at, ended).await;
        }
        Some(_) => {}
    }
    let each = calls.iter_mut().zip(names).zip(results);
    let results = each.filter_map(|((call, name), result)| {
        result.or_else(|| Some(call.give_up(deadline?, name)))
    });
    results.collect()
}

impl<Q: Drive> Drop for Calling<Q> {
    fn drop(&mut self) {
        if let Step::Made(key) = self.step {
            // Without the lock: a buffer may wake a task that waits for it.
            let given_up = self.shared.give_up(key);
            drop(given_up);
        }
    }
}

/// The driver of a queue. It is dropped before the queue is closed if the runtime of its
/// task ends.
struct Driver<Q: Drive>(Arc<Shared<Q>>);

impl<Q: Drive> Drop for Driver<Q> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if state.is_finished() {
            return;
        }
        state.queue.abandon();
        drop(state);
        // No task may be left to close it: the program may have no runtime any more, or one
        // that does not wake tasks of the former runtime.
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("nvmeof-closing".to_owned());
        if let Err(error) = thread.spawn(move || shared.close_down()) {
            tracing::error!(
                %error,
                "cannot start a thread to close a queue whose runtime has ended"
            );
        }
    }
}

impl<Q: Drive> Shared<Q> {
    /// Polls until the queue is closed, which takes a bounded time.
    fn close_down(&self) {
        loop {
            let now = self.now();
            let mut state = self.lock();
            state.poll(now);
            if state.is_finished() {
                return;
            }
            drop(state);
            std::thread::sleep(TICK);
        }
    }
}

/// Drives a queue until it is closed.
async fn drive<Q: Drive>(shared: &Shared<Q>, fd: Option<AsyncFd<OwnedFd>>) {
    let config = PollingConfig {
        longest: shared.spin,
        learns: true,
    };
    let mut polling = Polling::new(config, shared.now());
    loop {
        let now = shared.now();
        let Some((next, waits, deadline)) = shared.lock().iterate(&mut polling, now) else {
            return;
        };
        match next {
            NextStep::Continue => yield_to_ready_tasks().await,
            NextStep::Yield => {
                polling.yield_cpu(|| shared.now());
                yield_to_ready_tasks().await;
            }
            NextStep::Sleep if has_more(fd.as_ref()) => tokio::task::yield_now().await,
            NextStep::Sleep => {
                sleep(shared, fd.as_ref(), deadline).await;
                if waits {
                    polling.slept(shared.now().saturating_sub(now));
                }
            }
        }
    }
}

/// Sleeps until a notification, an event of the provider, or `deadline`.
async fn sleep<Q: Drive>(
    shared: &Shared<Q>,
    fd: Option<&AsyncFd<OwnedFd>>,
    deadline: Option<Duration>,
) {
    let deadline = deadline.unwrap_or(shared.now() + IDLE);
    let until = tokio::time::Instant::from_std(shared.start + deadline);
    tokio::select! {
        () = shared.notify.notified() => {}
        () = readable(fd) => {}
        () = tokio::time::sleep_until(until) => {}
    }
}

/// Yields to tasks that are ready. Unlike [`tokio::task::yield_now`], it does not make the
/// runtime poll the kernel for events each time, which would take longer than a completion;
/// the runtime does so at intervals.
async fn yield_to_ready_tasks() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Polls without progress before the driver yields to other tasks, which takes as long as a
/// few polls.
const AGAIN: u32 = 3;
/// Iterations without a call in flight before the driver polls and sleeps.
const LINGER: u32 = 20;
/// Bytes of calls that a queue collects before calls go to the next one. With more, a send costs
/// little compared with the data, and other queues may have other reactors of the target.
const TOGETHER: u64 = 128 * 1024;
/// Longest sleep without a deadline.
const IDLE: Duration = Duration::from_secs(3600);
/// Longest sleep without a descriptor.
const TICK: Duration = Duration::from_millis(1);

/// Whether the descriptor is readable now. The runtime reports only changes, and a provider
/// may not process all events in one poll. Events that were pending before the readiness was
/// cleared would not be reported again.
fn has_more(fd: Option<&AsyncFd<OwnedFd>>) -> bool {
    let Some(fd) = fd else { return false };
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    // An error means not readable; the deadline wakes the task then.
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Waits until the provider has events. Clears the readiness before the poll, so that later
/// events are reported again.
async fn readable(fd: Option<&AsyncFd<OwnedFd>>) {
    match fd {
        Some(fd) => {
            if let Ok(mut guard) = fd.readable().await {
                guard.clear_ready();
            }
        }
        None => tokio::time::sleep(TICK).await,
    }
}

#[allow(
    deprecated,
    reason = "its replacement is unsafe because of types that close their descriptor \
              early; an OwnedFd does not"
)]
fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(fd)
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn no_runtime(error: io::Error) -> MachineError {
    MachineError::Internal(format!(
        "cannot register the queue's descriptor with the runtime: {error}"
    ))
}
