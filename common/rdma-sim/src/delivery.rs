//! Deliveries in flight in the network, and their time of arrival.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nvmeof_rdma_soft::StreamId;

/// A delivery in flight.
#[derive(Debug)]
pub(crate) enum Delivery {
    /// A connection request.
    Connect { from: StreamId, to: SocketAddr },
    /// The connection is established.
    Accepted { to: StreamId },
    /// No process listens there.
    Refused { to: StreamId },
    /// Data.
    Bytes {
        from: StreamId,
        to: StreamId,
        bytes: Vec<u8>,
    },
    /// The peer received this number of bytes.
    Room { to: StreamId, bytes: usize },
    /// The peer ended its sending direction.
    End { to: StreamId },
    /// The connection is broken.
    Reset { to: StreamId },
    /// The cut between two endpoints ends.
    Heal { between: Pair },
}

/// Two endpoints, the smaller address first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pair(IpAddr, IpAddr);

impl Pair {
    pub(crate) fn new(one: IpAddr, other: IpAddr) -> Self {
        Self(one.min(other), one.max(other))
    }
}

/// A delivery and its two endpoints.
#[derive(Debug)]
pub(crate) struct InFlightDelivery {
    pub(crate) between: Pair,
    pub(crate) delivery: Delivery,
}

/// All deliveries in flight, in the order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    /// By time, then by number: the first sent arrives first.
    flights: BTreeMap<(Duration, u64), InFlightDelivery>,
    sent: u64,
}

impl Schedule {
    pub(crate) fn push(&mut self, at: Duration, flight: InFlightDelivery) {
        self.flights.insert((at, self.sent), flight);
        self.sent += 1;
    }

    pub(crate) fn next_at(&self) -> Option<Duration> {
        self.flights.keys().next().map(|(at, _)| *at)
    }

    /// Takes the next flight that arrives at `now` or before.
    pub(crate) fn pop_due(&mut self, now: Duration) -> Option<InFlightDelivery> {
        let first = self.flights.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}
