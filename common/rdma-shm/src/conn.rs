//! One connection and its state.

use std::net::SocketAddr;
use std::time::Duration;

use nvmeof_rdma::{
    CloseReason, ConnectionGuard, Event, Fault, Inline, ListenerId, Peer, PostError, Posted,
    PrivateData, QpConfig, QpId, QpOwner, RemoteKey, Tag, Work, WorkKind,
};
use nvmeof_rdma_soft::KeyTable;

use crate::channel::Channel;
use crate::grant::PeerMemory;
use crate::inbound::{Inbound, Receiver};
use crate::link::Link;
use crate::message::{ConnectionParameters, Message, WAKE_UP};
use crate::outbound::Outbound;
use crate::record::count;
use crate::shared_regions::SharedRegions;

/// State of a connection.
///
/// ```text
/// active:  AwaitReply ----------------------------> Running -> Ending -> Busy -> Gone
/// passive: AwaitRequest -> Requested -> Prepared -> Running -> Ending ---------> Gone
/// ```
/// Every phase may go to Gone, and Running to Busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The request is sent, the reply is pending.
    AwaitReply,
    /// A peer connected, its request is pending.
    AwaitRequest,
    /// The request was reported to the owner.
    Requested,
    /// The owner set the sizes.
    Prepared,
    /// Established.
    Running,
    /// Queued work is sent, nothing else is done.
    Ending,
    /// Closed, but the peer still uses local memory: no buffer returns before it releases it.
    Busy,
    /// Everything is reported.
    Gone,
}

impl Phase {
    /// The error for a call that this phase does not allow.
    pub(crate) fn refusal(self) -> PostError {
        let state = match self {
            Self::AwaitReply => "still connecting",
            Self::AwaitRequest | Self::Requested => "not prepared",
            Self::Prepared => "not accepted",
            Self::Running => "connected",
            Self::Ending | Self::Busy | Self::Gone => return PostError::Closed,
        };
        PostError::WrongState { state }
    }

    /// Whether it counts as one that was not accepted yet.
    pub(crate) fn is_pending(self) -> bool {
        matches!(self, Self::AwaitRequest | Self::Requested | Self::Prepared)
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) id: QpId,
    /// For log lines.
    pub(crate) owner: QpOwner,
    pub(crate) phase: Phase,
    /// `None` if the connection failed immediately, and at the end.
    pub(crate) link: Option<Link>,
    pub(crate) channel: Option<Channel>,
    /// The listener; `None` on the active side.
    pub(crate) listener: Option<(ListenerId, SocketAddr)>,
    /// Counts it in the load of its group member.
    pub(crate) guard: Option<ConnectionGuard>,
    /// The local address that the peer connected to, if it is known.
    pub(crate) reached: Option<SocketAddr>,
    pub(crate) config: QpConfig,
    /// RDMA Reads of this side that the peer's request allows.
    pub(crate) peer_reads_in: u32,
    /// Memory that the peer grants.
    pub(crate) peer_memory: Option<PeerMemory>,
    /// Number of local regions that the peer maps, and how many of them it has.
    pub(crate) peer_takes: usize,
    pub(crate) passed: usize,
    pub(crate) inbound: Inbound,
    pub(crate) outbound: Outbound,
    pub(crate) deadline: Option<Duration>,
    /// Reason of the end, once it is known. In phase Running it comes from the peer, and
    /// records in its ring are still valid.
    pub(crate) reason: Option<CloseReason>,
    /// Start of phase Busy.
    pub(crate) busy_since: Option<Duration>,
    /// Whether it was logged that phase Busy lasts long.
    pub(crate) busy_logged: bool,
    /// Time of the last work.
    pub(crate) worked: Duration,
    /// Whether it is checked in each poll.
    pub(crate) hot: bool,
    /// Whether work was posted since the last submit, and how much of it is not published.
    pub(crate) listed: bool,
    pub(crate) unshown: usize,
}

