//! Adding and removing backing stores and listeners at run time.
//!
//! ```text
//!  order to close ──► InUse ─ no command uses it ─► Flushing ─► Idle ─ closed ─► reported
//!                       └─────── order to abandon ──────┴─► Abandoned ─ closed ─┘
//! ```

use std::sync::mpsc::Sender;
use std::time::Duration;

use nvmeof_backend::{BackingStores, Claim, Done, Op, OpenError, Request};
use nvmeof_rdma::{Address, ListenerId};
use nvmeof_target_core::{DisconnectReason, Disconnected, FollowUps};

use super::{Listening, Reactor};
use crate::computed::Computed;
use crate::fair_queue::HostId;
use crate::mailbox::Order;
use crate::tag::{NO_SLOT, SlotId, Tag};

/// A backing store that will be closed: no new command uses it.
pub(super) struct ClosingStore {
    store: u32,
    stage: Stage,
    reply: Sender<u32>,
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
    /// The same; what it has in flight is not waited for.
    Abandoned { next: Duration },
}

/// How often to look for commands on a backing store that will be closed. Each time all
/// commands in flight are examined.
const IN_USE_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// How often to try to close a backing store that is abandoned.
const ABANDONED_CHECK_INTERVAL: Duration = Duration::from_millis(100);

impl ClosingStore {
    /// Whether its store is abandoned.
    pub(super) fn is_abandoned(&self, store: u32) -> bool {
        self.store == store && matches!(self.stage, Stage::Abandoned { .. })
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        match self.stage {
            Stage::InUse { next } | Stage::Idle { next } | Stage::Abandoned { next } => Some(next),
            Stage::Flushing => None,
        }
    }
}

impl<S: BackingStores> Reactor<S> {
    pub(super) fn take_orders(&mut self, now: Duration) {
        for order in self.mailbox.take_orders() {
            match order {
                Order::Open { stores, reply } => {
                    // If the requester has timed out, it closes them again.
                    let _ = reply.send(self.open_all(&stores));
                }
                Order::Listen {
                    provider,
                    address,
                    reply,
                } => {
                    self.detach.resume();
                    let listened = self.listen_named(provider, address);
                    if let Err(Ok((listener, _))) = reply.send(listened) {
                        self.forget_listener(provider, listener);
                    }
                }
                Order::Add { provider, reply } => {
                    self.providers.push(provider);
                    if reply.send(()).is_err() {
                        self.providers.pop();
                    }
                }
                Order::TakeBack { provider } => self.providers.truncate(provider),
                Order::Unlisten {
                    provider,
                    address,
                    reply,
                } => {
                    let _ = reply.send(self.unlisten(provider, address, now));
                }
                Order::Snapshot { reply } => {
                    let _ = reply.send(self.snapshot(now));
                }
                Order::Detach { reply } => self.start_detaching(reply, now),
                Order::Computed(computed) => self.computed(computed, now),
                Order::Close { stores, reply } => {
                    for (store, claim) in stores {
                        self.retire_store(store, claim, reply.clone(), now);
                    }
                }
                Order::Abandon { stores } => self.abandon_stores(&stores, now),
            }
        }
    }

    /// A computation has a result. Its queue may be closed already.
    fn computed(&mut self, computed: Computed, now: Duration) {
        if let Some((tag, result)) = computed.into_result() {
            self.with_queue(tag.queue, now, |queue_pair, io| {
                queue_pair.computed(tag.slot, result, io);
            });
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

    fn retire_store(&mut self, store: u32, claim: Claim, reply: Sender<u32>, now: Duration) {
        if !self.stores.stores().contains(&store) {
            // It could not be opened on this reactor.
            let _ = reply.send(store);
            return;
        }
        let stage = Stage::InUse { next: now };
        self.closing_stores.push(ClosingStore {
            store,
            stage,
            reply,
            _claim: claim,
        });
    }

    fn open_all(&mut self, stores: &[(u32, Claim)]) -> Result<(), (u32, OpenError)> {
        for (at, (store, claim)) in stores.iter().enumerate() {
            if let Err(error) = self.stores.open(*store, claim) {
                for (opened, _) in stores.iter().take(at) {
                    self.stores.close(*opened);
                }
                return Err((*store, error));
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
                if self.is_used(one.store) {
                    self.each_queue(now, |queue_pair, io| queue_pair.end_removed(one.store, io));
                    let next = now + IN_USE_CHECK_INTERVAL;
                    one.stage = Stage::InUse { next };
                } else {
                    one.stage = Stage::Flushing;
                    self.flush_leaving(one.store, now);
                    any = true;
                }
                true
            }
            Stage::Idle { next } | Stage::Abandoned { next } if now >= next => {
                if !self.stores.close(one.store) {
                    one.stage = match one.stage {
                        Stage::Abandoned { .. } => Stage::Abandoned {
                            next: now + ABANDONED_CHECK_INTERVAL,
                        },
                        _ => Stage::Idle {
                            next: now + IN_USE_CHECK_INTERVAL,
                        },
                    };
                    return true;
                }
                tracing::debug!(disk = one.store, "closed");
                any = true;
                let _ = one.reply.send(one.store);
                false
            }
            _ => true,
        });
        self.closing_stores = closing_stores;
        any
    }

    fn abandon_stores(&mut self, stores: &[u32], now: Duration) {
        let next = now;
        for one in &mut self.closing_stores {
            if stores.contains(&one.store) {
                one.stage = Stage::Abandoned { next };
                self.stores.abandon(one.store);
            }
        }
        let closing = std::mem::take(&mut self.closing_stores);
        let is_abandoned = |store: u32| closing.iter().any(|one| one.is_abandoned(store));
        self.each_queue(now, |queue_pair, io| {
            if stores.iter().any(|store| queue_pair.uses(*store)) {
                queue_pair.abandon(
                    "its backing store does not respond, and another gateway may serve it",
                    io,
                );
                queue_pair.abandon_store_ops(is_abandoned, io);
            }
        });
        if self.queues.abandon_store_ops(is_abandoned) {
            self.resources.follow_ups |= FollowUps::POLL_ALL;
        }
        self.closing_stores = closing;
    }

    /// Whether a command may still use that backing store. Operations of closed queues
    /// are checked when it is closed.
    fn is_used(&self, store: u32) -> bool {
        self.queues.use_store(store) || self.resources.backlog.waits_for(store)
    }

    fn flush_leaving(&mut self, store: u32, now: Duration) {
        let tag = Tag {
            queue: NO_SLOT,
            slot: SlotId::of_number(store),
        };
        let request = Request {
            tag: tag.to_bits(),
            op: Op::Flush,
        };
        self.resources
            .backlog
            .push(HostId::default(), store, request);
        self.submit_backlog(now);
    }

    pub(super) fn flushed_leaving(&mut self, slot: SlotId, done: &Done) {
        if let Err(error) = &done.result {
            tracing::error!("final flush of a removed backing store failed: {error}");
        }
        let store = slot.to_bits();
        if let Some(one) = self
            .closing_stores
            .iter_mut()
            .find(|one| one.store == store && one.stage == Stage::Flushing)
        {
            let next = Duration::ZERO;
            one.stage = Stage::Idle { next };
        }
    }
}
