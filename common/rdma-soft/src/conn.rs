//! A connection: its state, and the table of connections.

use std::fmt;
use std::time::Duration;

use nvmeof_rdma::{
    Address, CloseReason, ExposeError, ListenerId, Peer, PostError, PrivateData, QpConfig, QpId,
    QpOwner, Work, WorkKind, WriteAndSend,
};

use crate::StreamId;
use crate::inbound::Inbound;
use crate::iwarp::mpa::Reads;
use crate::iwarp::{PayloadLimit, Rx};
use crate::outbound::Outbound;

/// State of a connection.
///
/// ```text
/// active:  Connecting -> AwaitReply ---------------> Running -> Ending -> Releasing -> Gone
/// passive: AwaitRequest -> Requested -> Prepared -> Running -> Ending -> Releasing -> Gone
/// ```
/// Every phase may go to a later one of the last three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The stream is being connected.
    Connecting,
    /// The MPA request is sent, the reply is pending.
    AwaitReply,
    /// A peer connected, its MPA request is pending.
    AwaitRequest,
    /// The request was reported to the owner.
    Requested,
    /// The owner set the sizes.
    Prepared,
    /// Established.
    Running,
    /// Queued work is sent, nothing else is done.
    Ending,
    /// The stream is reset, and still refers to memory of sent work.
    Releasing,
    /// Everything is reported.
    Gone,
}

impl Phase {
    /// Whether the end has begun.
    pub(crate) fn has_ended(self) -> bool {
        matches!(self, Self::Ending | Self::Releasing | Self::Gone)
    }

    /// The error for a call that this phase does not allow.
    #[cold]
    pub(crate) fn refusal(self) -> PostError {
        let state = match self {
            Self::Connecting | Self::AwaitReply => "still connecting",
            Self::AwaitRequest | Self::Requested => "not prepared",
            Self::Prepared => "not accepted",
            Self::Running => "connected",
            Self::Ending | Self::Releasing | Self::Gone => return PostError::Closed,
        };
        PostError::WrongState { state }
    }
}

/// The other side of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Remote {
    /// Address of the peer, on the active side.
    Called(Address),
    /// The peer and the listener, on the passive side.
    Caller(Peer, ListenerId),
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Called(addr) => addr.fmt(f),
            Self::Caller(peer, _) => peer.fmt(f),
        }
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) id: QpId,
    pub(crate) stream: StreamId,
    pub(crate) remote: Remote,
    /// For log lines.
    pub(crate) owner: QpOwner,
    pub(crate) phase: Phase,
    /// Whether it was reported to its owner, which gets its events.
    pub(crate) visible: bool,
    pub(crate) config: QpConfig,
    /// MPA revision in use, 1 or 2.
    pub(crate) revision: u8,
    /// One side requested CRCs.
    pub(crate) crc: bool,
    /// IRD and ORD of an enhanced request.
    pub(crate) peer_reads: Option<Reads>,
    /// Private data of the own request, in case it has to be sent again.
    pub(crate) private_data: PrivateData,
    /// The MPA frame being received.
    pub(crate) frame_in: Vec<u8>,
    /// The MPA frame being sent, and the sent bytes of it.
    pub(crate) frame_out: Vec<u8>,
    pub(crate) frame_sent: usize,
    pub(crate) rx: Rx,
    pub(crate) inbound: Inbound,
    pub(crate) outbound: Outbound,
    pub(crate) deadline: Option<Duration>,
    /// Bytes of frames accepted by the stream.
    pub(crate) sent: u64,
    /// Received segments with next to no payload, minus later ones with payload.
    pub(crate) idle: u64,
    /// Empty Writes sent while nothing was received.
    pub(crate) nudges: u8,
    /// Reason of the end.
    pub(crate) reason: CloseReason,
    /// Sending failed; data that arrived before are still processed.
    pub(crate) broken: bool,
    /// The stream may contain bytes that arrived before this phase.
    pub(crate) try_receive: bool,
    /// Whether it is in the list of connections with work.
    pub(crate) listed: bool,
    /// Whether the stream reports room to send.
    pub(crate) wants_send: bool,
}

