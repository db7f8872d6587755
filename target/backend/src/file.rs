//! Files and block devices, through io_uring.

mod flushing;
mod job;
mod zeroes;

use std::collections::VecDeque;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::FallocateFlags;
use nvmeof_memory::Buf;
use nvmeof_uring as uring;
use nvmeof_uring::{FileId, IssuedBy, PolledError, Ring, WriteMode, close_elsewhere};
use slab::Slab;

use crate::blocking::Opened;
use crate::losses::{Losses, LostDuringSync, RunningSync};
use crate::probe;
use crate::{
    Backend, Geometry, Io, IoError, IoErrorKind, NoPolling, Op, OpenError, RefusalReason, Request,
    Submitted,
};
use flushing::Flushing;
use job::{Job, Next, Step};
use zeroes::Zeroes;

/// Maximum number of operations of one backing store in worker threads of the kernel. A
/// store that does not respond occupies that many threads of a reactor and slots of the
/// ring.
const MAX_WORKERS: usize = 32;

/// A file or block device, opened for one reactor.
pub(crate) struct FileBackend {
    file: FileId,
    /// A block device outside of the ring, to query its size. `None` for a file, because its
    /// file system could block the reactor.
    device: Option<Arc<Opened>>,
    name: Arc<str>,
    geometry: Geometry,
    /// Requests in progress, by their slots in ring tags.
    active: Slab<Active>,
    /// Slots whose next operation is deferred, oldest first.
    deferred: VecDeque<u32>,
    /// Operations in the ring.
    in_ring: usize,
    /// Maximum number of operations in the ring.
    max_in_ring: usize,
    zeroes: Zeroes,
    losses: Arc<Losses>,
    flushing: Flushing,
}

struct Active {
    tag: u64,
    job: Job,
    /// The buffer of the request, while it is not in the ring.
    buf: Option<Buf>,
    /// Set when it also makes earlier writes stable.
    begun: Option<RunningSync>,
}

impl Active {
    /// A write starts on a device without FUA, where a durable one also makes earlier writes
    /// stable.
    fn begin(&mut self, losses: &Arc<Losses>) {
        if self.job.writes_through() && self.begun.is_none() {
            self.begun = Some(RunningSync::begin(losses));
        }
    }
}

impl FileBackend {
    pub(crate) fn open(
        ring: &mut Ring,
        outside: Arc<Opened>,
        name: Arc<str>,
        geometry: Geometry,
        polled: bool,
        losses: Arc<Losses>,
    ) -> Result<Self, OpenError> {
        let duplicate = probe::duplicate(&name, &outside)?;
        let full = |source| OpenError::Ring {
            name: name.to_string(),
            source,
        };
        let file = if polled {
            let added = ring.add_polled_file(duplicate);
            added.map_err(|error| match error {
                PolledError::Files(source) => full(source),
                other => OpenError::CannotPoll {
                    name: name.to_string(),
                    why: NoPolling::Ring(other),
                },
            })?
        } else {
            let issued_by = match geometry.may_block {
                true => IssuedBy::Worker,
                false => IssuedBy::Submitter,
            };
            ring.add_file_as(duplicate, issued_by).map_err(full)?
        };
        let whole = ring.room() + ring.in_flight();
        let max_in_ring = if geometry.may_block {
            MAX_WORKERS
        } else {
            whole
        };
        Ok(Self {
            file,
            device: Some(outside).filter(|it| it.is_device()),
            name,
            geometry,
            active: Slab::with_capacity(whole / 2),
            deferred: VecDeque::with_capacity(whole / 2),
            in_ring: 0,
            max_in_ring,
            zeroes: Zeroes::default(),
            losses,
            flushing: Flushing::new(ring.waker()),
        })
    }

    /// Starts the next operation of `slot`, or defers it.
    fn advance(&mut self, slot: u32, io: &mut Io<'_>) {
        if self.in_ring >= self.max_in_ring {
            self.deferred.push_back(slot);
            return;
        }
        let Some(active) = self.active.get_mut(slot as usize) else {
            return;
        };
        let losses = (!self.geometry.fua_alone).then_some(&self.losses);
        match start(active, slot, self.file, &mut self.zeroes, losses, io) {
            Ok(()) => self.in_ring += 1,
            Err(NotStarted::Deferred) => self.deferred.push_back(slot),
            Err(NotStarted::Joined) => {
                self.flushing.join(slot);
                self.flush(io);
            }
            Err(NotStarted::Failed(errno)) => self.fail(slot, IoErrorKind::of(errno), errno, io),
        }
    }

    /// Completes a request that failed, and counts the writes that were lost with it.
    #[cold]
    fn fail(&mut self, slot: u32, kind: IoErrorKind, errno: Errno, io: &mut Io<'_>) {
        let active = self.active.get(slot as usize);
        let position = active.map_or(0, |it| it.job.position());
        let kind = self.kind_at(kind, position);
        if active.is_some_and(|it| it.job.loses_earlier(kind, self.geometry.fua_alone)) {
            self.losses.add();
        }
        self.finish(slot, Err((kind, errno)), io);
    }

    fn kind_at(&self, kind: IoErrorKind, position: u64) -> IoErrorKind {
        probe::kind_at(self.device.as_deref().map(|it| &**it), kind, position)
    }

    fn finish(&mut self, slot: u32, result: Result<(), (IoErrorKind, Errno)>, io: &mut Io<'_>) {
        let Some(Active {
            tag, job, mut buf, ..
        }) = self.active.try_remove(slot as usize)
        else {
            return;
        };
        if let (Some(buf), Some(view)) = (&mut buf, job.view()) {
            let restored = buf.set_view(view);
            debug_assert!(restored.is_ok(), "the view it came with");
        }
        let result = result.map_err(|(kind, errno)| IoError {
            kind,
            errno,
            verb: job.verb(),
            path: Arc::clone(&self.name),
            offset: job.position(),
        });
        io.done(tag, buf, result);
    }
}

