//! Simulated disks: a write cache that a crash empties, random times, answers
//! out of order, errors on demand. Keeps the daemon's contract of storage.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmeof_backend::{
    Done, IoError, IoErrorKind, Losses, Op, Refused, Request, Storage, StorageError, Why,
    flush_begins,
};
use nvmeof_rdma_layers::{Dice, OneIn};
use nvmeof_rdma_sim::SimNet;

use crate::plan::DiskShape;
use cache::Disk;

mod cache;

/// All disks of the world: they outlive the target that uses them.
#[derive(Clone)]
pub(crate) struct Disks {
    inner: Arc<Mutex<Inner>>,
}

/// The disks as one reactor of one run of the target sees them. What a run that is
/// over asks for is ignored.
pub(crate) struct DiskHandle {
    disks: Disks,
    run: u32,
    /// The number of the reactor.
    reactor: usize,
    bell: Arc<EventFd>,
}

/// How the disks behave from now on.
#[derive(Clone, Debug)]
pub(crate) struct Temper {
    /// How long an operation takes.
    pub(crate) latency: RangeInclusive<Duration>,
    /// Operations that fail with EIO.
    pub(crate) eio: OneIn,
    /// Writes that fail with ENOSPC.
    pub(crate) enospc: OneIn,
    /// Operations in flight at once.
    pub(crate) room: usize,
}

/// Errors that were answered, by what a host may be told.
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
    /// What happens next, by time and order.
    agenda: BTreeMap<(Duration, u64), Step>,
    /// Of each reactor; `None` of one that is no more.
    ready: Vec<Option<Ready>>,
    /// Counts everything that happens.
    clock: u64,
    run: u32,
    injected: Injected,
    /// What the target asked for that it must not.
    wrong: Vec<String>,
}

/// What is done and was not taken.
struct Ready {
    done: Vec<Done>,
    /// Whether the reactor wants to be woken, as a ring is told.
    wanted: bool,
    /// Wakes it.
    bell: Arc<EventFd>,
}

struct Job {
    /// Whose it is.
    reactor: usize,
    disk: usize,
    tag: u64,
    op: Op,
    failure: Option<Errno>,
    started: u64,
    started_at: Duration,
    /// Of a flush: its stamp, and what was lost before.
    flush: Option<(u64, u64)>,
}

enum Step {
    /// The data of these bytes of the range move.
    Move { job: u64, bytes: Range<u64> },
    /// It is answered.
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

    /// The disks for the next reactor of the run of the target.
    pub(crate) fn open(&self) -> DiskHandle {
        let bell = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK).unwrap();
        let bell = Arc::new(bell);
        let mut inner = self.lock();
        inner.ready.push(Some(Ready {
            done: Vec::new(),
            wanted: false,
            bell: Arc::clone(&bell),
        }));
        DiskHandle {
            disks: self.clone(),
            run: inner.run,
            reactor: inner.ready.len() - 1,
            bell,
        }
    }

    /// Power is lost. What is in flight and what is in the caches is kept in
    /// part, block by block.
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

    pub(crate) fn set_temper(&self, temper: Temper) {
        self.lock().temper = temper;
    }

    /// When something is due.
    pub(crate) fn next_at(&self) -> Option<Duration> {
        self.lock().agenda.keys().next().map(|(at, _)| *at)
    }

    /// Does what is due.
    pub(crate) fn advance(&self) {
        self.lock().advance();
    }

    /// When the oldest operation in flight was submitted.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.lock().jobs.values().map(|job| job.started_at).min()
    }

    /// Whether anything of a reactor is in flight.
    pub(crate) fn work_for(&self, reactor: usize) -> bool {
        self.lock().jobs.values().any(|job| job.reactor == reactor)
    }

    pub(crate) fn injected(&self) -> Injected {
        self.lock().injected
    }

    /// How often a disk has lost what it had answered as done, but for crashes.
    pub(crate) fn lost(&self, disk: usize) -> u64 {
        self.lock().disks[disk].losses.now().count
    }

    /// What the target did that it must not, if anything.
    pub(crate) fn wrong(&self) -> Option<String> {
        self.lock().wrong.first().cloned()
    }
}

