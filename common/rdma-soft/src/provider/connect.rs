//! Connection set-up before the first FPDU (RFC 5044, section 7.1; RFC 6581).

use std::io::{self, IoSliceMut};

use nvmeof_rdma::{
    CloseReason, ConnectRequest, Event, Fault, ListenerId, Peer, PostError, PrivateData, QpId,
    describe,
};

use super::{Owner, SoftRdma};
use crate::conn::{Conn, Phase, Remote, log_peer};
use crate::iwarp::mpa::{
    FRAME_LEN, Frame, FrameError, FrameKind, READS_UNSAID, REVISION_1, REVISION_2, Reads,
};
use crate::iwarp::{PayloadLimit, WireFault, codes};
use crate::{StreamId, Streams};

/// Maximum private data of the user.
const USER_PRIVATE: usize = 196;

impl<S: Streams> SoftRdma<S> {
    /// Adds a new connection.
    pub(super) fn adopt(&mut self, conn: Conn) -> QpId {
        let stream = conn.stream;
        let qp = self.conns.insert(Box::new(conn));
        self.owners.insert(stream, Owner::Conn(qp));
        let deadline = self.now.saturating_add(self.config.handshake);
        self.with(qp, |this, conn| this.set_deadline(conn, Some(deadline)));
        qp
    }

    /// Takes a new connection. Until it is accepted it uses one of the `max_pending` slots;
    /// if all are in use, the oldest connection without a request is closed.
    pub(super) fn incoming(
        &mut self,
        listener: ListenerId,
        stream: StreamId,
        peer: Peer,
        events: &mut Vec<Event>,
    ) {
        let remote = Remote::Caller(peer, listener);
        let limits = &self.config.limits;
        if self.pending >= limits.max_pending {
            self.drop_oldest_silent(events);
        }
        if self.pending >= self.config.limits.max_pending
            || self.conns.count() >= self.config.limits.max_qps
        {
            self.warn_limited(
                remote,
                &"connection refused: the limit on connections is reached",
            );
            self.streams.close(stream);
            return;
        }
        let conn = Conn::new(stream, remote, Phase::AwaitRequest);
        self.pending += 1;
        let qp = self.adopt(conn);
        self.silent.push_back(qp);
        let bound = (self.config.limits.max_pending as usize).saturating_mul(2);
        if self.silent.len() > bound {
            let conns = &mut self.conns;
            self.silent.retain(|qp| {
                let conn = conns.get_mut(*qp);
                conn.is_some_and(|conn| conn.phase == Phase::AwaitRequest)
            });
        }
    }

    fn drop_oldest_silent(&mut self, events: &mut Vec<Event>) {
        while let Some(qp) = self.silent.pop_front() {
            let dropped = self.with(qp, |this, conn| {
                let silent = conn.phase == Phase::AwaitRequest;
                if silent {
                    let text =
                        "connection closed: no complete request yet, and its slot was needed";
                    this.warn_limited(conn.remote, &text);
                    this.finish(conn, events);
                }
                silent
            });
            if dropped == Some(true) {
                return;
            }
        }
    }

    /// The connection is not pending any more.
    pub(super) fn leave_pending(&mut self, conn: &Conn) {
        if matches!(
            conn.phase,
            Phase::AwaitRequest | Phase::Requested | Phase::Prepared
        ) {
            self.pending = self.pending.saturating_sub(1);
        }
    }

    /// The stream is connected: sends the request.
    pub(super) fn connected(&mut self, conn: &mut Conn, events: &mut Vec<Event>) {
        if conn.phase != Phase::Connecting {
            return;
        }
        conn.phase = Phase::AwaitReply;
        let reads = Reads::new(conn.config.reads_in, conn.config.reads_out);
        let frame = Frame {
            kind: FrameKind::Request,
            // RFC 5044, section 7.1: markers are the receiver's choice; this side requests
            // none.
            markers: false,
            crc: self.config.crc,
            reject: false,
            enhanced: conn.revision >= REVISION_2,
            revision: conn.revision,
            private_len: 0,
        };
        let private_data = conn.private_data.clone();
        put_frame(conn, frame, reads, &private_data);
        self.advance(conn, events);
    }

