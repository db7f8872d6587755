//! The flushes of one backing store: one fdatasync at a time, for all requests that were
//! submitted before it began.

use nix::errno::Errno;
use nvmeof_uring::{RefusalReason, Waker};

use super::job::Next;
use super::{FileBackend, LostDuringSync};
use crate::losses::{CompletedSync, RunningSync};
use crate::{Io, IoErrorKind};

/// Its slot in the ring, which no request has.
pub(super) const SLOT: u32 = u32::MAX;

/// Requests that wait for a flush, by their slots.
pub(super) struct Flushing {
    waker: Waker,
    /// Those that the next flush completes.
    pending: Vec<u32>,
    running: Option<(RunningSync, Vec<u32>)>,
    /// Flushed, while a concurrent flush or durable write is still running.
    settling: Vec<(CompletedSync, Vec<u32>)>,
}

impl Flushing {
    pub(super) fn new(waker: Waker) -> Self {
        Self {
            waker,
            pending: Vec::new(),
            running: None,
            settling: Vec::new(),
        }
    }

    pub(super) fn join(&mut self, slot: u32) {
        self.pending.push(slot);
    }

    /// Whether a flush can begin.
    pub(super) fn is_due(&self) -> bool {
        !self.pending.is_empty() && self.running.is_none()
    }
}

impl FileBackend {
    /// Begins a flush if one is due.
    pub(super) fn flush(&mut self, io: &mut Io<'_>) {
        if !self.flushing.is_due() || io.room() == 0 {
            return;
        }
        let begun = RunningSync::flush(&self.losses);
        match io.fdatasync(SLOT, self.file) {
            Ok(()) => {
                self.in_ring += 1;
                let slots = std::mem::take(&mut self.flushing.pending);
                self.flushing.running = Some((begun, slots));
            }
            Err(refused) if refused.why == RefusalReason::Full => {}
            Err(_) => {
                for slot in std::mem::take(&mut self.flushing.pending) {
                    self.fail(slot, IoErrorKind::Other, Errno::EBADF, io);
                }
            }
        }
    }

    /// The running flush has completed.
    pub(super) fn flushed(&mut self, result: Result<u32, Errno>, io: &mut Io<'_>) {
        let Some((begun, slots)) = self.flushing.running.take() else {
            return;
        };
        match result {
            Ok(_) => self.settle(begun, slots, io),
            Err(_) => self.not_flushed(result, &slots, io),
        }
        self.flush(io);
    }

    fn not_flushed(&mut self, result: Result<u32, Errno>, slots: &[u32], io: &mut Io<'_>) {
        let mut is_counted = false;
        for slot in slots {
            let Some(active) = self.active.get_mut(*slot as usize) else {
                continue;
            };
            match active.job.advance(result, &mut self.zeroes, &self.name) {
                Next::Done(result) => {
                    if !is_counted {
                        self.losses.add();
                    }
                    is_counted = true;
                    let result = result.map_err(|(kind, errno)| (self.kind_at(kind, 0), errno));
                    self.finish(*slot, result, io);
                }
                Next::Step | Next::Later => self.deferred.push_back(*slot),
            }
        }
    }

    /// Completes `slots` after a successful flush, as soon as the outcome of concurrent ones
    /// is known.
    pub(super) fn settle(&mut self, begun: RunningSync, slots: Vec<u32>, io: &mut Io<'_>) {
        let synced = begun.succeeded(&self.flushing.waker);
        match synced.outcome() {
            Some(outcome) => self.complete_all(&slots, &outcome, io),
            None => self.flushing.settling.push((synced, slots)),
        }
    }

    /// Completes requests whose outcome is known by now.
    pub(super) fn complete_settled(&mut self, io: &mut Io<'_>) {
        let mut at = 0;
        while let Some((synced, _)) = self.flushing.settling.get(at) {
            let Some(outcome) = synced.outcome() else {
                at += 1;
                continue;
            };
            let (_, slots) = self.flushing.settling.remove(at);
            self.complete_all(&slots, &outcome, io);
        }
    }

    fn complete_all(
        &mut self,
        slots: &[u32],
        outcome: &Result<(), LostDuringSync>,
        io: &mut Io<'_>,
    ) {
        let result = match outcome {
            Ok(()) => Ok(()),
            Err(LostDuringSync) => Err((IoErrorKind::Media, Errno::EIO)),
        };
        for slot in slots {
            self.finish(*slot, result, io);
        }
    }
}