/// Logs a line about the peer of a connection, with its host, subsystem and queue.
macro_rules! log_peer {
    ($level:ident, $conn:expr, $($text:tt)+) => {{
        let peer = $conn.peer().map(tracing::field::display);
        ::nvmeof_rdma::log_conn!($level, peer, &$conn.owner, $($text)+);
    }};
}
pub(crate) use log_peer;

impl Conn {
    pub(crate) fn new(phase: Phase, listener: Option<(ListenerId, SocketAddr)>) -> Self {
        Self {
            id: QpId(0),
            owner: QpOwner::default(),
            phase,
            link: None,
            channel: None,
            listener,
            guard: None,
            reached: None,
            config: QpConfig::default(),
            peer_reads_in: 0,
            peer_memory: None,
            peer_takes: 0,
            passed: 0,
            inbound: Inbound::default(),
            outbound: Outbound::new(),
            deadline: None,
            reason: None,
            busy_since: None,
            busy_logged: false,
            worked: Duration::ZERO,
            hot: false,
            listed: false,
            unshown: 0,
        }
    }

    /// Whether it was reported to its owner.
    pub(crate) fn is_visible(&self) -> bool {
        self.phase != Phase::AwaitRequest
    }

    /// Whether its owner may still post work.
    pub(crate) fn is_open(&self) -> bool {
        let over = matches!(self.phase, Phase::Ending | Phase::Busy | Phase::Gone);
        self.is_visible() && !over
    }

