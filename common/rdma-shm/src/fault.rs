//! Rules that a peer can break, and their numbers.

use nvmeof_rdma::Fault;
use nvmeof_rdma_soft::KeyFault;

/// The layer named in a [`Fault`].
pub(crate) const LAYER: &str = "shm";

/// Which rule was broken: the code of a [`Fault`].
pub(crate) mod codes {
    /// An index of a ring is where it cannot be.
    pub(crate) const INDEX: u16 = 1;
    /// A record makes no sense.
    pub(crate) const RECORD: u16 = 2;
    /// A message on the socket makes no sense.
    pub(crate) const MESSAGE: u16 = 3;
    /// A process of this user is no peer.
    pub(crate) const USER: u16 = 4;
    /// Memory that the peer shares is not what it has to be.
    pub(crate) const REGION: u16 = 5;
    /// No such key.
    pub(crate) const KEY_UNKNOWN: u16 = 0x10;
    /// The key is of another connection.
    pub(crate) const KEY_FOREIGN: u16 = 0x11;
    /// The key does not allow that.
    pub(crate) const KEY_RIGHTS: u16 = 0x12;
    /// Outside of what the key opens.
    pub(crate) const KEY_BOUNDS: u16 = 0x13;
    /// Address plus length is beyond all addresses.
    pub(crate) const KEY_WRAP: u16 = 0x14;
    /// A read by the key is still being answered.
    pub(crate) const KEY_BUSY: u16 = 0x15;
    /// No receive is posted.
    pub(crate) const NO_RECEIVE: u16 = 0x20;
    /// The message is longer than the receive.
    pub(crate) const TOO_LONG: u16 = 0x21;
    /// More reads than were agreed.
    pub(crate) const TOO_MANY_READS: u16 = 0x22;
    /// An answer that does not fit a read.
    pub(crate) const ANSWER: u16 = 0x23;
}

/// A fault of this layer.
pub(crate) fn fault(code: u16, text: impl Into<String>) -> Fault {
    Fault {
        layer: LAYER,
        code,
        text: text.into(),
    }
}

/// What is wrong with the use of `key`.
pub(crate) fn key_fault(why: KeyFault, key: u32) -> Fault {
    let (code, words) = match why {
        KeyFault::Unknown => (codes::KEY_UNKNOWN, "opens nothing"),
        KeyFault::Foreign => (codes::KEY_FOREIGN, "belongs to another connection"),
        KeyFault::Rights => (codes::KEY_RIGHTS, "does not allow that"),
        KeyFault::Bounds => (codes::KEY_BOUNDS, "does not open all of these bytes"),
        KeyFault::Wrap => (codes::KEY_WRAP, "cannot open bytes beyond all addresses"),
        KeyFault::Busy => (codes::KEY_BUSY, "is in use by a read"),
    };
    fault(code, format!("key {key:#010x} {words}"))
}