    /// Receives an MPA frame, and no bytes behind it.
    pub(super) fn receive_frame(&mut self, conn: &mut Conn, events: &mut Vec<Event>) -> bool {
        let kind = match conn.phase {
            Phase::AwaitRequest => FrameKind::Request,
            _ => FrameKind::Reply,
        };
        loop {
            let head = conn.frame_in.first_chunk::<FRAME_LEN>();
            let parsed = head.map(|head| Frame::parse(kind, head)).transpose();
            let parsed = match parsed {
                _ if !kind.may_start(&conn.frame_in) => Err(FrameError::Key { expected: kind }),
                parsed => parsed,
            };
            let frame = match parsed {
                Ok(frame) => frame,
                Err(error) => {
                    self.end_set_up(conn, &error.to_string(), events);
                    return true;
                }
            };
            let need = FRAME_LEN + frame.map_or(0, |frame| usize::from(frame.private_len));
            let missing = need.saturating_sub(conn.frame_in.len());
            if let (0, Some(frame)) = (missing, frame) {
                match kind {
                    FrameKind::Request => {
                        self.on_request(conn, frame, events);
                        self.receive(conn, events);
                    }
                    FrameKind::Reply => self.on_reply(conn, frame, events),
                }
                return true;
            }
            let room = self.scratch.get_mut(..missing).unwrap_or_default();
            match self.streams.recv(conn.stream, &mut [IoSliceMut::new(room)]) {
                Ok(0) => {
                    self.frame_ended(conn, None, events);
                    return true;
                }
                Ok(count) => {
                    let bytes = self.scratch.get(..count).unwrap_or_default();
                    conn.frame_in.extend_from_slice(bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) => {
                    self.frame_ended(conn, Some(error), events);
                    return true;
                }
            }
        }
    }

    /// The owner did not respond to the request yet. The peer may close; it may not send (RFC
    /// 5044, section 7.1.2: no FPDU before the reply).
    pub(super) fn receive_early(&mut self, conn: &mut Conn, events: &mut Vec<Event>) -> bool {
        let mut byte = [0];
        match self
            .streams
            .recv(conn.stream, &mut [IoSliceMut::new(&mut byte)])
        {
            Ok(0) => {
                conn.reason = CloseReason::Peer;
                self.finish(conn, events);
            }
            Ok(_) => self.end_set_up(conn, "data arrived before the MPA reply was sent", events),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(error) => self.end_network(conn, &error, events),
        }
        true
    }

    /// The stream ended before a frame. RFC 6581, section 10: a responder that does not know
    /// revision 2 closes the connection, and the initiator may try again with revision 1.
    fn frame_ended(&mut self, conn: &mut Conn, error: Option<io::Error>, events: &mut Vec<Event>) {
        let unanswered = conn.phase == Phase::AwaitReply && conn.frame_in.is_empty();
        if unanswered && conn.revision >= REVISION_2 {
            self.fall_back(conn, events);
            return;
        }
        let error = error.unwrap_or_else(|| {
            io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the peer closed the connection during the MPA set-up; check that it uses iWARP",
            )
        });
        if !conn.visible {
            let error = describe(&error);
            self.warn_limited(
                conn.remote,
                &format_args!("connection ended before its request: {error}"),
            );
        }
        self.end_network(conn, &error, events);
    }

    /// Connects again with revision 1.
    fn fall_back(&mut self, conn: &mut Conn, events: &mut Vec<Event>) {
        // Only the active side tries again.
        let Remote::Called(addr) = conn.remote else {
            return;
        };
        log_peer!(
            debug,
            conn,
            "the peer does not support MPA revision 2, trying revision 1"
        );
        self.owners.remove(conn.stream);
        self.streams.close(conn.stream);
        conn.revision = REVISION_1;
        conn.phase = Phase::Connecting;
        conn.frame_in.clear();
        conn.frame_out.clear();
        conn.frame_sent = 0;
        conn.broken = false;
        conn.outbound.blocked = false;
        conn.wants_send = false;
        match self.streams.connect(addr) {
            Ok(stream) => {
                conn.stream = stream;
                self.owners.insert(stream, Owner::Conn(conn.id));
            }
            Err(error) => self.end_network(conn, &error.into(), events),
        }
    }

