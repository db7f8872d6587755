//! Letting go of all hosts while the target goes on: as when it drains to stop,
//! but it may listen again.
//!
//! ```text
//!  Serving ─ order ─► Finishing ─ time is up ─► Closing ─ queue pairs gone ─► Gone
//!     ▲                   └ queue pairs gone ─────────────────────────────────► │
//!     └──────────────────────────────── listens ────────────────────────────────┘
//! ```

use std::sync::mpsc::Sender;
use std::time::Duration;

use nvmeof_backend::Storage;

use super::Reactor;

/// How far that is.
#[derive(Debug, Default)]
pub(super) struct Detach {
    stage: Stage,
    /// Hear when all are gone.
    answers: Vec<Sender<()>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Serving,
    /// Until then commands may finish.
    Finishing {
        until: Duration,
    },
    /// Connections are being closed.
    Closing,
    Gone,
}

impl Detach {
    /// Whether connections are taken.
    pub(super) fn accepts(&self) -> bool {
        self.stage == Stage::Serving
    }

    /// They are from now on.
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

impl<S: Storage> Reactor<S> {
    pub(super) fn start_detaching(&mut self, answer: Sender<()>, now: Duration) {
        self.listen_nowhere();
        self.detach.answers.push(answer);
        if self.detach.stage == Stage::Serving {
            let until = now + self.config.drain;
            self.detach.stage = Stage::Finishing { until };
            self.each_queue(now, |queue_pair, io| queue_pair.drain(io));
        }
    }

    /// Goes on with it. Says whether anything came of it.
    pub(super) fn go_on_letting_go(&mut self, now: Duration) -> bool {
        match self.detach.stage {
            Stage::Finishing { .. } | Stage::Closing if self.queues.is_empty() => {
                self.detach.stage = Stage::Gone;
            }
            Stage::Finishing { until } if now >= until => {
                self.detach.stage = Stage::Closing;
                self.each_queue(now, |queue_pair, io| {
                    queue_pair.abandon("the time to finish commands is up", io);
                });
            }
            _ => {}
        }
        let tells = self.detach.stage == Stage::Gone && !self.detach.answers.is_empty();
        if tells {
            for answer in self.detach.answers.drain(..) {
                // Who does not wait any more need not know.
                let _ = answer.send(());
            }
        }
        tells
    }
}
