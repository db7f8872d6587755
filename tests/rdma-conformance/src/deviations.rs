//! Deviations of devices from the contract.

use nvmeof_rdma::RemoteKey;

/// Deviations of a fabric over hardware, or over software devices. Software providers have
/// none: [`Deviations::NONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deviations {
    /// Maximum private data in a request, an accept and a reject.
    pub private_data: [usize; 3],
    /// Private data may arrive with zeros behind it.
    pub padded: bool,
    /// A message for which no receive is posted waits at its sender: receiver not ready,
    /// retried without limit (InfiniBand Architecture, 9.7.5.2.8).
    pub sends_wait: bool,
    /// After a protocol violation both sides get the end of the connection, but possibly not
    /// the reason: the driver reports only the end of the stream.
    pub silent_faults: bool,
    /// A receive does not report that the sender requested a solicited event.
    pub solicited_unreported: bool,
    /// A receive does not name the key that its message invalidated.
    pub invalidated_unreported: bool,
    /// Exposed memory may be read, whatever its rights.
    pub reads_need_no_right: bool,
    /// A read of less than 64 bytes across a page boundary may return wrong bytes.
    pub tears_short_reads: bool,
    /// When a process dies, its kernel rejects pending requests.
    pub rejects_for_the_dead: bool,
    /// The device lets a peer invalidate keys of others. The provider detects that and ends
    /// the connection, but a key of another connection is invalid then.
    pub invalid_keys_pass: bool,
    /// A key is valid for accesses of the peer after a message that was sent after the
    /// exposure; earlier accesses, with a key known by other means, may be refused.
    pub opens_in_order: bool,
    /// A read of memory that is withdrawn during the read may return later contents of the
    /// memory.
    pub answers_after_withdraw: bool,
}

impl Deviations {
    /// No deviations.
    pub const NONE: Self = Self {
        private_data: [196; 3],
        padded: false,
        sends_wait: false,
        silent_faults: false,
        solicited_unreported: false,
        invalidated_unreported: false,
        reads_need_no_right: false,
        tears_short_reads: false,
        rejects_for_the_dead: false,
        invalid_keys_pass: false,
        opens_in_order: false,
        answers_after_withdraw: false,
    };

    /// Whether a read of `len` bytes at `addr` may return wrong bytes.
    pub(super) fn tears_read(&self, addr: u64, len: usize) -> bool {
        self.tears_short_reads && len < 64 && addr % 4096 + len as u64 > 4096
    }

    /// The key that a receive reports when `key` was invalidated.
    pub(super) fn named(&self, key: Option<RemoteKey>) -> Option<RemoteKey> {
        key.filter(|_| !self.invalidated_unreported)
    }

    /// Whether `got` matches the sent private data `message`.
    pub(super) fn same(&self, got: &[u8], message: &[u8]) -> bool {
        match got.strip_prefix(message) {
            Some(rest) if self.padded => rest.iter().all(|byte| *byte == 0),
            Some(rest) => rest.is_empty(),
            None => false,
        }
    }
}
