//! Connection set-up, until the connection is established.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use nvmeof_rdma::{
    CloseReason, ConnectError, ConnectRequest, Event, ListenerId, PostError, PrivateData, QpConfig,
    QpId,
};

use super::passing::MOST_REGIONS;
use super::{Core, Shm};
use crate::channel::Channel;
use crate::conn::{Conn, Phase, parameters};
use crate::fault::{codes, fault};
use crate::grant::PeerMemory;
use crate::group::Arrived;
use crate::link::Link;
use crate::listening;
use crate::message::{self, ConnectionParameters, Message, Request};

impl Shm {
    /// Starts to connect. The next poll reports if no process listens.
    pub(super) fn connect_to(
        &mut self,
        addr: SocketAddr,
        config: &QpConfig,
        private_data: &PrivateData,
    ) -> Result<QpId, ConnectError> {
        let depth = self.core.config.limits.max_qps;
        if self.conns.len() >= depth as usize {
            return Err(PostError::QueueFull { depth }.into());
        }
        let mut conn = Conn::new(Phase::AwaitReply, None);
        conn.id = QpId(self.conns.next_id());
        conn.prepare(config);
        match self.core.ask(&mut conn, addr, private_data) {
            Ok(()) => {
                let until = self.core.now.saturating_add(self.core.config.handshake);
                self.core.set_deadline(&mut conn, Some(until));
            }
            Err(error) => {
                conn.reason = Some(CloseReason::network(&error));
                self.core.heat(&mut conn);
            }
        }
        Ok(QpId(self.conns.insert(Box::new(conn))))
    }

    /// Takes a new connection. Until it is accepted it uses one of the `max_pending` slots;
    /// if all are in use, the oldest connection without a request is closed.
    pub(super) fn incoming(&mut self, listener: ListenerId, arrived: Arrived) {
        if self.core.pending >= self.core.config.limits.max_pending {
            self.drop_oldest_silent();
        }
        let limits = &self.core.config.limits;
        if self.core.pending >= limits.max_pending || self.conns.len() >= limits.max_qps as usize {
            let link = Link::new(arrived.connection).ok();
            let text = "the limit on connections is reached";
            return self.core.log_refusal(link.as_ref(), &text);
        }
        let link = match Link::new(arrived.connection) {
            Ok(link) => link,
            Err(error) => return self.core.log_refusal(None, &error),
        };
        if let Err(error) = link.check_peer(&self.core.config.users) {
            // Reported to the peer as well, so that its user can ask for permission.
            let denied = fault(codes::USER, error.to_string());
            let _ = link.send(&Message::Fault(denied).to_bytes(), None);
            let text = format_args!("{error} (shm.users)");
            return self.core.log_refusal(Some(&link), &text);
        }
        let mut conn = Conn::new(Phase::AwaitRequest, Some((listener, arrived.at)));
        conn.guard = arrived.guard;
        conn.id = QpId(self.conns.next_id());
        if let Err(error) = self.core.watch(&link, conn.id.0) {
            return self.core.log_refusal(Some(&link), &error);
        }
        conn.link = Some(link);
        let until = self.core.now.saturating_add(self.core.config.handshake);
        self.core.set_deadline(&mut conn, Some(until));
        self.core.pending += 1;
        self.core.silent.push_back(conn.id);
        self.conns.insert(Box::new(conn));
        self.trim_silent();
    }

    /// Bounds the list of connections without a request.
    fn trim_silent(&mut self) {
        let bound = (self.core.config.limits.max_pending as usize).saturating_mul(2);
        if self.core.silent.len() > bound {
            let conns = &self.conns;
            self.core.silent.retain(|qp| {
                let conn = conns.get(qp.0);
                conn.is_some_and(|conn| conn.phase == Phase::AwaitRequest)
            });
        }
    }

    fn drop_oldest_silent(&mut self) {
        while let Some(qp) = self.core.silent.pop_front() {
            let dropped = self.with_later(qp, |core, conn, later| {
                let silent = conn.phase == Phase::AwaitRequest;
                if silent {
                    let text = "it sent no request and its slot was needed";
                    core.log_refusal(conn.link.as_ref(), &text);
                    core.finish(conn, CloseReason::Local, later);
                }
                silent
            });
            if dropped == Some(true) {
                return;
            }
        }
    }
}

impl Core {
    /// Connects to the listener and sends the request.
    fn ask(
        &mut self,
        conn: &mut Conn,
        addr: SocketAddr,
        private_data: &PrivateData,
    ) -> io::Result<()> {
        let (link, sought) = listening::connect(addr, &self.config)?;
        let ring = self.config.ring();
        let grants = self.config.grants_to(link.user()?);
        let (channel, fd) = Channel::create(ring, grants).map_err(io::Error::other)?;
        let request = Request {
            ring: ring as u64,
            grants,
            sought,
            parameters: parameters(&conn.config, private_data),
        };
        link.send(&request.to_bytes(), Some(fd.as_fd()))?;
        self.watch(&link, conn.id.0)?;
        conn.link = Some(link);
        conn.channel = Some(channel);
        Ok(())
    }

