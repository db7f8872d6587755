//! Detaching all hosts while the target keeps running: like a drain before shutdown, but
//! the reactor may listen again.
//!
//! ```text
//!  Serving ─ order ─► Finishing ─ timeout ─► Closing ─ queue pairs closed ─► Gone
//!     ▲                   └ queue pairs closed ──────────────────────────────► │
//!     └──────────────────────────────── listen ────────────────────────────────┘
//! ```

use std::sync::mpsc::Sender;
use std::time::Duration;

use nvmeof_backend::BackingStores;

use super::Reactor;

/// The state of detaching.
#[derive(Debug, Default)]
pub(super) struct Detach {
    stage: Stage,
    /// Get a message when all connections are gone.
    replies: Vec<Sender<()>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Serving,
    /// Commands may finish until then.
    Finishing {
        until: Duration,
    },
    /// Connections are being closed.
    Closing,
    Gone,
}

impl Detach {
    /// Whether connections are accepted.
    pub(super) fn accepts(&self) -> bool {
        self.stage == Stage::Serving
    }

    /// Accepts connections again.
    pub(super) fn resume(&mut self) {
        self.stage = Stage::Serving;
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        match self.stage {
            Stage::Finishing { until } => Some(until),
            Stage::Serving | Stage::Closing | Stage::Gone => None,
        }
    }
}

impl<S: BackingStores> Reactor<S> {
    pub(super) fn start_detaching(&mut self, reply: Sender<()>, now: Duration) {
        self.close_listeners();
        self.detach.replies.push(reply);
        if self.detach.stage == Stage::Serving {
            let until = now + self.config.drain;
            self.detach.stage = Stage::Finishing { until };
            self.each_queue(now, |queue_pair, io| queue_pair.drain(io));
        }
    }

    /// Continues. Returns whether the state changed.
    pub(super) fn continue_detach(&mut self, now: Duration) -> bool {
        match self.detach.stage {
            Stage::Finishing { .. } | Stage::Closing if self.queues.is_empty() => {
                self.detach.stage = Stage::Gone;
            }
            Stage::Finishing { until } if now >= until => {
                self.detach.stage = Stage::Closing;
                self.each_queue(now, |queue_pair, io| {
                    queue_pair.abandon(
                        "commands did not complete within the drain time (reactor.drain_s)",
                        io,
                    );
                });
            }
            _ => {}
        }
        let tells = self.detach.stage == Stage::Gone && !self.detach.replies.is_empty();
        if tells {
            for reply in self.detach.replies.drain(..) {
                // The requester may have timed out.
                let _ = reply.send(());
            }
        }
        tells
    }
}
