//! Controllers of other gateways that serve the same subsystems. A host that lost one of them asks
//! this gateway to reset it (Cross-Controller Reset).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use nvmeof_wire::Nqn;

/// Knows when controllers of other gateways have ended.
pub trait OtherGateways: fmt::Debug + Send + Sync {
    /// A host lost controller `cntlid` of that subsystem. `None` if no other gateway assigns this
    /// identifier. Otherwise the caller gets the [outcome](RemoteReset::end) within a bounded
    /// time, and then every reactor has to poll its queues.
    fn reset(&self, subsystem: &Nqn, cntlid: u16) -> Option<Arc<RemoteReset>>;
}

/// The reset of a controller of another gateway.
#[derive(Debug, Default)]
pub struct RemoteReset(AtomicU8);

const ENDED: u8 = 1;
const FAILED: u8 = 2;

impl RemoteReset {
    /// Sets the outcome: whether no command that was sent to the controller takes effect after one
    /// that is sent to this gateway from now on.
    pub fn end(&self, has_ended: bool) {
        let outcome = if has_ended { ENDED } else { FAILED };
        self.0.store(outcome, Ordering::Release);
    }

    /// The outcome, if there is one.
    pub(crate) fn outcome(&self) -> Option<bool> {
        match self.0.load(Ordering::Acquire) {
            ENDED => Some(true),
            FAILED => Some(false),
            _ => None,
        }
    }
}