/// Logs a line about the peer of a connection, with its host, subsystem and queue.
macro_rules! log_peer {
    ($level:ident, $conn:expr, $($text:tt)+) => {{
        let peer = tracing::field::display($conn.remote);
        ::nvmeof_rdma::log_conn!($level, peer, &$conn.owner, $($text)+);
    }};
}
pub(crate) use log_peer;

/// Limit on idle segments, after which less is received at a time. A new connection starts
/// below it, so that its first messages arrive before that.
const ALLOWED_IDLE: u64 = 64;

impl Conn {
    /// Whether so many segments were idle that each poll receives only little.
    #[inline]
    pub(crate) fn idles(&self) -> bool {
        self.idle > ALLOWED_IDLE
    }

    /// Counts the segments of a receive call that started at `frames`: each segment with
    /// payload makes up for an idle one.
    pub(crate) fn count_idle(&mut self, frames: u64) {
        let idle = std::mem::take(&mut self.inbound.idle);
        let others = self.rx.frames().saturating_sub(frames).saturating_sub(idle);
        self.idle = self.idle.saturating_add(idle).saturating_sub(others);
    }

    pub(crate) fn new(stream: StreamId, remote: Remote, phase: Phase) -> Self {
        Self {
            id: QpId(0),
            stream,
            remote,
            owner: QpOwner::default(),
            phase,
            visible: false,
            config: QpConfig::default(),
            revision: crate::iwarp::mpa::REVISION_2,
            crc: false,
            peer_reads: None,
            private_data: PrivateData::empty(),
            frame_in: Vec::new(),
            frame_out: Vec::new(),
            frame_sent: 0,
            rx: Rx::new(false),
            inbound: Inbound::new(),
            outbound: Outbound::new(),
            deadline: None,
            sent: 0,
            idle: ALLOWED_IDLE + 1,
            nudges: 0,
            reason: CloseReason::Local,
            broken: false,
            try_receive: false,
            listed: false,
            wants_send: false,
        }
    }

    /// Adds it to `listed`, once.
    #[inline]
    pub(crate) fn list_in(&mut self, listed: &mut Vec<QpId>) {
        if !self.listed {
            self.listed = true;
            listed.push(self.id);
        }
    }

    /// Reserves memory for the sizes in `config`.
    pub(crate) fn prepare(&mut self, config: &QpConfig) {
        let count = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        self.config = *config;
        self.inbound
            .prepare(count(config.recvs), count(config.reads_in));
        self.outbound.prepare(count(config.sends));
    }

    /// The connection, if a receive may be posted.
    pub(crate) fn may_receive(&mut self, registered: bool) -> Result<&mut Self, PostError> {
        match self.phase {
            Phase::Connecting | Phase::AwaitReply | Phase::Prepared | Phase::Running => {}
            other => return Err(other.refusal()),
        }
        let depth = self.config.recvs;
        if self.inbound.posted() >= depth as usize {
            return Err(PostError::QueueFull { depth });
        }
        if !registered {
            return Err(PostError::NotRegistered);
        }
        Ok(self)
    }

    /// The connection, if `work` may be posted. Messages have at most `max_message` bytes.
    pub(crate) fn may_post(
        &mut self,
        work: &Work,
        registered: bool,
        max_message: usize,
    ) -> Result<&mut Self, PostError> {
        self.may_send(1, registered)?;
        // The negotiated number of Reads is 0: this one would wait for ever.
        if work.kind() == WorkKind::Read && self.outbound.max_reads() == 0 {
            return Err(PostError::QueueFull { depth: 0 });
        }
        let max = match work {
            Work::Send { .. } => max_message,
            Work::Write { remote, .. } | Work::Read { remote, .. } => {
                max_message.min(remote.len as usize)
            }
        };
        let len = work.len();
        if len > max {
            return Err(PostError::TooLong { len, max });
        }
        Ok(self)
    }

