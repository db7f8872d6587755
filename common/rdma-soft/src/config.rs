//! Sizes and times of a software provider.

use std::time::Duration;

use nvmeof_rdma::Limits;

/// Configuration of a [`SoftRdma`](crate::SoftRdma).
#[derive(Clone, Debug)]
pub struct SoftConfig {
    /// Limits of the provider.
    pub limits: Limits,
    /// Whether to request a CRC32c on every frame. It is used if one side requests it (RFC
    /// 5044, section 7.1).
    pub crc: bool,
    /// Time-out for the peer's part of the connection set-up.
    pub handshake: Duration,
    /// Time-out for a closing connection to send queued work.
    pub linger: Duration,
    /// First memory key: random in production, fixed in simulation.
    pub seed: u64,
}

impl Default for SoftConfig {
    fn default() -> Self {
        Self {
            limits: Limits {
                max_recvs: 4096,
                max_sends: 8192,
                max_reads: 128,
                max_message: 1 << 24,
                max_exposed: 1 << 18,
                max_pending: 64,
                max_qps: 4096,
            },
            crc: false,
            handshake: Duration::from_secs(10),
            linger: Duration::from_secs(1),
            seed: 0,
        }
    }
}
