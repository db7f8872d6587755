//! One job of fio: its paths, its I/O queues, the operations in flight.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::eventfd::EventFd;
use nvmeof_initiator::blocking;
use nvmeof_initiator::polled::{Call, Done, MultipathIo, SubmitError, Work};
use nvmeof_initiator::{Buf, Geometry};
use nvmeof_initiator_core::blocks::{RANGE_LEN, put_ranges};
use nvmeof_memory::{Pages, Pool, PoolLayout};
use nvmeof_polling::{NextStep, Polling, PollingConfig};

use crate::control::{self, Connected, Control};
use crate::failure::{self, Failure};
use crate::options::Options;
use crate::payload::Payload;
use crate::request::{Kind, Request};
use crate::stalls::Stalls;

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
    io: MultipathIo,
    /// Readable when the paths have changed.
    wake: Arc<EventFd>,
    polling: Polling,
    /// Keeps the controllers alive, and connects lost paths again.
    control: Control,
    geometry: Geometry,
    start: Instant,
    payload: Option<Payload>,
    ranges: Pool,
    /// Operations whose result is not in `ended` yet.
    in_flight: usize,
    /// Operations accepted since the last submission.
    unsent: usize,
    done: Vec<Done>,
    ended: VecDeque<OperationResult>,
    /// Whether a failure was reported: later ones usually have the same cause.
    reported: bool,
    stalls: Stalls,
}

/// Operations that are collected before they are sent, unless fio waits for results.
const BATCH: usize = 32;
/// Polls without progress for longer than a fast target takes. With more jobs than
/// cores, this time is lost to the target and the other jobs: 16 jobs on 2 cores were
/// a third slower with 500 microseconds.
const POLLING: PollingConfig = PollingConfig {
    longest: Duration::from_micros(100),
    learns: true,
};
/// Longest sleep: a stall is reported as soon as it exceeds its threshold.
const TICK: Duration = Duration::from_millis(100);
/// Longest time for queues to close.
const CLOSING: Duration = Duration::from_secs(15);
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
    /// Connects the paths, with queues for `depth` operations in flight.
    ///
    /// # Errors
    /// [`Failure`] with cause and remedy.
    pub fn open(options: &Options, depth: u32) -> Result<Self, Failure> {
        let start = Instant::now();
        let ranges = PoolLayout {
            count: usize::try_from(depth.max(1)).unwrap_or(usize::MAX),
            stride: RANGE_STRIDE,
            lead: 0,
        };
        let ranges = Pool::new(ranges, Pages::Normal).map_err(|error| {
            let text = format!("{error}; or lower iodepth= of the job");
            Failure::new(text, Errno::ENOMEM)
        })?;
        let Connected {
            control,
            mut io,
            wake,
            geometry,
        } = control::start(options, depth, start)?;
        let now = start.elapsed();
        io.register(ranges.region(), now)?;
        Ok(Self {
            io,
            wake,
            polling: Polling::new(POLLING, now),
            control,
            geometry,
            start,
            payload: None,
            ranges,
            in_flight: 0,
            unsent: 0,
            done: Vec::new(),
            ended: VecDeque::new(),
            reported: false,
            stalls: Stalls::new(&options.job, options.stall, now),
        })
    }

    /// Allocates contiguous memory for `count` operations of up to `len` bytes each.
    /// Returns its address.
    ///
    /// # Errors
    /// [`Failure`] when memory is short.
    pub fn allocate(&mut self, count: usize, len: usize) -> Result<u64, Failure> {
        let payload = Payload::new(count, len)?;
        self.io.register(payload.region(), self.start.elapsed())?;
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
        let call = Call::new(work, buf, request.user);
        let now = self.start.elapsed();
        let Err(refused) = self.io.submit_call(call, now) else {
            if self.in_flight == 0 {
                self.stalls.begin(now);
            }
            self.in_flight += 1;
            self.unsent += 1;
            return SubmitResult::Queued;
        };
        self.give_back(refused.back.buf);
        let failure = match refused.why {
            SubmitError::Full => return SubmitResult::Busy,
            SubmitError::NotConnected(error) => error.into(),
            why => Failure::new(why.to_string(), Errno::EIO),
        };
        SubmitResult::Failed(self.report(&failure))
    }

    /// Sends the accepted operations: immediately if `now`, otherwise in batches.
    pub fn commit(&mut self, now: bool) {
        if now || self.unsent >= BATCH {
            let time = self.start.elapsed();
            self.io.submit_now(time);
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
        self.stalls.enter(begin);
        let mut last = begin;
        let least = least.min(most);
        // A submission since the last call counts as progress.
        let mut yield_is_due = self.polling.after_iteration(true, begin) == NextStep::Yield;
        // By default, fio takes one result at a time. Results of one poll are passed on
        // before the next poll, so that the operations that follow are sent together.
        while self.ended.len() < least.max(1) {
            let now = self.start.elapsed();
            last = now;
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
        self.stalls.leave(last);
        let count = self.ended.len().min(most);
        self.ended.drain(..count).for_each(&mut ended);
        count
    }

    /// Closes the queues; operations in flight are dropped.
    pub fn close(mut self) {
        self.io.close();
        let end = self.start.elapsed().saturating_add(CLOSING);
        while !self.io.is_closed() && self.start.elapsed() < end {
            if !self.poll(self.start.elapsed()) {
                self.sleep(Some(end));
            }
        }
        // The controllers are shut down after their queues are closed.
        drop(self.control);
        self.stalls.summarize();
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
        let mut done = std::mem::take(&mut self.done);
        let progress = self.io.poll(now, &mut done);
        self.unsent = 0;
        if !done.is_empty() {
            self.stalls.completed(now);
        }
        // Changes of the paths affect later completions.
        while let Some(event) = self.io.take_event() {
            self.stalls.note(event);
        }
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
        self.io.rest();
        let now = self.start.elapsed();
        if self.in_flight > 0 && self.stalls.is_due(now) {
            let awaiting_fence = self.io.awaiting_fence();
            self.stalls.open(now, &self.io.paths(), awaiting_fence);
        }
        let nearest = self.io.next_deadline(now).into_iter().chain(deadline).min();
        let time = nearest.map_or(TICK, |nearest| nearest.saturating_sub(now).min(TICK));
        if time.is_zero() {
            return self.poll_again(self.polling.without_sleep(now));
        }
        let fds = self.io.wait_fds().chain([Some(self.wake.as_fd())]);
        blocking::sleep(fds, Some(time));
        // Empty if the paths have not changed.
        let _ = self.wake.read();
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
