//! One job of fio: its controller, its I/O queues, the operations in flight.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nvmeof_initiator::blocking;
use nvmeof_initiator::polled::{Call, Done, IoConfig, IoQueue, SubmitError, Work};
use nvmeof_initiator::{Buf, Geometry, QueueShape};
use nvmeof_initiator_core::blocks::{RANGE_LEN, put_ranges};
use nvmeof_memory::{Pages, Pool, PoolLayout};
use nvmeof_polling::{NextStep, Polling, PollingConfig};

use crate::control::{self, Control};
use crate::failure::{self, Failure};
use crate::options::Options;
use crate::payload::Payload;
use crate::request::{Kind, Request};

/// Whether a [`Request`] was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitResult {
    /// [`Job::reap`] returns its result.
    Queued,
    /// The queues are full: reap, then retry.
    Busy,
    /// It failed.
    Failed(Errno),
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationResult {
    /// As given.
    pub user: u64,
    /// The error, if it failed.
    pub error: Option<Errno>,
}

/// A job that is connected.
#[derive(Debug)]
pub struct Job {
    queues: Vec<IoQueue>,
    polling: Polling,
    /// Keeps the controller alive.
    _control: Control,
    geometry: Geometry,
    start: Instant,
    payload: Option<Payload>,
    ranges: Pool,
    /// Index of the queue that gets the next operation.
    next_queue: usize,
    /// Operations whose result is not in `ended` yet.
    in_flight: usize,
    /// Operations accepted since the last submission.
    unsent: usize,
    done: Vec<Done>,
    ended: VecDeque<OperationResult>,
    /// Whether a failure was reported: later ones usually have the same cause.
    reported: bool,
}

/// Least entries of a queue. The kernel's target sizes a send queue by the number of
/// commands, and never completes a command whose data need more work requests.
const SMALLEST_QUEUE: u16 = 32;
/// Operations that are collected before they are sent, unless fio waits for results.
const BATCH: usize = 32;
/// Polls without progress for longer than a fast target takes. With more jobs than
/// cores, this time is lost to the target and the other jobs: 16 jobs on 2 cores were
/// a third slower with 500 microseconds.
const POLLING: PollingConfig = PollingConfig {
    longest: Duration::from_micros(100),
    learns: true,
};
/// Longest sleep: another thread detects that the controller is lost, and this one has
/// to check for it.
const TICK: Duration = Duration::from_millis(100);
/// Bytes between two ranges to deallocate: a cache line keeps them apart.
const RANGE_STRIDE: usize = 64;
const _: () = assert!(RANGE_LEN <= RANGE_STRIDE);

/// Connects, reads the size of the namespace, and disconnects.
///
/// # Errors
/// [`Failure`] with cause and remedy.
pub fn look(options: &Options) -> Result<Geometry, Failure> {
    control::look(options)
}

impl Job {
    /// Connects a controller with queues for `depth` operations in flight.
    ///
    /// # Errors
    /// [`Failure`] with cause and remedy.
    pub fn open(options: &Options, depth: u32) -> Result<Self, Failure> {
        let start = Instant::now();
        let control = Control::start(options, start)?;
        let ranges = PoolLayout {
            count: usize::try_from(depth.max(1)).unwrap_or(usize::MAX),
            stride: RANGE_STRIDE,
            lead: 0,
        };
        let ranges = Pool::new(ranges, Pages::Normal).map_err(|error| {
            let text = format!("{error}; or lower iodepth= of the job");
            Failure::new(text, Errno::ENOMEM)
        })?;
        let mut queues = connect_queues(options, &control, depth, start)?;
        for queue in &mut queues {
            blocking::ready(queue, start)?;
            queue.register(ranges.region())?;
        }
        Ok(Self {
            queues,
            polling: Polling::new(POLLING, start.elapsed()),
            geometry: control.geometry(),
            _control: control,
            start,
            payload: None,
            ranges,
            next_queue: 0,
            in_flight: 0,
            unsent: 0,
            done: Vec::new(),
            ended: VecDeque::new(),
            reported: false,
        })
    }