    fn on_request(&mut self, conn: &mut Conn, frame: Frame, events: &mut Vec<Event>) {
        let (reads, user) = split_private(&frame, &conn.frame_in);
        conn.revision = frame.revision.clamp(REVISION_1, REVISION_2);
        conn.peer_reads = reads;
        conn.crc = frame.crc || self.config.crc;
        let private_data = PrivateData::new(user);
        let refusal = if !(REVISION_1..=REVISION_2).contains(&frame.revision) {
            Some("its MPA revision is neither 1 nor 2")
        } else if frame.markers {
            // RFC 5044, section 7.1: a side that cannot send markers rejects a peer that
            // requests them.
            Some("it requests MPA markers, which are not supported")
        } else if user.len() > USER_PRIVATE {
            Some("it has more than 196 bytes of private data")
        } else {
            None
        };
        match (refusal, private_data, conn.remote) {
            (None, Ok(private_data), Remote::Caller(peer, listener)) => {
                conn.phase = Phase::Requested;
                conn.visible = true;
                self.set_deadline(conn, None);
                let unsaid = u32::from(READS_UNSAID);
                events.push(Event::ConnectRequest(ConnectRequest {
                    listener,
                    qp: conn.id,
                    peer,
                    private_data,
                    reads_in: reads.map_or(unsaid, |reads| u32::from(reads.ord)),
                    reads_out: reads.map_or(unsaid, |reads| u32::from(reads.ird)),
                }));
            }
            (why, _, _) => {
                let why = why.unwrap_or("its private data does not fit");
                self.warn_limited(conn.remote, &format_args!("connection rejected: {why}"));
                self.refuse(conn, &PrivateData::empty());
                self.advance(conn, events);
            }
        }
    }

    /// Queues a rejecting reply and ends.
    pub(super) fn refuse(&mut self, conn: &mut Conn, private_data: &PrivateData) {
        self.put_reply(conn, true, 0, 0, private_data);
        self.wind_down(conn, CloseReason::Local);
    }

    fn put_reply(
        &self,
        conn: &mut Conn,
        reject: bool,
        ird: u32,
        ord: u32,
        private_data: &PrivateData,
    ) {
        let frame = Frame {
            kind: FrameKind::Reply,
            markers: false,
            crc: conn.crc,
            reject,
            enhanced: conn.peer_reads.is_some(),
            revision: conn.revision,
            private_len: 0,
        };
        let reads = conn
            .peer_reads
            .map_or(Reads::new(ird, ord), |asked| asked.reply(ird, ord));
        put_frame(conn, frame, reads, private_data);
    }

    pub(super) fn accept_conn(
        &mut self,
        conn: &mut Conn,
        private_data: &PrivateData,
    ) -> Result<(), PostError> {
        if conn.phase != Phase::Prepared {
            return Err(conn.phase.refusal());
        }
        // RFC 6581, section 9.1: the reply requests no more than the initiator can process,
        // and states how many this side can.
        let ird = conn.config.reads_in;
        let ord = conn.peer_reads.map_or(conn.config.reads_out, |reads| {
            conn.config.reads_out.min(u32::from(reads.ird))
        });
        self.put_reply(conn, false, ird, ord, private_data);
        self.leave_pending(conn);
        conn.start(ord, self.payload_limit(conn));
        self.later.push(Event::Established {
            qp: conn.id,
            private_data: PrivateData::empty(),
        });
        self.list(conn);
        Ok(())
    }

    /// RFC 5044, section 4.2: an FPDU is no longer than a segment of the path.
    fn payload_limit(&self, conn: &Conn) -> PayloadLimit {
        let segment = self.streams.segment(conn.stream);
        segment.map_or(PayloadLimit::LONGEST, PayloadLimit::for_segment)
    }

