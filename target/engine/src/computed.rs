//! The result of a computation, on its way to the command that waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nvmeof_dhchap::WorkResult;

use crate::tag::Tag;

/// The result of a computation for a reactor: see [`ComputeJob`](crate::ComputeJob).
pub struct Computed {
    pub(crate) tag: Tag,
    pub(crate) result: WorkResult,
    pub(crate) is_cancelled: Arc<AtomicBool>,
}

impl Computed {
    /// The command and its result; `None` if the command no longer waits for it.
    pub(crate) fn into_result(self) -> Option<(Tag, WorkResult)> {
        let is_cancelled = self.is_cancelled.load(Ordering::Relaxed);
        (!is_cancelled).then_some((self.tag, self.result))
    }
}
