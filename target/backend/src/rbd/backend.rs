//! An image, opened for one reactor.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nvmeof_ceph::{Call, Done as Completed, NotStarted, Queue};
use nvmeof_uring as uring;
use nvmeof_uring::Ring;

use super::{Pass, RbdStore, retire};
use crate::{
    Backend, Done, Geometry, Io, IoError, IoErrorKind, Op, RefusalReason, Request, Submitted,
};

/// An image, opened for one reactor. Its operations do not use the ring, whose eventfd only wakes
/// the reactor.
pub(crate) struct RbdBackend {
    queue: Queue,
    name: Arc<str>,
    geometry: Geometry,
    /// Whether operations may start; `None`: always.
    pass: Option<Pass>,
    /// Completions of one `poll`, empty between calls: kept for its allocation.
    completed: Vec<Completed>,
    /// Completions that the last sleep waits for.
    batch: Cell<usize>,
    /// Sleeps since the last completion.
    sleeps: Cell<u32>,
}

/// Minimum number of requests in flight.
const AT_LEAST: usize = 32;

/// Requests in flight from which on completions are collected. Each wake-up takes the CPU from the
/// threads of librbd, and responses that are sent together cost less, also the host.
const MANY: usize = 16;
/// The part of the requests in flight that a sleep waits for: each completion waits for at most
/// that part of its latency.
const PART: usize = 8;
/// Longest time that completions are collected.
const LONGEST_DELAY: Duration = Duration::from_millis(1);
/// Sleeps without a completion after which the next one ends with the first completion.
const MOST_SLEEPS: u32 = 4;

/// The number of completions that a sleep waits for.
fn batch(in_flight: usize, sleeps: u32) -> usize {
    if in_flight >= MANY && sleeps < MOST_SLEEPS {
        in_flight / PART
    } else {
        1
    }
}

impl RbdBackend {
    pub(crate) fn open(
        ring: &Ring,
        store: &RbdStore,
        name: Arc<str>,
        geometry: Geometry,
        pass: Option<Pass>,
    ) -> Self {
        // As many as of a file.
        let count = ((ring.room() + ring.in_flight()) / 2).max(AT_LEAST);
        let waker = ring.waker();
        Self {
            queue: Queue::new(&store.image, count, Box::new(move || waker.wake())),
            name,
            geometry,
            pass,
            completed: Vec::with_capacity(count),
            batch: Cell::new(1),
            sleeps: Cell::new(0),
        }
    }

    #[cold]
    fn error(&self, call: &Call, errno: Errno) -> IoError {
        let kind = match (kind_of(errno), errno) {
            // The lock was lost: other images of these clients are lost as well.
            (IoErrorKind::Removed, Errno::EROFS | Errno::EBUSY) if self.pass.is_some() => {
                IoErrorKind::Fenced
            }
            (kind, _) => kind,
        };
        if kind == IoErrorKind::Fenced {
            retire(self.queue.image());
        }
        let (verb, offset) = described(call);
        IoError {
            kind,
            errno,
            verb,
            path: Arc::clone(&self.name),
            offset,
        }
    }

    /// The result of an operation that may not start. Without a cache, a flush has nothing to do.
    #[cold]
    fn forbidden(&self, op: &Op) -> Result<(), IoError> {
        let (verb, offset) = match op {
            Op::Flush => return Ok(()),
            Op::Read { offset, .. } => ("read", *offset),
            Op::Write { offset, .. } => ("write", *offset),
            Op::WriteZeroes { offset, .. } => ("write zeroes", *offset),
            Op::Deallocate { offset, .. } => ("deallocate", *offset),
        };
        Err(IoError {
            kind: IoErrorKind::Standby,
            errno: Errno::EHOSTDOWN,
            verb,
            path: Arc::clone(&self.name),
            offset,
        })
    }

    fn done(&self, completed: Completed) -> Done {
        let Completed { tag, call, result } = completed;
        let result = match (result, &call) {
            // A read ends early only at the end of the image, which has become smaller.
            (Ok(bytes), Call::Read { buf, .. }) if bytes < buf.len() as u64 => Err(Errno::ENXIO),
            (result, _) => result,
        };
        let result = result.map(drop).map_err(|errno| self.error(&call, errno));
        let buf = call.into_buf();
        Done { tag, buf, result }
    }
}

/// Verb and offset, for messages.
fn described(call: &Call) -> (&'static str, u64) {
    match call {
        Call::Read { offset, .. } => ("read", *offset),
        Call::Write { offset, .. } => ("write", *offset),
        Call::WriteZeroes {
            offset, allocate, ..
        } => match allocate {
            true => ("write zeroes", *offset),
            false => ("deallocate", *offset),
        },
        Call::Flush => ("flush", 0),
    }
}

