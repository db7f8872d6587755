//! Reporting lost writes to the hosts that wrote them, at their next Flush.

use std::collections::BTreeMap;
use std::sync::Arc;

use nvmeof_backend::{Losses, Lost, flush_begins, stamp};
use nvmeof_target_core::{Executed, IoOp, WriteLoss};

use super::{Io, QueuePair, log_peer};
use crate::tag::SlotId;

/// The backing stores to which the host of a queue is known to write.
#[derive(Debug, Default)]
pub(super) struct WrittenStores {
    /// The one it wrote to last.
    last: Option<WrittenStore>,
    all: BTreeMap<u32, WrittenStore>,
    /// The backing store that was looked up last and cannot lose writes.
    safe: Option<u32>,
    /// Flushes whose responses report a loss, until these were sent.
    pending: Vec<PendingReport>,
    /// Losses reported by responses that were sent on this queue, by storage identity.
    reports: BTreeMap<u64, Report>,
    /// How many of them the host may not have received yet.
    unconfirmed: usize,
}

#[derive(Clone, Debug)]
struct WrittenStore {
    store: u32,
    losses: Arc<Losses>,
    write_loss: Arc<WriteLoss>,
}

/// A write that may be lost after its completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Risk {
    store: u32,
    /// The number of losses of the backing store when it began.
    losses: u64,
}

/// A response that reports a loss.
#[derive(Clone, Copy, Debug)]
struct PendingReport {
    slot: SlotId,
    storage: u64,
    /// The stamp of the Flush's arrival.
    arrived: u64,
}

/// A loss reported to the host on this queue. Responses of one queue arrive in order: the
/// host receives this one before any later one.
#[derive(Clone, Copy, Debug)]
struct Report {
    /// The stamp of the Flush's arrival: the report covers everything written until then.
    arrived: u64,
    /// After so many further responses of the queue, the host has received this one for
    /// certain.
    unconfirmed: u32,
}

/// Backing stores that a queue remembers; a file that grows again and again counts as
/// many.
const MAX_REMEMBERED: usize = 1024;

impl WrittenStores {
    /// The risk, if the host wrote to this backing store last and nothing was lost since.
    #[inline]
    fn risk_of(&self, store: u32) -> Option<Risk> {
        let last = self.last.as_ref().filter(|last| last.store == store)?;
        let losses = last.losses.now().count;
        last.write_loss
            .is_current(losses)
            .then_some(Risk { store, losses })
    }

    fn remember(&mut self, touched: WrittenStore) {
        if self.all.len() >= MAX_REMEMBERED {
            self.all.clear();
        }
        self.last = Some(touched.clone());
        self.all.insert(touched.store, touched);
    }

    /// Whether this queue reported to the host the loss of what it wrote to `storage`
    /// until `unreported`.
    fn has_reported(&self, storage: u64, unreported: u64) -> bool {
        let report = self.reports.get(&storage);
        report.is_some_and(|report| unreported <= report.arrived)
    }

    /// A response that reports a loss was sent. `unconfirmed` is not 0.
    fn record_report(&mut self, storage: u64, arrived: u64, unconfirmed: u32) {
        if self.reports.len() >= MAX_REMEMBERED {
            // It is reported again.
            self.reports.clear();
            self.unconfirmed = 0;
        }
        let old = self.reports.insert(
            storage,
            Report {
                arrived,
                unconfirmed,
            },
        );
        if old.is_none_or(|old| old.unconfirmed == 0) {
            self.unconfirmed += 1;
        }
    }

    /// A further response was sent. Returns the storages whose reports the host has
    /// received for certain now, with the stamps that they cover.
    fn confirm_responses(&mut self) -> Vec<(u64, u64)> {
        let mut confirmed = Vec::new();
        for (storage, report) in self
            .reports
            .iter_mut()
            .filter(|(_, report)| report.unconfirmed > 0)
        {
            report.unconfirmed -= 1;
            if report.unconfirmed == 0 {
                self.unconfirmed -= 1;
                confirmed.push((*storage, report.arrived));
            }
        }
        confirmed
    }
}

impl QueuePair {
    /// What `op` may lose after its completion; `None` if nothing. If the host cannot be
    /// recorded as a writer, its changes have to be stable before the completion, and
    /// `op` is changed to that.
    #[inline]
    pub(super) fn risk_of(&mut self, op: &mut IoOp, io: &Io<'_>) -> Option<Risk> {
        if !op.changes() || op.fua || self.written.safe == Some(op.store) {
            return None;
        }
        let risk = self.written.risk_of(op.store);
        risk.or_else(|| self.register_write(op, io))
    }

    #[cold]
    fn register_write(&mut self, op: &mut IoOp, io: &Io<'_>) -> Option<Risk> {
        let store = op.store;
        let Some(losses) = io.stores.losses(store) else {
            self.written.safe = Some(store);
            return None;
        };
        // No host writes before a Connect.
        let host = self.core.hostnqn()?;
        let lost = losses.now();
        let Some(touched) = self.written_store(store, &losses, io) else {
            op.fua = true;
            return None;
        };
        let concern = |wrote, known| losses.concern(wrote, known);
        io.resources
            .writers
            .evaluate(lost.storage, &host, lost.count, concern);
        self.written.remember(touched);
        let losses = lost.count;
        Some(Risk { store, losses })
    }

