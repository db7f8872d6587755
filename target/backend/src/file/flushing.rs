//! The flushes of one disk: one fdatasync at a time, for all that asked before it began.

use nix::errno::Errno;
use nvmeof_uring::{Waker, Why};

use super::job::Next;
use super::{FileDisk, LostMeanwhile};
use crate::losses::{Begun, Synced};
use crate::{Io, IoErrorKind};

/// Stands for it in the ring: no request has this slot.
pub(super) const SLOT: u32 = u32::MAX;

/// Requests that wait for it, by their slots.
pub(super) struct Flushing {
    waker: Waker,
    /// Asked for the next one.
    asking: Vec<u32>,
    running: Option<(Begun, Vec<u32>)>,
    /// Done, beside something that is not.
    settling: Vec<(Synced, Vec<u32>)>,
}

impl Flushing {
    pub(super) fn new(waker: Waker) -> Self {
        Self {
            waker,
            asking: Vec::new(),
            running: None,
            settling: Vec::new(),
        }
    }

    pub(super) fn ask(&mut self, slot: u32) {
        self.asking.push(slot);
    }

    /// Whether one can begin.
    pub(super) fn is_due(&self) -> bool {
        !self.asking.is_empty() && self.running.is_none()
    }
}

impl FileDisk {
    /// Begins one if it is due.
    pub(super) fn flush(&mut self, io: &mut Io<'_>) {
        if !self.flushing.is_due() || io.room() == 0 {
            return;
        }
        let begun = Begun::flush(&self.losses);
        match io.fdatasync(SLOT, self.file) {
            Ok(()) => {
                self.in_ring += 1;
                let slots = std::mem::take(&mut self.flushing.asking);
                self.flushing.running = Some((begun, slots));
            }
            Err(refused) if refused.why == Why::Full => {}
            Err(_) => {
                for slot in std::mem::take(&mut self.flushing.asking) {
                    self.fail(slot, IoErrorKind::Other, Errno::EBADF, io);
                }
            }
        }
    }

    /// It came back.
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
                Next::Step | Next::Later => self.again.push_back(*slot),
            }
        }
    }

    /// Answers `slots`, which are stable, as soon as it is certain.
    pub(super) fn settle(&mut self, begun: Begun, slots: Vec<u32>, io: &mut Io<'_>) {
        let synced = begun.succeeded(&self.flushing.waker);
        match synced.outcome() {
            Some(outcome) => self.answer(&slots, &outcome, io),
            None => self.flushing.settling.push((synced, slots)),
        }
    }

    /// Answers those for which it is certain by now.
    pub(super) fn answer_settled(&mut self, io: &mut Io<'_>) {
        let mut at = 0;
        while let Some((synced, _)) = self.flushing.settling.get(at) {
            let Some(outcome) = synced.outcome() else {
                at += 1;
                continue;
            };
            let (_, slots) = self.flushing.settling.remove(at);
            self.answer(&slots, &outcome, io);
        }
    }

    fn answer(&mut self, slots: &[u32], outcome: &Result<(), LostMeanwhile>, io: &mut Io<'_>) {
        let result = match outcome {
            Ok(()) => Ok(()),
            Err(LostMeanwhile) => Err((IoErrorKind::Media, Errno::EIO)),
        };
        for slot in slots {
            self.finish(*slot, result, io);
        }
    }
}