    /// Processes the first message of a peer and the memory that was passed with it.
    pub(super) fn on_request(
        &mut self,
        conn: &mut Conn,
        bytes: &[u8],
        fd: Option<&OwnedFd>,
        events: &mut Vec<Event>,
    ) {
        if Message::parse(bytes) == Ok(Message::Probe) {
            conn.send(&Message::Probe);
            self.finish(conn, CloseReason::Local, events);
            return;
        }
        let asked = open_request(bytes, fd);
        let (request, channel) = match asked {
            Ok(asked) => asked,
            Err(text) => {
                self.log_refusal(conn.link.as_ref(), &text);
                self.end_fault(conn, fault(codes::MESSAGE, text), events);
                return;
            }
        };
        let Request {
            grants,
            sought,
            parameters,
            ..
        } = request;
        let Some((listener, addr)) = conn.listener else {
            return;
        };
        if grants > 0 && self.config.mapped > 0 {
            conn.peer_memory = conn.link.as_ref().map(|link| PeerMemory::new(link.keep()));
        }
        self.set_deadline(conn, None);
        // A listener on all addresses relies on the peer's statement: it only determines
        // which address the peer gets reported.
        conn.reached = match addr.ip() {
            ip if !ip.is_unspecified() => Some(addr),
            _ if !sought.is_unspecified() => Some(SocketAddr::new(sought, addr.port())),
            _ => None,
        };
        conn.channel = Some(channel);
        conn.peer_reads_in = parameters.reads_in;
        conn.phase = Phase::Requested;
        events.push(Event::ConnectRequest(ConnectRequest {
            listener,
            qp: conn.id,
            // The system always knows the credentials.
            peer: conn.peer().unwrap_or(SocketAddr::new(addr.ip(), 0).into()),
            private_data: parameters.private_data,
            reads_in: parameters.reads_out,
            reads_out: parameters.reads_in,
        }));
    }

    pub(super) fn accept_conn(
        &mut self,
        conn: &mut Conn,
        private_data: &PrivateData,
        later: &mut Vec<Event>,
    ) -> Result<(), PostError> {
        if conn.phase != Phase::Prepared {
            return Err(conn.phase.refusal());
        }
        conn.send(&Message::Accept {
            parameters: parameters(&conn.config, private_data),
            regions: conn.peer_memory.as_ref().map_or(0, |_| MOST_REGIONS),
        });
        let in_place = conn.peer_memory.is_some();
        self.log_data_path(conn, in_place);
        self.pending = self.pending.saturating_sub(1);
        conn.start(conn.peer_reads_in);
        later.push(Event::Established {
            qp: conn.id,
            private_data: PrivateData::empty(),
        });
        self.heat(conn);
        Ok(())
    }

    pub(super) fn reject_conn(
        &mut self,
        conn: &mut Conn,
        private_data: &PrivateData,
        later: &mut Vec<Event>,
    ) -> Result<(), PostError> {
        match conn.phase {
            Phase::Requested | Phase::Prepared => {
                conn.send(&Message::Reject(private_data.clone()));
                self.finish(conn, CloseReason::Local, later);
                Ok(())
            }
            other => Err(other.refusal()),
        }
    }

    /// Processes the reply of the peer.
    pub(super) fn on_reply(&mut self, conn: &mut Conn, message: Message, events: &mut Vec<Event>) {
        let qp = conn.id;
        match message {
            Message::Accept {
                parameters:
                    ConnectionParameters {
                        reads_in,
                        private_data,
                        ..
                    },
                regions,
            } => {
                self.set_deadline(conn, None);
                conn.start(reads_in);
                self.may_take(conn, regions);
                events.push(Event::Established { qp, private_data });
                self.heat(conn);
            }
            Message::Reject(private_data) => {
                events.push(Event::Rejected { qp, private_data });
                self.finish(conn, CloseReason::Rejected, events);
            }
            Message::Fault(fault) => self.finish(conn, CloseReason::Terminated(fault), events),
            Message::Wake | Message::Bye | Message::Probe | Message::Region { .. } => {
                let text = "a message arrived before the reply";
                self.end_fault(conn, fault(codes::MESSAGE, text), events);
            }
        }
    }
}

/// Parses a request and maps the memory that was passed with it.
fn open_request(bytes: &[u8], fd: Option<&OwnedFd>) -> Result<(Request, Channel), String> {
    let request = Request::parse(bytes).ok_or(message::BAD_REQUEST)?;
    let fd = fd.ok_or("its request passed no memory")?;
    let channel = Channel::open(fd.as_fd(), request.ring, request.grants);
    let channel = channel.map_err(|error| error.to_string())?;
    Ok((request, channel))
}
