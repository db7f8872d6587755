//! Hosts are told of what disks lose: those that wrote, when they flush.

use std::collections::BTreeMap;
use std::sync::Arc;

use nvmeof_backend::{Losses, Lost, flush_begins, stamp};
use nvmeof_target_core::{Executed, IoOp, WriteLoss};

use super::{Io, QueuePair, of_peer};
use crate::tag::SlotId;

/// The disks that the host of a queue is known to write to.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// The one it wrote to last.
    last: Option<Touched>,
    all: BTreeMap<u32, Touched>,
    /// The disk that loses nothing and was asked for last.
    safe: Option<u32>,
    /// Flushes whose answers say that something was lost, until they went out.
    telling: Vec<Telling>,
    /// By storage, what answers said that went out on this queue.
    told: BTreeMap<u64, Told>,
    /// Those of them of which it is not certain that the host has heard them.
    unheard: usize,
}

#[derive(Clone, Debug)]
struct Touched {
    disk: u32,
    losses: Arc<Losses>,
    write_loss: Arc<WriteLoss>,
}

/// A write that may be lost after it was answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Risk {
    disk: u32,
    /// How often the disk had lost something when it began.
    losses: u64,
}

/// An answer that says that something was lost.
#[derive(Clone, Copy, Debug)]
struct Telling {
    slot: SlotId,
    storage: u64,
    /// The stamp with which the Flush came.
    came: u64,
}

/// That the host was told on this queue that something was lost. Answers of one queue come
/// in order: it hears this before any later one.
#[derive(Clone, Copy, Debug)]
struct Told {
    /// The stamp with which the Flush came: of what was written until then it was told.
    came: u64,
    /// After so many further answers of the queue the host is known to have heard it.
    unheard: u32,
}

/// Disks that a queue remembers; a file that grows again and again is as many of them.
const MOST: usize = 1024;

impl Written {
    /// The disk, if the host wrote to it last and nothing was lost since.
    #[inline]
    fn risk_of(&self, disk: u32) -> Option<Risk> {
        let last = self.last.as_ref().filter(|last| last.disk == disk)?;
        let losses = last.losses.now().count;
        last.write_loss
            .knows(losses)
            .then_some(Risk { disk, losses })
    }

    fn touch(&mut self, touched: Touched) {
        if self.all.len() >= MOST {
            self.all.clear();
        }
        self.last = Some(touched.clone());
        self.all.insert(touched.disk, touched);
    }

    /// Whether the host was told on this queue of what it wrote to `storage` until `owed`.
    fn has_told(&self, storage: u64, owed: u64) -> bool {
        let told = self.told.get(&storage);
        told.is_some_and(|told| owed <= told.came)
    }

    /// An answer went out that says that something was lost. `unheard` is not 0.
    fn tell(&mut self, storage: u64, came: u64, unheard: u32) {
        if self.told.len() >= MOST {
            // It is told again.
            self.told.clear();
            self.unheard = 0;
        }
        let old = self.told.insert(storage, Told { came, unheard });
        if old.is_none_or(|old| old.unheard == 0) {
            self.unheard += 1;
        }
    }

    /// A further answer went out: of which storages the host is now known to have heard,
    /// with the stamps until which.
    fn hear(&mut self) -> Vec<(u64, u64)> {
        let mut heard = Vec::new();
        for (storage, told) in self.told.iter_mut().filter(|(_, told)| told.unheard > 0) {
            told.unheard -= 1;
            if told.unheard == 0 {
                self.unheard -= 1;
                heard.push((*storage, told.came));
            }
        }
        heard
    }
}

impl QueuePair {
    /// What `op` may lose after it was answered. `None` if nothing: when the host cannot
    /// be known to write, what it changes has to be made stable first, and `op` becomes
    /// that.
    #[inline]
    pub(super) fn risk_of(&mut self, op: &mut IoOp, io: &Io<'_>) -> Option<Risk> {
        if !op.changes() || op.fua || self.written.safe == Some(op.disk) {
            return None;
        }
        let risk = self.written.risk_of(op.disk);
        risk.or_else(|| self.as_writer(op, io))
    }

    #[cold]
    fn as_writer(&mut self, op: &mut IoOp, io: &Io<'_>) -> Option<Risk> {
        let disk = op.disk;
        let Some(losses) = io.storage.losses(disk) else {
            self.written.safe = Some(disk);
            return None;
        };
        // Nobody writes before a Connect.
        let host = self.core.hostnqn()?;
        let lost = losses.now();
        let Some(touched) = self.touched(disk, &losses, io) else {
            op.fua = true;
            return None;
        };
        let concern = |wrote, known| losses.concern(wrote, known);
        io.resources
            .writers
            .settle(lost.storage, &host, lost.count, concern);
        self.written.touch(touched);
        let losses = lost.count;
        Some(Risk { disk, losses })
    }

