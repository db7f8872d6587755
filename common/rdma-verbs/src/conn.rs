//! Queue pairs: their state, their names, and the table of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_rdma::{
    CloseReason, Counted, ListenerId, Outcome, PostError, PrivateData, QpConfig, QpId, Whose,
};

use crate::adapter::AdapterId;
use crate::blocking_calls::Calling;
use crate::link::Link;
use crate::outstanding::{NUMBER_BITS, Outstanding, RecvItem, SendItem};
use crate::retired::Retired;
use crate::sys::CmId;

/// What a queue pair is doing.
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
    /// Waits for the peer's address to be resolved.
    Resolving,
    /// Waits for a route.
    Routing,
    /// Waits for the peer's answer.
    Connecting,
    /// A peer asked; nobody answered.
    Requested,
    /// Has its sizes and its queue pair.
    Prepared,
    /// Accepted; waits for the peer's last word.
    Accepting,
    /// Stands.
    Running,
    /// Takes nothing new; what was submitted is still tried.
    Draining,
    /// Is torn down in the next poll.
    Ending,
}

impl Phase {
    /// Why a call is refused that is for another phase.
    pub(crate) fn refusal(self) -> PostError {
        let state = match self {
            Self::Resolving | Self::Routing | Self::Connecting => "connecting",
            Self::Requested => "asked for and not prepared",
            Self::Prepared => "asked for and not accepted",
            Self::Accepting => "being accepted",
            Self::Running => "connected",
            Self::Draining | Self::Ending => return PostError::Closed,
        };
        PostError::WrongState { state }
    }

    /// Whether a peer waits for an answer.
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
    /// The peer was told.
    pub(crate) said_good_bye: bool,
    /// It cannot be destroyed without waiting for the peer.
    pub(crate) held: bool,
}

/// A queue pair's part in the shared receive queue of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw {
    pub(crate) of: AdapterId,
    /// Messages its peer may send before one is answered.
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
    /// Has it count among the connections of a group.
    pub(crate) counted: Option<Counted>,
    pub(crate) peer: SocketAddr,
    /// For the log.
    pub(crate) whose: Whose,
    /// The call that connects it, where that may wait.
    pub(crate) calling: Option<Arc<Calling<Retired>>>,
    /// Connection management owes the answer to that call: until it is there,
    /// nothing can be destroyed without waiting.
    pub(crate) awaits_answer: bool,
    /// What the active side says; sent when the route is known.
    pub(crate) private_data: PrivateData,
    /// What a request asked for: reads towards us, reads the peer answers.
    pub(crate) asked: (u8, u8),
    /// RDMA Reads both sides agreed on, towards the peer.
    pub(crate) reads_out: u32,
    pub(crate) recvs: Outstanding<RecvItem>,
    pub(crate) sends: Outstanding<SendItem>,
    /// Done, but its peer may still write to its memory: comes back when the
    /// queue pair is gone.
    pub(crate) stuck: Option<(SendItem, Outcome)>,
    /// The caller's work in `sends`, and the rest.
    pub(crate) work: u32,
    pub(crate) internal: u32,
    /// Why it ends; what decided first stays.
    pub(crate) reason: Option<CloseReason>,
    /// The reason comes from a completion that failed, which beats what the
    /// peer's good-bye says.
    pub(crate) reason_is_own: bool,
    /// Work was flushed and nothing said why yet.
    pub(crate) unexplained: bool,
    /// It is said that it ends.
    pub(crate) left: bool,
    pub(crate) deadline: Option<Duration>,
    /// Stood when it began to end.
    pub(crate) was_connected: bool,
    /// Memory was exposed on it.
    pub(crate) exposed: bool,
    /// Has something to post at the next submit.
    pub(crate) listed: bool,
    /// What it draws from, if it has no receives of its own.
    pub(crate) draws: Option<Draw>,
    /// Its device takes no more receives for it.
    pub(crate) drew_last: bool,
    /// Its device had the time to tell the peer what it refused.
    pub(crate) refused: bool,
    /// It is stopped and has to be destroyed.
    pub(crate) stopped: Option<Stopped>,
}

/// A line in the log about the peer of a connection: it names whose that is, too.
macro_rules! of_peer {
    ($level:ident, $conn:expr, $($text:tt)+) => {{
        let peer = tracing::field::display($conn.peer);
        ::nvmeof_rdma::of_conn!($level, peer, &$conn.whose, $($text)+);
    }};
}
pub(crate) use of_peer;

