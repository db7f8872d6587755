//! The part of a controller that every command reads, without a lock.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Written rarely (but for `last_active`), read by every queue of the controller.
#[derive(Debug, Default)]
pub(crate) struct HotState {
    /// Whether commands other than Fabrics commands are served: CSTS.RDY and
    /// not shut down.
    ready: AtomicBool,
    /// Whether the controller is lost: its admin queue is closed, or the Keep Alive
    /// Timer expired.
    gone: AtomicBool,
    /// Counts resets. An I/O queue of an earlier count is closed.
    epoch: AtomicU32,
    last_active: LastActive,
    /// When the keep-alive interval began, in milliseconds.
    armed_ms: AtomicU64,
    /// Whether the host disabled the volatile write cache.
    write_through: AtomicBool,
    /// Whether an event waits for an Asynchronous Event Request.
    event: AtomicBool,
    /// Whether an Abort command waits for its outcome.
    aborts: AtomicBool,
    /// Whether a Cross-Controller Reset that it was asked for is in progress.
    resets: AtomicBool,
}

/// Time of the last sign of life of the host, in milliseconds. Each queue writes it once per
/// millisecond: on cache lines of its own, so that commands do not wait for the rest of the state.
#[derive(Debug, Default)]
#[repr(align(128))]
struct LastActive {
    ms: AtomicU64,
}

impl HotState {
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Marks the controller lost. Returns whether it was not lost before.
    pub(crate) fn lose(&self) -> bool {
        // In this order: a thread that sees that it is not ready also sees why.
        let was_there = !self.gone.swap(true, Ordering::AcqRel);
        self.ready.store(false, Ordering::Release);
        was_there
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    pub(crate) fn next_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn last_active(&self) -> Duration {
        Duration::from_millis(self.last_active.ms.load(Ordering::Relaxed))
    }

    /// When the keep-alive interval began.
    pub(crate) fn armed(&self) -> Duration {
        Duration::from_millis(self.armed_ms.load(Ordering::Relaxed))
    }

    /// Begins the next keep-alive interval.
    pub(crate) fn rearm(&self, now: Duration) {
        self.armed_ms.store(ms(now), Ordering::Relaxed);
    }

    /// Begins a keep-alive interval with a sign of life of the host.
    pub(crate) fn arm(&self, now: Duration) {
        self.rearm(now);
        self.note_activity(now);
    }

    pub(crate) fn note_activity(&self, now: Duration) {
        let now_ms = ms(now);
        // Queues on other cores write this cache line too: write it only if it changes.
        if self.last_active.ms.load(Ordering::Relaxed) != now_ms {
            self.last_active.ms.store(now_ms, Ordering::Relaxed);
        }
    }

    pub(crate) fn writes_through(&self) -> bool {
        self.write_through.load(Ordering::Relaxed)
    }

    pub(crate) fn set_write_through(&self, write_through: bool) {
        self.write_through.store(write_through, Ordering::Relaxed);
    }

    pub(crate) fn has_event(&self) -> bool {
        self.event.load(Ordering::Acquire)
    }

    pub(crate) fn has_aborts(&self) -> bool {
        self.aborts.load(Ordering::Acquire)
    }

    pub(crate) fn set_aborts(&self, aborts: bool) {
        self.aborts.store(aborts, Ordering::Release);
    }

    pub(crate) fn has_resets(&self) -> bool {
        self.resets.load(Ordering::Acquire)
    }

    pub(crate) fn set_resets(&self, resets: bool) {
        self.resets.store(resets, Ordering::Release);
    }

    pub(crate) fn set_event(&self, event: bool) {
        self.event.store(event, Ordering::Release);
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