    /// The backing store, with what the host may lose there.
    fn touched(&self, disk: u32, losses: &Arc<Losses>, io: &Io<'_>) -> Option<Touched> {
        if let Some(touched) = self.written.all.get(&disk) {
            return Some(touched.clone());
        }
        let Lost { storage, count } = losses.now();
        let host = self.core.hostnqn()?;
        let counted = nvmeof_backend::counted;
        let write_loss = io.resources.writers.join(storage, &host, count, counted)?;
        let losses = Arc::clone(losses);
        Some(Touched {
            disk,
            losses,
            write_loss,
        })
    }

    /// The command in `slot`, a Flush, goes to its first disk or the next one.
    pub(super) fn flush_came(&mut self, slot: SlotId) {
        if let Some(command) = self.slots.get(slot) {
            command.came.get_or_insert_with(flush_begins);
        }
    }

    /// A write has ended well that may be lost.
    #[inline]
    pub(super) fn wrote(&mut self, risk: Risk, io: &Io<'_>) {
        let last = self.written.last.as_ref();
        if let Some(last) = last.filter(|last| last.disk == risk.disk) {
            // In this order: one loss is either seen here or has this seen.
            last.write_loss.wrote(stamp());
            if last.losses.now().count == risk.losses {
                return;
            }
        }
        self.wrote_elsewhere(risk, io);
    }

    #[cold]
    fn wrote_elsewhere(&mut self, risk: Risk, io: &Io<'_>) {
        let losses = io.storage.losses(risk.disk);
        let (Some(losses), Some(host)) = (losses, self.core.hostnqn()) else {
            return;
        };
        if let Some(touched) = self.touched(risk.disk, &losses, io) {
            touched.write_loss.wrote(stamp());
            self.written.touch(touched);
        }
        let lost = losses.now();
        if lost.count != risk.losses {
            io.resources.writers.owe(lost.storage, &host, stamp());
        }
    }

    /// Whether the host may have written something to the disk that is not stable. Of
    /// memory nothing is known, which is stable at once.
    #[cold]
    pub(super) fn is_unflushed(&self, disk: u32, io: &Io<'_>) -> bool {
        let (Some(losses), Some(host)) = (io.storage.losses(disk), self.core.hostnqn()) else {
            return true;
        };
        let stable = |stamp| losses.is_stable(stamp);
        let storage = losses.now().storage;
        io.resources.writers.has_unflushed(storage, &host, stable)
    }

    /// What the host is told of the disk's operation for the command in `slot`, which
    /// had no buffer: of a Flush that it failed, if an earlier one did for somebody else
    /// and took with it what this host wrote.
    pub(super) fn flushed(&mut self, slot: SlotId, outcome: Executed, io: &Io<'_>) -> Executed {
        let command = self.slots.get(slot);
        let flush = command.and_then(|command| Some((command.request.flushes()?, command.came?)));
        let Some((disk, came)) = flush else {
            return outcome;
        };
        let Some(losses) = io.storage.losses(disk) else {
            return outcome;
        };
        let Lost { storage, count } = losses.now();
        // It will send the Flush again when the disk is back.
        if count == 0 || outcome == Executed::Gone {
            return outcome;
        }
        let Some(host) = self.core.hostnqn() else {
            return outcome;
        };
        let concern = |wrote, known| losses.concern(wrote, known);
        let owed = io.resources.writers.owed(storage, &host, count, concern);
        if owed.is_none_or(|owed| self.written.has_told(storage, owed)) {
            return outcome;
        }
        self.written.telling.push(Telling {
            slot,
            storage,
            came,
        });
        if outcome != Executed::Ok {
            return outcome;
        }
        of_peer!(
            warn,
            self,
            disk,
            "Flush failed: an earlier flush of the backing store failed and may have lost \
             writes of this host"
        );
        Executed::Failed
    }

    /// The answer to the command in `slot` went out.
    #[inline]
    pub(super) fn answered(&mut self, slot: SlotId, io: &Io<'_>) {
        // Almost always nothing is lost.
        if !self.written.telling.is_empty() || self.written.unheard > 0 {
            self.tell_lost(slot, io);
        }
    }

    /// Other queues of the host, and those that it connects after it lost this one, are told
    /// as well until it is known to have heard: the answer may be lost with the queue, or
    /// come later than a success on another that was asked for before.
    ///
    /// Without a further answer it sends no more than the queue has entries (by SQHD, or
    /// without flow control by what it has outstanding: Base 2.0, 6.3). So of twice as many
    /// answers that went out after this one, at least one is to a command that it sent when
    /// it had heard this.
    #[cold]
    fn tell_lost(&mut self, slot: SlotId, io: &Io<'_>) {
        let heard = self.written.hear();
        if let Some(host) = self.core.hostnqn() {
            for (storage, until) in heard {
                io.resources.writers.heard(storage, &host, until);
            }
        }
        let unheard = 2 * u32::from(self.core.entries());
        let its = |telling: &mut Telling| telling.slot == slot;
        let told: Vec<Telling> = self.written.telling.extract_if(.., its).collect();
        for Telling { storage, came, .. } in told {
            self.written.tell(storage, came, unheard);
        }
    }
}
