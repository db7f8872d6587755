//! What the owner of a provider chooses.

use std::time::Duration;

use nvmeof_rdma::Limits;

/// How the provider behaves.
#[derive(Clone, Debug)]
pub struct VerbsConfig {
    /// Upper bounds, lowered to what the ablest of the machine's devices can do.
    /// A queue pair on one that can do less is refused when it asks for more.
    pub limits: Limits,
    /// Type of service of connections this side starts: the DSCP in its upper
    /// six bits. Connections that come in use their listener's.
    pub type_of_service: Option<u8>,
    /// How long a device waits for an acknowledgement before it sends again:
    /// 4.096 µs times 2 to this power, 0 to 31. The subnet's or the kernel's
    /// choice when `None`.
    pub ack_timeout: Option<u8>,
    /// How long a connection may take to stand, and a request to be answered.
    pub handshake: Duration,
    /// How long a closing connection may take to do what was submitted.
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
