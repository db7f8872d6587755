//! Where a device keeps less than the letter of the contract, and what it
//! keeps instead.

use nvmeof_rdma::RemoteKey;

/// What a fabric over hardware, or over drivers that play hardware, does
/// otherwise. Software providers have no deviations: [`Deviations::NONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deviations {
    /// Most bytes of private data in a request, an accept and a reject.
    pub private_data: [usize; 3],
    /// Private data may arrive with zeros behind it.
    pub padded: bool,
    /// A message for which no receive is posted waits at its sender: receiver
    /// not ready, tried again for ever (InfiniBand Architecture, 9.7.5.2.8).
    pub sends_wait: bool,
    /// When a rule is broken both sides see the connection end, and may not
    /// learn why: the driver tells no more than that the stream ended.
    pub silent_faults: bool,
    /// A receive does not tell that the sender wanted a solicited event.
    pub solicited_untold: bool,
    /// A receive does not name the key that its message invalidated.
    pub invalidated_untold: bool,
    /// What is exposed at all may be read, whatever rights it was given.
    pub reads_need_no_right: bool,
    /// A read of less than 64 bytes across a page boundary may bring others.
    pub tears_short_reads: bool,
    /// When a process dies, its kernel rejects what it was asked for.
    pub rejects_for_the_dead: bool,
    /// The device lets a peer invalidate what is not its to invalidate. The
    /// provider notices and ends the connection, which is all the peer sees,
    /// but a key of another connection is invalid then.
    pub invalid_keys_pass: bool,
    /// A key opens memory for what the peer does after a message that was sent
    /// after it was exposed; what the peer does earlier, because it knows the
    /// key by other means, may be refused.
    pub opens_in_order: bool,
    /// A read of memory that is withdrawn while the read is being answered may
    /// bring what the memory holds later.
    pub answers_after_withdraw: bool,
}

impl Deviations {
    /// The letter of the contract.
    pub const NONE: Self = Self {
        private_data: [196; 3],
        padded: false,
        sends_wait: false,
        silent_faults: false,
        solicited_untold: false,
        invalidated_untold: false,
        reads_need_no_right: false,
        tears_short_reads: false,
        rejects_for_the_dead: false,
        invalid_keys_pass: false,
        opens_in_order: false,
        answers_after_withdraw: false,
    };

    /// Whether a read of `len` bytes at `addr` may bring others.
    pub(super) fn tears_read(&self, addr: u64, len: usize) -> bool {
        self.tears_short_reads && len < 64 && addr % 4096 + len as u64 > 4096
    }

    /// What a receive names when `key` was invalidated.
    pub(super) fn named(&self, key: Option<RemoteKey>) -> Option<RemoteKey> {
        key.filter(|_| !self.invalidated_untold)
    }

    /// Whether `got` is what was said when `said` was.
    pub(super) fn same(&self, got: &[u8], said: &[u8]) -> bool {
        match got.strip_prefix(said) {
            Some(rest) if self.padded => rest.iter().all(|byte| *byte == 0),
            Some(rest) => rest.is_empty(),
            None => false,
        }
    }
}