/// What is in flight goes on, and nobody hears of it.
impl Drop for DiskHandle {
    fn drop(&mut self) {
        let mut inner = self.disks.lock();
        if inner.run == self.run {
            inner.ready[self.reactor] = None;
        }
    }
}

impl Storage for DiskHandle {
    fn disks(&self) -> Vec<u32> {
        (0..u32::try_from(self.disks.lock().disks.len()).unwrap()).collect()
    }

    fn buffer_alignment(&self, disk: u32) -> u32 {
        self.disks.lock().disks[usize::try_from(disk).unwrap()]
            .shape
            .alignment
    }

    fn losses(&self, disk: u32) -> Option<Arc<Losses>> {
        let disk = usize::try_from(disk).unwrap();
        Some(Arc::clone(&self.disks.lock().disks[disk].losses))
    }

    fn submit(&mut self, disk: u32, request: Request) -> Result<Option<Done>, Refused<Request>> {
        let mut inner = self.disks.lock();
        if inner.run != self.run {
            let why = Why::NotOpen;
            return Err(Refused { why, back: request });
        }
        let mine = inner
            .jobs
            .values()
            .filter(|job| job.reactor == self.reactor);
        if mine.count() >= inner.temper.room {
            let why = Why::Full;
            return Err(Refused { why, back: request });
        }
        inner.submit(self.reactor, usize::try_from(disk).unwrap(), request);
        Ok(None)
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), StorageError> {
        let mut inner = self.disks.lock();
        if inner.run != self.run {
            return Ok(());
        }
        let Some(ready) = &mut inner.ready[self.reactor] else {
            return Ok(());
        };
        // It fails when nobody was to be woken.
        let _ = ready.bell.read();
        ready.wanted = false;
        done.append(&mut ready.done);
        Ok(())
    }

    fn may_sleep(&mut self) -> Result<bool, StorageError> {
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
        Some(self.bell.as_fd())
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
        let mut at = now + self.time();
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
                // Of a failed operation any part may have been done.
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

    /// What the target must never ask for.
    fn check(&mut self, (reactor, disk): (usize, usize), tag: u64, op: &Op) {
        let shape = &self.disks[disk].shape;
        let (offset, len) = op.range();
        let block = shape.block_size;
        let blocks = offset.is_multiple_of(block) && len.is_multiple_of(block);
        let inside = offset + len <= shape.blocks * block;
        if !blocks || !inside || (len == 0 && !matches!(op, Op::Flush)) {
            let verb = op.verb();
            self.wrong.push(format!(
                "the target asked disk {disk} to {verb} {len} bytes from {offset}"
            ));
        }
        if let Op::Read { buf, .. } | Op::Write { buf, .. } = op
            && !buf.addr().is_multiple_of(shape.alignment.into())
        {
            self.wrong.push(format!(
                "the target gave disk {disk} a buffer that is not aligned"
            ));
        }
        if self
            .jobs
            .values()
            .any(|job| job.tag == tag && (job.reactor, job.disk) == (reactor, disk))
        {
            self.wrong
                .push(format!("the target used tag {tag:#x} twice at once"));
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

    fn time(&mut self) -> Duration {
        let range = self.temper.latency.clone();
        let span = (*range.end() - *range.start()).as_nanos();
        let span = u64::try_from(span).unwrap();
        *range.start() + Duration::from_nanos(self.dice.roll() % (span + 1))
    }

    /// Does what is due.
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
            // Who asked beside one that lost something hears of it as well.
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
        if let Some(ready) = &mut self.ready[job.reactor] {
            ready.done.push(Done {
                tag: job.tag,
                buf: job.op.into_buf(),
                result,
            });
            if ready.wanted {
                ready.bell.write(1).unwrap();
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
