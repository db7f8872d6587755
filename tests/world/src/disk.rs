//! Simulated disks: a write cache that a crash empties, random delays, completions out of
//! order, errors on demand. They comply with the storage contract of the daemon.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmeof_backend::{
    BackingStores, BackingStoresError, Done, IoError, IoErrorKind, Losses, Op, RefusalReason,
    Request, Submitted, flush_begins,
};
use nvmeof_rdma_layers::{Dice, OneIn};
use nvmeof_rdma_sim::SimNet;

use crate::content::{self, Value};
use crate::plan::DiskShape;
use cache::Disk;

mod cache;

/// All disks of the world, which outlive the target.
#[derive(Clone)]
pub(crate) struct Disks {
    inner: Arc<Mutex<Inner>>,
}

/// The disks for one reactor of one run of the target. Requests of a run that has ended are
/// ignored.
pub(crate) struct DiskHandle {
    disks: Disks,
    run: u32,
    /// The number of the reactor.
    reactor: usize,
    eventfd: Arc<EventFd>,
}

/// The behaviour of the disks from now on.
#[derive(Clone, Debug)]
pub(crate) struct Temper {
    /// Duration of an operation.
    pub(crate) latency: RangeInclusive<Duration>,
    /// Operations that stall, in addition, for up to this long.
    pub(crate) stalls: (OneIn, Duration),
    /// Operations that fail with EIO.
    pub(crate) eio: OneIn,
    /// Writes that fail with ENOSPC.
    pub(crate) enospc: OneIn,
    /// Operations in flight at once.
    pub(crate) room: usize,
}

/// Injected errors, by the status that a host may get.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Injected {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) no_space: u64,
    pub(crate) others: u64,
}

struct Inner {
    net: SimNet,
    dice: Dice,
    temper: Temper,
    disks: Vec<Disk>,
    jobs: BTreeMap<u64, Job>,
    /// Future events, by time and order.
    agenda: BTreeMap<(Duration, u64), Step>,
    /// For each reactor; `None`: it has ended.
    ready: Vec<Option<Ready>>,
    /// Counter of events.
    clock: u64,
    run: u32,
    /// Whether each request for the identity of a disk gets another one.
    anonymous: bool,
    identities: u64,
    injected: Injected,
    /// Violations of the contract by the target.
    wrong: Vec<String>,
}

/// Reactor of the operations of a process that ended.
const ENDED: usize = usize::MAX;

/// Completions that were not taken yet.
struct Ready {
    done: Vec<Done>,
    /// Whether the reactor requested a wake-up.
    wanted: bool,
    /// Wakes it.
    eventfd: Arc<EventFd>,
}

struct Job {
    /// QpOwner it is.
    reactor: usize,
    disk: usize,
    tag: u64,
    op: Op,
    failure: Option<Errno>,
    started: u64,
    started_at: Duration,
    /// For a flush: its stamp, and losses before it.
    flush: Option<(u64, u64)>,
}

enum Step {
    /// Transfers these bytes of the range.
    Move { job: u64, bytes: Range<u64> },
    /// Completes the operation.
    Done { job: u64 },
}

