//! SIGINT and SIGTERM while something runs that has a result so far.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// A signal that asks to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Signal {
    Int = 2,
    Term = 15,
}

impl Signal {
    /// What a shell reports of a process that the signal ended.
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

/// The first of these signals that came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    number: Arc<AtomicU8>,
}

impl Interrupt {
    /// From here on the first signal is noted, and whoever works looks at [`Self::signal`];
    /// the second one ends the process, after `give_up`. Within a runtime.
    pub(crate) fn watch(
        give_up: impl Fn(Signal) + Clone + Send + 'static,
    ) -> Result<Self, Failure> {
        let interrupt = Self::default();
        for one in [Signal::Int, Signal::Term] {
            let mut stream = signal(one.kind()).map_err(|error| {
                let why = nvmeof_rdma::explain(&error);
                Failure::new(format!("cannot watch for {}: {why}", one.name()))
            })?;
            let (number, give_up) = (Arc::clone(&interrupt.number), give_up.clone());
            tokio::spawn(async move {
                while stream.recv().await.is_some() {
                    if number.swap(one as u8, Ordering::Relaxed) != 0 {
                        give_up(one);
                        std::process::exit(one.exit_status().into());
                    }
                }
            });
        }
        Ok(interrupt)
    }

    /// The signal that came, if one did.
    pub(crate) fn signal(&self) -> Option<Signal> {
        match self.number.load(Ordering::Relaxed) {
            0 => None,
            number if number == Signal::Int as u8 => Some(Signal::Int),
            _ => Some(Signal::Term),
        }
    }
}
