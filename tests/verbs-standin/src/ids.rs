//! Identifiers of connection management, and the events about them.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use crate::links::LinkKey;
use crate::raw::{Ptr, cm_event, rdma_cm_id, rdma_event_channel};
use crate::signal::Signal;

/// State of an id.
///
/// ```text
///  Idle ─► Bound ─► Listening
///  Idle ─► Resolved ─► Routed ─► Connecting ─┐
///                                            ├─► Connected ─► Leaving ─► Over
///                   Requested ─► Accepted ───┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdState {
    Idle,
    Bound,
    Listening,
    Resolved,
    Routed,
    /// The request was sent; the peer may be missing.
    Connecting,
    /// A peer requested it.
    Requested,
    /// Waiting for the peer's confirmation.
    Accepted,
    Connected,
    /// This side disconnected, and the peer did not confirm that.
    Leaving,
    Over,
}

/// Parameters of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Params {
    /// RDMA Reads: towards this side, and towards the peer.
    pub(crate) reads_in: u8,
    pub(crate) reads_out: u8,
    pub(crate) rnr_retry: u8,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// An id of this process, by its address.
    Here(usize),
    /// An id at the other end of this link.
    There(LinkKey),
}

/// A message of connection management: its names are those of the InfiniBand Architecture,
/// 12.6. On iWARP, the stream has others with the same effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CmMessage {
    /// REP: the request is accepted.
    Reply {
        params: Params,
        private_data: Vec<u8>,
    },
    /// RTU: the reply arrived.
    ReadyToUse,
    /// REJ, with the status of its event.
    Reject { status: i32, private_data: Vec<u8> },
    /// REJ of the requesting side, which gives up.
    Cancel,
    /// DREQ.
    DisconnectRequest,
    /// DREP.
    DisconnectReply,
    /// The stream ended, on iWARP.
    StreamEnd,
}

/// An id.
#[derive(Debug)]
pub(crate) struct Id {
    pub(crate) raw: Ptr<rdma_cm_id>,
    /// Address of its channel.
    pub(crate) channel: usize,
    pub(crate) state: IdState,
    pub(crate) device: Option<usize>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) qp: Option<usize>,
    pub(crate) peer: Option<Peer>,
    pub(crate) reuse: bool,
    /// The peer accepted it and left before this side has seen that.
    pub(crate) ended: bool,
    pub(crate) params: Params,
    /// Events taken and not acknowledged.
    pub(crate) unacknowledged: u32,
}

/// An event about an id.
#[derive(Clone, Debug)]
pub(crate) struct CmEvent {
    pub(crate) id: usize,
    /// The listening id of a request.
    pub(crate) listener: Option<usize>,
    pub(crate) kind: cm_event::Type,
    pub(crate) status: i32,
    pub(crate) private_data: Vec<u8>,
    pub(crate) params: Params,
}

/// A channel for events about ids.
#[derive(Debug)]
pub(crate) struct CmChannel {
    pub(crate) raw: Ptr<rdma_event_channel>,
    pub(crate) signal: Signal,
    pub(crate) events: VecDeque<CmEvent>,
}

/// All ids and channels, by address.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    pub(crate) ids: BTreeMap<usize, Id>,
    pub(crate) channels: BTreeMap<usize, CmChannel>,
    pub(crate) last_port: u16,
}

/// The ports that are assigned to ids without one.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32768..=60999;

impl Ids {
    /// Reports an event.
    pub(crate) fn report(&mut self, event: CmEvent) {
        let of = event.listener.unwrap_or(event.id);
        let channel = self.ids.get(&of).map(|id| id.channel);
        let channel = channel.and_then(|channel| self.channels.get_mut(&channel));
        if let Some(channel) = channel {
            channel.events.push_back(event);
            channel.signal.raise();
        }
    }

    /// Reports an event without data.
    pub(crate) fn tell(&mut self, id: usize, kind: cm_event::Type, status: i32) {
        self.report(CmEvent {
            id,
            listener: None,
            kind,
            status,
            private_data: Vec::new(),
            params: Params::default(),
        });
    }

    /// Removes the events about an id from its channel and returns them.
    pub(crate) fn take_events(&mut self, id: usize) -> Vec<CmEvent> {
        let channel = self.ids.get(&id).map(|id| id.channel);
        let channel = channel.and_then(|channel| self.channels.get_mut(&channel));
        let Some(channel) = channel else {
            return Vec::new();
        };
        let about = |event: &CmEvent| event.listener.unwrap_or(event.id) == id || event.id == id;
        let (of, others): (Vec<_>, Vec<_>) = channel.events.drain(..).partition(about);
        channel.events = others.into();
        channel.signal.lower(of.len());
        of
    }

    /// A port that no id has.
    pub(crate) fn free_port(&mut self) -> u16 {
        loop {
            let next = self.last_port.wrapping_add(1);
            self.last_port = next.clamp(*EPHEMERAL.start(), *EPHEMERAL.end());
            if next > *EPHEMERAL.end() {
                self.last_port = *EPHEMERAL.start();
            }
            let port = self.last_port;
            let used = |id: &Id| id.local.is_some_and(|local| local.port() == port);
            if !self.ids.values().any(used) {
                return port;
            }
        }
    }

    /// Whether another id than `this` prevents `this` from having the address.
    pub(crate) fn is_in_use(&self, this: usize, addr: SocketAddr, reuse: bool) -> bool {
        self.ids.iter().any(|(key, id)| {
            let bound = matches!(id.state, IdState::Bound | IdState::Listening);
            let same = id.local.is_some_and(|local| {
                let anywhere = local.ip().is_unspecified() || addr.ip().is_unspecified();
                local.port() == addr.port()
                    && local.is_ipv4() == addr.is_ipv4()
                    && (anywhere || local.ip() == addr.ip())
            });
            let shared = reuse && id.reuse && id.state != IdState::Listening;
            *key != this && bound && same && !shared
        })
    }

    /// The listener for an address.
    pub(crate) fn listener(&self, addr: SocketAddr) -> Option<usize> {
        let mut listeners = self.ids.iter().filter(|(_, id)| {
            let fits = id.local.is_some_and(|local| {
                let ip = local.ip().is_unspecified() && local.is_ipv4() == addr.is_ipv4();
                local.port() == addr.port() && (ip || local.ip() == addr.ip())
            });
            id.state == IdState::Listening && fits
        });
        listeners.next().map(|(key, _)| *key)
    }
}
