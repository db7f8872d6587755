//! When to arm a completion queue.

/// Whether the next completion of a queue raises an event, as far as its owner knows.
///
/// Each arming raises one event, for a completion that is added after it
/// (`ibv_req_notify_cq(3)`). Before a sleep the owner arms the queue and polls it once more:
/// what was added before raises nothing. `tests/arming.rs` is a model of that.
#[derive(Debug, Default)]
pub(crate) struct Arming {
    armed: bool,
}

impl Arming {
    /// The owner is going to sleep. Returns whether it has to arm the queue, and to poll it once
    /// more.
    pub(crate) fn arm(&mut self) -> bool {
        !std::mem::replace(&mut self.armed, true)
    }

    /// Completions were taken, or an event: the queue may not be armed any more.
    pub(crate) fn used(&mut self) {
        self.armed = false;
    }
}
