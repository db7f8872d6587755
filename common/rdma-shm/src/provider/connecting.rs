//! Connection set-up: who says what before work goes both ways.

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
use crate::conn::{Conn, Phase, terms};
use crate::fault::{codes, fault};
use crate::grant::Taken;
use crate::group::Arrived;
use crate::link::Link;
use crate::listening;
use crate::message::{self, Message, Request, Terms};

impl Shm {
    /// Starts to connect. That nobody is there is told by the next poll.
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

    /// A peer connected. As long as it is not accepted it costs one of
    /// `max_pending` places; the oldest of those that said nothing gives way.
    pub(super) fn incoming(&mut self, listener: ListenerId, arrived: Arrived) {
        if self.core.pending >= self.core.config.limits.max_pending {
            self.drop_oldest_silent();
        }
        let limits = &self.core.config.limits;
        if self.core.pending >= limits.max_pending || self.conns.len() >= limits.max_qps as usize {
            let link = Link::new(arrived.visitor).ok();
            let text = "all places for connections are taken";
            return self.core.say(link.as_ref(), &text);
        }
        let link = match Link::new(arrived.visitor) {
            Ok(link) => link,
            Err(error) => return self.core.say(None, &error),
        };
        if let Err(error) = link.check_peer(&self.core.config.users) {
            // Told as well as logged: whoever may not connect can ask for it.
            let told = fault(codes::USER, error.to_string());
            let _ = link.send(&Message::Fault(told).to_bytes(), None);
            let text = format_args!("{error} (shm.users)");
            return self.core.say(Some(&link), &text);
        }
        let mut conn = Conn::new(Phase::AwaitRequest, Some((listener, arrived.at)));
        conn.counted = arrived.counted;
        conn.id = QpId(self.conns.next_id());
        if let Err(error) = self.core.watch(&link, conn.id.0) {
            return self.core.say(Some(&link), &error);
        }
        conn.link = Some(link);
        let until = self.core.now.saturating_add(self.core.config.handshake);
        self.core.set_deadline(&mut conn, Some(until));
        self.core.pending += 1;
        self.core.silent.push_back(conn.id);
        self.conns.insert(Box::new(conn));
        self.forget_those_that_spoke();
    }

    /// Keeps the list of those that said nothing short.
    fn forget_those_that_spoke(&mut self) {
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
                    let text = "it said nothing, and its place was needed";
                    core.say(conn.link.as_ref(), &text);
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
    /// Meets the peer and says what we want.
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
            terms: terms(&conn.config, private_data),
        };
        link.send(&request.to_bytes(), Some(fd.as_fd()))?;
        self.watch(&link, conn.id.0)?;
        conn.link = Some(link);
        conn.channel = Some(channel);
        Ok(())
    }

    /// What a peer that connected said first, and the memory that came with it.
    pub(super) fn on_request(
        &mut self,
        conn: &mut Conn,
        bytes: &[u8],
        fd: Option<&OwnedFd>,
        events: &mut Vec<Event>,
    ) {
        if Message::parse(bytes) == Ok(Message::Probe) {
            conn.say(&Message::Probe);
            self.finish(conn, CloseReason::Local, events);
            return;
        }
        let asked = open_request(bytes, fd);
        let (request, channel) = match asked {
            Ok(asked) => asked,
            Err(text) => {
                self.say(conn.link.as_ref(), &text);
                self.end_fault(conn, fault(codes::MESSAGE, text), events);
                return;
            }
        };
        let Request {
            grants,
            sought,
            terms,
            ..
        } = request;
        let Some((listener, addr)) = conn.listener else {
            return;
        };
        if grants > 0 && self.config.mapped > 0 {
            conn.taken = conn.link.as_ref().map(|link| Taken::new(link.keep()));
        }
        self.set_deadline(conn, None);
        // On all addresses the peer's word has to do: it is told of what it
        // reaches there, and nothing else comes of it.
        conn.reached = match addr.ip() {
            ip if !ip.is_unspecified() => Some(addr),
            _ if !sought.is_unspecified() => Some(SocketAddr::new(sought, addr.port())),
            _ => None,
        };
        conn.channel = Some(channel);
        conn.peer_reads_in = terms.reads_in;
        conn.phase = Phase::Requested;
        events.push(Event::ConnectRequest(ConnectRequest {
            listener,
            qp: conn.id,
            // The system always knows who that is.
            peer: conn.peer().unwrap_or(SocketAddr::new(addr.ip(), 0).into()),
            private_data: terms.private_data,
            reads_in: terms.reads_out,
            reads_out: terms.reads_in,
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
        conn.say(&Message::Accept {
            terms: terms(&conn.config, private_data),
            regions: conn.taken.as_ref().map_or(0, |_| MOST_REGIONS),
        });
        let in_place = conn.taken.is_some();
        self.tell_way(conn, in_place);
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
                conn.say(&Message::Reject(private_data.clone()));
                self.finish(conn, CloseReason::Local, later);
                Ok(())
            }
            other => Err(other.refusal()),
        }
    }

    /// The peer answered what we asked.
    pub(super) fn on_reply(&mut self, conn: &mut Conn, message: Message, events: &mut Vec<Event>) {
        let qp = conn.id;
        match message {
            Message::Accept {
                terms:
                    Terms {
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
                let text = "a message before the reply";
                self.end_fault(conn, fault(codes::MESSAGE, text), events);
            }
        }
    }
}

/// Takes a request apart and maps the memory that came with it.
fn open_request(bytes: &[u8], fd: Option<&OwnedFd>) -> Result<(Request, Channel), String> {
    let request = Request::parse(bytes).ok_or(message::BAD_REQUEST)?;
    let fd = fd.ok_or("its request brought no memory")?;
    let channel = Channel::open(fd.as_fd(), request.ring, request.grants);
    let channel = channel.map_err(|error| error.to_string())?;
    Ok((request, channel))
}
