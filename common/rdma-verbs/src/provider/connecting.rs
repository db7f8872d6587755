//! Connection set-up: events of connection management, and the caller's responses to
//! requests.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use nvmeof_rdma::{
    CloseReason, ConnectError, ConnectRequest, Event, ListenerId, PostError, PrivateData, QpConfig,
    QpId,
};

use super::queueing::{post_early_recvs, post_recvs};
use super::{ANCHOR, LINGERING, Verbs};
use crate::VerbsError;
use crate::adapter::{Adapter, AdapterId};
use crate::blocking_calls::{CallOutcome, PendingCall};
use crate::conn::{Conn, Phase, log_peer};
use crate::heads::Heads;
use crate::link::{Link, Room};
use crate::mailbox::{Message, Request};
use crate::retired::Retired;
use crate::siw;
use crate::sizes;
use crate::sys::{
    CmEvent, CmEventKind, CmId, ConnectParams, Context, ContextKey, INLINE, ProtectionDomain,
    QpParts, QpSizes, RecvChain, SendChain, SrqHandle,
};
use crate::words::{Refusal, accept_reason, network, of_device, refusal, set_up_reason};

/// Bytes of private data that connection management of InfiniBand and RoCE
/// carries for its users: 92, 196 and 148 bytes (InfiniBand Architecture,
/// 12.6), of which the request gives up 36 for addresses (its annex A11).
pub(super) const REQUEST: usize = 56;
const ACCEPT: usize = 196;
pub(super) const REJECT: usize = 148;

/// iWARP carries up to 512 bytes, which covers every value.
pub(super) fn check_private(data: &PrivateData, iwarp: bool, max: usize) -> Result<(), PostError> {
    let len = data.len();
    if !iwarp && len > max {
        return Err(PostError::TooLong { len, max });
    }
    Ok(())
}

/// Connection management has one byte for a number of reads.
fn byte(reads: u32) -> u8 {
    u8::try_from(reads).unwrap_or(u8::MAX)
}

/// Whether the id's device is an iWARP device.
pub(super) fn is_iwarp(cm: &CmId) -> bool {
    let context = cm.context().and_then(|key| Context::of(key).ok());
    let attr = context.and_then(|context| context.attr().ok());
    attr.is_some_and(|attr| attr.iwarp)
}

impl Verbs {
    pub(super) fn start_connecting(
        &mut self,
        addr: SocketAddr,
        config: &QpConfig,
        private_data: &PrivateData,
    ) -> Result<QpId, ConnectError> {
        self.config.limits.check(config)?;
        if self.is_full() {
            let depth = self.most_qps();
            return Err(PostError::QueueFull { depth }.into());
        }
        let id = self.conns.next_id();
        let started = CmId::new(&self.channel, id.0).and_then(|cm| {
            if let Some(value) = self.config.type_of_service {
                cm.set_type_of_service(value)?;
            }
            cm.resolve_addr(addr, self.timeout_ms())?;
            Ok(cm)
        });
        let cm = started.map_err(|source| ConnectError::Io {
            addr: addr.into(),
            source,
        })?;
        let mut conn = Conn::new(id, cm, addr, Phase::Resolving);
        conn.config = *config;
        conn.private_data = private_data.clone();
        let deadline = self.now + self.config.handshake;
        Self::set_deadline(&mut self.deadlines, &mut conn, Some(deadline));
        self.conns.insert(conn);
        Ok(id)
    }

    fn timeout_ms(&self) -> i32 {
        i32::try_from(self.config.handshake.as_millis()).unwrap_or(i32::MAX)
    }

    /// Handles an event of connection management.
    pub(super) fn on_cm_event(&mut self, event: &CmEvent, events: &mut Vec<Event>) {
        if event.token == LINGERING {
            match event.kind {
                CmEventKind::Disconnected
                | CmEventKind::TimewaitExit
                | CmEventKind::DeviceRemoval => self.stop_lingering(event.id),
                _ => {}
            }
            return;
        }
        if event.token & ANCHOR != 0 {
            if event.kind == CmEventKind::DeviceRemoval {
                let number = event.token & u64::from(u32::MAX);
                self.lose_adapter(AdapterId(u32::try_from(number).unwrap_or(u32::MAX)));
            }
            return;
        }
        let mut qp = QpId(event.token);
        if event.token == 0 {
            // A request whose message arrived meanwhile.
            self.take_messages(events);
            let of = |conn: &&mut Conn| conn.cm.key() == event.id;
            let Some(conn) = self.conns.iter_mut().find(of) else {
                return;
            };
            qp = conn.id;
        }
        self.on_conn_event(qp, event, events);
    }

