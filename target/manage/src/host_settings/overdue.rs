//! Operations with a time limit, of a place that may be unresponsive. While one is overdue, no
//! other one is started: it would wait as well, in one more thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use nvmeof_backend_spec::within;

/// The number of operations that did not end in time, and are still in progress.
#[derive(Debug, Default)]
pub(super) struct Overdue(AtomicUsize);

/// An operation, which its thread and its caller share.
struct Operation {
    overdue: Arc<Overdue>,
    /// [`STARTED`], [`EXCEEDED`] or [`ENDED`].
    phase: AtomicU8,
}

const STARTED: u8 = 0;
/// The caller has given up.
const EXCEEDED: u8 = 1;
const ENDED: u8 = 2;

/// Ends the operation when it is dropped, also if its thread did not start.
struct Ending(Arc<Operation>);

impl Overdue {
    /// The result of `ask`, if it ends within `limit`. `None` also while another one is overdue.
    pub(super) fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        limit: Duration,
        ask: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if self.0.load(Ordering::Acquire) > 0 {
            return None;
        }
        let operation = Arc::new(Operation {
            overdue: Arc::clone(self),
            phase: AtomicU8::new(STARTED),
        });
        let ending = Ending(Arc::clone(&operation));
        let result = within(limit, move || {
            let _ending = ending;
            ask()
        });
        if result.is_none() {
            operation.exceeds();
        }
        result
    }
}

impl Operation {
    /// Its time is over.
    fn exceeds(&self) {
        self.overdue.0.fetch_add(1, Ordering::AcqRel);
        if self.phase.swap(EXCEEDED, Ordering::AcqRel) == ENDED {
            self.overdue.0.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Operation { overdue, phase } = &*self.0;
        if phase.swap(ENDED, Ordering::AcqRel) == EXCEEDED {
            overdue.0.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
