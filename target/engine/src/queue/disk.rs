//! Disk operations of one queue pair: buffers go to the disk and come back.

use nvmeof_backend::{Done, IoError, IoErrorKind, Op, Refused, Request as DiskRequest, Why};
use nvmeof_memory::Buf;
use nvmeof_target_core::{Action, Data, Event, Executed, IoKind, IoOp};

use super::slots::{Job, Lent};
use super::{Edge, Io, State, of_peer};
use crate::tag::{Place, Tag};

/// A mistake of ours: disks are closed after the last command.
#[derive(Debug, thiserror::Error)]
#[error("the disk of a namespace is not open")]
struct NotOpen;

impl Edge {
    /// Runs `op` on its disk. Gives the next action when it ended at once.
    #[inline]
    pub(super) fn execute(
        &mut self,
        slot: Place,
        op: &mut IoOp,
        io: &mut Io<'_>,
    ) -> Option<Action> {
        if op.kind == IoKind::Flush {
            self.flush_came(slot);
        }
        let risk = self.risk_of(op, io);
        // Almost never is anything locked.
        if op.kind != IoKind::Read
            && !(io.locks.is_idle() && self.pairs.is_empty())
            && self.is_locked_out(slot, op, io)
        {
            return None;
        }
        if op.kind == IoKind::Settle {
            self.quiesce(slot, op, io);
            return None;
        }
        if op.kind == IoKind::FlushOwn && !self.is_unflushed(op.disk, io) {
            return self.step_executed(slot, Executed::Ok, None, io);
        }
        let queue = self.place;
        let tag = Tag { queue, slot }.to_bits();
        let job = self.slots.get(slot)?;
        job.risk = risk;
        let Some(lent) = lend(job, op) else {
            self.bug("a disk operation without its buffer", io);
            return None;
        };
        let request = DiskRequest { tag, op: lent };
        // What waits longer goes first.
        if io.backlog.waits_for(op.disk) {
            self.on_disk += 1;
            io.backlog.push(self.host(), op.disk, request);
            return None;
        }
        match io.storage.submit(op.disk, request) {
            Ok(Some(Done { buf, result, .. })) => {
                let outcome = match result {
                    Ok(()) => Executed::Ok,
                    Err(error) => self.failure_of(&error, Some(op.disk), slot, io),
                };
                self.step_executed(slot, outcome, buf, io)
            }
            Ok(None) => {
                self.on_disk += 1;
                None
            }
            Err(Refused {
                why: Why::Full,
                back,
            }) => {
                self.on_disk += 1;
                io.backlog.push(self.host(), op.disk, back);
                None
            }
            Err(Refused {
                why: Why::NotOpen,
                back,
            }) => {
                self.tell_not_open(op.disk, io);
                self.step_executed(slot, Executed::Failed, back.op.into_buf(), io)
            }
        }
    }

    #[cold]
    fn tell_not_open(&self, disk: u32, io: &mut Io<'_>) {
        if let Some(left_out) = io.disk_log.ask(io.now) {
            of_peer!(error, self, disk, left_out, "{NotOpen}");
        }
    }

    /// A disk operation ended.
    pub(crate) fn executed(&mut self, slot: Place, done: Done, io: &mut Io<'_>) {
        self.on_disk = self.on_disk.saturating_sub(1);
        self.lingering.is_over(slot);
        let outcome = match &done.result {
            Ok(()) => Executed::Ok,
            Err(error) => {
                let job = self.slots.get(slot);
                let disk = job.and_then(|job| job.request.disk());
                self.failure_of(error, disk, slot, io)
            }
        };
        if self.state == State::Closing {
            // The disk has nothing of it any more.
            self.free(slot);
            return;
        }
        if let Some(action) = self.step_executed(slot, outcome, done.buf, io) {
            self.perform(slot, action, io);
        }
        self.settle(io);
    }

    #[inline]
    fn step_executed(
        &mut self,
        slot: Place,
        mut outcome: Executed,
        buf: Option<Buf>,
        io: &mut Io<'_>,
    ) -> Option<Action> {
        if buf.is_none() {
            outcome = self.flushed(slot, outcome, io);
        }
        let mut job = self.slots.get(slot)?;
        if outcome == Executed::Ok
            && let Some(risk) = job.risk.take()
        {
            self.wrote(risk, io);
            job = self.slots.get(slot)?;
        }
        let account = self.account.as_ref();
        let lent = job.lent;
        if let Some(on_disk) = job.take_back(buf, account)
            && outcome == Executed::Ok
            && let Some(differs) = difference(data_of(job), &on_disk)
        {
            outcome = Executed::Miscompare;
            self.core.failed_after(&mut job.request, differs);
        }
        let Job {
            request,
            capsule,
            data,
            ..
        } = &mut *job;
        let data = match lent {
            // What the disk read or wrote whole is nothing that the core looks at.
            Lent::Data | Lent::Capsule => &[],
            _ => bytes_of(request.data(), capsule.as_deref(), data.get()),
        };
        // The core keeps the request while it looks at the data beside it.
        let event = Event::Executed { outcome, data };
        let action = self.core.step(io.now, request, event);
        if lent == Lent::Piece && !(io.hungry.is_empty() && self.hungry.is_empty()) {
            job.pause(&action, account);
        }
        Some(action)
    }
}

