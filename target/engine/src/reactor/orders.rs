//! Adding and removing backing stores and listeners at run time.
//!
//! ```text
//!  order to close ──► InUse ─ no command uses it ─► Flushing ─► Idle ─ closed ─► reported
//! ```

use std::sync::mpsc::Sender;
use std::time::Duration;

use nvmeof_backend::{Claim, Done, Op, OpenError, Request, Storage};
use nvmeof_rdma::{Address, ListenerId};
use nvmeof_target_core::{DisconnectReason, Disconnected};

use super::{Listening, Reactor};
use crate::fair_queue::HostId;
use crate::mailbox::Order;
use crate::tag::{NO_SLOT, SlotId, Tag};

/// A backing store that will be closed: no new command uses it.
pub(super) struct ClosingStore {
    disk: u32,
    stage: Stage,
    answer: Sender<u32>,
    /// Keeps it locked.
    _claim: Claim,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Commands may still use it. Checked again at `next`.
    InUse { next: Duration },
    /// Data that hosts wrote and did not flush become stable.
    Flushing,
    /// Closed at `next`.
    Idle { next: Duration },
}

/// How often to look for commands on a backing store that will be closed. Each time all
/// commands in flight are examined.
const IN_USE_CHECK_INTERVAL: Duration = Duration::from_millis(5);

impl ClosingStore {
    pub(super) fn deadline(&self) -> Option<Duration> {
        match self.stage {
            Stage::InUse { next } | Stage::Idle { next } => Some(next),
            Stage::Flushing => None,
        }
    }
}

impl<S: Storage> Reactor<S> {
    pub(super) fn take_orders(&mut self, now: Duration) {
        for order in self.mailbox.take_orders() {
            match order {
                Order::Open { disks, answer } => {
                    // If the requester has timed out, it closes them again.
                    let _ = answer.send(self.open_all(&disks));
                }
                Order::Listen {
                    provider,
                    address,
                    reply,
                } => {
                    self.detach.resume();
                    let listened = self.listen_named(provider, address);
                    if let Err(Ok((listener, _))) = reply.give(listened) {
                        self.forget_listener(provider, listener);
                    }
                }
                Order::Add { provider, reply } => {
                    self.providers.push(provider);
                    if reply.give(()).is_err() {
                        self.providers.pop();
                    }
                }
                Order::TakeBack { provider } => self.providers.truncate(provider),
                Order::Unlisten {
                    provider,
                    address,
                    answer,
                } => {
                    let _ = answer.send(self.unlisten(provider, address, now));
                }
                Order::Look { answer } => {
                    let _ = answer.send(self.snapshot(now));
                }
                Order::Detach { answer } => self.start_detaching(answer, now),
                Order::Close { disks, answer } => {
                    for (disk, claim) in disks {
                        self.leave(disk, claim, answer.clone(), now);
                    }
                }
            }
        }
    }

    /// Closes the listener that was just created: its requester has timed out.
    fn forget_listener(&mut self, provider: usize, listener: ListenerId) {
        self.listeners
            .retain(|one| (one.provider, one.listener) != (provider, listener));
        if let Some(provider) = self.providers.get_mut(provider) {
            provider.unlisten(listener);
        }
    }

    /// Closes a listener and the connections that were accepted on it. Returns the
    /// controllers whose admin queues were among them.
    fn unlisten(&mut self, provider: usize, address: Address, now: Duration) -> Vec<Disconnected> {
        let its = |one: &Listening| one.provider == provider && one.address == address;
        let mut lost = Vec::new();
        while let Some(at) = self.listeners.iter().position(its) {
            let listener = self.listeners.swap_remove(at).listener;
            if let Some(provider) = self.providers.get_mut(provider) {
                provider.unlisten(listener);
            }
            self.each_queue(now, |queue_pair, io| {
                if queue_pair.link.provider != provider || queue_pair.link.listener != listener {
                    return;
                }
                lost.extend(queue_pair.lost(DisconnectReason::PortRemoved));
                queue_pair.abandon("its port was removed", io);
            });
        }
        lost
    }

    fn leave(&mut self, disk: u32, claim: Claim, answer: Sender<u32>, now: Duration) {
        if !self.storage.disks().contains(&disk) {
            // It could not be opened on this reactor.
            let _ = answer.send(disk);
            return;
        }
        let stage = Stage::InUse { next: now };
        self.closing_stores.push(ClosingStore {
            disk,
            stage,
            answer,
            _claim: claim,
        });
    }

    fn open_all(&mut self, disks: &[(u32, Claim)]) -> Result<(), (u32, OpenError)> {
        for (at, (disk, claim)) in disks.iter().enumerate() {
            if let Err(error) = self.storage.open(*disk, claim) {
                for (opened, _) in disks.iter().take(at) {
                    self.storage.close(*opened);
                }
                return Err((*disk, error));
            }
        }
        Ok(())
    }

    /// Continues to close backing stores. Returns whether any state changed.
    pub(super) fn close_stores(&mut self, now: Duration) -> bool {
        if self.closing_stores.is_empty() {
            return false;
        }
        let mut closing_stores = std::mem::take(&mut self.closing_stores);
        let mut any = false;
        closing_stores.retain_mut(|one| match one.stage {
            Stage::InUse { next } if now >= next => {
                if self.is_used(one.disk) {
                    self.each_queue(now, |queue_pair, io| queue_pair.end_removed(one.disk, io));
                    let next = now + IN_USE_CHECK_INTERVAL;
                    one.stage = Stage::InUse { next };
                } else {
                    one.stage = Stage::Flushing;
                    self.flush_leaving(one.disk, now);
                    any = true;
                }
                true
            }
            Stage::Idle { next } if now >= next => {
                if !self.storage.close(one.disk) {
                    let next = now + IN_USE_CHECK_INTERVAL;
                    one.stage = Stage::Idle { next };
                    return true;
                }
                tracing::debug!(disk = one.disk, "closed");
                any = true;
                let _ = one.answer.send(one.disk);
                false
            }
            Stage::InUse { .. } | Stage::Idle { .. } | Stage::Flushing => true,
        });
        self.closing_stores = closing_stores;
        any
    }

    /// Whether a command may still use that backing store. Operations of closed queues
    /// are checked when it is closed.
    fn is_used(&self, disk: u32) -> bool {
        self.queues.use_disk(disk) || self.resources.backlog.waits_for(disk)
    }

    fn flush_leaving(&mut self, disk: u32, now: Duration) {
        let tag = Tag {
            queue: NO_SLOT,
            slot: SlotId::of_number(disk),
        };
        let request = Request {
            tag: tag.to_bits(),
            op: Op::Flush,
        };
        self.resources
            .backlog
            .push(HostId::default(), disk, request);
        self.submit_backlog(now);
    }

    pub(super) fn flushed_leaving(&mut self, slot: SlotId, done: &Done) {
        if let Err(error) = &done.result {
            tracing::error!("final flush of a removed backing store failed: {error}");
        }
        let disk = slot.to_bits();
        if let Some(one) = self.closing_stores.iter_mut().find(|one| one.disk == disk) {
            let next = Duration::ZERO;
            one.stage = Stage::Idle { next };
        }
    }
}
