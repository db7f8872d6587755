//! Queue pairs: their state, their identifiers, and their table.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_rdma::{
    CloseReason, ConnectionGuard, ListenerId, Outcome, PostError, PrivateData, QpConfig, QpId,
    QpOwner,
};

use crate::adapter::AdapterId;
use crate::blocking_calls::PendingCall;
use crate::link::Link;
use crate::outstanding::{Kept, Outstanding, RecvItem, SendItem};
use crate::retired::Retired;
use crate::sys::CmId;
use crate::work_id::{GENERATION_MASK, SLOT_BITS, SLOT_MASK, WorkId};

/// State of a queue pair.
///
/// ```text
///  Resolving ─► Routing ─► Connecting ──┐
///                                       ├─► Running ─► Draining ─► Ending
///  Requested ─► Prepared ─► Accepting ──┘
/// ```
///
/// Every state may go to Ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Resolving the peer's address.
    Resolving,
    /// Resolving the route.
    Routing,
    /// Waiting for the peer's response.
    Connecting,
    /// A peer requested it; there is no response yet.
    Requested,
    /// It has its sizes and its queue pair.
    Prepared,
    /// Accepted; waiting for the peer's confirmation.
    Accepting,
    /// Established.
    Running,
    /// Accepts no new work; submitted work is still attempted.
    Draining,
    /// To be torn down by the next poll.
    Ending,
}

impl Phase {
    /// The error for a call that this phase does not allow.
    #[cold]
    pub(crate) fn refusal(self) -> PostError {
        let state = match self {
            Self::Resolving | Self::Routing | Self::Connecting => "connecting",
            Self::Requested => "requested and not prepared",
            Self::Prepared => "requested and not accepted",
            Self::Accepting => "being accepted",
            Self::Running => "connected",
            Self::Draining | Self::Ending => return PostError::Closed,
        };
        PostError::WrongState { state }
    }

    /// Whether a peer waits for the response to its request.
    pub(crate) fn is_pending(self) -> bool {
        matches!(self, Self::Requested | Self::Prepared)
    }

    /// Whether there is a connection to disconnect.
    pub(crate) fn is_connected(self) -> bool {
        matches!(self, Self::Accepting | Self::Running | Self::Draining)
    }
}

/// How a queue pair was stopped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stopped {
    /// The peer was notified.
    pub(crate) said_good_bye: bool,
    /// It cannot be destroyed without blocking for the peer.
    pub(crate) held: bool,
}

/// A queue pair's use of the shared receive queue of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SrqUse {
    pub(crate) of: AdapterId,
    /// Messages that its peer may send before the first one gets its response.
    pub(crate) recvs: u32,
}

/// One queue pair.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) id: QpId,
    pub(crate) phase: Phase,
    pub(crate) cm: CmId,
    pub(crate) link: Option<Link>,
    pub(crate) config: QpConfig,
    pub(crate) listener: Option<ListenerId>,
    /// Counts it in the load of its group member.
    pub(crate) guard: Option<ConnectionGuard>,
    pub(crate) peer: SocketAddr,
    /// For log lines.
    pub(crate) owner: QpOwner,
    /// The call that connects it, if it may block.
    pub(crate) pending_call: Option<Arc<PendingCall<Retired>>>,
    /// The outcome of that call is pending in connection management: until it arrives,
    /// nothing can be destroyed without blocking.
    pub(crate) awaits_answer: bool,
    /// Private data of the active side; sent when the route is known.
    pub(crate) private_data: PrivateData,
    /// RDMA Reads in a request: towards this side, and processed by the peer.
    pub(crate) asked: (u8, u8),
    /// Negotiated RDMA Reads towards the peer.
    pub(crate) reads_out: u32,
    pub(crate) recvs: Outstanding<RecvItem>,
    pub(crate) sends: Outstanding<SendItem>,
    /// Of the requests in `sends` that keep memory, in their order.
    pub(crate) kept: VecDeque<Kept>,
    /// Completed, but its peer may still write to its memory: returns when the queue pair is
    /// destroyed.
    pub(crate) stuck: Option<(SendItem, Outcome)>,
    /// The caller's work in `sends`, and other entries.
    pub(crate) work: u32,
    pub(crate) internal: u32,
    /// Reason of its end; the first one stays.
    pub(crate) reason: Option<CloseReason>,
    /// The reason comes from a failed completion, which overrides the peer's disconnect.
    pub(crate) reason_is_own: bool,
    /// Work was flushed and the reason is not known yet.
    pub(crate) unexplained: bool,
    /// `Event::Ending` is reported.
    pub(crate) left: bool,
    pub(crate) deadline: Option<Duration>,
    /// It was established when it started to end.
    pub(crate) was_connected: bool,
    /// Memory was exposed on it.
    pub(crate) exposed: bool,
    /// It has work to post at the next submit.
    pub(crate) listed: bool,
    /// The shared receive queue that it uses, if any.
    pub(crate) draws: Option<SrqUse>,
    /// Its device consumes no more receives for it.
    pub(crate) drew_last: bool,
    /// Its device had the time to report its refusal to the peer.
    pub(crate) refused: bool,
    /// It is in the error state and has to be destroyed.
    pub(crate) stopped: Option<Stopped>,
}