/// The disk operation with the buffer it needs, taken out of the job.
fn lend(job: &mut Job, op: &IoOp) -> Option<Op> {
    let (offset, len, fua) = (op.offset, op.len, op.fua);
    Some(match op.kind {
        IoKind::Read => {
            job.lent = Lent::Data;
            let buf = job.data.lend()?;
            Op::Read { offset, buf }
        }
        IoKind::Compare => {
            job.lent = Lent::Spare;
            let buf = job.spare.lend()?;
            Op::Read { offset, buf }
        }
        IoKind::Fetch { .. } => {
            job.lent = Lent::Piece;
            let mut buf = job.spare.lend()?;
            buf.set_len(usize::try_from(len).ok()?).ok()?;
            Op::Read { offset, buf }
        }
        IoKind::Store => {
            job.lent = Lent::Piece;
            let buf = job.spare.lend()?;
            Op::Write { offset, buf, fua }
        }
        IoKind::Write => {
            let buf = lend_data(job)?;
            Op::Write { offset, buf, fua }
        }
        IoKind::Flush | IoKind::FlushOwn | IoKind::Settle => Op::Flush,
        IoKind::WriteZeroes { deallocate } => Op::WriteZeroes {
            offset,
            len,
            may_deallocate: deallocate,
            fua,
        },
        IoKind::Deallocate => Op::Deallocate { offset, len, fua },
    })
}

/// The data of a write: the buffer they were pulled into, or the part of the
/// capsule that holds them.
fn lend_data(job: &mut Job) -> Option<Buf> {
    match job.request.data() {
        // The one copy there is: data in the middle of a capsule, for a disk
        // that wants them aligned. Hosts put them at its start.
        Data::Capsule(range) if job.misaligned => {
            job.lent = Lent::Data;
            let from = job.capsule.as_ref()?.get(range.clone())?;
            let mut buf = job.data.lend()?;
            buf.copy_from_slice(from);
            Some(buf)
        }
        Data::Capsule(range) => {
            job.lent = Lent::Capsule;
            let mut buf = job.capsule.take()?;
            buf.set_view(range.clone()).ok()?;
            Some(buf)
        }
        Data::Remote(_) | Data::List { .. } => {
            job.lent = Lent::Data;
            job.data.lend()
        }
        Data::None => None,
    }
}

/// The data of a job's request, wherever they are.
fn data_of(job: &Job) -> &[u8] {
    bytes_of(job.request.data(), job.capsule.as_deref(), job.data.get())
}

/// Nothing of data in the host's own memory, by which nothing is decided.
fn bytes_of<'a>(place: &Data, capsule: Option<&'a [u8]>, data: Option<&'a Buf>) -> &'a [u8] {
    match place {
        Data::Capsule(range) => capsule
            .and_then(|capsule| capsule.get(range.clone()))
            .unwrap_or_default(),
        Data::Remote(_) | Data::List { .. } => data.and_then(Buf::bytes).unwrap_or_default(),
        Data::None => &[],
    }
}

/// Where they begin to differ, or that there is nothing at all.
fn difference(ours: &[u8], on_disk: &[u8]) -> Option<u64> {
    if !ours.is_empty() && ours == on_disk {
        return None;
    }
    let same = ours.iter().zip(on_disk).take_while(|(our, its)| our == its);
    Some(same.count() as u64)
}

impl Edge {
    /// What the core is told of an operation on `disk` that failed. The log is
    /// told, too, and whoever looks after disks.
    #[cold]
    fn failure_of(
        &mut self,
        error: &IoError,
        disk: Option<u32>,
        slot: Place,
        io: &mut Io<'_>,
    ) -> Executed {
        if let Some(job) = self.slots.get(slot) {
            self.core.failed_at(&mut job.request, error.offset);
        }
        if let (Some(disk), Some(failures)) = (disk, io.failures) {
            failures.tell(disk, error);
        }
        if let Some(left_out) = io.disk_log.ask(io.now) {
            let (path, offset) = (&error.path, error.offset);
            of_peer!(error, self, %path, offset, left_out, "{error}");
        }
        match error.kind {
            IoErrorKind::NoSpace => Executed::NoSpace,
            IoErrorKind::ReadOnly => Executed::ReadOnly,
            IoErrorKind::Removed => Executed::Gone,
            IoErrorKind::Media
            | IoErrorKind::OutOfRange
            | IoErrorKind::Limits
            | IoErrorKind::Other => Executed::Failed,
        }
    }
}