    /// Allocates contiguous memory for `count` operations of up to `len` bytes each.
    /// Returns its address.
    ///
    /// # Errors
    /// [`Failure`] when memory is short.
    pub fn allocate(&mut self, count: usize, len: usize) -> Result<u64, Failure> {
        let payload = Payload::new(count, len)?;
        for queue in &mut self.queues {
            queue.register(payload.region())?;
        }
        Ok(self.payload.insert(payload).addr())
    }

    /// Frees the memory, as soon as the queues use none of it.
    pub fn free(&mut self) {
        self.payload = None;
    }

    /// Accepts an operation. [`commit`](Self::commit) or [`reap`](Self::reap) sends it.
    pub fn queue(&mut self, request: &Request) -> SubmitResult {
        let (work, buf) = match self.prepare(request) {
            Ok(Some(prepared)) => prepared,
            Ok(None) => return SubmitResult::Busy,
            Err(failure) => return SubmitResult::Failed(self.report(&failure)),
        };
        let mut call = Call::new(work, buf, request.user);
        let now = self.start.elapsed();
        let count = self.queues.len();
        for _ in 0..count {
            self.next_queue = (self.next_queue + 1) % count;
            let Some(queue) = self.queues.get_mut(self.next_queue) else {
                break;
            };
            let Err(refused) = queue.submit_call(call, now) else {
                self.in_flight += 1;
                self.unsent += 1;
                return SubmitResult::Queued;
            };
            call = refused.back;
            let failure = match refused.why {
                SubmitError::Full => continue,
                SubmitError::NotConnected(error) => error.into(),
                why => Failure::new(why.to_string(), Errno::EIO),
            };
            self.give_back(call.buf);
            return SubmitResult::Failed(self.report(&failure));
        }
        self.give_back(call.buf);
        SubmitResult::Busy
    }

    /// Sends the accepted operations: immediately if `now`, otherwise in batches.
    pub fn commit(&mut self, now: bool) {
        if now || self.unsent >= BATCH {
            let time = self.start.elapsed();
            for queue in &mut self.queues {
                queue.submit_now(time);
            }
            self.unsent = 0;
        }
    }

    /// Waits until `least` operations have completed, `timeout` has expired, or none
    /// is in flight. Passes up to `most` results to `ended`; returns their number.
    pub fn reap(
        &mut self,
        least: usize,
        most: usize,
        timeout: Option<Duration>,
        mut ended: impl FnMut(OperationResult),
    ) -> usize {
        let begin = self.start.elapsed();
        let deadline = timeout.map(|timeout| begin.saturating_add(timeout));
        let least = least.min(most);
        // A submission since the last call counts as progress.
        let mut yield_is_due = self.polling.after_iteration(true, begin) == NextStep::Yield;
        // By default, fio takes one result at a time. Results of one poll are passed on
        // before the next poll, so that the operations that follow are sent together.
        while self.ended.len() < least.max(1) {
            let now = self.start.elapsed();
            let progress = self.poll(now);
            if std::mem::take(&mut yield_is_due) {
                self.poll_again(NextStep::Yield);
            }
            let over = deadline.is_some_and(|deadline| now >= deadline);
            if self.ended.len() >= least || self.in_flight == 0 || over {
                break;
            }
            match self.polling.after_iteration(progress, now) {
                NextStep::Sleep => self.sleep(deadline),
                next => self.poll_again(next),
            }
        }
        let count = self.ended.len().min(most);
        self.ended.drain(..count).for_each(&mut ended);
        count
    }

    /// Closes the queues; operations in flight are dropped.
    pub fn close(mut self) {
        for queue in &mut self.queues {
            blocking::close(queue, self.start);
        }
    }

