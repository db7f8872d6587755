//! Disks and listeners that come and go while the reactor runs.
//!
//! ```text
//!  order to close ──► InUse ─ no command has it ─► Flushing ─► Idle ─ closed ─► answered
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

/// A disk that is to be closed: no command begins on it any more.
pub(super) struct Leaving {
    disk: u32,
    stage: Stage,
    answer: Sender<u32>,
    /// Keeps the lock.
    _claim: Claim,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Commands may be on their way to it. To be looked at then.
    InUse { next: Duration },
    /// What hosts wrote and did not flush becomes stable.
    Flushing,
    /// To be closed then.
    Idle { next: Duration },
}

/// How often commands on a disk that is to be closed are looked for. It takes
/// a look at each that is in flight.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

impl Leaving {
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
                    // Who does not wait for the answer closes them again.
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

    /// Nobody waits any more for the listener that was just made.
    fn forget_listener(&mut self, provider: usize, listener: ListenerId) {
        self.listeners
            .retain(|one| (one.provider, one.listener) != (provider, listener));
        if let Some(provider) = self.providers.get_mut(provider) {
            provider.unlisten(listener);
        }
    }

    /// Stops listening there and closes the connections that came by it.
    /// Returns the controllers whose admin queues were among them.
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
            // It could not be opened here.
            let _ = answer.send(disk);
            return;
        }
        let stage = Stage::InUse { next: now };
        self.leaving.push(Leaving {
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

    /// Goes on with disks that are to be closed. Says whether anything came of
    /// it.
    pub(super) fn close_leaving(&mut self, now: Duration) -> bool {
        if self.leaving.is_empty() {
            return false;
        }
        let mut leaving = std::mem::take(&mut self.leaving);
        let mut any = false;
        leaving.retain_mut(|one| match one.stage {
            Stage::InUse { next } if now >= next => {
                if self.is_used(one.disk) {
                    self.each_queue(now, |queue_pair, io| queue_pair.end_removed(one.disk, io));
                    let next = now + LOOK_AGAIN;
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
                    let next = now + LOOK_AGAIN;
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
        self.leaving = leaving;
        any
    }

    /// Whether a command may still have something to do on that disk. What
    /// queues that are gone left to it is seen when it is closed.
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
        if let Some(one) = self.leaving.iter_mut().find(|one| one.disk == disk) {
            let next = Duration::ZERO;
            one.stage = Stage::Idle { next };
        }
    }
}
