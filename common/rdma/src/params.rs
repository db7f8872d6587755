//! Limits of a provider, and sizes of a queue pair.

use crate::{PostError, SrqId};

/// Limits of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Receives that may be outstanding on one queue pair.
    pub max_recvs: u32,
    /// Sends, writes and reads that may be outstanding on one queue pair.
    pub max_sends: u32,
    /// RDMA Reads a queue pair may have in flight towards its peer.
    pub max_reads: u32,
    /// Longest message, write or read in bytes.
    pub max_message: u32,
    /// Buffers that may be exposed at once, over all queue pairs.
    pub max_exposed: u32,
    /// Connections that are not accepted yet, over all listeners. When one more arrives, the
    /// oldest one without a request is closed.
    pub max_pending: u32,
    /// Queue pairs in all.
    pub max_qps: u32,
}

/// Sizes of a queue pair, by default 0. Work beyond them is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpConfig {
    /// Receives outstanding. Ignored for a queue pair that uses a shared receive queue.
    pub recvs: u32,
    /// Sends, writes and reads outstanding.
    pub sends: u32,
    /// RDMA Reads of this side in flight at once (initiator depth, ORD). The provider queues
    /// further Reads.
    pub reads_out: u32,
    /// RDMA Reads the peer may have in flight at once (responder resources,
    /// IRD).
    pub reads_in: u32,
    /// Keys exposed at once, 0 if nothing is ever exposed: then exposing is refused. A device
    /// may need room on the send queue for opening and closing them; beyond this number that
    /// may have to wait.
    pub exposes: u32,
    /// The peer is trusted with whole regions: [`Provider::expose_region`](crate::Provider).
    /// Not for a queue pair that uses a shared receive queue.
    pub trusts_peer: bool,
}

/// A shared receive queue, and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedReceives {
    /// The queue.
    pub srq: SrqId,
    /// Receives that may be outstanding on it.
    pub entries: u32,
}

impl Limits {
    /// Checks the sizes that a queue pair asks for.
    ///
    /// # Errors
    /// [`PostError::Size`] names the first that is not possible.
    pub fn check(&self, config: &QpConfig) -> Result<(), PostError> {
        for (what, value, min, max) in [
            ("recvs", config.recvs, 1, self.max_recvs),
            ("sends", config.sends, 1, self.max_sends),
            ("reads_out", config.reads_out, 0, self.max_reads),
            ("reads_in", config.reads_in, 0, self.max_reads),
        ] {
            if value < min || value > max {
                return Err(PostError::Size { what, value, max });
            }
        }
        Ok(())
    }
}