    /// The commands of a request, and its memory; `None` when there is no room.
    fn prepare(&mut self, request: &Request) -> Result<Option<(Work, Option<Buf>)>, Failure> {
        let work = request.work(self.geometry)?;
        let buf = match request.kind {
            Kind::Flush => None,
            Kind::Trim => {
                let Some(mut buf) = self.ranges.take() else {
                    return Ok(None);
                };
                let range = request.range(self.geometry)?;
                if buf.set_len(RANGE_LEN).is_err() {
                    return Ok(None);
                }
                put_ranges(&[range], &mut buf);
                Some(buf)
            }
            Kind::Read | Kind::Write { .. } => {
                let payload = self.payload.as_mut();
                let buf = payload.and_then(|payload| payload.take(request.addr, request.len));
                Some(buf.ok_or_else(|| {
                    let text = "fio passed memory that this engine did not allocate; please \
                                report it with the job file";
                    Failure::new(text, Errno::EFAULT)
                })?)
            }
        };
        Ok(Some((work, buf)))
    }

    /// Polls all queues. Returns whether there was progress.
    fn poll(&mut self, now: Duration) -> bool {
        let mut progress = false;
        let mut done = std::mem::take(&mut self.done);
        for queue in &mut self.queues {
            progress |= queue.poll(now, &mut done);
        }
        self.unsent = 0;
        for call in done.drain(..) {
            self.give_back(call.buf);
            let error = match call.result {
                Ok(_) => None,
                Err(error) if self.reported => Some(failure::errno(&error)),
                Err(error) => Some(self.report(&error.into())),
            };
            self.in_flight = self.in_flight.saturating_sub(1);
            self.ended.push_back(OperationResult {
                user: call.user,
                error,
            });
        }
        self.done = done;
        progress
    }

    /// Continues to poll, after other threads if `next` says so.
    fn poll_again(&mut self, next: NextStep) {
        if next == NextStep::Yield {
            self.polling.yield_cpu(|| self.start.elapsed());
        }
        std::hint::spin_loop();
    }

    /// Sleeps until a queue has something to do.
    fn sleep(&mut self, deadline: Option<Duration>) {
        self.queues.iter_mut().for_each(IoQueue::rest);
        let deadlines = self.queues.iter().filter_map(IoQueue::next_deadline);
        let now = self.start.elapsed();
        let nearest = deadlines.chain(deadline).min();
        let time = nearest.map_or(TICK, |nearest| nearest.saturating_sub(now).min(TICK));
        if time.is_zero() {
            return self.poll_again(self.polling.without_sleep(now));
        }
        blocking::sleep(self.queues.iter().map(IoQueue::wait_fd), Some(time));
        self.polling.slept(self.start.elapsed().saturating_sub(now));
    }

    fn give_back(&mut self, buf: Option<Buf>) {
        if let (Some(payload), Some(buf)) = (&mut self.payload, buf) {
            payload.give_back(buf);
        }
    }

    /// Prints the first failure of a job; fio counts the others.
    fn report(&mut self, failure: &Failure) -> Errno {
        if !std::mem::replace(&mut self.reported, true) {
            eprintln!("nvmeof: {failure}");
        }
        failure.errno()
    }
}

/// Starts to connect the queues of the job.
fn connect_queues(
    options: &Options,
    control: &Control,
    depth: u32,
    start: Instant,
) -> Result<Vec<IoQueue>, Failure> {
    let (connect, info) = (&options.connect, control.info());
    let wanted = connect.io_queues;
    if info.io_queues < wanted {
        let granted = info.io_queues;
        let text = format!(
            "queues={wanted}: the controller grants {granted} I/O queues; use \
             queues={granted}"
        );
        return Err(Failure::new(text, Errno::EINVAL));
    }
    let depth_of_queue = u16::try_from(depth.div_ceil(u32::from(wanted))).unwrap_or(u16::MAX);
    let names = connect.admin_config(&options.identity).setup.names;
    let mut queues = Vec::with_capacity(usize::from(wanted));
    for qid in 1..=wanted {
        let config = IoConfig {
            names: names.clone(),
            queue: QueueShape {
                qid,
                // One entry of a queue is always empty.
                size: depth_of_queue.saturating_add(1).max(SMALLEST_QUEUE),
                flow_control: true,
            },
            command_timeout: connect.command_timeout,
            connect_timeout: connect.connect_timeout,
        };
        let provider = control.route().provider()?;
        let mut queue = IoQueue::connect(provider, connect.addr, info, config, start.elapsed())?;
        queue.join(control.association());
        queues.push(queue);
    }
    Ok(queues)
}