    fn on_conn_event(&mut self, qp: QpId, event: &CmEvent, events: &mut Vec<Event>) {
        let Some(conn) = self.conns.get_mut(qp) else {
            return;
        };
        let status = event.status;
        if event.kind.ends_connect() {
            conn.awaits_answer = false;
        }
        match (event.kind, conn.phase) {
            (_, Phase::Ending) => {}
            (CmEventKind::AddrResolved, Phase::Resolving) => {
                if let Err(error) = self.resolve_route(qp) {
                    self.fail(
                        qp,
                        CloseReason::failed("resolving the route to the peer", &error),
                    );
                }
            }
            (CmEventKind::RouteResolved, Phase::Routing) => {
                if let Err(reason) = self.send_request(qp) {
                    self.fail(qp, reason);
                }
            }
            (CmEventKind::AddrError, _) => {
                self.fail(
                    qp,
                    set_up_reason(status, "no RDMA device reaches the address"),
                );
            }
            (CmEventKind::RouteError, _) => {
                self.fail(qp, set_up_reason(status, "no route to the peer"));
            }
            (CmEventKind::Rejected, Phase::Connecting) => match refusal(status) {
                Refusal::Peer => {
                    let private_data = event.private_data.clone();
                    events.push(Event::Rejected { qp, private_data });
                    self.end(qp, CloseReason::Rejected);
                }
                Refusal::Network(reason) => self.end(qp, reason),
            },
            (CmEventKind::Disconnected, Phase::Running) => self.on_peer_disconnect(qp),
            // The peer canceled its request.
            (CmEventKind::Rejected | CmEventKind::Disconnected, _) => {
                self.end(qp, CloseReason::Peer);
            }
            (CmEventKind::ConnectError | CmEventKind::Unreachable, _) => {
                self.end(
                    qp,
                    set_up_reason(status, "the connection was not established"),
                );
            }
            (CmEventKind::Established, _) => self.established(qp, event, events),
            (CmEventKind::DeviceRemoval, _) => match conn.link.as_ref() {
                Some(link) => {
                    let adapter = link.room.adapter;
                    self.lose_adapter(adapter);
                }
                None => {
                    let text = "the RDMA device is gone";
                    self.end(qp, of_device(io::ErrorKind::NetworkDown, text));
                }
            },
            _ => {}
        }
    }

    fn resolve_route(&mut self, qp: QpId) -> io::Result<()> {
        let timeout = self.timeout_ms();
        let Some(conn) = self.conns.get_mut(qp) else {
            return Ok(());
        };
        if let Some(value) = self.config.ack_timeout
            && let Err(error) = conn.cm.set_ack_timeout(value)
        {
            // iWARP has no such time-out: its transport is TCP.
            log_peer!(
                debug,
                conn,
                "cannot set the acknowledgement time-out: {error}"
            );
        }
        conn.cm.resolve_route(timeout)?;
        conn.phase = Phase::Routing;
        Ok(())
    }

    /// The route is known: creates the queue pair and sends the request.
    fn send_request(&mut self, qp: QpId) -> Result<(), CloseReason> {
        self.post_all_shared();
        let attached = self.attach(qp);
        attached.map_err(|error| network(io::ErrorKind::Other, error.to_string()))?;
        let Some(conn) = self.conns.get_mut(qp) else {
            return Ok(());
        };
        let iwarp = conn.link.as_ref().is_some_and(|link| link.iwarp);
        let fits = check_private(&conn.private_data, iwarp, REQUEST);
        fits.map_err(|error| {
            let text = format!("private data of a request: {error}");
            network(io::ErrorKind::InvalidInput, text)
        })?;
        conn.phase = Phase::Connecting;
        // The first message of the peer may arrive together with its response.
        let posted = post_early_recvs(&self.adapters, conn);
        posted.map_err(|error| CloseReason::failed("posting receives", &error))?;
        let params = ConnectParams {
            private_data: &conn.private_data,
            reads_in: byte(conn.config.reads_in),
            reads_out: byte(conn.config.reads_out),
        };
        if !iwarp {
            let connected = conn.cm.connect(params);
            return connected.map_err(|error| CloseReason::failed("connecting", &error));
        }
        let call = conn.cm.connect_elsewhere(params);
        let pending_call = Arc::new(PendingCall::new());
        conn.pending_call = Some(Arc::clone(&pending_call));
        conn.awaits_answer = true;
        let mailbox = Arc::clone(&self.mailbox);
        self.blocking_calls
            .run(move || match pending_call.make(|| call.make()) {
                CallOutcome::Returned(result) => mailbox.connected(qp, result),
                CallOutcome::Left(retired) => Retired::settle(retired),
            });
        Ok(())
    }

