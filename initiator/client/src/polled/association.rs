//! The association of a controller: its queues end together.

use std::sync::{Arc, OnceLock};

use crate::error::Error;

/// The association of a controller (NVMe over Fabrics 1.1, section 1.5.2): it
/// ends when the admin queue is lost. Each I/O queue that [joined](super::IoQueue::join) it
/// ends as well, on the thread that polls it. Clones are the same association.
#[derive(Clone, Debug, Default)]
pub struct Association {
    ended: Arc<OnceLock<Error>>,
}

impl Association {
    /// The reason, if it has ended.
    #[inline]
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        self.ended.get()
    }

    /// Ends it. Only the first reason is kept.
    pub(super) fn end(&self, why: &Error) {
        let _ = self.ended.set(why.clone());
    }
}
