//! What the queues of one controller have in common: they end together.

use std::sync::{Arc, OnceLock};

use crate::error::Error;

/// The association of a controller (NVMe over Fabrics 1.1, section 1.5.2): it
/// ends when the admin queue is lost, and with it each I/O queue that
/// [joined](super::IoQueue::join) it, on whatever thread that is polled. Clones
/// are the same association.
#[derive(Clone, Debug, Default)]
pub struct Association {
    ended: Arc<OnceLock<Error>>,
}

impl Association {
    /// Why it ended, if it did.
    #[inline]
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        self.ended.get()
    }

    /// Ends it. The first reason counts.
    pub(super) fn end(&self, why: &Error) {
        let _ = self.ended.set(why.clone());
    }
}