impl Disks {
    pub(crate) fn new(net: SimNet, seed: u64, shapes: &[DiskShape], temper: Temper) -> Self {
        let disks = shapes.iter().map(|shape| Disk::new(shape.clone()));
        let inner = Inner {
            net,
            dice: Dice::new(seed),
            temper,
            disks: disks.collect(),
            jobs: BTreeMap::new(),
            agenda: BTreeMap::new(),
            ready: Vec::new(),
            clock: 0,
            run: 0,
            anonymous: false,
            identities: 1 << 32,
            injected: Injected::default(),
            wrong: Vec::new(),
        };
        Self {
            inner: Arc::new(Mutex::new(inner)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// The disks for the next reactor of the current run of the target.
    pub(crate) fn open(&self) -> DiskHandle {
        let eventfd = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK).unwrap();
        let eventfd = Arc::new(eventfd);
        let mut inner = self.lock();
        inner.ready.push(Some(Ready {
            done: Vec::new(),
            wanted: false,
            eventfd: Arc::clone(&eventfd),
        }));
        DiskHandle {
            disks: self.clone(),
            run: inner.run,
            reactor: inner.ready.len() - 1,
            eventfd,
        }
    }

    /// Power loss. Operations in flight and contents of caches are kept in part, block by
    /// block.
    pub(crate) fn crash(&self) {
        let mut inner = self.lock();
        inner.run += 1;
        inner.agenda.clear();
        inner.ready.clear();
        let jobs = std::mem::take(&mut inner.jobs);
        let Inner { disks, dice, .. } = &mut *inner;
        for job in jobs.into_values() {
            disks[job.disk].tear(&job.op, dice);
        }
        for disk in disks {
            disk.crash(dice);
        }
    }

    /// The process of the target ended, and its reactors are gone. Its operations continue.
    pub(crate) fn end_process(&self) {
        let mut inner = self.lock();
        inner.run += 1;
        inner.ready.clear();
        for job in inner.jobs.values_mut() {
            job.reactor = ENDED;
        }
    }

    /// From now on, range locks block nothing: a lock is held for the identity of a disk, and
    /// each request for the identity gets another one.
    pub(crate) fn disable_range_locks(&self) {
        self.lock().anonymous = true;
    }

    pub(crate) fn set_temper(&self, temper: Temper) {
        self.lock().temper = temper;
    }

    /// Time of the next event.
    pub(crate) fn next_at(&self) -> Option<Duration> {
        self.lock().agenda.keys().next().map(|(at, _)| *at)
    }

    /// Handles the events that are due.
    pub(crate) fn advance(&self) {
        self.lock().advance();
    }

    /// When the oldest operation in flight was submitted.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.lock().jobs.values().map(|job| job.started_at).min()
    }

    /// The numbers of the writes whose data operations in flight have.
    pub(crate) fn writes_in_flight(&self) -> Vec<Value> {
        let inner = self.lock();
        let bufs = inner.jobs.values().filter_map(|job| match &job.op {
            Op::Write { buf, .. } => {
                let mut start = [0; 8];
                buf.copy_out(0, &mut start).ok()?;
                Some(content::number(start))
            }
            _ => None,
        });
        bufs.collect()
    }

    /// Whether a reactor has operations in flight.
    pub(crate) fn work_for(&self, reactor: usize) -> bool {
        self.lock().jobs.values().any(|job| job.reactor == reactor)
    }

    pub(crate) fn injected(&self) -> Injected {
        self.lock().injected
    }

    /// Number of times that a disk lost completed writes, not by crashes.
    pub(crate) fn lost(&self, disk: usize) -> u64 {
        self.lock().disks[disk].losses.now().count
    }

    /// A violation of the contract by the target, if any.
    pub(crate) fn wrong(&self) -> Option<String> {
        self.lock().wrong.first().cloned()
    }
}

/// Operations in flight continue, and their completions are dropped.
impl Drop for DiskHandle {
    fn drop(&mut self) {
        let mut inner = self.disks.lock();
        if inner.run == self.run {
            inner.ready[self.reactor] = None;
        }
    }
}

impl BackingStores for DiskHandle {
    fn stores(&self) -> Vec<u32> {
        (0..u32::try_from(self.disks.lock().disks.len()).unwrap()).collect()
    }

    fn buffer_alignment(&self, disk: u32) -> u32 {
        self.disks.lock().disks[usize::try_from(disk).unwrap()]
            .shape
            .alignment
    }

    fn identity(&self, disk: u32) -> u64 {
        let mut inner = self.disks.lock();
        if !inner.anonymous {
            return disk.into();
        }
        inner.identities += 1;
        inner.identities
    }

    fn losses(&self, disk: u32) -> Option<Arc<Losses>> {
        let disk = usize::try_from(disk).unwrap();
        Some(Arc::clone(&self.disks.lock().disks[disk].losses))
    }

    fn submit(&mut self, disk: u32, request: &mut Request) -> Result<Submitted, RefusalReason> {
        let mut inner = self.disks.lock();
        if inner.run != self.run {
            return Err(RefusalReason::NotOpen);
        }
        let mine = inner
            .jobs
            .values()
            .filter(|job| job.reactor == self.reactor);
        if mine.count() >= inner.temper.room {
            return Err(RefusalReason::Full);
        }
        let (tag, op) = (request.tag, request.op.take());
        let disk = usize::try_from(disk).unwrap();
        inner.submit(self.reactor, disk, Request { tag, op });
        Ok(Submitted::Pending)
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), BackingStoresError> {
        let mut inner = self.disks.lock();
        if inner.run != self.run {
            return Ok(());
        }
        let Some(ready) = &mut inner.ready[self.reactor] else {
            return Ok(());
        };
        // Fails if no wake-up was pending.
        let _ = ready.eventfd.read();
        ready.wanted = false;
        done.append(&mut ready.done);
        Ok(())
    }

    fn may_sleep(&mut self) -> Result<bool, BackingStoresError> {
        let mut inner = self.disks.lock();
        if inner.run != self.run {
            return Ok(true);
        }
        let Some(ready) = &mut inner.ready[self.reactor] else {
            return Ok(true);
        };
        ready.wanted = ready.done.is_empty();
        Ok(ready.wanted)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.eventfd.as_fd())
    }
}

impl Inner {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn submit(&mut self, reactor: usize, disk: usize, request: Request) {
        let id = self.tick();
        let now = self.net.now();
        let Request { tag, op } = request;
        self.check((reactor, disk), tag, &op);
        let failure = self.failure(disk, &op);
        let mut at = now + self.time() + self.stall();
        let (offset, len) = op.range();
        let mut order = id;
        if len > 0 {
            let block = self.disks[disk].shape.block_size;
            let cut = offset + block * (self.dice.roll() % (len / block + 1));
            let mut pieces = vec![offset..cut, cut..offset + len];
            if self.dice.happens(OneIn(2)) {
                pieces.reverse();
            }
            pieces.retain(|piece| !piece.is_empty());
            for bytes in pieces {
                // A failed operation may have been done in part.
                if failure.is_none() || self.dice.happens(OneIn(2)) {
                    let step = Step::Move { job: id, bytes };
                    self.agenda.insert((at, order), step);
                }
                order = self.tick();
                at += self.time() / 2;
            }
        }
        self.agenda.insert((at, order), Step::Done { job: id });
        let losses = &self.disks[disk].losses;
        let flush = matches!(op, Op::Flush).then(|| (flush_begins(), losses.now().count));
        let job = Job {
            reactor,
            disk,
            tag,
            op,
            failure,
            started: id,
            started_at: now,
            flush,
        };
        self.jobs.insert(id, job);
    }