    pub(super) fn reject_conn(
        &mut self,
        conn: &mut Conn,
        private_data: &PrivateData,
    ) -> Result<(), PostError> {
        match conn.phase {
            Phase::Requested | Phase::Prepared => {
                self.refuse(conn, private_data);
                Ok(())
            }
            other => Err(other.refusal()),
        }
    }

    fn on_reply(&mut self, conn: &mut Conn, frame: Frame, events: &mut Vec<Event>) {
        // RFC 6581, section 10: a reply of revision 1 comes from a peer that took IRD and ORD
        // for private data, so it got the wrong request.
        if conn.revision >= REVISION_2 && frame.revision < REVISION_2 {
            self.fall_back(conn, events);
            return;
        }
        let (reads, user) = split_private(&frame, &conn.frame_in);
        let Ok(private_data) = PrivateData::new(user) else {
            let text = format!("the MPA reply has {} bytes of private data", user.len());
            self.end_set_up(conn, &text, events);
            return;
        };
        if frame.reject {
            events.push(Event::Rejected {
                qp: conn.id,
                private_data,
            });
            conn.reason = CloseReason::Rejected;
            self.finish(conn, events);
            return;
        }
        if frame.markers {
            self.end_set_up(conn, "the MPA reply requests markers", events);
            return;
        }
        if frame.revision != conn.revision || reads.is_some() != (conn.revision >= REVISION_2) {
            let text = format!(
                "the MPA reply is of revision {} and its enhanced flag is {}, the request \
                    was of revision {}",
                frame.revision, frame.enhanced, conn.revision
            );
            self.end_set_up(conn, &text, events);
            return;
        }
        conn.crc |= frame.crc;
        let ord = reads.map_or(conn.config.reads_out, |reads| {
            conn.config.reads_out.min(u32::from(reads.ird))
        });
        if let Some(reads) = reads
            && reads.ord != READS_UNSAID
            && u32::from(reads.ord) > conn.config.reads_in
        {
            // RFC 6581, section 9.1: the initiator ends the connection.
            let text = format!(
                "the peer wants {} RDMA Reads in flight, at most {} were offered",
                reads.ord, conn.config.reads_in
            );
            self.end_fault(conn, WireFault::new(codes::MPA_IRD, text), events);
            return;
        }
        conn.start(ord, self.payload_limit(conn));
        self.listen_for_first(conn);
        events.push(Event::Established {
            qp: conn.id,
            private_data,
        });
        self.list(conn);
    }

    /// The peer's part of the set-up is invalid: there is no message to report that.
    pub(super) fn end_set_up(&mut self, conn: &mut Conn, text: &str, events: &mut Vec<Event>) {
        if !conn.visible {
            self.warn_limited(conn.remote, &format_args!("connection closed: {text}"));
        }
        conn.reason = CloseReason::PeerFault(Fault {
            layer: "MPA",
            code: codes::MPA_SETUP,
            text: text.to_owned(),
        });
        self.finish(conn, events);
    }
}

/// Queues a frame.
fn put_frame(conn: &mut Conn, mut frame: Frame, reads: Reads, private_data: &[u8]) {
    let reads = reads.to_bytes();
    let reads = if frame.enhanced { &reads[..] } else { &[] };
    // At most 200: the maximum of PrivateData and 4.
    frame.private_len = u16::try_from(reads.len() + private_data.len()).unwrap_or(u16::MAX);
    conn.frame_out.clear();
    conn.frame_sent = 0;
    conn.frame_out.extend_from_slice(&frame.to_bytes());
    conn.frame_out.extend_from_slice(reads);
    conn.frame_out.extend_from_slice(private_data);
}

/// IRD and ORD, and the user's private data.
fn split_private<'a>(frame: &Frame, bytes: &'a [u8]) -> (Option<Reads>, &'a [u8]) {
    let private = bytes.get(FRAME_LEN..).unwrap_or_default();
    match private.split_first_chunk() {
        Some((reads, user)) if frame.enhanced => (Some(Reads::parse(*reads)), user),
        _ => (None, private),
    }
}
