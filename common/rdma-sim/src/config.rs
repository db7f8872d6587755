//! How a simulated network behaves.

use std::ops::RangeInclusive;
use std::time::Duration;

use nvmeof_rdma_layers::OneIn;

/// How a simulated network behaves when nothing is wrong.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// How long a piece of data travels; never overtakes the one before.
    pub latency: RangeInclusive<Duration>,
    /// Bytes that one direction of a connection may carry that were not
    /// received yet; chosen anew for each direction.
    pub window: RangeInclusive<usize>,
    /// Longest piece in bytes; most are shorter, some are a few bytes.
    pub longest_piece: usize,
    /// What streams say that a segment of the path is, in bytes. Pieces do not
    /// care: no receiver may rely on segments.
    pub segment: Option<usize>,
    /// What goes wrong by chance.
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

/// What goes wrong by chance. The default is nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimChances {
    /// Pieces of data that reset their connection instead of arriving.
    pub reset: OneIn,
    /// Pieces of data of which one bit is turned over. Only streams with a
    /// checksum notice.
    pub corrupt: OneIn,
    /// Connections that are refused although somebody listens.
    pub refuse: OneIn,
    /// Pieces of data after which their two endpoints cannot reach each other
    /// for [`stall_for`](Self::stall_for).
    pub stall: OneIn,
    /// How long a stall lasts.
    pub stall_for: Duration,
}
