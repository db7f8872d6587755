//! Configuration of a simulated network.

use std::ops::RangeInclusive;
use std::time::Duration;

use nvmeof_rdma_layers::OneIn;

/// Properties of a simulated network.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Latency of a piece of data; it never overtakes the one before.
    pub latency: RangeInclusive<Duration>,
    /// Window of each direction of a connection in bytes: sent and not received yet; drawn
    /// for each direction.
    pub window: RangeInclusive<usize>,
    /// Longest piece in bytes; most are shorter, some are a few bytes.
    pub longest_piece: usize,
    /// Segment size that streams report, in bytes. It does not affect pieces: no receiver may
    /// rely on segments.
    pub segment: Option<usize>,
    /// Random faults.
    pub chances: SimChances,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(1)..=Duration::from_micros(50),
            window: 4096..=1 << 20,
            longest_piece: 65_536,
            segment: None,
            chances: SimChances::default(),
        }
    }
}

/// Random faults. By default there are none.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimChances {
    /// Pieces of data that reset their connection instead of arriving.
    pub reset: OneIn,
    /// Pieces of data with one flipped bit. Only streams with a checksum detect it.
    pub corrupt: OneIn,
    /// Connections that are refused although there is a listener.
    pub refuse: OneIn,
    /// Pieces of data after which their two endpoints cannot reach each other
    /// for [`stall_for`](Self::stall_for).
    pub stall: OneIn,
    /// How long a stall lasts.
    pub stall_for: Duration,
}
