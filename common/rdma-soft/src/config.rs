//! Sizes and times of a software provider.

use std::time::Duration;

use nvmeof_rdma::Limits;

/// How a [`SoftRdma`](crate::SoftRdma) behaves.
#[derive(Clone, Debug)]
pub struct SoftConfig {
    /// What the provider offers.
    pub limits: Limits,
    /// Whether we ask for a CRC32c on every frame. It is used as soon as one
    /// side asks (RFC 5044, section 7.1).
    pub crc: bool,
    /// How long a peer may take for its half of the connection set-up.
    pub handshake: Duration,
    /// How long a closing connection may take to send what is queued.
    pub linger: Duration,
    /// Where memory keys start: random in production, fixed in simulation.
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