/// The class of an error of librbd.
fn kind_of(errno: Errno) -> IoErrorKind {
    match errno {
        // EBLOCKLISTED of Ceph.
        Errno::ESHUTDOWN => IoErrorKind::Fenced,
        // The lock was lost, or the image was removed, or the user may not use it any more, or the
        // range is beyond the end of an image that has become smaller: others are refused before.
        Errno::EROFS | Errno::EBUSY | Errno::ENOENT | Errno::EPERM | Errno::EINVAL => {
            IoErrorKind::Removed
        }
        other => IoErrorKind::of(other),
    }
}

/// The call that executes `op`. A write that has completed is on stable storage, so that FUA makes
/// no difference.
fn call_of(op: Op) -> Call {
    match op {
        Op::Read { offset, buf } => Call::Read { offset, buf },
        Op::Write { offset, buf, .. } => Call::Write { offset, buf },
        Op::Flush => Call::Flush,
        Op::WriteZeroes {
            offset,
            len,
            may_deallocate,
            ..
        } => Call::WriteZeroes {
            offset,
            len,
            allocate: !may_deallocate,
        },
        Op::Deallocate { offset, len, .. } => Call::WriteZeroes {
            offset,
            len,
            allocate: false,
        },
    }
}

impl Backend for RbdBackend {
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
        let Request { tag, op } = request;
        let checked = self.geometry.check(&self.name, op);
        let is_empty = !matches!(op, Op::Flush) && op.range().1 == 0;
        if checked.is_err() || is_empty {
            return Ok(Submitted::Done(checked));
        }
        if self.pass.as_ref().is_some_and(|pass| !pass.is_valid()) {
            return Ok(Submitted::Done(self.forbidden(op)));
        }
        if self.queue.is_full() {
            return Err(RefusalReason::Full);
        }
        if let Err(NotStarted { errno, call }) = self.queue.start(*tag, call_of(op.take())) {
            let result = Err(self.error(&call, errno));
            io.done(*tag, call.into_buf(), result);
        }
        Ok(Submitted::Pending)
    }

    fn complete(&mut self, _done: uring::Done, _io: &mut Io<'_>) {}

    fn poll(&mut self, io: &mut Io<'_>) {
        if self.queue.in_flight() == 0 {
            return;
        }
        let mut completed = std::mem::take(&mut self.completed);
        self.queue.take_completed(|done| completed.push(done));
        if !completed.is_empty() {
            self.sleeps.set(0);
        }
        io.done
            .extend(completed.drain(..).map(|one| self.done(one)));
        self.completed = completed;
    }

    fn waiting(&self) -> bool {
        let in_flight = self.queue.in_flight();
        self.batch.set(batch(in_flight, self.sleeps.get()));
        if in_flight == 0 {
            return false;
        }
        self.sleeps.set(self.sleeps.get().saturating_add(1));
        !self.queue.may_sleep(self.batch.get())
    }

    fn completes_in_batches(&self) -> bool {
        self.queue.in_flight() >= MANY
    }

    fn longest_sleep(&self) -> Option<Duration> {
        (self.batch.get() > 1).then_some(LONGEST_DELAY)
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn abandon(&mut self) {
        self.queue.abandon();
    }

    fn close(&mut self, _ring: &mut Ring) -> Result<(), uring::RingError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_operations_are_not_collected() {
        let batches = [0, 1, 15, 16, 128].map(|in_flight| batch(in_flight, 0));
        assert_eq!(batches, [1, 1, 1, 2, 16]);
        let sleeps = [1, 3, 4, u32::MAX].map(|sleeps| batch(128, sleeps));
        assert_eq!(sleeps, [16, 16, 1, 1], "a cluster that does not respond");
    }

    #[test]
    fn errors_of_a_lost_image_are_not_those_of_a_medium() {
        for (errno, kind) in [
            (Errno::ESHUTDOWN, IoErrorKind::Fenced),
            (Errno::EROFS, IoErrorKind::Removed),
            (Errno::ENOENT, IoErrorKind::Removed),
            (Errno::EINVAL, IoErrorKind::Removed),
            (Errno::EIO, IoErrorKind::Media),
            (Errno::ENOSPC, IoErrorKind::NoSpace),
            (Errno::EDQUOT, IoErrorKind::NoSpace),
        ] {
            assert_eq!(kind_of(errno), kind, "{errno}");
        }
    }
}
