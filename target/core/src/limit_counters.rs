//! Counts how often peers reached the limits that protect other peers.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A limit of what peers may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Limit {
    /// Controllers of all hosts.
    Controllers,
    /// Identifiers that controllers of one subsystem may have.
    ControllerIds,
    /// Controllers of one host.
    HostControllers,
    /// I/O queues of one host.
    HostQueues,
    /// Commands that one host may have outstanding.
    HostCommands,
    /// Buffers of a reactor that one host holds.
    HostMemory,
    /// Controllers of one port.
    PortControllers,
    /// Connections of one port.
    PortConnections,
    /// Commands outstanding on one port.
    PortCommands,
    /// Buffers of a reactor that hosts of one port hold.
    PortMemory,
    /// Discovery controllers of all hosts.
    DiscoveryControllers,
    /// Connections without a Connect command.
    Unconnected,
    /// Capsule buffers of a reactor.
    Capsules,
    /// Time for which a transfer may stall while other hosts wait for its buffer.
    StalledTransfer,
    /// Hosts with one host identifier.
    UniqueHostIds,
    /// Registrants of a namespace.
    Registrants,
}

/// Counters of one target, one for each [`Limit`].
#[derive(Debug, Default)]
pub struct LimitCounters {
    counts: [AtomicU64; Limit::ALL.len()],
}

impl Limit {
    /// All limits.
    pub const ALL: [Self; 16] = [
        Self::Controllers,
        Self::ControllerIds,
        Self::HostControllers,
        Self::HostQueues,
        Self::HostCommands,
        Self::HostMemory,
        Self::PortControllers,
        Self::PortConnections,
        Self::PortCommands,
        Self::PortMemory,
        Self::DiscoveryControllers,
        Self::Unconnected,
        Self::Capsules,
        Self::StalledTransfer,
        Self::UniqueHostIds,
        Self::Registrants,
    ];

    /// The key of the configuration that sets it, or a name if it is not configurable.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Controllers => "limits.controllers",
            Self::ControllerIds => "subsystem.cntlid_max",
            Self::HostControllers => "limits.host_controllers",
            Self::HostQueues => "limits.host_queues",
            Self::HostCommands => "limits.host_commands",
            Self::HostMemory => "limits.host_memory",
            Self::PortControllers => "limits.port_controllers",
            Self::PortConnections => "limits.port_connections",
            Self::PortCommands => "limits.port_commands",
            Self::PortMemory => "limits.port_memory",
            Self::DiscoveryControllers => "limits.discovery_controllers",
            Self::Unconnected => "limits.unconnected",
            Self::Capsules => "reactor.buffer_memory",
            Self::StalledTransfer => "stalled_transfer",
            Self::UniqueHostIds => "limits.unique_host_ids",
            Self::Registrants => "limits.registrants",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())
    }
}

impl LimitCounters {
    /// A peer reached `limit`.
    pub fn add(&self, limit: Limit) {
        if let Some(count) = self.counts.get(limit as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often `limit` was reached.
    #[must_use]
    pub fn get(&self, limit: Limit) -> u64 {
        let count = self.counts.get(limit as usize);
        count.map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_has_its_own_counter() {
        let limit_counters = LimitCounters::default();
        for (at, limit) in Limit::ALL.into_iter().enumerate() {
            assert_eq!(limit as usize, at);
            for _ in 0..=at {
                limit_counters.add(limit);
            }
        }
        let counts = Limit::ALL.map(|limit| limit_counters.get(limit));
        assert_eq!(
            counts,
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
        );
    }
}
