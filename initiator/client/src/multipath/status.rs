//! What the paths of a subsystem report about themselves: counters and status.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvmeof_initiator_core::FenceMethod;
use nvmeof_initiator_core::multipath::PathState;
use nvmeof_rdma::Address;
use nvmeof_wire::log::ana::AnaState;

use crate::error::Error;

/// The status of one path.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PathStatus {
    /// The address of the target.
    pub addr: Address,
    /// Its state. [`PathState::name`] is for metrics.
    pub state: PathState,
    /// Why it entered that state. Failed attempts to connect it count as changes.
    pub reason: String,
    /// Time since the last change.
    pub since: Duration,
    /// Whether it is connected.
    pub is_live: bool,
    /// Whether it was given up.
    pub is_given_up: bool,
    /// Controller identifier, when it is connected.
    pub cntlid: Option<u16>,
    /// Number of times that it was lost.
    pub losses: u64,
    /// Why it was lost, or why the last attempt to connect it failed. `None` when it is connected.
    pub last_error: Option<Error>,
    /// The number of I/O queues that its controller granted; `None` while it is not connected.
    pub io_queues: Option<u16>,
    /// The number of lost controllers of this path that were fenced, by method.
    pub fenced: Vec<(FenceMethod, u64)>,
    /// NUMA distance of its device from the CPU that called
    /// [`connect`](super::Multipath::connect); 10 is local or unknown. That of the present
    /// connection.
    pub numa_distance: u32,
    /// Calls that ended on this path, with or without an error.
    pub commands: u64,
    /// Bytes of their buffers.
    pub bytes: u64,
    /// Bytes of calls in flight.
    pub outstanding: u64,
    /// Calls that were made again after they ended on this path.
    pub retries: Retries,
    /// Time that calls waited until lost controllers of this path were fenced, over all calls.
    pub fence_wait: Duration,
}

/// The number of calls that were made again, by the cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retries {
    /// A status of type 3 (path), for example because of the ANA state.
    pub path_status: u64,
    /// Another status without Do Not Retry.
    pub other_status: u64,
    /// The path was lost before the response.
    pub lost: u64,
}

/// Counters of a path over all of its connections.
#[derive(Debug, Default)]
pub(super) struct Counters {
    commands: AtomicU64,
    bytes: AtomicU64,
    path_status: AtomicU64,
    other_status: AtomicU64,
    lost: AtomicU64,
    pub(super) fence_wait: Stopwatch,
    /// The ANA group and state of each namespace that was reported last, by head.
    ana: Mutex<BTreeMap<u64, (u32, AnaState)>>,
}

/// Why a call is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    PathStatus,
    OtherStatus,
    Lost,
}

impl Counters {
    /// A call with `bytes` ended.
    pub(super) fn ended(&self, bytes: u64) {
        self.commands.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A call is made again.
    pub(super) fn retried(&self, cause: Cause) {
        let counter = match cause {
            Cause::PathStatus => &self.path_status,
            Cause::OtherStatus => &self.other_status,
            Cause::Lost => &self.lost,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// The namespace of `head` is in `group`, in `state`. Returns whether that differs from the
    /// last report; the first one does not.
    pub(super) fn reports(&self, head: u64, group: u32, state: AnaState) -> bool {
        let mut ana = self.ana.lock().unwrap_or_else(PoisonError::into_inner);
        let last = ana.insert(head, (group, state));
        last.is_some_and(|last| last != (group, state))
    }

    /// Forgets the reports of other heads.
    pub(super) fn retain(&self, heads: &[u64]) {
        let mut ana = self.ana.lock().unwrap_or_else(PoisonError::into_inner);
        ana.retain(|head, _| heads.contains(head));
    }

    pub(super) fn commands(&self) -> u64 {
        self.commands.load(Ordering::Relaxed)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn retries(&self) -> Retries {
        Retries {
            path_status: self.path_status.load(Ordering::Relaxed),
            other_status: self.other_status.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }
}

/// Adds up times.
#[derive(Debug, Default)]
pub(super) struct Stopwatch(AtomicU64);

/// A time that is added when it ends, also if the call is dropped.
pub(super) struct Running<'a>(&'a Stopwatch, Instant);

impl Stopwatch {
    pub(super) fn start(&self) -> Running<'_> {
        Running(self, Instant::now())
    }

    pub(super) fn total(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let micros = u64::try_from(self.1.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.0.0.fetch_add(micros, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ana_reports_count_only_when_they_change() {
        let counters = Counters::default();
        let reports = |group, state| counters.reports(1, group, state);
        assert!(!reports(7, AnaState::OPTIMIZED), "the first");
        assert!(!reports(7, AnaState::OPTIMIZED));
        assert!(reports(7, AnaState::CHANGE));
        assert!(reports(8, AnaState::CHANGE));
        counters.retain(&[2]);
        assert!(!counters.reports(1, 9, AnaState::CHANGE));
    }
}
