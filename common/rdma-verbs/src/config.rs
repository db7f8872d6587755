//! Configuration of the provider.

use std::time::Duration;

use nvmeof_rdma::Limits;

/// Configuration of the provider.
#[derive(Clone, Debug)]
pub struct VerbsConfig {
    /// Upper bounds, lowered to the maximum of this machine's devices. A queue pair on a
    /// device with lower limits is refused if it exceeds them.
    pub limits: Limits,
    /// Type of service of connections made by this side: the DSCP in its upper six bits.
    /// Accepted connections use that of their listener.
    pub type_of_service: Option<u8>,
    /// Acknowledgement time-out before a device retransmits: 4.096 µs times 2 to this power,
    /// 0 to 31. `None` leaves it to the subnet or the kernel.
    pub ack_timeout: Option<u8>,
    /// Time-out for establishing a connection, and for the response to a request.
    pub handshake: Duration,
    /// Time-out for a closing connection to complete submitted work.
    pub linger: Duration,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            limits: Limits {
                max_recvs: 4096,
                max_sends: 8192,
                max_reads: 128,
                max_message: 1 << 24,
                max_exposed: 1 << 14,
                max_pending: 64,
                max_qps: 4096,
            },
            type_of_service: None,
            ack_timeout: None,
            handshake: Duration::from_secs(10),
            linger: Duration::from_secs(1),
        }
    }
}