    /// Handles the return of the call that connects `qp`.
    fn on_connect_returned(&mut self, qp: QpId, result: io::Result<()>) {
        let Some(conn) = self.conns.get_mut(qp) else {
            return;
        };
        if let Err(error) = result {
            // There will be no response.
            conn.awaits_answer = false;
            self.fail(qp, CloseReason::failed("connecting", &error));
        }
    }

    /// The device of a connection, if it is still present.
    fn adapter_behind(&mut self, qp: QpId) -> Result<Option<AdapterId>, VerbsError> {
        let Some(conn) = self.conns.get(qp) else {
            return Ok(None);
        };
        let none = || io::Error::from(io::ErrorKind::NetworkUnreachable);
        let key = conn.cm.context().ok_or_else(none);
        let key = key.map_err(|source| VerbsError::Call {
            what: "finding the RDMA device",
            source,
        })?;
        let local = conn.cm.local_addr();
        self.adapter_of(local, key).map(Some)
    }

    /// Creates the queue pair of a connection whose device is known.
    fn attach(&mut self, qp: QpId) -> Result<(), VerbsError> {
        let call = |what| move |source| VerbsError::Call { what, source };
        let Some(id) = self.adapter_behind(qp)? else {
            return Ok(());
        };
        let Some(adapter) = self
            .adapters
            .get_mut(id.0 as usize)
            .and_then(Option::as_mut)
        else {
            return Ok(());
        };
        let Some(conn) = self.conns.get_mut(qp) else {
            return Ok(());
        };
        sizes::check(&adapter.attr, &adapter.name, &conn.config)?;
        // Reads beyond the limit of the device are queued.
        conn.config.reads_in = conn.config.reads_in.min(adapter.attr.max_reads_in);
        conn.config.reads_out = conn.config.reads_out.min(adapter.attr.max_reads_out);
        // The shared receive queue is in the shared domain.
        let trusts_peer = conn.config.trusts_peer && conn.draws.is_none();
        let domain = adapter.own_domain(&self.regions, trusts_peer)?;
        let shared = domain.as_ref().or(adapter.shared.as_ref());
        let Some(pd) = shared.map(|domain| domain.pd().clone()) else {
            return Ok(());
        };
        let heads = Heads::new(&pd, conn.config.sends);
        let heads = heads.map_err(|error| adapter.not_registered(error))?;
        // A window is bound and invalidated by requests on the same queue.
        let internal = match domain {
            // One entry for a nudge to a silent peer.
            Some(_) => u32::from(adapter.attr.vendor_id == siw::VENDOR),
            None => sizes::internal_entries(&adapter.attr, &conn.config),
        };
        let drawn = match conn.draws {
            // The device was removed meanwhile.
            Some(draw) if draw.of != id => {
                let gone = io::ErrorKind::NetworkUnreachable.into();
                return Err(call("creating a queue pair")(gone));
            }
            Some(_) => adapter.srq_handle(),
            None => None,
        };
        let draws = drawn.is_some();
        let Some((room, made)) = make_qp(adapter, id, conn, pd, drawn, internal)? else {
            return Ok(());
        };
        adapter.users += 1;
        if let Some(receives) = adapter.receives.as_mut().filter(|_| draws) {
            receives.add_user(conn.cm.qp_number(), qp);
        }
        conn.link = Some(Link {
            room,
            qp_number: conn.cm.qp_number(),
            inline: made.inline.min(INLINE),
            extra: made.extra,
            max_message: adapter.max_message.min(self.config.limits.max_message),
            iwarp: adapter.attr.iwarp,
            siw: adapter.attr.vendor_id == siw::VENDOR,
            heads,
            domain,
            send_chain: SendChain::new(),
            recv_chain: RecvChain::new(),
        });
        Ok(())
    }

