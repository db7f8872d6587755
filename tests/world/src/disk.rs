//! Simulated disks: a write cache that a crash empties, random times, answers
//! out of order, errors on demand. Keeps the daemon's contract of storage.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use nix::errno::Errno;
use nvmeof_backend::{Done, IoError, IoErrorKind, Losses, Op, Refused, Request, Why, flush_begins};
use nvmeof_rdma::layer::{Dice, OneIn};
use nvmeof_rdma_sim::SimNet;
use nvmeof_target::{Storage, StorageError};

use crate::plan::DiskShape;

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
    ready: Vec<Option<Vec<Done>>>,
    /// Counts everything that happens.
    clock: u64,
    run: u32,
    injected: Injected,
    /// What the target asked for that it must not.
    wrong: Vec<String>,
}

struct Disk {
    shape: DiskShape,
    /// What reads see.
    now: Vec<u8>,
    /// What survives a crash.
    stable: Vec<u8>,
    /// Blocks that were written since, oldest first.
    cache: Vec<Cached>,
    losses: Arc<Losses>,
}

/// One block in the write cache.
struct Cached {
    block: u64,
    data: Box<[u8]>,
    /// The job that wrote it.
    job: u64,
    /// When that job was done, in events.
    done: Option<u64>,
    /// Whether it becomes stable by itself when it is.
    through: bool,
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

/// Blocks that the cache holds before the oldest is written back.
const CACHE: usize = 1024;

impl Disks {
    pub(crate) fn new(net: SimNet, seed: u64, shapes: &[DiskShape], temper: Temper) -> Self {
        let disks = shapes.iter().map(|shape| {
            let len = usize::try_from(shape.blocks * shape.block_size).unwrap();
            Disk {
                shape: shape.clone(),
                now: vec![0; len],
                stable: vec![0; len],
                cache: Vec::new(),
                losses: Losses::of_its_own(),
            }
        });
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
        let mut inner = self.lock();
        inner.ready.push(Some(Vec::new()));
        DiskHandle {
            disks: self.clone(),
            run: inner.run,
            reactor: inner.ready.len() - 1,
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
        let inner = self.lock();
        if inner.ready.iter().flatten().any(|ready| !ready.is_empty()) {
            return Some(inner.net.now());
        }
        inner.agenda.keys().next().map(|(at, _)| *at)
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

    fn submit(&mut self, disk: u32, request: Request) -> Result<(), Refused<Request>> {
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
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> Result<bool, StorageError> {
        let mut inner = self.disks.lock();
        if inner.run != self.run {
            return Ok(false);
        }
        inner.advance();
        let Some(ready) = &mut inner.ready[self.reactor] else {
            return Ok(false);
        };
        let any = !ready.is_empty();
        done.append(ready);
        Ok(any)
    }

    fn may_sleep(&mut self) -> Result<bool, StorageError> {
        let inner = self.disks.lock();
        let ready = inner.ready.get(self.reactor).and_then(Option::as_ref);
        Ok(inner.run != self.run || ready.is_none_or(Vec::is_empty))
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
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
        if disk.cache.len() > CACHE {
            disk.write_back_oldest();
        }
        let result = match job.failure {
            None => Ok(()),
            Some(errno) => Err(self.error(&job, errno)),
        };
        if let Some(ready) = &mut self.ready[job.reactor] {
            ready.push(Done {
                tag: job.tag,
                buf: job.op.into_buf(),
                result,
            });
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

fn is_through(op: &Op) -> bool {
    match op {
        Op::Write { fua, .. } | Op::WriteZeroes { fua, .. } => *fua,
        _ => false,
    }
}

impl Disk {
    fn block(&self, block: u64) -> Range<usize> {
        let size = self.shape.block_size;
        let start = usize::try_from(block * size).unwrap();
        start..start + usize::try_from(size).unwrap()
    }

    fn blocks(&self, bytes: &Range<u64>) -> Range<u64> {
        bytes.start / self.shape.block_size..bytes.end / self.shape.block_size
    }

    /// Moves the data of some bytes between the disk and the operation.
    fn transfer(&mut self, job: u64, op: &mut Op, bytes: Range<u64>) {
        let start = usize::try_from(bytes.start).unwrap();
        let end = usize::try_from(bytes.end).unwrap();
        match op {
            Op::Read { offset, buf } => {
                let from = usize::try_from(*offset).unwrap();
                buf[start - from..end - from].copy_from_slice(&self.now[start..end]);
                return;
            }
            Op::Write { offset, buf, .. } => {
                let from = usize::try_from(*offset).unwrap();
                self.now[start..end].copy_from_slice(&buf[start - from..end - from]);
            }
            Op::Deallocate { .. } if !self.shape.deallocate => return,
            Op::WriteZeroes { .. } | Op::Deallocate { .. } => self.now[start..end].fill(0),
            Op::Flush => return,
        }
        let through = is_through(op);
        for block in self.blocks(&bytes) {
            let data = self.now[self.block(block)].into();
            self.cache.push(Cached {
                block,
                data,
                job,
                done: None,
                through,
            });
        }
    }

    /// A write is over: it is stable at once if that was asked for.
    fn written(&mut self, job: u64, now: u64, op: &Op, well: bool) {
        for one in self.cache.iter_mut().filter(|one| one.job == job) {
            one.done = Some(now);
        }
        if well && (is_through(op) || !self.shape.volatile) {
            self.stabilise(|one| one.job == job);
        }
    }

    /// What was done when the flush was submitted becomes stable.
    fn flush(&mut self, submitted: u64) {
        self.stabilise(|one| one.done.is_some_and(|at| at < submitted));
    }

    /// A flush failed, as the kernel's do: what was to be written counts as written, in
    /// part without being so. It goes on to be read.
    fn forget(&mut self, dice: &mut Dice) {
        let blocks = |through: bool| -> BTreeSet<u64> {
            let of_it = self.cache.iter().filter(|one| one.through == through);
            of_it.map(|one| one.block).collect()
        };
        let cached = blocks(false);
        let mut forgotten: BTreeSet<u64> = cached.difference(&blocks(true)).copied().collect();
        forgotten.retain(|_| dice.happens(OneIn(2)));
        self.cache.retain(|one| !forgotten.contains(&one.block));
        self.losses.add();
    }

    fn write_back_oldest(&mut self) {
        let half = self.cache.len() / 2;
        let Some(limit) = self.cache.get(half).map(|one| one.job) else {
            return;
        };
        self.stabilise(|one| one.job < limit);
    }

    /// Makes stable what `chosen` chooses, and with it what it overwrote. What
    /// overwrote it stays in the cache.
    fn stabilise(&mut self, chosen: impl Fn(&Cached) -> bool) {
        let mut newest = BTreeMap::new();
        for (at, one) in self.cache.iter().enumerate() {
            if chosen(one) {
                newest.insert(one.block, at);
            }
        }
        for (block, at) in &newest {
            let place = self.block(*block);
            self.stable[place].copy_from_slice(&self.cache[*at].data);
        }
        let mut at = 0;
        self.cache.retain(|one| {
            let overwritten = newest.get(&one.block).is_some_and(|last| at <= *last);
            at += 1;
            !overwritten
        });
    }

    /// What was in flight in a crash: any block of it may be done.
    fn tear(&mut self, op: &Op, dice: &mut Dice) {
        let (offset, len) = op.range();
        if matches!(op, Op::Read { .. } | Op::Flush)
            || matches!(op, Op::Deallocate { .. } if !self.shape.deallocate)
        {
            return;
        }
        for block in self.blocks(&(offset..offset + len)) {
            if dice.happens(OneIn(2)) {
                let place = self.block(block);
                let from = usize::try_from(offset).unwrap();
                let data = match op {
                    Op::Write { buf, .. } => buf[place.start - from..place.end - from].into(),
                    _ => vec![0; place.len()].into(),
                };
                self.cache.push(Cached {
                    block,
                    data,
                    job: 0,
                    done: None,
                    through: false,
                });
            }
        }
    }

    /// Of each block one of the states it was in since it was last stable.
    fn crash(&mut self, dice: &mut Dice) {
        let mut states: BTreeMap<u64, Vec<Box<[u8]>>> = BTreeMap::new();
        for one in self.cache.drain(..) {
            states.entry(one.block).or_default().push(one.data);
        }
        for (block, states) in states {
            let kept = dice.below(states.len() + 1);
            if let Some(data) = states.get(kept) {
                let place = self.block(block);
                self.stable[place].copy_from_slice(data);
            }
        }
        self.now.copy_from_slice(&self.stable);
    }
}
