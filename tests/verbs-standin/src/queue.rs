//! Queue pairs and shared receive queues: their entries and states.

use std::collections::VecDeque;

use crate::links::LinkKey;
use crate::memory::{Remote, Segment};
use crate::raw::{Ptr, ibv_qp, ibv_srq};

/// Bytes to send.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    /// Copied when the work request was posted.
    Inline(Box<[u8]>),
    Memory(Vec<Segment>),
}

/// A request for a send queue.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Send {
        data: Data,
        invalidate: Option<u32>,
        solicited: bool,
    },
    Write {
        data: Data,
        remote: Remote,
    },
    Read {
        local: Vec<Segment>,
        remote: Remote,
    },
    Bind {
        window: usize,
        key: u32,
        region: usize,
        addr: u64,
        len: u64,
        access: u32,
    },
    Invalidate {
        key: u32,
    },
}

/// State of an entry of a send queue.
///
/// ```text
///  Waiting ─► Reading ─► Done
///     ├────────────────────▲
///     └─────► Sent ────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Waiting,
    /// A Read whose data arrive at this time.
    Reading(u64),
    /// The peer is in another process, which did not answer yet.
    Sent,
    /// With this status.
    Done(u32),
}

/// The time of a Read whose data did not arrive from another process.
pub(crate) const UNKNOWN: u64 = u64::MAX;

/// An entry of a send queue.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    pub(crate) op: Op,
    pub(crate) signalled: bool,
    /// Not before this time.
    pub(crate) due: u64,
    pub(crate) progress: Progress,
    /// What happens instead of its execution.
    pub(crate) fault: Option<Fault>,
    /// Its number on the link to a peer of another process.
    pub(crate) number: u64,
    /// The data of a Read, which arrived and are not due.
    pub(crate) arrived: Option<Vec<u8>>,
}

/// A planned fault of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It completes with this status.
    Status(u32),
    /// Its queue pair fails.
    QpFatal,
    /// The completion queue fails.
    CqError,
    /// The device is removed.
    Removal,
}

/// A posted receive.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) id: u64,
    pub(crate) segments: Vec<Segment>,
}

/// State of a queue pair.
///
/// ```text
///  Init ─► Ready ─► Error
///    └───────────────▲
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Receives may be posted.
    Init,
    /// Sends and receives.
    Ready,
    /// Everything is flushed.
    Error,
}

/// The queue pair of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PeerQp {
    /// One of this process, and its number.
    Here(usize, u32),
    /// The one at the other end of this link.
    There(LinkKey),
}

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) sends: u32,
    pub(crate) receives: u32,
    pub(crate) send_segments: u32,
    pub(crate) receive_segments: u32,
    pub(crate) inline: u32,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) raw: Ptr<ibv_qp>,
    pub(crate) number: u32,
    pub(crate) device: usize,
    pub(crate) pd: usize,
    pub(crate) send_cq: usize,
    pub(crate) recv_cq: usize,
    pub(crate) srq: Option<usize>,
    pub(crate) state: State,
    pub(crate) sizes: Sizes,
    /// Address of its id.
    pub(crate) id: usize,
    pub(crate) peer: Option<PeerQp>,
    pub(crate) sends: VecDeque<Entry>,
    /// Entries of the send queue that are in use: free again when a completion is taken.
    pub(crate) sends_used: u32,
    /// Complete entries that had no completion of their own.
    pub(crate) silent: u32,
    pub(crate) receives: VecDeque<Receive>,
    pub(crate) receives_used: u32,
    /// RDMA Reads in flight, and their maximum on each side.
    pub(crate) reading: u32,
    pub(crate) reads_out: u32,
    pub(crate) reads_in: u32,
    /// Retries if the peer posts no receive: 7 is without limit.
    pub(crate) rnr_retry: u8,
    /// Polls for which the first entry is not acknowledged.
    pub(crate) unanswered: u32,
    /// The number of the next request to a peer of another process.
    pub(crate) next_number: u64,
    /// That peer has no receive, and did not say that it has one again.
    pub(crate) not_ready: bool,
    /// A message arrived before the connection was established, which was reported.
    pub(crate) reported_early: bool,
    /// Asynchronous events taken and not acknowledged.
    pub(crate) unacknowledged: u32,
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) raw: Ptr<ibv_srq>,
    pub(crate) device: usize,
    pub(crate) pd: usize,
    pub(crate) capacity: u32,
    pub(crate) max_segments: u32,
    pub(crate) receives: VecDeque<Receive>,
    pub(crate) used: u32,
    /// Reports when fewer receives are left; 0: never. One report for each setting.
    pub(crate) limit: u32,
    /// Queue pairs that use it.
    pub(crate) users: Vec<usize>,
    /// Asynchronous events taken and not acknowledged.
    pub(crate) unacknowledged: u32,
}