    /// Opens the device of a listener before the first connection, so that its errors are
    /// detected immediately.
    pub(super) fn open_early(&mut self, addr: SocketAddr) -> io::Result<()> {
        let found = self
            .group
            .with_id(addr, |id| (id.context(), id.local_addr()));
        let Some((Some(key), local)) = found else {
            return Ok(());
        };
        let id = self.adapter_of(local, key).map_err(io::Error::other)?;
        if let Some(adapter) = self.adapters.get(id.0 as usize).and_then(Option::as_ref) {
            // If each queue pair has a domain of its own: tries one.
            adapter
                .own_domain(&self.regions, false)
                .map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Takes messages from other threads.
    pub(super) fn take_messages(&mut self, events: &mut Vec<Event>) -> bool {
        let messages = self.mailbox.take();
        let any = !messages.is_empty();
        for message in messages {
            match message {
                Message::Request(request) => self.on_request(*request, events),
                Message::DeviceEvent(device, event) => self.on_device_event(device, event, events),
                Message::ListenerLost(addr) => {
                    if !self.lost.iter().any(|(_, known)| *known == addr) {
                        self.lost.push((self.now + crate::listening::RETRY, addr));
                    }
                }
                Message::Connected(qp, result) => self.on_connect_returned(qp, result),
                Message::Destroyed(room) => {
                    self.settling = self.settling.saturating_sub(1);
                    self.leave(room);
                }
            }
        }
        any
    }

    fn on_request(&mut self, request: Request, events: &mut Vec<Event>) {
        let limits = &self.config.limits;
        let listening = self.listeners.iter().find(|one| one.addr == request.at);
        let full = self.pending >= limits.max_pending || self.is_full();
        let (Some(listening), false) = (listening, full) else {
            if let Some(left_out) = self.log.ask(self.now) {
                let peer = request.id.peer_addr();
                tracing::warn!(
                    ?peer,
                    left_out,
                    "connection rejected: no free connection slot"
                );
            }
            let _ = request.id.reject(&[]);
            return;
        };
        let listener: ListenerId = listening.id;
        let id = self.conns.next_id();
        let Request {
            id: mut cm,
            private_data,
            reads_in,
            reads_out,
            at,
            guard,
        } = request;
        cm.set_token(id.0);
        let peer = cm.peer_addr().unwrap_or(at);
        let mut conn = Conn::new(id, cm, peer, Phase::Requested);
        conn.listener = Some(listener);
        conn.guard = guard;
        conn.asked = (reads_in, reads_out);
        let deadline = self.now + self.config.handshake;
        Self::set_deadline(&mut self.deadlines, &mut conn, Some(deadline));
        self.conns.insert(conn);
        self.pending += 1;
        events.push(Event::ConnectRequest(ConnectRequest {
            listener,
            qp: id,
            peer: peer.into(),
            private_data,
            reads_in: u32::from(reads_in),
            reads_out: u32::from(reads_out),
        }));
    }

    pub(super) fn prepare_request(&mut self, qp: QpId, config: &QpConfig) -> Result<(), PostError> {
        let conn = self.conns.get_mut(qp).ok_or(PostError::Closed)?;
        if conn.phase != Phase::Requested {
            return Err(conn.phase.refusal());
        }
        conn.config = *config;
        if let Err(error) = self.attach(qp) {
            if let VerbsError::Size {
                what, value, max, ..
            } = error
            {
                return Err(PostError::Size { what, value, max });
            }
            // An error of this host: the caller gets the end of the request.
            if let Some(conn) = self.conns.get(qp) {
                let _ = conn.cm.reject(&[]);
            }
            self.fail(qp, network(io::ErrorKind::Other, error.to_string()));
            return Err(PostError::Closed);
        }
        if let Some(conn) = self.conns.get_mut(qp) {
            conn.phase = Phase::Prepared;
        }
        Ok(())
    }

    pub(super) fn accept_request(
        &mut self,
        qp: QpId,
        private_data: &PrivateData,
    ) -> Result<(), PostError> {
        // The peer may send as soon as it is accepted.
        self.post_all_shared();
        let conn = self.conns.get_mut(qp).ok_or(PostError::Closed)?;
        if conn.phase != Phase::Prepared {
            return Err(conn.phase.refusal());
        }
        let iwarp = conn.link.as_ref().is_some_and(|link| link.iwarp);
        check_private(private_data, iwarp, ACCEPT)?;
        // Not more than the other side supports or requests.
        let (asked_in, asked_out) = conn.asked;
        let reads_in = byte(conn.config.reads_in).min(asked_in);
        let reads_out = byte(conn.config.reads_out).min(asked_out);
        conn.reads_out = u32::from(reads_out);
        let params = ConnectParams {
            private_data,
            reads_in,
            reads_out,
        };
        let posted = post_recvs(conn);
        let posted = posted.map_err(|error| CloseReason::failed("posting receives", &error));
        let accepted = posted.and_then(|()| {
            let result = conn.cm.accept(params);
            result.map_err(|error| accept_reason(&error))
        });
        conn.phase = Phase::Accepting;
        self.pending = self.pending.saturating_sub(1);
        let deadline = self.now + self.config.handshake;
        Self::set_deadline(&mut self.deadlines, conn, Some(deadline));
        match accepted {
            Ok(()) => {}
            // It canceled the request meanwhile.
            Err(CloseReason::Peer) => self.end(qp, CloseReason::Peer),
            Err(reason) => self.fail(qp, reason),
        }
        Ok(())
    }

    fn established(&mut self, qp: QpId, event: &CmEvent, events: &mut Vec<Event>) {
        let Some(conn) = self.conns.get_mut(qp) else {
            return;
        };
        match conn.phase {
            Phase::Accepting => self.establish(qp, PrivateData::empty(), events),
            Phase::Connecting => {
                let iwarp = conn.link.as_ref().is_some_and(|link| link.iwarp);
                let offered = if iwarp {
                    // Drivers disagree on the meaning of the two numbers; 0 means none for
                    // all.
                    event.reads_out.max(event.reads_in)
                } else {
                    event.reads_out
                };
                conn.reads_out = conn.config.reads_out.min(u32::from(offered));
                self.establish(qp, event.private_data.clone(), events);
            }
            _ => {}
        }
    }

    /// Establishes the connection.
    pub(super) fn establish(
        &mut self,
        qp: QpId,
        private_data: PrivateData,
        events: &mut Vec<Event>,
    ) {
        let Some(conn) = self.conns.get_mut(qp) else {
            return;
        };
        conn.phase = Phase::Running;
        Self::set_deadline(&mut self.deadlines, conn, None);
        let iwarp = conn.link.as_ref().is_some_and(|link| link.iwarp);
        if !iwarp && let Err(error) = conn.cm.shorten_rnr_timer() {
            log_peer!(
                debug,
                conn,
                "cannot shorten the RNR timer, the peer waits longer for receives: {error}"
            );
        }
        events.push(Event::Established { qp, private_data });
        self.listen_for_first(qp);
    }

    /// The peer's first message arrived before the last message of the set-up, which may be
    /// lost.
    pub(super) fn establish_by_message(&mut self, qp: QpId, events: &mut Vec<Event>) {
        let accepting = |conn: &&mut Conn| conn.phase == Phase::Accepting;
        if let Some(conn) = self.conns.get_mut(qp).filter(accepting) {
            let _ = conn.cm.notify_established();
            self.establish(qp, PrivateData::empty(), events);
        }
    }

    /// The adapter of a device, created for a new one. `local` is an address of the device.
    pub(super) fn adapter_of(
        &mut self,
        local: Option<SocketAddr>,
        key: ContextKey,
    ) -> Result<AdapterId, VerbsError> {
        let known = self.adapters.iter().position(|one| {
            one.as_ref()
                .is_some_and(|one| one.key() == key && !one.gone)
        });
        match known.and_then(|index| u32::try_from(index).ok()) {
            Some(index) => Ok(AdapterId(index)),
            None => self.open_adapter(local, key),
        }
    }
}

/// Creates the queue pair of `conn` on the device `id`, with `internal` entries for internal
/// requests. Returns the resources that it reserved there.
fn make_qp(
    adapter: &mut Adapter,
    id: AdapterId,
    conn: &mut Conn,
    pd: Arc<ProtectionDomain>,
    drawn: Option<SrqHandle>,
    internal: u32,
) -> Result<Option<(Room, sizes::CreatedQp)>, VerbsError> {
    let (sends, recvs) = (conn.config.sends, conn.config.recvs);
    let wanted = QpSizes {
        sends: sends + internal,
        recvs: if drawn.is_some() { 0 } else { recvs },
        send_segments: adapter.attr.max_sge.clamp(1, 2),
        inline: u32::try_from(INLINE).unwrap_or(0),
    };
    let claimed = wanted.sends.saturating_add(wanted.recvs);
    let queue = adapter.claim(claimed).map_err(|source| VerbsError::Call {
        what: "creating a completion queue",
        source,
    })?;
    let Some(cq) = adapter.queues.get(queue).map(|queue| queue.cq.clone()) else {
        return Ok(None);
    };
    let parts = QpParts { pd, cq, drawn };
    let made = match sizes::make_qp(&mut conn.cm, &parts, wanted, internal) {
        Ok(made) => made,
        Err(source) => {
            adapter.release(queue, claimed);
            return Err(VerbsError::QueuePair {
                device: adapter.name.clone(),
                sends,
                recvs,
                source,
            });
        }
    };
    adapter.release(queue, made.unused);
    let room = Room {
        adapter: id,
        queue,
        claimed: claimed.saturating_sub(made.unused),
    };
    Ok(Some((room, made)))
}
