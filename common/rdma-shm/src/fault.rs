//! Protocol violations of peers, and their codes.

use nvmeof_rdma::Fault;
use nvmeof_rdma_soft::KeyFault;

/// The layer named in a [`Fault`].
pub(crate) const LAYER: &str = "shm";

/// Codes of [`Fault`]s.
pub(crate) mod codes {
    /// Invalid index of a ring.
    pub(crate) const INDEX: u16 = 1;
    /// Invalid record.
    pub(crate) const RECORD: u16 = 2;
    /// Invalid message on the socket.
    pub(crate) const MESSAGE: u16 = 3;
    /// The user of the process is not permitted.
    pub(crate) const USER: u16 = 4;
    /// Invalid shared memory.
    pub(crate) const REGION: u16 = 5;
    /// No such key.
    pub(crate) const KEY_UNKNOWN: u16 = 0x10;
    /// The key belongs to another connection.
    pub(crate) const KEY_FOREIGN: u16 = 0x11;
    /// The key does not allow this access.
    pub(crate) const KEY_RIGHTS: u16 = 0x12;
    /// Outside the range of the key.
    pub(crate) const KEY_BOUNDS: u16 = 0x13;
    /// Address plus length wraps.
    pub(crate) const KEY_WRAP: u16 = 0x14;
    /// A read with the key is still in progress.
    pub(crate) const KEY_BUSY: u16 = 0x15;
    /// No receive is posted.
    pub(crate) const NO_RECEIVE: u16 = 0x20;
    /// The message is longer than the receive.
    pub(crate) const TOO_LONG: u16 = 0x21;
    /// More reads in flight than negotiated.
    pub(crate) const TOO_MANY_READS: u16 = 0x22;
    /// A response that does not match a read.
    pub(crate) const RESPONSE: u16 = 0x23;
}

/// A fault of this layer.
pub(crate) fn fault(code: u16, text: impl Into<String>) -> Fault {
    Fault {
        layer: LAYER,
        code,
        text: text.into(),
    }
}

/// The fault for an invalid use of `key`.
pub(crate) fn key_fault(why: KeyFault, key: u32) -> Fault {
    let (code, words) = match why {
        KeyFault::Unknown => (codes::KEY_UNKNOWN, "is not the key of any memory"),
        KeyFault::Foreign => (codes::KEY_FOREIGN, "belongs to another connection"),
        KeyFault::Rights => (codes::KEY_RIGHTS, "does not allow this access"),
        KeyFault::Bounds => (codes::KEY_BOUNDS, "does not cover all of these bytes"),
        KeyFault::Wrap => (
            codes::KEY_WRAP,
            "cannot cover bytes beyond the last address",
        ),
        KeyFault::Busy => (codes::KEY_BUSY, "is in use by a read"),
    };
    fault(code, format!("key {key:#010x} {words}"))
}
