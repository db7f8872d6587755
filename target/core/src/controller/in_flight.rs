//! Whether anything of a controller is still in flight, over all reactors: what a
//! Cross-Controller Reset waits for.
//!
//! Each queue of the controller holds an [`InFlight`]. A queue that ends passes it on to the
//! operations that backing stores still have of it. The controller is quiet when the last one
//! is released: nothing that was sent to it can change media any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// How many queues of a controller may have commands in flight.
#[derive(Debug, Default)]
pub(crate) struct InFlightCount {
    queues: AtomicUsize,
    /// Whether a Cross-Controller Reset waits until there are none.
    is_reset: AtomicBool,
}

/// One queue that may have commands in flight, until it is released or dropped.
#[derive(Debug)]
#[must_use]
pub struct InFlight(Arc<InFlightCount>);

impl InFlightCount {
    /// A queue joins the controller. Check afterwards that the controller is not lost.
    pub(crate) fn join(self: &Arc<Self>) -> InFlight {
        self.queues.fetch_add(1, Ordering::AcqRel);
        // With the fence of `is_quiet`: either the queue sees that the controller is lost,
        // or the reset sees the queue.
        fence(Ordering::SeqCst);
        InFlight(Arc::clone(self))
    }

    /// Whether nothing is in flight. Of a controller that is lost, this stays so.
    pub(crate) fn is_quiet(&self) -> bool {
        fence(Ordering::SeqCst);
        self.queues.load(Ordering::Acquire) == 0
    }

    /// A Cross-Controller Reset begins. Says whether none was in progress.
    pub(crate) fn begin_reset(&self) -> bool {
        !self.is_reset.swap(true, Ordering::AcqRel)
    }

    /// Whether a Cross-Controller Reset waits.
    pub(crate) fn is_reset(&self) -> bool {
        self.is_reset.load(Ordering::Acquire)
    }
}

impl InFlight {
    /// Whether a Cross-Controller Reset waits for it.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.0.is_reset()
    }

    /// The queue has nothing in flight any more. Says whether a Cross-Controller Reset
    /// completes by that: then every reactor polls its queues.
    #[must_use]
    pub fn release(self) -> bool {
        let count = Arc::clone(&self.0);
        drop(self);
        count.is_reset() && count.is_quiet()
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.queues.fetch_sub(1, Ordering::AcqRel);
    }
}