    /// Whether its rings are in use.
    pub(crate) fn runs(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Ending)
    }

    /// Reserves memory for the sizes in `config`.
    pub(crate) fn prepare(&mut self, config: &QpConfig) {
        self.config = *config;
        self.inbound
            .prepare(count(config.recvs), count(config.reads_in));
        self.outbound.prepare(count(config.sends));
    }

    /// Establishes it; the peer processes `peer_reads_in` Reads at once.
    pub(crate) fn start(&mut self, peer_reads_in: u32) {
        self.phase = Phase::Running;
        let reads = self.config.reads_out.min(peer_reads_in);
        self.outbound.start(count(reads));
    }

    pub(crate) fn check_recv(&self, registered: bool) -> Result<(), PostError> {
        match self.phase {
            Phase::AwaitReply | Phase::Prepared | Phase::Running => {}
            other => return Err(other.refusal()),
        }
        let depth = self.config.recvs;
        if self.inbound.posted() >= count(depth) {
            return Err(PostError::QueueFull { depth });
        }
        if !registered {
            return Err(PostError::NotRegistered);
        }
        Ok(())
    }

    pub(crate) fn check_work(
        &self,
        work: &Work,
        registered: bool,
        max_message: u32,
    ) -> Result<(), PostError> {
        self.check_entry()?;
        // The negotiated number of Reads is 0: this one would wait for ever.
        if work.kind() == WorkKind::Read && self.outbound.max_reads() == 0 {
            return Err(PostError::QueueFull { depth: 0 });
        }
        if !registered {
            return Err(PostError::NotRegistered);
        }
        match work {
            Work::Send { invalidate, .. } => {
                self.check_invalidation(*invalidate)?;
                check_length(work.len(), max_message)
            }
            Work::Write { local, remote } | Work::Read { local, remote } => {
                check_length(local.len(), remote.len.min(max_message))
            }
        }
    }

    /// As [`check_work`](Self::check_work), for a message without a body.
    pub(crate) fn check_message(
        &self,
        head: &Inline,
        invalidate: Option<RemoteKey>,
        max_message: u32,
    ) -> Result<(), PostError> {
        self.check_entry()?;
        self.check_invalidation(invalidate)?;
        check_length(head.len(), max_message)
    }

    /// Whether it takes work, and has an entry for it.
    #[inline]
    fn check_entry(&self) -> Result<(), PostError> {
        if self.phase != Phase::Running {
            return Err(self.phase.refusal());
        }
        let depth = self.config.sends;
        if self.outbound.posted() >= count(depth) {
            return Err(PostError::QueueFull { depth });
        }
        Ok(())
    }

    #[inline]
    fn check_invalidation(&self, invalidate: Option<RemoteKey>) -> Result<(), PostError> {
        if let Some(key) = invalidate
            && let (Some(peer_memory), Some(channel)) = (&self.peer_memory, &self.channel)
            && peer_memory.uses(key, channel)
        {
            let state = "still using the memory of the key to be invalidated";
            return Err(PostError::WrongState { state });
        }
        Ok(())
    }

    /// Queues work, which [`transmit`](Self::transmit) publishes to the peer.
    pub(crate) fn post(&mut self, tag: Tag, work: Work) {
        self.unshown = self.unshown.saturating_add(1);
        let (channel, peer_memory) = (self.channel.as_mut(), self.peer_memory.as_mut());
        self.outbound.post(tag, work, channel, peer_memory);
    }

    /// The same for a message without a body.
    #[inline]
    pub(crate) fn post_message(
        &mut self,
        tag: Tag,
        head: &Inline,
        invalidate: Option<RemoteKey>,
    ) -> Posted {
        self.unshown = self.unshown.saturating_add(1);
        let (channel, peer_memory) = (self.channel.as_mut(), self.peer_memory.as_mut());
        (self.outbound).post_message(tag, head, invalidate, channel, peer_memory)
    }

    /// Receives and sends as much as possible. Returns whether there was any progress.
    pub(crate) fn exchange(
        &mut self,
        keys: &mut KeyTable,
        shared_regions: &mut SharedRegions,
        events: &mut Vec<Event>,
    ) -> Result<bool, Fault> {
        let Some(channel) = &mut self.channel else {
            return Ok(false);
        };
        let mut worked = false;
        if self.phase == Phase::Running {
            let mut receiver = Receiver {
                qp: self.id,
                channel,
                inbound: &mut self.inbound,
                peer_memory: self.peer_memory.as_mut(),
                outbound: &mut self.outbound,
                keys,
                shared_regions,
                events,
            };
            worked = receiver.receive()?;
        } else {
            // The peer may need the room to finish.
            channel.discard()?;
        }
        // Often there is nothing to send, because short messages are sent when they are posted.
        if channel.has_changes() || !self.outbound.has_sent_all() {
            worked |= self.transmit(keys)?;
        }
        let before = events.len();
        self.outbound.complete(self.id, events);
        Ok(worked || events.len() > before)
    }

    /// Sends as much as possible, and wakes the peer if it sleeps. Returns whether anything
    /// was sent.
    pub(crate) fn transmit(&mut self, keys: &mut KeyTable) -> Result<bool, Fault> {
        let Some(channel) = &mut self.channel else {
            return Ok(false);
        };
        self.unshown = 0;
        let put = self
            .outbound
            .transmit(channel, keys, self.peer_memory.as_mut())?;
        if channel.publish() {
            // This happens for each command if the peer sleeps before each: no allocation.
            self.send_bytes(&WAKE_UP);
        }
        Ok(put)
    }

    /// The peer, if there is one.
    pub(crate) fn peer(&self) -> Option<Peer> {
        self.link.as_ref().and_then(|link| link.peer().ok())
    }

    /// Sends a message to the peer if there is one. A full socket is ignored, because the
    /// peer has enough to wake up for; so is a closed one, because the next receive detects
    /// that.
    pub(crate) fn send(&self, message: &Message) {
        self.send_bytes(&message.to_bytes());
    }

    fn send_bytes(&self, message: &[u8]) {
        if let Some(link) = &self.link
            && let Err(error) = link.send(message, None)
        {
            log_peer!(trace, self, %error, "cannot send a message to the peer");
        }
    }
}

#[inline]
fn check_length(len: usize, max: u32) -> Result<(), PostError> {
    let max = count(max);
    match len > max {
        true => Err(PostError::TooLong { len, max }),
        false => Ok(()),
    }
}

/// The terms of this side.
pub(crate) fn parameters(config: &QpConfig, private_data: &PrivateData) -> ConnectionParameters {
    ConnectionParameters {
        reads_in: config.reads_in,
        reads_out: config.reads_out,
        private_data: private_data.clone(),
    }
}
