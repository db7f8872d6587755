//! Draining: commands in flight complete, then the backing stores are flushed.
//!
//! ```text
//!  Serving ─ drain ─► Draining ─ queue pairs closed ─► Flushing ─► Drained
//!                        └ timeout: remaining connections are closed
//! ```

use std::time::Duration;

use nvmeof_backend::{BackingStores, Done, Op, Request};

use super::Reactor;
use crate::fair_queue::HostId;
use crate::tag::{NO_SLOT, SlotId, Tag};

/// The state of draining.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Serving,
    /// Commands may finish until then; afterwards connections are closed.
    Draining {
        until: Duration,
    },
    /// Connections are being closed.
    Closing {
        until: Duration,
    },
    /// Number of backing stores that are being flushed.
    Flushing {
        left: u32,
        until: Duration,
    },
    Drained,
}

/// The tag of a final flush. No queue has this slot.
pub(super) const FLUSH: Tag = Tag {
    queue: NO_SLOT,
    slot: NO_SLOT,
};

impl Stage {
    pub(super) fn accepts(&self) -> bool {
        *self == Self::Serving
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        match self {
            Self::Serving | Self::Drained => None,
            Self::Draining { until } | Self::Closing { until } | Self::Flushing { until, .. } => {
                Some(*until)
            }
        }
    }
}

impl<S: BackingStores> Reactor<S> {
    /// Stops listening and lets commands in flight finish.
    pub fn start_drain(&mut self, now: Duration) {
        if self.stage != Stage::Serving {
            return;
        }
        self.close_listeners();
        let until = now + self.config.drain;
        self.stage = Stage::Draining { until };
        self.each_queue(now, |queue_pair, io| queue_pair.drain(io));
    }

    pub(super) fn close_listeners(&mut self) {
        for listening in self.listeners.drain(..) {
            if let Some(provider) = self.providers.get_mut(listening.provider) {
                provider.unlisten(listening.listener);
            }
        }
    }

    pub(super) fn continue_drain(&mut self, now: Duration) -> bool {
        let idle = self.queues.is_empty();
        match self.stage {
            Stage::Draining { .. } | Stage::Closing { .. } if idle => self.start_flush(now),
            Stage::Draining { until } if now >= until => {
                let until = now + self.config.drain;
                self.stage = Stage::Closing { until };
                self.each_queue(now, |queue_pair, io| {
                    queue_pair.abandon(
                        "commands did not complete within the drain time (reactor.drain_s)",
                        io,
                    );
                });
            }
            // The provider reported no close for them: abandon them.
            Stage::Closing { until } if now >= until => self.start_flush(now),
            Stage::Flushing { left: 0, .. } => self.stage = Stage::Drained,
            Stage::Flushing { left, until } if now >= until => {
                tracing::error!("{left} backing stores could not be flushed in time");
                self.stage = Stage::Drained;
            }
            _ => return false,
        }
        true
    }

    /// Makes data stable that hosts wrote and did not flush.
    fn start_flush(&mut self, now: Duration) {
        let closing = &self.closing_stores;
        let is_abandoned = |store: &u32| closing.iter().any(|one| one.is_abandoned(*store));
        let mut stores = self.stores.stores();
        stores.retain(|store| !is_abandoned(store));
        let left = u32::try_from(stores.len()).unwrap_or(u32::MAX);
        for store in stores {
            let request = Request {
                tag: FLUSH.to_bits(),
                op: Op::Flush,
            };
            self.resources
                .backlog
                .push(HostId::default(), store, request);
        }
        let until = now + self.config.drain;
        self.stage = Stage::Flushing { left, until };
    }

    /// A final flush, which no host requested, completed.
    pub(super) fn flushed(&mut self, slot: SlotId, done: &Done) {
        if slot != FLUSH.slot {
            return self.flushed_leaving(slot, done);
        }
        if let Err(error) = &done.result {
            tracing::error!("final flush failed: {error}");
        }
        if let Stage::Flushing { left, until } = self.stage {
            let left = left.saturating_sub(1);
            self.stage = Stage::Flushing { left, until };
        }
    }

    pub(super) fn each_queue(
        &mut self,
        now: Duration,
        mut act: impl FnMut(&mut crate::queue::QueuePair, &mut crate::queue::Io<'_>),
    ) {
        for id in self.queues.ids() {
            self.with_queue(id, now, &mut act);
        }
    }
}
