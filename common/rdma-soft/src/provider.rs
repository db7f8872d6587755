//! The provider: implements the contract of `nvmeof-rdma` over streams.

mod close;
mod connect;
mod nudging;
mod owners;
mod transfer;

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nvmeof_memory::{Buf, Region, RegionId};
use nvmeof_rdma::{
    Address, CloseReason, ConnectError, Event, ExposeError, Limits, ListenError, ListenerId,
    PostError, PrivateData, Progress, Provider, QpConfig, QpId, QpOwner, RateLimiter, Refused,
    RemoteKey, RemoteSlice, Rights, Tag, Work, WriteAndSend,
};

use crate::conn::{Conn, Phase, Remote, Table};
use crate::keys::KeyTable;
use crate::{SoftConfig, StreamEvent, StreamId, Streams};
use owners::{Owner, Owners};

/// Size of the scratch buffer: bytes that one receive call may bring besides payload that is
/// received directly to its destination.
const SCRATCH: usize = 256 * 1024;

/// Software RDMA over the streams of `S`.
#[derive(Debug)]
pub struct SoftRdma<S: Streams> {
    streams: S,
    config: SoftConfig,
    /// Registered regions, usually one for each pool.
    regions: Vec<RegionId>,
    keys: KeyTable,
    conns: Table,
    owners: Owners,
    /// Number of connections that are not accepted yet, and, oldest first, those that may not
    /// have sent a request.
    pending: u32,
    silent: VecDeque<QpId>,
    /// Connections with work for the next submit or poll.
    listed: Vec<QpId>,
    /// Empty; its memory is reused.
    spare: Vec<QpId>,
    deadlines: BTreeSet<(Duration, QpId)>,
    /// Streams of closed connections, until the peer ends them too.
    lingering: VecDeque<(Duration, StreamId)>,
    /// Events of calls other than poll.
    later: Vec<Event>,
    stream_events: Vec<StreamEvent>,
    scratch: Vec<u8>,
    /// Limits log lines about peers that were not reported to the owner yet.
    log: RateLimiter,
    now: Duration,
}

impl<S: Streams> SoftRdma<S> {
    /// Creates a provider over `streams`.
    #[must_use]
    pub fn new(streams: S, config: SoftConfig) -> Self {
        Self {
            streams,
            regions: Vec::new(),
            keys: KeyTable::new(config.limits.max_exposed, config.seed),
            conns: Table::default(),
            owners: Owners::default(),
            pending: 0,
            silent: VecDeque::new(),
            listed: Vec::new(),
            spare: Vec::new(),
            deadlines: BTreeSet::new(),
            lingering: VecDeque::new(),
            later: Vec::new(),
            stream_events: Vec::new(),
            scratch: vec![0; SCRATCH],
            log: RateLimiter::default(),
            now: Duration::ZERO,
            config,
        }
    }

    /// The underlying streams.
    #[must_use]
    pub fn streams(&self) -> &S {
        &self.streams
    }

    /// The underlying streams, to change their behavior.
    pub fn streams_mut(&mut self) -> &mut S {
        &mut self.streams
    }

    /// Logs a line about a peer that was not reported to the owner yet. It is rate limited,
    /// because any peer can cause such lines.
    fn warn_limited(&mut self, peer: Remote, what: &dyn std::fmt::Display) {
        if let Some(left_out) = self.log.ask(self.now) {
            tracing::warn!(%peer, left_out, "{what}");
        }
    }

    /// Runs `work` on one connection; `None` if it is closed.
    fn with<R>(&mut self, qp: QpId, work: impl FnOnce(&mut Self, &mut Conn) -> R) -> Option<R> {
        let mut conn = self.conns.take(qp)?;
        let result = work(self, &mut conn);
        self.conns.put_back(conn);
        Some(result)
    }

    /// Adds the connection to those that the next submit or poll processes.
    fn list(&mut self, conn: &mut Conn) {
        conn.list_in(&mut self.listed);
    }

    fn set_deadline(&mut self, conn: &mut Conn, deadline: Option<Duration>) {
        if let Some(old) = conn.deadline.take() {
            self.deadlines.remove(&(old, conn.id));
        }
        if let Some(new) = deadline {
            self.deadlines.insert((new, conn.id));
        }
        conn.deadline = deadline;
    }

    fn is_registered(&self, buf: &Buf) -> bool {
        self.regions.contains(&buf.region())
    }

