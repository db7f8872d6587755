//! The queue pair of a device, and its reserved resources.

use crate::adapter::AdapterId;
use crate::domain::Domain;
use crate::heads::Heads;
use crate::sys::{RecvChain, SendChain};

/// Shared resources of a device that a queue pair has reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) adapter: AdapterId,
    /// Number of the completion queue, and the completions reserved there.
    pub(crate) queue: usize,
    pub(crate) claimed: u32,
}

/// A queue pair with its device.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) room: Room,
    /// Number of the queue pair.
    pub(crate) qp_number: u32,
    /// Maximum inline data of a send in bytes.
    pub(crate) inline: usize,
    /// Entries of the send queue for internal requests.
    pub(crate) extra: u32,
    /// Longest message in bytes, of the device and of the provider.
    pub(crate) max_message: u32,
    pub(crate) iwarp: bool,
    /// The device is Linux siw.
    pub(crate) siw: bool,
    /// Memory for heads of messages that do not fit in the work request.
    pub(crate) heads: Heads,
    /// Its own protection domain, if it has one.
    pub(crate) domain: Option<Domain>,
    pub(crate) send_chain: SendChain,
    pub(crate) recv_chain: RecvChain,
}
