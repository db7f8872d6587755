//! Draining: what was begun is finished, then the disks are flushed.
//!
//! ```text
//!  Serving ─ drain ─► Draining ─ queue pairs gone ─► Flushing ─► Drained
//!                        └ time is up: they are closed as they are
//! ```

use std::time::Duration;

use nvmeof_backend::{Done, Op, Request, Storage};

use super::Reactor;
use crate::fair_queue::HostId;
use crate::tag::{NO_SLOT, SlotId, Tag};

/// How far draining is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Serving,
    /// Until then commands may finish; afterwards connections are closed.
    Draining {
        until: Duration,
    },
    /// Connections are being closed.
    Closing {
        until: Duration,
    },
    /// So many disks are being flushed.
    Flushing {
        left: u32,
        until: Duration,
    },
    Drained,
}

/// The name of a flush at the end. No queue has this place.
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

impl<S: Storage> Reactor<S> {
    /// Stops listening and lets what was begun finish.
    pub fn start_drain(&mut self, now: Duration) {
        if self.stage != Stage::Serving {
            return;
        }
        self.listen_nowhere();
        let until = now + self.config.drain;
        self.stage = Stage::Draining { until };
        self.each_queue(now, |queue_pair, io| queue_pair.drain(io));
    }

    pub(super) fn listen_nowhere(&mut self) {
        for listening in self.listeners.drain(..) {
            if let Some(provider) = self.providers.get_mut(listening.provider) {
                provider.unlisten(listening.listener);
            }
        }
    }

    pub(super) fn go_on_draining(&mut self, now: Duration) -> bool {
        let idle = self.queues.is_empty();
        match self.stage {
            Stage::Draining { .. } | Stage::Closing { .. } if idle => self.start_flush(now),
            Stage::Draining { until } if now >= until => {
                let until = now + self.config.drain;
                self.stage = Stage::Closing { until };
                self.each_queue(now, |queue_pair, io| {
                    queue_pair.abandon("the time to finish commands is up", io);
                });
            }
            // The provider said nothing of them: leave them behind.
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

    /// What hosts wrote and did not flush becomes stable all the same.
    fn start_flush(&mut self, now: Duration) {
        let disks = self.storage.disks();
        let left = u32::try_from(disks.len()).unwrap_or(u32::MAX);
        for disk in disks {
            let request = Request {
                tag: FLUSH.to_bits(),
                op: Op::Flush,
            };
            self.resources
                .backlog
                .push(HostId::default(), disk, request);
        }
        let until = now + self.config.drain;
        self.stage = Stage::Flushing { left, until };
    }

    /// A flush that no host asked for ended.
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
        for place in self.queues.places() {
            self.with_queue(place, now, &mut act);
        }
    }
}