    fn on_stream_event(&mut self, event: StreamEvent, events: &mut Vec<Event>) -> bool {
        let (stream, failed) = match event {
            StreamEvent::Incoming {
                listener,
                stream,
                peer,
            } => {
                self.incoming(listener, stream, peer, events);
                return true;
            }
            StreamEvent::Ready(stream) => return self.ready(stream, events),
            StreamEvent::Connected(stream) => (stream, None),
            StreamEvent::ConnectFailed(stream, error) => (stream, Some(error)),
        };
        let Some(Owner::Conn(qp)) = self.owners.get(stream) else {
            return false;
        };
        self.with(qp, |this, conn| match failed {
            None => this.connected(conn, events),
            Some(error) => this.end_network(conn, &error, events),
        });
        true
    }

    fn ready(&mut self, stream: StreamId, events: &mut Vec<Event>) -> bool {
        match self.owners.get(stream) {
            Some(Owner::Conn(qp)) => {
                let worked = self.with(qp, |this, conn| {
                    conn.outbound.blocked = false;
                    let received = this.receive(conn, events);
                    this.advance(conn, events) || received
                });
                worked.unwrap_or(false)
            }
            Some(Owner::Linger) => self.drain(stream),
            None => false,
        }
    }

    /// Processes the connections in the list.
    fn work_list(&mut self, events: &mut Vec<Event>) -> bool {
        let mut worked = false;
        let mut list = std::mem::replace(&mut self.listed, std::mem::take(&mut self.spare));
        for qp in list.drain(..) {
            let did = self.with(qp, |this, conn| {
                conn.listed = false;
                let try_receive = std::mem::take(&mut conn.try_receive) || conn.broken;
                let received = try_receive && this.receive(conn, events);
                this.advance(conn, events) || received
            });
            worked |= did.unwrap_or(false);
        }
        self.spare = list;
        worked
    }
}

impl<S: Streams> Drop for SoftRdma<S> {
    fn drop(&mut self) {
        // What the streams do not release at once is never used again.
        for conn in self.conns.iter_mut().filter(|conn| conn.outbound.is_kept()) {
            self.streams.reset(conn.stream);
            conn.outbound.released(self.streams.released(conn.stream));
        }
    }
}

impl<S: Streams> Provider for SoftRdma<S> {
    fn limits(&self) -> &Limits {
        &self.config.limits
    }