/// Logs a line about the peer of a connection, with its host, subsystem and queue.
macro_rules! log_peer {
    ($level:ident, $conn:expr, $($text:tt)+) => {{
        let peer = tracing::field::display($conn.peer);
        ::nvmeof_rdma::log_conn!($level, peer, &$conn.owner, $($text)+);
    }};
}
pub(crate) use log_peer;

impl Conn {
    pub(crate) fn new(id: QpId, cm: CmId, peer: SocketAddr, phase: Phase) -> Self {
        Self {
            id,
            phase,
            cm,
            link: None,
            config: QpConfig::default(),
            listener: None,
            guard: None,
            peer,
            owner: QpOwner::default(),
            pending_call: None,
            awaits_answer: false,
            private_data: PrivateData::empty(),
            asked: (0, 0),
            reads_out: 0,
            recvs: Outstanding::new(WorkId::of(id, true)),
            sends: Outstanding::new(WorkId::of(id, false)),
            kept: VecDeque::new(),
            stuck: None,
            work: 0,
            internal: 0,
            reason: None,
            reason_is_own: false,
            unexplained: false,
            left: false,
            deadline: None,
            was_connected: false,
            exposed: false,
            listed: false,
            draws: None,
            drew_last: false,
            refused: false,
            stopped: None,
        }
    }
}

impl Conn {
    /// Ends the access of the device to the memory of the oldest request that keeps memory.
    ///
    /// # Errors
    /// If the device fails to do that.
    pub(crate) fn close_kept(&mut self) -> io::Result<()> {
        self.kept.pop_front().map_or(Ok(()), Kept::close)
    }

    /// Whether destroying its id or its queue pair would block in the kernel.
    pub(crate) fn is_held(&self) -> bool {
        let pending_call = self.pending_call.as_ref();
        pending_call.is_some_and(|pending_call| self.awaits_answer || pending_call.is_in_progress())
    }
}

/// All queue pairs. An identifier is slot and generation and is never reused.
#[derive(Debug, Default)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    free: Vec<usize>,
    count: u32,
}

#[derive(Debug)]
struct Slot {
    generation: u64,
    conn: Option<Box<Conn>>,
}

impl Table {
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The identifier of the next queue pair.
    pub(crate) fn next_id(&mut self) -> QpId {
        let slot = match self.free.last() {
            Some(slot) => *slot,
            None => {
                self.slots.push(Slot {
                    generation: 1,
                    conn: None,
                });
                self.free.push(self.slots.len() - 1);
                self.slots.len() - 1
            }
        };
        let generation = self.slots.get(slot).map_or(0, |slot| slot.generation);
        QpId(generation << SLOT_BITS | slot as u64)
    }

    /// Adds a queue pair with the identifier [`next_id`](Self::next_id).
    pub(crate) fn insert(&mut self, conn: Conn) {
        let Some(slot) = self.free.pop() else { return };
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.conn = Some(Box::new(conn));
            self.count += 1;
        }
    }

    fn index(qp: QpId) -> usize {
        usize::try_from(qp.0 & SLOT_MASK).unwrap_or(usize::MAX)
    }

    pub(crate) fn get(&self, qp: QpId) -> Option<&Conn> {
        let slot = self.slots.get(Self::index(qp))?;
        slot.conn.as_deref().filter(|conn| conn.id == qp)
    }

    pub(crate) fn get_mut(&mut self, qp: QpId) -> Option<&mut Conn> {
        let slot = self.slots.get_mut(Self::index(qp))?;
        slot.conn.as_deref_mut().filter(|conn| conn.id == qp)
    }

    /// The queue pair of a completion.
    pub(crate) fn of_work(&mut self, id: WorkId) -> Option<&mut Conn> {
        let slot = self.slots.get_mut(usize::try_from(id.slot).ok()?)?;
        let same = slot.generation & GENERATION_MASK == id.generation;
        slot.conn.as_deref_mut().filter(|_| same)
    }

    /// Removes a queue pair.
    pub(crate) fn remove(&mut self, qp: QpId) -> Option<Box<Conn>> {
        let index = Self::index(qp);
        let slot = self.slots.get_mut(index)?;
        let conn = slot.conn.take_if(|conn| conn.id == qp)?;
        slot.generation += 1;
        self.free.push(index);
        self.count -= 1;
        Some(conn)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Conn> {
        self.slots
            .iter_mut()
            .filter_map(|slot| slot.conn.as_deref_mut())
    }
}
