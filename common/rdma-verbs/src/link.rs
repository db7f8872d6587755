//! The queue pair of a device, and what it takes of that device.

use crate::adapter::AdapterId;
use crate::domain::Domain;
use crate::heads::Heads;
use crate::sys::{RecvChain, SendChain};

/// What a queue pair takes of a device that others share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) adapter: AdapterId,
    /// Number of the completion queue, and the room claimed there.
    pub(crate) queue: usize,
    pub(crate) claimed: u32,
}

/// A queue pair with its device.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) room: Room,
    /// Number of the queue pair.
    pub(crate) qp_number: u32,
    /// Bytes a send may carry in itself.
    pub(crate) inline: usize,
    /// Places of the send queue that are not the caller's.
    pub(crate) extra: u32,
    /// Longest message in bytes.
    pub(crate) max_message: u32,
    pub(crate) iwarp: bool,
    /// The device is Linux siw.
    pub(crate) siw: bool,
    /// Room for heads of messages that do not fit in the request.
    pub(crate) heads: Heads,
    /// Its own protection domain, where it has one.
    pub(crate) domain: Option<Domain>,
    pub(crate) send_chain: SendChain,
    pub(crate) recv_chain: RecvChain,
}