impl Conn {
    pub(crate) fn new(id: QpId, cm: CmId, peer: SocketAddr, phase: Phase) -> Self {
        Self {
            id,
            phase,
            cm,
            link: None,
            config: QpConfig::default(),
            listener: None,
            counted: None,
            peer,
            whose: Whose::default(),
            calling: None,
            awaits_answer: false,
            private_data: PrivateData::empty(),
            asked: (0, 0),
            reads_out: 0,
            recvs: Outstanding::new(),
            sends: Outstanding::new(),
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
    /// Whether destroying its id or its queue pair would wait in the kernel.
    pub(crate) fn is_held(&self) -> bool {
        let calling = self.calling.as_ref();
        calling.is_some_and(|calling| self.awaits_answer || calling.is_under_way())
    }
}

/// Bits of a queue pair's place in the table.
const SLOT_BITS: u32 = 17;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
/// Bits of its generation that a completion carries.
const GENERATION_BITS: u32 = 22;
const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;
/// Set in completions of receives.
const RECV: u64 = 1 << 63;

const _: () = assert!(1 + SLOT_BITS + GENERATION_BITS + NUMBER_BITS == 64);

/// More queue pairs than that cannot be named in a completion.
pub(crate) const MOST_QPS: u32 = 1 << SLOT_BITS;

/// What the id of a work request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkId {
    pub(crate) recv: bool,
    slot: u64,
    generation: u64,
    /// Number in its book.
    pub(crate) number: u64,
}

impl WorkId {
    pub(crate) fn of(qp: QpId, recv: bool, number: u64) -> u64 {
        let (slot, generation) = (qp.0 & SLOT_MASK, qp.0 >> SLOT_BITS);
        let kind = if recv { RECV } else { 0 };
        let generation = generation & GENERATION_MASK;
        kind | slot << (GENERATION_BITS + NUMBER_BITS) | generation << NUMBER_BITS | number
    }

    pub(crate) fn parse(id: u64) -> Self {
        Self {
            recv: id & RECV != 0,
            slot: id >> (GENERATION_BITS + NUMBER_BITS) & SLOT_MASK,
            generation: id >> NUMBER_BITS & GENERATION_MASK,
            number: id & ((1 << NUMBER_BITS) - 1),
        }
    }
}

/// All queue pairs. A name is slot and generation: that of one that is gone
/// never means another.
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

    /// The name that the next queue pair will have.
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

    /// Adds a queue pair, whose name is [`next_id`](Self::next_id).
    pub(crate) fn insert(&mut self, conn: Conn) {
        let Some(slot) = self.free.pop() else { return };
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.conn = Some(Box::new(conn));
            self.count += 1;
        }
    }

    fn slot(&self, qp: QpId) -> Option<usize> {
        let index = usize::try_from(qp.0 & SLOT_MASK).ok()?;
        let slot = self.slots.get(index)?;
        (slot.generation == qp.0 >> SLOT_BITS).then_some(index)
    }

    pub(crate) fn get(&self, qp: QpId) -> Option<&Conn> {
        self.slots.get(self.slot(qp)?)?.conn.as_deref()
    }

    pub(crate) fn get_mut(&mut self, qp: QpId) -> Option<&mut Conn> {
        let index = self.slot(qp)?;
        self.slots.get_mut(index)?.conn.as_deref_mut()
    }

    /// The queue pair of a completion.
    pub(crate) fn of_work(&mut self, id: WorkId) -> Option<&mut Conn> {
        let slot = self.slots.get_mut(usize::try_from(id.slot).ok()?)?;
        let same = slot.generation & GENERATION_MASK == id.generation;
        slot.conn.as_deref_mut().filter(|_| same)
    }

    /// Takes a queue pair out for good.
    pub(crate) fn remove(&mut self, qp: QpId) -> Option<Box<Conn>> {
        let index = self.slot(qp)?;
        let slot = self.slots.get_mut(index)?;
        let conn = slot.conn.take()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_ids_hold_slot_generation_and_number() {
        let qp = QpId(0x1234_5678 << SLOT_BITS | 0x1_5678);
        for (recv, number) in [(false, 0), (true, (1 << NUMBER_BITS) - 1), (false, 77)] {
            let id = WorkId::parse(WorkId::of(qp, recv, number));
            assert_eq!((id.recv, id.number), (recv, number));
            assert_eq!(id.slot, 0x1_5678);
            assert_eq!(id.generation, 0x1234_5678 & GENERATION_MASK);
        }
    }
}