    /// The connection, if `reply` may be posted.
    pub(crate) fn may_answer(
        &mut self,
        reply: &WriteAndSend,
        registered: bool,
        max_message: usize,
    ) -> Result<&mut Self, PostError> {
        self.may_send(2, registered)?;
        let max = max_message.min(reply.remote.len as usize);
        let len = reply.local.len();
        if len > max {
            return Err(PostError::TooLong { len, max });
        }
        Ok(self)
    }

    /// Whether memory may be exposed; `registered` says whether it is registered.
    pub(crate) fn may_expose(&self, registered: bool) -> Result<(), ExposeError> {
        if self.phase.has_ended() || !self.visible {
            return Err(ExposeError::Closed);
        }
        if !registered {
            return Err(ExposeError::NotRegistered);
        }
        match self.config.exposes {
            0 => Err(ExposeError::Full { max: 0 }),
            _ => Ok(()),
        }
    }

    /// Whether `count` work requests may be posted; `registered` says whether their memory is
    /// registered.
    #[inline]
    fn may_send(&self, count: usize, registered: bool) -> Result<(), PostError> {
        if self.phase != Phase::Running {
            return Err(self.phase.refusal());
        }
        let depth = self.config.sends;
        if self.outbound.posted() + count > depth as usize {
            return Err(PostError::QueueFull { depth });
        }
        if !registered {
            return Err(PostError::NotRegistered);
        }
        Ok(())
    }

    /// Establishes it with at most `reads_out` RDMA Reads in flight, and segments of at most
    /// `limit`.
    pub(crate) fn start(&mut self, reads_out: u32, limit: PayloadLimit) {
        self.phase = Phase::Running;
        self.rx = Rx::new(self.crc);
        let reads = usize::try_from(reads_out).unwrap_or(usize::MAX);
        let responder = matches!(self.remote, Remote::Caller(..));
        self.outbound.start(self.crc, limit, reads, responder);
        self.frame_in = Vec::new();
        self.try_receive = true;
    }
}

/// All connections, by slot and generation.
#[derive(Debug, Default)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    count: u32,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    /// `None` if free, and while the connection is taken out.
    conn: Option<Box<Conn>>,
}

impl Table {
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn insert(&mut self, mut conn: Box<Conn>) -> QpId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 1,
                conn: None,
            });
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return QpId(0);
        };
        conn.id = QpId(u64::from(slot.generation) << 32 | u64::from(index));
        let id = conn.id;
        slot.conn = Some(conn);
        self.count += 1;
        id
    }

    fn slot(&mut self, id: QpId) -> Option<&mut Slot> {
        let (index, generation) = split(id);
        let slot = self.slots.get_mut(index as usize)?;
        (slot.generation == generation).then_some(slot)
    }

    pub(crate) fn get(&self, id: QpId) -> Option<&Conn> {
        let [generation, index] = [id.0 >> 32, id.0 & u64::from(u32::MAX)];
        let slot = self.slots.get(usize::try_from(index).ok()?)?;
        let conn = slot.conn.as_deref()?;
        (u64::from(slot.generation) == generation).then_some(conn)
    }

    pub(crate) fn get_mut(&mut self, id: QpId) -> Option<&mut Conn> {
        self.slot(id)?.conn.as_deref_mut()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Conn> {
        self.slots
            .iter_mut()
            .filter_map(|slot| slot.conn.as_deref_mut())
    }

    /// Takes a connection out to work on it; `put_back` must follow.
    pub(crate) fn take(&mut self, id: QpId) -> Option<Box<Conn>> {
        self.slot(id)?.conn.take()
    }

    /// Puts a connection back; a closed one is removed.
    pub(crate) fn put_back(&mut self, conn: Box<Conn>) {
        let gone = conn.phase == Phase::Gone;
        let index = split(conn.id).0;
        let Some(slot) = self.slot(conn.id) else {
            return;
        };
        if gone {
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(index);
            self.count -= 1;
        } else {
            slot.conn = Some(conn);
        }
    }
}

fn split(id: QpId) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = id.0.to_le_bytes();
    (
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    )
}
