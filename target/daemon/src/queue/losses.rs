//! Hosts are told of what disks lose: those that wrote, when they flush.

use nvmeof_target_core::{Executed, IoKind, IoOp};

use super::{Edge, Io, of_peer};
use crate::tag::Place;

/// Disks that a queue remembers; a file that grows again and again is as many of them.
const MOST: usize = 1024;

impl Edge {
    /// Whether the host is known to write to the disk of `op`, if that is a write which
    /// may be lost after it was answered. If not it has to be made stable first.
    #[inline]
    pub(super) fn is_known_to_write(&mut self, op: &IoOp, io: &Io<'_>) -> bool {
        let may_be_lost = match op.kind {
            IoKind::Write | IoKind::Store | IoKind::WriteZeroes { .. } => !op.fua,
            _ => false,
        };
        !may_be_lost || self.written.contains(&op.disk) || self.remember(op.disk, io)
    }

    #[cold]
    fn remember(&mut self, disk: u32, io: &Io<'_>) -> bool {
        let Some(host) = self.core.hostnqn() else {
            return true;
        };
        let lost = io.storage.lost(disk);
        let known = io.writers.join(lost.storage, &host, lost.count);
        if known {
            if self.written.len() >= MOST {
                self.written.clear();
            }
            self.written.push(disk);
        }
        known
    }

    /// What the host is told of the disk's operation for the command in `slot`, which
    /// had no buffer: of a Flush that it failed, if an earlier one did for somebody else
    /// and took with it what this host wrote.
    pub(super) fn flushed(&mut self, slot: Place, outcome: Executed, io: &Io<'_>) -> Executed {
        let job = self.slots.get(slot);
        let Some(disk) = job.and_then(|job| job.request.flushes()) else {
            return outcome;
        };
        let lost = io.storage.lost(disk);
        // It will send the Flush again when the disk is back.
        if lost.count == 0 || outcome == Executed::Gone {
            return outcome;
        }
        let Some(host) = self.core.hostnqn() else {
            return outcome;
        };
        let owed = io.writers.tell(lost.storage, &host, lost.count);
        if !owed || outcome != Executed::Ok {
            return outcome;
        }
        of_peer!(
            warn,
            self,
            disk,
            "a Flush is answered with an error: the disk failed to make stable what was written \
             before, and this host wrote some of it"
        );
        Executed::Failed
    }
}
