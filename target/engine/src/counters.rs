//! Counters of one reactor: its time, its connections, and its commands by host and
//! namespace.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nvmeof_rdma::CloseReason;
use nvmeof_target_core::metrics::{MetricsRegistry, ReactorMetrics};

/// Counters of one reactor. Only its thread writes; any thread may read.
#[derive(Debug, Default)]
pub struct Counters {
    /// Commands, for each namespace and host.
    pub reactor_metrics: ReactorMetrics,
    time_ns: [AtomicU64; ThreadState::ALL.len()],
    counts: [AtomicU64; ThreadState::ALL.len()],
    accepted: AtomicU64,
    rejected: AtomicU64,
    closed: [AtomicU64; ConnectionEnd::ALL.len()],
    stalled: AtomicU64,
    queue_polls: AtomicU64,
}

/// What a thread spends its time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadState {
    /// Iterations that found work.
    Working,
    /// Iterations that found none, and yielding the CPU.
    Polling,
    /// Sleeping until an event.
    Asleep,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// Closed by the target.
    Local,
    /// Closed by the host in an orderly way.
    Peer,
    /// Rejected before it was established.
    Rejected,
    /// A time limit was exceeded.
    Timeout,
    /// The network failed.
    Network,
    /// The host violated the protocol.
    PeerFault,
    /// The host reported a protocol violation of the target.
    Terminated,
}

impl ThreadState {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Working, Self::Polling, Self::Asleep];

    /// The value of the metric label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Polling => "polling",
            Self::Asleep => "asleep",
        }
    }
}

impl ConnectionEnd {
    /// All variants.
    pub const ALL: [Self; 7] = [
        Self::Local,
        Self::Peer,
        Self::Rejected,
        Self::Timeout,
        Self::Network,
        Self::PeerFault,
        Self::Terminated,
    ];

    /// The value of the metric label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Peer => "peer",
            Self::Rejected => "rejected",
            Self::Timeout => "timeout",
            Self::Network => "network",
            Self::PeerFault => "peer_fault",
            Self::Terminated => "terminated",
        }
    }

    /// Whether the connection ended by an error.
    #[must_use]
    pub fn is_error(self) -> bool {
        match self {
            Self::Local | Self::Peer | Self::Rejected => false,
            Self::Timeout | Self::Network | Self::PeerFault | Self::Terminated => true,
        }
    }

    fn of(reason: &CloseReason) -> Self {
        match reason {
            CloseReason::Local => Self::Local,
            CloseReason::Peer => Self::Peer,
            CloseReason::Rejected => Self::Rejected,
            CloseReason::Timeout { .. } => Self::Timeout,
            CloseReason::Network { .. } => Self::Network,
            CloseReason::PeerFault(_) => Self::PeerFault,
            CloseReason::Terminated(_) => Self::Terminated,
        }
    }
}

impl Counters {
    /// Counters of number `reactor`, whose commands are counted in `metrics_registry`.
    #[must_use]
    pub fn new(metrics_registry: &MetricsRegistry, reactor: usize) -> Self {
        Self {
            reactor_metrics: metrics_registry.reactor_metrics(reactor),
            ..Self::default()
        }
    }

    /// Adds `time` and one iteration or sleep.
    pub fn add_time(&self, state: ThreadState, time: Duration) {
        add(self.time_ns.get(state as usize), ns(time));
        add(self.counts.get(state as usize), 1);
    }

    /// A connection was accepted.
    pub fn accepted(&self) {
        add(Some(&self.accepted), 1);
    }

    /// A connection was rejected.
    pub fn rejected(&self) {
        add(Some(&self.rejected), 1);
    }

    /// Counts a closed connection. Returns whether it ended by an error.
    pub fn closed(&self, reason: &CloseReason) -> bool {
        let end = ConnectionEnd::of(reason);
        add(self.closed.get(end as usize), 1);
        end.is_error()
    }

    /// Counts `count` more commands that were outstanding for too long.
    pub fn stalled(&self, count: u64) {
        if count > 0 {
            add(Some(&self.stalled), count);
        }
    }

    /// Commands that were outstanding for too long.
    pub fn all_stalled(&self) -> u64 {
        get(Some(&self.stalled))
    }

    /// `count` queue pairs are polled because of an event.
    pub fn polled_queues(&self, count: usize) {
        add(Some(&self.queue_polls), count as u64);
    }

    /// Polls of queue pairs because of events: those at intervals, and after messages of their
    /// hosts, are not included. Tests bound how they grow with queue pairs and reactors.
    pub fn all_queue_polls(&self) -> u64 {
        get(Some(&self.queue_polls))
    }

    /// Time so far, and the number of iterations or sleeps.
    pub fn time(&self, state: ThreadState) -> (Duration, u64) {
        let time = get(self.time_ns.get(state as usize));
        (
            Duration::from_nanos(time),
            get(self.counts.get(state as usize)),
        )
    }

    /// Connections that were accepted, and that were rejected.
    pub fn connection_requests(&self) -> (u64, u64) {
        (get(Some(&self.accepted)), get(Some(&self.rejected)))
    }

    /// Connections that ended this way.
    pub fn ended(&self, end: ConnectionEnd) -> u64 {
        get(self.closed.get(end as usize))
    }
}

/// Adds to a counter that has no other writer.
fn add(counter: Option<&AtomicU64>, n: u64) {
    if let Some(counter) = counter {
        let sum = counter.load(Ordering::Relaxed).wrapping_add(n);
        counter.store(sum, Ordering::Relaxed);
    }
}

fn get(counter: Option<&AtomicU64>) -> u64 {
    counter.map_or(0, |counter| counter.load(Ordering::Relaxed))
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_independent() {
        let counters = Counters::default();
        for (at, state) in (1..).zip(ThreadState::ALL) {
            for _ in 0..at {
                counters.add_time(state, Duration::from_millis(at));
            }
        }
        let times = ThreadState::ALL.map(|state| counters.time(state));
        let ms = Duration::from_millis;
        assert_eq!(times, [(ms(1), 1), (ms(4), 2), (ms(9), 3)]);
        let network = CloseReason::network(&std::io::ErrorKind::ConnectionReset.into());
        let timeout = CloseReason::Timeout {
            waiting_for: "an answer",
        };
        for reason in [&CloseReason::Local, &network, &timeout, &network] {
            counters.closed(reason);
        }
        let ended = ConnectionEnd::ALL.map(|end| counters.ended(end));
        assert_eq!(ended, [1, 0, 0, 1, 2, 0, 0]);
        let errors = ConnectionEnd::ALL.map(ConnectionEnd::is_error);
        assert_eq!(errors, [false, false, false, true, true, true, true]);
    }
}
