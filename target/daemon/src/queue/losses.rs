//! Hosts are told of what disks lose: those that wrote, when they flush.

use std::collections::BTreeSet;

use nvmeof_backend::Lost;
use nvmeof_target_core::{Executed, IoKind, IoOp};

use super::{Edge, Io, of_peer};
use crate::tag::Place;

/// The disks that the host of a queue is known to write to.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// The one it wrote to last.
    last: Option<u32>,
    all: BTreeSet<u32>,
    /// Flushes whose answers say that something was lost, until they went out.
    telling: Vec<(Place, Lost)>,
}

/// Disks that a queue remembers; a file that grows again and again is as many of them.
const MOST: usize = 1024;

impl Written {
    #[inline]
    pub(super) fn is_last(&self, disk: u32) -> bool {
        self.last == Some(disk)
    }

    fn remember(&mut self, disk: u32) {
        if self.all.len() >= MOST {
            self.all.clear();
        }
        self.all.insert(disk);
        self.last = Some(disk);
    }
}

impl Edge {
    /// `op` as it is executed. If it is a write that may be lost after it was answered,
    /// its host is known to write from here on; when it cannot be, what it writes is made
    /// stable first.
    #[cold]
    pub(super) fn as_writer(&mut self, op: &IoOp, io: &Io<'_>) -> IoOp {
        let may_be_lost = match op.kind {
            IoKind::Write | IoKind::Store | IoKind::WriteZeroes { .. } => !op.fua,
            _ => false,
        };
        let fua = op.fua || (may_be_lost && !self.is_known_to_write(op.disk, io));
        IoOp { fua, ..*op }
    }

    fn is_known_to_write(&mut self, disk: u32, io: &Io<'_>) -> bool {
        if !self.written.all.contains(&disk) {
            let Some(host) = self.core.hostnqn() else {
                return true;
            };
            let lost = io.storage.lost(disk);
            let Lost { storage, count } = lost;
            if storage != 0
                && !io
                    .writers
                    .join(storage, &host, count, nvmeof_backend::counted)
            {
                return false;
            }
        }
        self.written.remember(disk);
        true
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
        if outcome == Executed::Ok {
            if !io.writers.owes(lost.storage, &host, lost.count) {
                return outcome;
            }
            of_peer!(
                warn,
                self,
                disk,
                "a Flush is answered with an error: the disk failed to make stable what was \
                 written before, and this host wrote to it"
            );
        }
        self.written.telling.push((slot, lost));
        match outcome {
            Executed::Ok => Executed::Failed,
            other => other,
        }
    }

    /// The answer to the command in `slot` went out.
    #[inline]
    pub(super) fn answered(&mut self, slot: Place, io: &Io<'_>) {
        // Almost always nothing is lost.
        if !self.written.telling.is_empty() {
            self.tell_lost(slot, io);
        }
    }

    #[cold]
    fn tell_lost(&mut self, slot: Place, io: &Io<'_>) {
        let told = self.written.telling.extract_if(.., |(its, _)| *its == slot);
        let told: Vec<(Place, Lost)> = told.collect();
        if let Some(host) = self.core.hostnqn() {
            for (_, lost) in told {
                io.writers.tell(lost.storage, &host, lost.count);
            }
        }
    }
}