    /// Checks a request of the target for violations.
    fn check(&mut self, (reactor, disk): (usize, usize), tag: u64, op: &Op) {
        let shape = &self.disks[disk].shape;
        let (offset, len) = op.range();
        let block = shape.block_size;
        let blocks = offset.is_multiple_of(block) && len.is_multiple_of(block);
        let inside = offset + len <= shape.blocks * block;
        if !blocks || !inside || (len == 0 && !matches!(op, Op::Flush)) {
            let verb = op.verb();
            self.wrong.push(format!(
                "invalid request of the target: disk {disk}: {verb} {len} bytes from {offset}"
            ));
        }
        if let Op::Read { buf, .. } | Op::Write { buf, .. } = op
            && !buf.addr().is_multiple_of(shape.alignment.into())
        {
            self.wrong
                .push(format!("the target passed disk {disk} an unaligned buffer"));
        }
        if self
            .jobs
            .values()
            .any(|job| job.tag == tag && (job.reactor, job.disk) == (reactor, disk))
        {
            self.wrong.push(format!(
                "the target used tag {tag:#x} for two operations at a time"
            ));
        }
    }

    fn failure(&mut self, disk: usize, op: &Op) -> Option<Errno> {
        let Temper { eio, enospc, .. } = self.temper;
        let forgets = self.disks[disk].shape.forgets && matches!(op, Op::Flush);
        if forgets && self.dice.happens(OneIn(4)) {
            return Some(Errno::EIO);
        }
        let stores = matches!(op, Op::Write { .. } | Op::WriteZeroes { .. });
        if stores && self.dice.happens(enospc) {
            return Some(Errno::ENOSPC);
        }
        self.dice.happens(eio).then_some(Errno::EIO)
    }

    fn stall(&mut self) -> Duration {
        let (chance, longest) = self.temper.stalls;
        if !self.dice.happens(chance) {
            return Duration::ZERO;
        }
        self.between(&(Duration::ZERO..=longest))
    }

    fn time(&mut self) -> Duration {
        let range = self.temper.latency.clone();
        self.between(&range)
    }

    fn between(&mut self, range: &RangeInclusive<Duration>) -> Duration {
        let span = (*range.end() - *range.start()).as_nanos();
        let span = u64::try_from(span).unwrap();
        *range.start() + Duration::from_nanos(self.dice.roll() % (span + 1))
    }

    /// Handles the events that are due.
    fn advance(&mut self) {
        let now = self.net.now();
        while let Some(entry) = self.agenda.first_entry()
            && entry.key().0 <= now
        {
            match entry.remove() {
                Step::Move { job, bytes } => {
                    let job_of = self.jobs.get_mut(&job).unwrap();
                    self.disks[job_of.disk].transfer(job, &mut job_of.op, bytes);
                }
                Step::Done { job } => self.end(job),
            }
        }
    }

    fn end(&mut self, id: u64) {
        let now = self.tick();
        let mut job = self.jobs.remove(&id).unwrap();
        let Self { disks, dice, .. } = self;
        let disk = &mut disks[job.disk];
        match (job.flush, job.failure) {
            // A concurrent flush reports the loss as well.
            (Some((_, before)), None) if disk.losses.now().count > before => {
                job.failure = Some(Errno::EIO);
            }
            (Some((flush, _)), None) => {
                disk.flush(job.started);
                disk.losses.flushed(flush);
            }
            (Some(_), Some(_)) if disk.shape.forgets => disk.forget(dice),
            (Some(_), Some(_)) => {}
            _ => disk.written(id, now, &job.op, job.failure.is_none()),
        }
        disk.keep_within_bounds();
        let result = match job.failure {
            None => Ok(()),
            Some(errno) => Err(self.error(&job, errno)),
        };
        if let Some(Some(ready)) = self.ready.get_mut(job.reactor) {
            ready.done.push(Done {
                tag: job.tag,
                buf: job.op.into_buf(),
                result,
            });
            if ready.wanted {
                ready.eventfd.write(1).unwrap();
            }
        }
    }

    fn error(&mut self, job: &Job, errno: Errno) -> IoError {
        let count = match (&job.op, errno) {
            (_, Errno::ENOSPC) => &mut self.injected.no_space,
            (Op::Read { .. }, _) => &mut self.injected.reads,
            (Op::Deallocate { .. }, _) => &mut self.injected.others,
            _ => &mut self.injected.writes,
        };
        *count += 1;
        IoError {
            kind: IoErrorKind::of(errno),
            errno,
            verb: job.op.verb(),
            path: Arc::from("simulated"),
            offset: job.op.range().0,
        }
    }
}