    fn name(&self) -> &'static str {
        self.streams.name()
    }

    fn set_owner(&mut self, qp: QpId, owner: QpOwner) {
        if let Some(conn) = self.conns.get_mut(qp) {
            conn.owner = owner;
        }
    }

    fn local_addr(&self, qp: QpId) -> Option<Address> {
        self.streams.local_addr(self.conns.get(qp)?.stream)
    }

    fn register(&mut self, region: &Region) -> Result<(), std::io::Error> {
        if !self.regions.contains(&region.id()) {
            self.regions.push(region.id());
        }
        Ok(())
    }

    fn listen(&mut self, addr: Address) -> Result<(ListenerId, Address), ListenError> {
        self.streams.listen(addr)
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.streams.unlisten(listener);
    }

    fn connect(
        &mut self,
        addr: Address,
        config: &QpConfig,
        private_data: &PrivateData,
        now: Duration,
    ) -> Result<QpId, ConnectError> {
        self.now = now;
        self.config.limits.check(config)?;
        let depth = self.config.limits.max_qps;
        if self.conns.count() >= depth {
            return Err(PostError::QueueFull { depth }.into());
        }
        let stream = self.streams.connect(addr)?;
        let mut conn = Conn::new(stream, Remote::Called(addr), Phase::Connecting);
        conn.visible = true;
        conn.private_data = private_data.clone();
        conn.crc = self.config.crc;
        conn.prepare(config);
        Ok(self.adopt(conn))
    }

    fn prepare(&mut self, qp: QpId, config: &QpConfig) -> Result<(), PostError> {
        self.config.limits.check(config)?;
        let conn = self.conns.get_mut(qp).ok_or(PostError::Closed)?;
        if conn.phase != Phase::Requested {
            return Err(conn.phase.refusal());
        }
        conn.prepare(config);
        conn.phase = Phase::Prepared;
        Ok(())
    }

    fn accept(&mut self, qp: QpId, private_data: &PrivateData) -> Result<(), PostError> {
        self.with(qp, |this, conn| this.accept_conn(conn, private_data))
            .unwrap_or(Err(PostError::Closed))
    }

    fn reject(&mut self, qp: QpId, private_data: &PrivateData) -> Result<(), PostError> {
        self.with(qp, |this, conn| this.reject_conn(conn, private_data))
            .unwrap_or(Err(PostError::Closed))
    }

    fn post_recv(&mut self, qp: QpId, tag: Tag, buf: Buf) -> Result<(), Refused<Buf>> {
        let registered = self.is_registered(&buf);
        let conn = self.conns.get_mut(qp).ok_or(PostError::Closed);
        match conn.and_then(|conn| conn.may_receive(registered)) {
            Ok(conn) => {
                conn.inbound.post(tag, buf);
                Ok(())
            }
            Err(why) => Err(Refused { why, back: buf }),
        }
    }

    fn post(&mut self, qp: QpId, tag: Tag, work: Work) -> Result<(), Refused<Work>> {
        let registered = work.buf().is_none_or(|buf| self.is_registered(buf));
        let max_message = self.config.limits.max_message as usize;
        let conn = self.conns.get_mut(qp).ok_or(PostError::Closed);
        let conn = match conn.and_then(|conn| conn.may_post(&work, registered, max_message)) {
            Ok(conn) => conn,
            Err(why) => return Err(Refused { why, back: work }),
        };
        conn.outbound.post(tag, work, &mut self.keys);
        conn.list_in(&mut self.listed);
        Ok(())
    }

    fn post_response(&mut self, qp: QpId, tag: Tag, reply: WriteAndSend) -> Result<(), PostError> {
        let registered = self.is_registered(&reply.local);
        let max_message = self.config.limits.max_message as usize;
        let conn = self.conns.get_mut(qp).ok_or(PostError::Closed)?;
        let conn = conn.may_answer(&reply, registered, max_message)?;
        conn.outbound.post_response(tag, reply);
        conn.list_in(&mut self.listed);
        Ok(())
    }

    fn expose(
        &mut self,
        qp: QpId,
        buf: Buf,
        rights: Rights,
    ) -> Result<RemoteSlice, Refused<Buf, ExposeError>> {
        let registered = self.is_registered(&buf);
        let conn = self.conns.get(qp).ok_or(ExposeError::Closed);
        if let Err(why) = conn.and_then(|conn| conn.may_expose(registered)) {
            return Err(Refused { why, back: buf });
        }
        self.keys.expose(qp, buf, rights)
    }

    fn withdraw(&mut self, key: RemoteKey) -> Result<Option<Buf>, ExposeError> {
        self.keys.withdraw(key).map(Some)
    }

    fn disconnect(&mut self, qp: QpId) {
        self.with(qp, |this, conn| match conn.phase {
            // A peer that gets no reply would assume that this side knows revision 1 only,
            // and try again.
            Phase::Requested | Phase::Prepared => this.refuse(conn, &PrivateData::empty()),
            _ => this.wind_down(conn, CloseReason::Local),
        });
    }

    fn abort(&mut self, qp: QpId) {
        self.disconnect(qp);
        self.with(qp, |this, conn| {
            conn.broken = true;
            this.list(conn);
        });
    }

    fn progress(&self, qp: QpId) -> Option<Progress> {
        let conn = self.conns.get(qp)?;
        // A stream that refers to sent memory releases it a call at a time, when the peer has
        // acknowledged its last byte, which healthy peers delay.
        let is_observed = !conn.outbound.is_kept();
        is_observed.then(|| Progress {
            pulled: conn.outbound.response_progress(),
            sent: conn.sent,
        })
    }

    fn submit(&mut self, now: Duration) {
        self.now = now;
        let mut list = std::mem::replace(&mut self.listed, std::mem::take(&mut self.spare));
        for qp in &list {
            self.with(*qp, |this, conn| this.transmit(conn));
        }
        // The next poll reports completions.
        list.append(&mut self.listed);
        self.spare = std::mem::replace(&mut self.listed, list);
    }

    fn poll(&mut self, now: Duration, events: &mut Vec<Event>) -> bool {
        self.now = now;
        let before = events.len();
        events.append(&mut self.later);
        let mut worked = self.work_list(events);
        let mut stream_events = std::mem::take(&mut self.stream_events);
        self.streams.poll(now, &mut stream_events);
        for event in stream_events.drain(..) {
            worked |= self.on_stream_event(event, events);
        }
        self.stream_events = stream_events;
        worked |= self.expire(events);
        worked || events.len() > before
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.streams.wait_fd()
    }

    fn next_deadline(&self) -> Option<Duration> {
        if !self.listed.is_empty() || !self.later.is_empty() {
            return Some(self.now);
        }
        let timer = self.deadlines.first().map(|(at, _)| *at);
        let linger = self.lingering.front().map(|(at, _)| *at);
        [timer, linger, self.streams.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }
}

#[cfg(test)]
mod tests;
