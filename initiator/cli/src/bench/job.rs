//! The part of a benchmark on one queue.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_initiator::polled::{Done, SubmitError};
use nvmeof_initiator::{Blocks, Buf, Error, Geometry, Operation, UsageError};
use nvmeof_memory::{Pages, Pool, PoolLayout};
use nvmeof_polling::{NextStep, Polling, PollingConfig};

use super::Shared;
use super::pace::Pace;
use super::pattern::Pattern;
use super::queues::Queues;
use crate::args::{self, Kind};
use crate::failure::Failure;

/// The workload, the same for all queues.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    pub(super) reads: u8,
    nsid: u32,
    block_shift: u8,
    /// Bytes of each operation.
    pub(super) bytes: u32,
    /// Blocks of each operation.
    pub(super) blocks: u64,
    /// Offsets of that size in the namespace.
    pub(super) offsets: u64,
    pub(super) depth: u16,
    pub(super) queues: u16,
    pub(super) runtime: Duration,
    /// Operations to start in each second, if that is limited.
    rate: Option<u32>,
    polling: PollingConfig,
}

impl Plan {
    pub(super) fn new(args: &args::Bench, namespace: Geometry) -> Result<Self, Failure> {
        let block_size = namespace.block_size();
        if !args.bs.is_multiple_of(block_size) {
            return Err(Failure::new(format!(
                "--bs of {} bytes is not a whole number of blocks of {block_size} bytes",
                args.bs
            ))
            .with_remedy(format!("use a multiple of {block_size}")));
        }
        let blocks = u64::from(args.bs / block_size);
        let offsets = namespace.blocks / blocks;
        if offsets == 0 {
            return Err(Failure::new(format!(
                "--bs of {} bytes is more than the size of the namespace",
                args.bs
            ))
            .with_remedy("use a smaller --bs"));
        }
        Ok(Self {
            kind: args.rw,
            reads: args.rw.reads(args.rwmixread),
            nsid: namespace.nsid,
            block_shift: namespace.block_shift,
            bytes: args.bs,
            blocks,
            offsets,
            depth: args.iodepth,
            queues: args.queues.nr_io_queues,
            runtime: args.runtime,
            rate: args.rate,
            polling: PollingConfig {
                longest: args.spin().unwrap_or(LONGEST_SPIN),
                learns: true,
            },
        })
    }
}

/// Latencies of one direction.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) operations: u64,
    pub(super) bytes: u64,
    pub(super) latency_ns: Histogram<u64>,
}

/// The measurement.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) read: Side,
    pub(super) write: Side,
    /// The duration, the longest of all queues.
    pub(super) time: Duration,
}

/// The longest latency that the histogram resolves: ten minutes.
const LONGEST_NS: u64 = 600_000_000_000;

impl Default for Side {
    #[allow(
        clippy::expect_used,
        reason = "constant bounds, and three digits are possible"
    )]
    fn default() -> Self {
        let latency_ns = Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("bounds in order");
        Self {
            operations: 0,
            bytes: 0,
            latency_ns,
        }
    }
}

impl Side {
    pub(super) fn record(&mut self, latency: Duration, bytes: u32) {
        self.operations += 1;
        self.bytes += u64::from(bytes);
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.latency_ns.saturating_record(nanos);
    }

    fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        // The bounds are the same: no value is out of range.
        let added = self.latency_ns.add(&other.latency_ns);
        debug_assert!(added.is_ok(), "histograms have the same bounds");
    }
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.read.add(&other.read);
        self.write.add(&other.write);
        self.time = self.time.max(other.time);
    }
}

/// The queues of one thread with their buffers and access pattern.
pub(super) struct Job {
    queues: Queues,
    plan: Plan,
    start: Instant,
    free: Vec<Buf>,
    /// For each operation in flight: its start time, and whether it reads.
    started: Vec<(Duration, bool)>,
    idle: Vec<u64>,
    pattern: Pattern,
    pace: Pace,
}

/// A benchmark polls all the time, unless another process needs the CPU: it may be the
/// target.
const LONGEST_SPIN: Duration = Duration::from_secs(1);
/// Longest sleep: the clock has to be checked too.
const NAP: Duration = Duration::from_millis(10);

/// The time to sleep until `deadline`, in whole milliseconds; `None`: do not sleep. The
/// deadline is in the past if the provider has work.
fn nap(deadline: Option<Duration>, now: Duration) -> Option<PollTimeout> {
    let left = deadline.map_or(NAP, |at| at.saturating_sub(now).min(NAP));
    let left = u8::try_from(left.as_millis()).ok()?;
    (left > 0).then(|| left.into())
}

impl Job {
    pub(super) fn new(
        mut queues: Queues,
        plan: &Plan,
        at: u16,
        start: Instant,
    ) -> Result<Self, Failure> {
        let layout = PoolLayout {
            count: usize::from(plan.depth),
            stride: usize::try_from(plan.bytes).unwrap_or(usize::MAX),
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Shareable).map_err(|error| {
            Failure::new(error.to_string()).with_remedy("lower --iodepth or --bs")
        })?;
        queues.register(pool.region(), start.elapsed())?;
        let mut pattern = Pattern::new(plan, u64::from(at), u64::from(plan.queues));
        let mut free: Vec<Buf> = std::iter::from_fn(|| pool.take()).collect();
        // Incompressible data; also faults in the pages.
        for buf in &mut free {
            pattern.fill(buf);
        }
        Ok(Self {
            queues,
            plan: plan.clone(),
            start,
            free,
            started: vec![(Duration::ZERO, true); usize::from(plan.depth)],
            idle: (0..u64::from(plan.depth)).collect(),
            pattern,
            pace: Pace::new(plan.rate, at, plan.queues),
        })
    }