enum NotStarted {
    /// Another operation must complete first.
    Deferred,
    /// A flush is shared with other requests.
    Joined,
    /// The request failed.
    Failed(Errno),
}

/// Starts the next operation of `active`.
fn start(
    active: &mut Active,
    slot: u32,
    file: FileId,
    zeroes: &mut Zeroes,
    losses: Option<&Arc<Losses>>,
    io: &mut Io<'_>,
) -> Result<(), NotStarted> {
    let position = active.job.position();
    let mode = if active.job.writes_through() {
        WriteMode::Dsync
    } else {
        WriteMode::Normal
    };
    let step = active.job.step(zeroes);
    if let (Step::Write | Step::WriteZeroes { .. }, Some(losses)) = (step, losses) {
        active.begin(losses);
    }
    let started = match step {
        Step::Read | Step::Write => {
            let buf = active.buf.take().ok_or(NotStarted::Failed(Errno::EFAULT))?;
            let buf = active.job.set_remaining_view(buf);
            let started = if step == Step::Read {
                io.read(slot, file, position, buf)
            } else {
                io.write(slot, file, position, buf, mode)
            };
            started.map_err(|refused| {
                active.buf = Some(refused.back);
                refused.why
            })
        }
        Step::Sync => return Err(NotStarted::Joined),
        Step::Punch { len } => {
            let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            io.fallocate(slot, file, punch, position, len)
                .map_err(|it| it.why)
        }
        Step::ZeroRange { len } => {
            let zero = FallocateFlags::FALLOC_FL_ZERO_RANGE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            io.fallocate(slot, file, zero, position, len)
                .map_err(|it| it.why)
        }
        Step::WriteZeroes { len } => {
            let piece = zeroes.take(len).map_err(NotStarted::Failed)?;
            io.write(
                slot,
                file,
                position,
                piece.ok_or(NotStarted::Deferred)?,
                mode,
            )
            .map_err(|it| it.why)
        }
    };
    started.map_err(not_started)
}

fn not_started(why: uring::RefusalReason) -> NotStarted {
    match why {
        uring::RefusalReason::Full => NotStarted::Deferred,
        uring::RefusalReason::UnknownFile => NotStarted::Failed(Errno::EBADF),
        uring::RefusalReason::TooLong => NotStarted::Failed(Errno::EINVAL),
    }
}

impl Backend for FileBackend {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn submit(
        &mut self,
        request: &mut Request,
        io: &mut Io<'_>,
    ) -> Result<Submitted, RefusalReason> {
        if let Err(wrong) = self.geometry.check(&self.name, &request.op) {
            return Ok(Submitted::Done(Err(wrong)));
        }
        // At least as many slots of the ring as this store uses remain for other stores, so
        // that unresponsive ones cannot fill it.
        if self.active.len() >= io.room() {
            return Err(RefusalReason::Full);
        }
        let Request { tag, op } = request;
        let nothing = !matches!(op, Op::Flush) && op.range().1 == 0;
        let no_hole = matches!(op, Op::Deallocate { .. }) && !self.geometry.deallocate_zeroes;
        if nothing || no_hole {
            return Ok(Submitted::Done(Ok(())));
        }
        let (tag, op) = (*tag, op.take());
        let job = Job::new(&op, self.geometry.block_size, self.geometry.direct);
        let buf = op.into_buf();
        let begun = None;
        let slot = self.active.insert(Active {
            tag,
            job,
            buf,
            begun,
        });
        // The ring counts in 32 bits too.
        let slot = u32::try_from(slot).unwrap_or(u32::MAX);
        self.advance(slot, io);
        Ok(Submitted::Pending)
    }

    fn complete(&mut self, done: uring::Done, io: &mut Io<'_>) {
        self.in_ring = self.in_ring.saturating_sub(1);
        let Ok(slot) = u32::try_from(done.tag) else {
            return;
        };
        if slot == flushing::SLOT {
            return self.flushed(done.result, io);
        }
        let Some(active) = self.active.get_mut(slot as usize) else {
            return;
        };
        // A buffer of zeroes is not that of the request: dropping it returns it to its pool.
        if active.job.owns_buf() {
            active.buf = done.buf;
        }
        match active
            .job
            .advance(done.result, &mut self.zeroes, &self.name)
        {
            Next::Done(Ok(())) => self.finish(slot, Ok(()), io),
            Next::Done(Err((kind, errno))) => self.fail(slot, kind, errno, io),
            Next::Step => self.advance(slot, io),
            Next::Later => self.deferred.push_back(slot),
        }
    }

    fn poll(&mut self, io: &mut Io<'_>) {
        for _ in 0..self.deferred.len() {
            if self.in_ring >= self.max_in_ring {
                break;
            }
            let Some(slot) = self.deferred.pop_front() else {
                return;
            };
            self.advance(slot, io);
        }
        self.flush(io);
        self.complete_settled(io);
    }

    fn waiting(&self) -> bool {
        self.in_ring == 0 && (!self.deferred.is_empty() || self.flushing.is_due())
    }

    fn in_flight(&self) -> usize {
        self.active.len()
    }

    fn close(&mut self, ring: &mut Ring) -> Result<(), uring::RingError> {
        let file = ring.remove_file(self.file)?;
        if let Some(file) = file
            && self.geometry.may_block
        {
            close_elsewhere(file);
        }
        Ok(())
    }
}