    /// The backing store, with the write losses of the host there.
    fn written_store(&self, store: u32, losses: &Arc<Losses>, io: &Io<'_>) -> Option<WrittenStore> {
        if let Some(touched) = self.written.all.get(&store) {
            return Some(touched.clone());
        }
        let Lost { storage, count } = losses.now();
        let host = self.core.hostnqn()?;
        let counted = nvmeof_backend::counted;
        let write_loss = io.resources.writers.join(storage, &host, count, counted)?;
        let losses = Arc::clone(losses);
        Some(WrittenStore {
            store,
            losses,
            write_loss,
        })
    }

    /// The command in `slot`, a Flush, starts on its first or next backing store.
    pub(super) fn flush_started(&mut self, slot: SlotId) {
        if let Some(command) = self.slots.get(slot) {
            command.arrived.get_or_insert_with(flush_begins);
        }
    }

    /// A write that may be lost has completed.
    #[inline]
    pub(super) fn record_risky_write(&mut self, risk: Risk, io: &Io<'_>) {
        let last = self.written.last.as_ref();
        if let Some(last) = last.filter(|last| last.store == risk.store) {
            // In this order: a loss is either seen here, or includes this write.
            last.write_loss.record_write(stamp());
            if last.losses.now().count == risk.losses {
                return;
            }
        }
        self.wrote_elsewhere(risk, io);
    }

    #[cold]
    fn wrote_elsewhere(&mut self, risk: Risk, io: &Io<'_>) {
        let losses = io.stores.losses(risk.store);
        let (Some(losses), Some(host)) = (losses, self.core.hostnqn()) else {
            return;
        };
        if let Some(touched) = self.written_store(risk.store, &losses, io) {
            touched.write_loss.record_write(stamp());
            self.written.remember(touched);
        }
        let lost = losses.now();
        if lost.count != risk.losses {
            io.resources.writers.mark_lost(lost.storage, &host, stamp());
        }
    }

    /// Whether the host may have written data that are not stable yet. Writes to memory
    /// are stable at once and not tracked.
    #[cold]
    pub(super) fn is_unflushed(&self, store: u32, io: &Io<'_>) -> bool {
        let (Some(losses), Some(host)) = (io.stores.losses(store), self.core.hostnqn()) else {
            return true;
        };
        let stable = |stamp| losses.is_stable(stamp);
        let storage = losses.now().storage;
        io.resources.writers.has_unflushed(storage, &host, stable)
    }

    /// The outcome for the host of an operation without a buffer. A Flush fails if an
    /// earlier failed flush of another host lost writes of this host.
    pub(super) fn flushed(&mut self, slot: SlotId, outcome: Executed, io: &Io<'_>) -> Executed {
        let command = self.slots.get(slot);
        let flush =
            command.and_then(|command| Some((command.request.flushes()?, command.arrived?)));
        let Some((store, arrived)) = flush else {
            return outcome;
        };
        let Some(losses) = io.stores.losses(store) else {
            return outcome;
        };
        let Lost { storage, count } = losses.now();
        // The host sends the Flush again when the backing store is back.
        if count == 0 || outcome == Executed::Gone {
            return outcome;
        }
        let Some(host) = self.core.hostnqn() else {
            return outcome;
        };
        let concern = |wrote, known| losses.concern(wrote, known);
        let unreported = io
            .resources
            .writers
            .unreported_loss(storage, &host, count, concern);
        if unreported.is_none_or(|unreported| self.written.has_reported(storage, unreported)) {
            return outcome;
        }
        self.written.pending.push(PendingReport {
            slot,
            storage,
            arrived,
        });
        if outcome != Executed::Ok {
            return outcome;
        }
        log_peer!(
            warn,
            self,
            disk = store,
            "Flush failed: an earlier flush of the backing store failed and may have lost \
             writes of this host"
        );
        Executed::Failed
    }

    /// The response to the command in `slot` was sent.
    #[inline]
    pub(super) fn answered(&mut self, slot: SlotId, io: &Io<'_>) {
        // Losses are rare.
        if !self.written.pending.is_empty() || self.written.unconfirmed > 0 {
            self.report_loss(slot, io);
        }
    }

    /// Reports the loss on other queues of the host as well, and on those that it
    /// connects after it lost this one, until it has received the report for certain: the
    /// response may be lost with the queue, or arrive later than a success on another
    /// queue that was requested before.
    ///
    /// Without a further response, the host sends no more commands than the queue has
    /// entries (by SQHD, or without flow control by its outstanding commands: Base 2.0,
    /// 6.3). Of twice as many responses sent after this one, at least one is to a command
    /// that it sent after it had received this one.
    #[cold]
    fn report_loss(&mut self, slot: SlotId, io: &Io<'_>) {
        let confirmed = self.written.confirm_responses();
        if let Some(host) = self.core.hostnqn() {
            for (storage, until) in confirmed {
                io.resources.writers.confirm_report(storage, &host, until);
            }
        }
        let unconfirmed = 2 * u32::from(self.core.entries());
        let its = |pending: &mut PendingReport| pending.slot == slot;
        let reports: Vec<PendingReport> = self.written.pending.extract_if(.., its).collect();
        for PendingReport {
            storage, arrived, ..
        } in reports
        {
            self.written.record_report(storage, arrived, unconfirmed);
        }
    }
}
