//! SIGINT and SIGTERM during commands with partial results.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// A termination signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Signal {
    Int = 2,
    Term = 15,
}

impl Signal {
    /// The exit status that a shell reports for a process ended by the signal.
    pub(crate) fn exit_status(self) -> u8 {
        128 + self as u8
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Int => "SIGINT",
            Self::Term => "SIGTERM",
        }
    }

    fn kind(self) -> SignalKind {
        match self {
            Self::Int => SignalKind::interrupt(),
            Self::Term => SignalKind::terminate(),
        }
    }
}

/// The first termination signal that arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    number: Arc<AtomicU8>,
}

impl Interrupt {
    /// Watches for signals. The first one is recorded, and the command checks
    /// [`Self::signal`]; the second one calls `give_up` and ends the process. Requires a
    /// runtime.
    pub(crate) fn watch(
        give_up: impl Fn(Signal) + Clone + Send + 'static,
    ) -> Result<Self, Failure> {
        let interrupt = Self::default();
        for expected in [Signal::Int, Signal::Term] {
            let mut stream = signal(expected.kind()).map_err(|error| {
                let why = nvmeof_rdma::explain(&error);
                Failure::new(format!("cannot watch for {}: {why}", expected.name()))
            })?;
            let (number, give_up) = (Arc::clone(&interrupt.number), give_up.clone());
            tokio::spawn(async move {
                while stream.recv().await.is_some() {
                    if number.swap(expected as u8, Ordering::Relaxed) != 0 {
                        give_up(expected);
                        std::process::exit(expected.exit_status().into());
                    }
                }
            });
        }
        Ok(interrupt)
    }

    /// The signal that arrived, if any.
    pub(crate) fn signal(&self) -> Option<Signal> {
        match self.number.load(Ordering::Relaxed) {
            0 => None,
            number if number == Signal::Int as u8 => Some(Signal::Int),
            _ => Some(Signal::Term),
        }
    }
}