    /// Runs for the time of the plan; operations in flight at its end count.
    pub(super) fn run(mut self, shared: &Shared) -> Result<Tally, Error> {
        let mut done = Vec::with_capacity(usize::from(self.plan.depth));
        self.queues.ready(self.start)?;
        let mut tally = Tally::default();
        let begin = self.start.elapsed();
        let end = begin + self.plan.runtime;
        let mut polling = Polling::new(self.plan.polling, begin);
        let mut now = begin;
        loop {
            if now < end && !shared.stop.load(Ordering::Relaxed) {
                self.fill(now, now - begin)?;
            } else if self.idle.len() == usize::from(self.plan.depth) {
                break;
            }
            let progress = self.queues.poll(now, &mut done);
            self.report(shared);
            now = self.start.elapsed();
            // Calls may end without progress of a queue, such as by time.
            if progress || !done.is_empty() {
                self.reap(now, &mut done, &mut tally, shared)?;
            }
            let next = polling.after_iteration(progress, now);
            self.pause(next, &mut polling, begin);
        }
        tally.time = now - begin;
        self.queues.close(self.start);
        Ok(tally)
    }

    /// Has the main thread print what is to be reported.
    fn report(&mut self, shared: &Shared) {
        while let Some(line) = self.queues.take_line() {
            shared.print(line);
        }
    }

    /// Between two polls: another process may need the CPU.
    fn pause(&mut self, next: NextStep, polling: &mut Polling, begin: Duration) {
        match next {
            NextStep::Continue => std::hint::spin_loop(),
            NextStep::Yield => polling.yield_cpu(|| self.start.elapsed()),
            NextStep::Sleep => self.nap(polling, begin),
        }
    }

    fn nap(&mut self, polling: &mut Polling, begin: Duration) {
        self.queues.rest();
        let now = self.start.elapsed();
        let paced = self
            .pace
            .wait(now.saturating_sub(begin))
            .map(|wait| now + wait);
        let deadlines = self.queues.next_deadline(now).into_iter().chain(paced);
        let nap = nap(deadlines.min(), now);
        let Some((fds, nap)) = self.queues.wait_fds().zip(nap) else {
            return self.pause(polling.without_sleep(now), polling, begin);
        };
        // EINTR only shortens the sleep.
        let fds = fds.into_iter();
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let _ = poll(&mut fds, nap);
        polling.slept(self.start.elapsed().saturating_sub(now));
    }

    /// Starts as many operations as depth and rate allow. The measurement began `passed` ago.
    fn fill(&mut self, now: Duration, passed: Duration) -> Result<(), Error> {
        while self.pace.allows(passed)
            && let (Some(user), Some(buf)) = (self.idle.pop(), self.free.pop())
        {
            let (reads, slba) = self.pattern.next(&self.plan);
            let blocks = Blocks {
                operation: if reads {
                    Operation::Read
                } else {
                    Operation::Write
                },
                nsid: self.plan.nsid,
                block_shift: self.plan.block_shift,
                slba,
                count: self.plan.blocks,
                fua: false,
            };
            if let Err(refused) = self.queues.submit(blocks, buf, user, now) {
                self.free.extend(refused.back.buf);
                self.idle.push(user);
                return match refused.why {
                    SubmitError::Full => Ok(()),
                    SubmitError::NotConnected(error) => Err(error),
                    why => Err(UsageError::Other(why.to_string()).into()),
                };
            }
            self.pace.started();
            if let Some(started) = usize::try_from(user)
                .ok()
                .and_then(|n| self.started.get_mut(n))
            {
                *started = (now, reads);
            }
        }
        Ok(())
    }

    fn reap(
        &mut self,
        now: Duration,
        done: &mut Vec<Done>,
        tally: &mut Tally,
        shared: &Shared,
    ) -> Result<(), Error> {
        let ended = done.len() as u64;
        for call in done.drain(..) {
            call.result?;
            let started = usize::try_from(call.user).ok();
            let started = started.and_then(|n| self.started.get(n)).copied();
            let (started, reads) = started.unwrap_or((now, true));
            let side = if reads {
                &mut tally.read
            } else {
                &mut tally.write
            };
            side.record(now.saturating_sub(started), self.plan.bytes);
            self.free.extend(call.buf);
            self.idle.push(call.user);
        }
        let bytes = ended * u64::from(self.plan.bytes);
        shared.operations.fetch_add(ended, Ordering::Relaxed);
        shared.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_ends_at_the_deadline() {
        let now = Duration::from_secs(5);
        let nap_until = |left| nap(Some(now + left), now).and_then(|nap| nap.as_millis());
        assert_eq!(nap(None, now), Some(10u8.into()));
        assert_eq!(nap_until(Duration::from_secs(1)), Some(10));
        assert_eq!(nap_until(Duration::from_millis(3)), Some(3));
        assert_eq!(nap_until(Duration::ZERO), None);
        assert_eq!(nap(Some(Duration::ZERO), now), None, "it is in the past");
    }

    #[test]
    fn tallies_add_up() {
        let mut one = Tally::default();
        one.read.record(Duration::from_micros(10), 4096);
        let mut two = Tally::default();
        two.read.record(Duration::from_micros(30), 4096);
        two.write.record(Duration::from_secs(4000), 512);
        one.add(&two);
        assert_eq!((one.read.operations, one.read.bytes), (2, 8192));
        assert_eq!(one.read.latency_ns.len(), 2);
        assert_eq!(one.write.operations, 1);
        assert!(one.write.latency_ns.max() >= LONGEST_NS);
    }
}
