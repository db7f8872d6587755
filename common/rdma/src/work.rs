//! Work requests and their outcomes.

use nvmeof_memory::Buf;

use crate::{CloseReason, Inline, RemoteKey, RemoteSlice};

/// A work request for the send queue. Buffers move in and return with the completion; their
/// view is sent, written or filled.
#[derive(Debug)]
pub enum Work {
    /// A message: `head`, then `body`, in one receive of the peer.
    Send {
        /// First bytes of the message.
        head: Inline,
        /// The rest.
        body: Option<Buf>,
        /// A key of the peer that the message invalidates.
        invalidate: Option<RemoteKey>,
        /// Whether the peer's receive raises a solicited event.
        solicited: bool,
    },
    /// RDMA Write: `local` goes to the start of `remote`.
    Write {
        /// The data.
        local: Buf,
        /// Destination; at least as long as `local`.
        remote: RemoteSlice,
    },
    /// RDMA Read: the start of `remote` fills `local`.
    Read {
        /// Destination.
        local: Buf,
        /// Source; at least as long as `local`.
        remote: RemoteSlice,
    },
}

/// An RDMA Write and the message behind it: the response to a command that reads data.
#[derive(Debug)]
pub struct WriteAndSend {
    /// The data.
    pub local: Buf,
    /// Destination; at least as long as `local`.
    pub remote: RemoteSlice,
    /// The message, as long as a completion queue entry.
    pub head: [u8; 16],
    /// A key of the peer that the message invalidates.
    pub invalidate: Option<RemoteKey>,
}

/// What became of a posted message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is complete and does not return. So is everything posted before it, although its
    /// completions may still be on their way to the caller.
    Done,
    /// It returns as a [`Completion`](crate::Completion).
    Pending,
}

/// Kind of work of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkKind {
    /// [`Work::Send`]
    Send,
    /// [`Work::Write`]
    Write,
    /// [`Work::Read`]
    Read,
}

/// Outcome of a work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Completed: the data is placed, or handed to the transport.
    Success,
    /// The queue pair failed or closed first. Whether the work took effect is unknown;
    /// [`Event::Closed`](crate::Event::Closed) gives the reason.
    Flushed,
    /// This work request caused the failure of the queue pair.
    Failed(Box<CloseReason>),
}

impl WriteAndSend {
    /// The same as two work requests.
    #[must_use]
    pub fn into_works(self) -> [Work; 2] {
        let Self {
            local,
            remote,
            head,
            invalidate,
        } = self;
        let send = Work::Send {
            head: Inline::of(head),
            body: None,
            invalidate,
            solicited: false,
        };
        [Work::Write { local, remote }, send]
    }
}

impl Outcome {
    /// Whether the work completed successfully.
    #[must_use]
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Success)
    }
}

impl Work {
    /// Which kind of work this is.
    #[must_use]
    pub fn kind(&self) -> WorkKind {
        match self {
            Self::Send { .. } => WorkKind::Send,
            Self::Write { .. } => WorkKind::Write,
            Self::Read { .. } => WorkKind::Read,
        }
    }

    /// Bytes of payload.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Send { head, body, .. } => {
                head.len() + body.as_ref().map_or(0, |body| body.len())
            }
            Self::Write { local, .. } | Self::Read { local, .. } => local.len(),
        }
    }

    /// Whether there is no payload.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buffer, if there is one.
    #[must_use]
    pub fn buf(&self) -> Option<&Buf> {
        match self {
            Self::Send { body, .. } => body.as_ref(),
            Self::Write { local, .. } | Self::Read { local, .. } => Some(local),
        }
    }

    /// Takes the buffer out.
    #[must_use]
    pub fn into_buf(self) -> Option<Buf> {
        match self {
            Self::Send { body, .. } => body,
            Self::Write { local, .. } | Self::Read { local, .. } => Some(local),
        }
    }
}
