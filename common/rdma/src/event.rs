//! Events of a provider: completions and connection events, in one stream.

use nvmeof_memory::Buf;

use crate::{CloseReason, ListenerId, Outcome, Peer, PrivateData, QpId, RemoteKey, Tag, WorkKind};

/// An event of a provider.
#[derive(Debug)]
pub enum Event {
    /// A peer requests a connection. Respond with [`prepare`](crate::Provider::prepare) and
    /// [`accept`](crate::Provider::accept), or with [`reject`](crate::Provider::reject).
    ConnectRequest(ConnectRequest),
    /// The connection is established; work can be posted.
    Established {
        /// Queue pair.
        qp: QpId,
        /// On the active side the private data of the peer's accept.
        private_data: PrivateData,
    },
    /// The peer rejected the connection. [`Event::Closed`] follows.
    Rejected {
        /// Queue pair.
        qp: QpId,
        /// Private data of the reject.
        private_data: PrivateData,
    },
    /// A receive returned.
    Received(Received),
    /// A send, write or read returned.
    Completion(Completion),
    /// A buffer returned after [`withdraw`](crate::Provider::withdraw): the peer cannot access
    /// its bytes any more.
    Withdrawn {
        /// Queue pair.
        qp: QpId,
        /// The withdrawn key.
        key: RemoteKey,
        /// The buffer, with the view it was exposed with.
        buf: Buf,
    },
    /// An established connection ends, while work may still return: the peer disconnected, or
    /// it is being notified that it has to. The event precedes [`Event::Closed`] if that does
    /// not follow immediately; [`disconnect`](crate::Provider::disconnect) does not cause it.
    Ending {
        /// Queue pair.
        qp: QpId,
    },
    /// The queue pair is closed. Its last event.
    Closed {
        /// Queue pair.
        qp: QpId,
        /// Reason.
        reason: CloseReason,
    },
}

/// A connection request of a peer.
#[derive(Clone, Debug)]
pub struct ConnectRequest {
    /// The listener that received it.
    pub listener: ListenerId,
    /// The queue pair of the future connection.
    pub qp: QpId,
    /// The peer.
    pub peer: Peer,
    /// Private data of the request. Providers may deliver padding after it.
    pub private_data: PrivateData,
    /// RDMA Reads that the peer wants to have in flight towards this side (its ORD).
    pub reads_in: u32,
    /// RDMA Reads that the peer can process at once (its IRD).
    pub reads_out: u32,
}

/// A returned receive.
#[derive(Debug)]
pub struct Received {
    /// Queue pair.
    pub qp: QpId,
    /// As posted.
    pub tag: Tag,
    /// As posted, view unchanged: the message is in its first `len` bytes.
    pub buf: Buf,
    /// Length of the message in bytes; 0 unless `outcome` is success.
    pub len: usize,
    /// The local key that the message invalidated. It still has to be withdrawn to get the
    /// buffer back.
    pub invalidated: Option<RemoteKey>,
    /// Whether the sender asked for a solicited event.
    pub solicited: bool,
    /// Outcome.
    pub outcome: Outcome,
}

/// A returned send, write or read.
#[derive(Debug)]
pub struct Completion {
    /// Queue pair.
    pub qp: QpId,
    /// As posted.
    pub tag: Tag,
    /// Kind of work.
    pub kind: WorkKind,
    /// The buffer that was posted, view unchanged. `None` after work without one, and for a
    /// buffer that the system never released after the end of the queue pair.
    pub buf: Option<Buf>,
    /// Outcome.
    pub outcome: Outcome,
}

impl Event {
    /// The queue pair it is about.
    #[must_use]
    pub fn qp(&self) -> QpId {
        match self {
            Self::ConnectRequest(request) => request.qp,
            Self::Received(received) => received.qp,
            Self::Completion(completion) => completion.qp,
            Self::Established { qp, .. }
            | Self::Rejected { qp, .. }
            | Self::Withdrawn { qp, .. }
            | Self::Ending { qp }
            | Self::Closed { qp, .. } => *qp,
        }
    }
}
