//! What a provider tells: completions and connection events, one stream.

use nvmeof_memory::Buf;

use crate::{CloseReason, ListenerId, Outcome, Peer, PrivateData, QpId, RemoteKey, Tag, WorkKind};

/// Something happened.
#[derive(Debug)]
pub enum Event {
    /// A peer asks for a connection. Answer with
    /// [`prepare`](crate::Provider::prepare) and
    /// [`accept`](crate::Provider::accept), or
    /// [`reject`](crate::Provider::reject).
    ConnectRequest(ConnectRequest),
    /// The connection stands; work can be posted.
    Established {
        /// Queue pair.
        qp: QpId,
        /// On the active side what the peer said when it accepted.
        private_data: PrivateData,
    },
    /// The peer refused. [`Event::Closed`] follows.
    Rejected {
        /// Queue pair.
        qp: QpId,
        /// What the peer said.
        private_data: PrivateData,
    },
    /// A receive came back.
    Received(Received),
    /// A send, write or read came back.
    Completion(Completion),
    /// An established connection is over, though work may still come back: the peer left,
    /// or is told that it has to. Said at once if [`Event::Closed`] does not follow at
    /// once; [`disconnect`](crate::Provider::disconnect) does not cause it.
    Ending {
        /// Queue pair.
        qp: QpId,
    },
    /// The queue pair is gone. Its last event.
    Closed {
        /// Queue pair.
        qp: QpId,
        /// Why.
        reason: CloseReason,
    },
}

/// A peer asks for a connection.
#[derive(Clone, Debug)]
pub struct ConnectRequest {
    /// Where it arrived.
    pub listener: ListenerId,
    /// The queue pair to be.
    pub qp: QpId,
    /// Who asks.
    pub peer: Peer,
    /// What the peer said. Providers may deliver padding after it.
    pub private_data: PrivateData,
    /// RDMA Reads the peer wants to have in flight towards us (its ORD).
    pub reads_in: u32,
    /// RDMA Reads the peer can answer at once (its IRD).
    pub reads_out: u32,
}

/// A receive that came back.
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
    /// The key of ours that the message invalidated. It still has to be
    /// withdrawn to get the buffer back.
    pub invalidated: Option<RemoteKey>,
    /// Whether the sender asked for a solicited event.
    pub solicited: bool,
    /// How it ended.
    pub outcome: Outcome,
}

/// A send, write or read that came back.
#[derive(Debug)]
pub struct Completion {
    /// Queue pair.
    pub qp: QpId,
    /// As posted.
    pub tag: Tag,
    /// What it was.
    pub kind: WorkKind,
    /// The buffer that was posted, view unchanged.
    pub buf: Option<Buf>,
    /// How it ended.
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
            | Self::Ending { qp }
            | Self::Closed { qp, .. } => *qp,
        }
    }
}
