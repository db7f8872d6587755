//! A hostile peer with its own implementation of frames.

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::time::Duration;

use nvmeof_rdma::Address;
use nvmeof_rdma_sim::SimStreams;
use nvmeof_rdma_soft::{StreamEvent, StreamId, Streams};
use nvmeof_wire::cm::Request;
use nvmeof_wire::fabrics::{Connect, ConnectData, PropertyAccess};
use nvmeof_wire::nvm::Io;
use nvmeof_wire::opcode::io;
use nvmeof_wire::registers::{Cc, Property, PropertyValue};
use nvmeof_wire::{Cqe, Nqn, Sgl, Sqe};
use zerocopy::IntoBytes;

use crate::host::SUBNQN;

/// The behaviour of a hostile peer once connected. All reconnect with another name when they
/// are disconnected. Peers that do not receive do not detect that, and reconnect after
/// 300 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// Writes without data: it receives RDMA Reads and does not respond.
    Silent,
    /// Reads without receiving the data: it stops receiving.
    Deaf,
    /// As many small commands as its queue allows, continuously.
    Flood,
    /// Receives the data of some reads, then stops receiving.
    Turncoat,
    /// Each peer has another of these.
    Mixed,
}

impl Habit {
    /// All behaviours.
    pub const ALL: [Self; 5] = [
        Self::Silent,
        Self::Deaf,
        Self::Flood,
        Self::Turncoat,
        Self::Mixed,
    ];

    /// The behaviour of peer number `number`.
    pub(super) fn of(self, number: usize) -> Self {
        match self {
            Self::Mixed => Self::ALL[number % 4],
            one => one,
        }
    }
}

/// Its outstanding commands.
const OUTSTANDING: usize = 31;
/// Time without receiving before a peer reconnects with another name.
const BACK: Duration = Duration::from_millis(300);
/// Entries of its queues.
const ENTRIES: u16 = 32;

/// One peer, with its current admin queue and I/O queue.
pub(super) struct Hostile {
    number: u8,
    habit: Habit,
    length: u32,
    streams: SimStreams,
    target: Address,
    admin: Option<Link>,
    io: Option<Link>,
    cntlid: u16,
    /// Number of names that it has used.
    names: u32,
    /// Maximum outstanding commands.
    outstanding: usize,
    /// Reads whose data a turncoat receives.
    pub(super) good: usize,
    pub(super) disconnected: u64,
}

/// One connection.
struct Link {
    stream: StreamId,
    qid: u16,
    state: State,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// Messages that it sent.
    sent: u32,
    /// Outstanding commands.
    outstanding: usize,
    completed: usize,
    /// Since when it does not receive.
    deaf: Option<Duration>,
    over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    /// Waits for the MPA reply.
    Requested,
    /// Waits for the response to Connect, then to the Property Set that enables the
    /// controller.
    Connect,
    Enable,
    Ready,
}

impl Hostile {
    pub(super) fn new(
        number: u8,
        habit: Habit,
        length: u32,
        streams: SimStreams,
        target: Address,
    ) -> Self {
        Self {
            number,
            habit,
            length,
            streams,
            target,
            admin: None,
            io: None,
            cntlid: 0xffff,
            names: 0,
            outstanding: OUTSTANDING,
            good: 0,
            disconnected: 0,
        }
    }

    /// Has so many commands outstanding if it sends them as fast as it can.
    pub(super) fn flood_by(&mut self, outstanding: usize) {
        if self.habit == Habit::Flood {
            self.outstanding = outstanding.clamp(2, OUTSTANDING);
        }
    }

    /// Acts. Returns whether there was progress.
    pub(super) fn poll_once(&mut self, now: Duration) -> bool {
        let mut events = Vec::new();
        self.streams.poll(now, &mut events);
        let mut progress = !events.is_empty();
        for event in &events {
            if let StreamEvent::Connected(stream) = event
                && let Some(link) = [&mut self.admin, &mut self.io]
                    .into_iter()
                    .flatten()
                    .find(|link| link.stream == *stream)
            {
                link.connected();
            }
            if let StreamEvent::ConnectFailed(stream, _) = event {
                self.lost(*stream);
            }
        }
        if self.admin.is_none() {
            self.names += 1;
            self.admin = self.link(0);
            progress = true;
        }
        progress |= self.serve(true, now);
        progress |= self.serve(false, now);
        progress
    }

    fn link(&mut self, qid: u16) -> Option<Link> {
        let stream = self.streams.connect(self.target).ok()?;
        Some(Link {
            stream,
            qid,
            state: State::Connecting,
            inbox: Vec::new(),
            outbox: Vec::new(),
            sent: 0,
            outstanding: 0,
            completed: 0,
            deaf: None,
            over: false,
        })
    }

    /// Closes everything when one connection is lost.
    fn lost(&mut self, stream: StreamId) {
        let is_it = |link: &Option<Link>| link.as_ref().is_some_and(|one| one.stream == stream);
        if !is_it(&self.admin) && !is_it(&self.io) {
            return;
        }
        self.disconnected += 1;
        for link in [self.admin.take(), self.io.take()].into_iter().flatten() {
            self.streams.close(link.stream);
        }
    }

    fn serve(&mut self, is_admin: bool, now: Duration) -> bool {
        let slot = if is_admin {
            &mut self.admin
        } else {
            &mut self.io
        };
        let Some(mut link) = slot.take() else {
            return false;
        };
        let deaf = self.is_deaf(&link);
        if deaf {
            let since = *link.deaf.get_or_insert(now);
            link.over |= now.saturating_sub(since) >= BACK;
        }
        let mut progress = !deaf && link.receive(&mut self.streams);
        while let Some(frame) = link.frame() {
            progress = true;
            self.heard(&mut link, &frame);
        }
        progress |= self.ask(&mut link);
        progress |= link.send(&mut self.streams);
        let (stream, over) = (link.stream, link.over);
        let slot = if is_admin {
            &mut self.admin
        } else {
            &mut self.io
        };
        *slot = Some(link);
        if over {
            self.lost(stream);
            return true;
        }
        if is_admin && self.io.is_none() && self.is_enabled() {
            self.io = self.link(1);
            return true;
        }
        progress
    }

    fn is_enabled(&self) -> bool {
        let ready = |link: &Link| link.state == State::Ready;
        self.admin.as_ref().is_some_and(ready)
    }

    fn is_deaf(&self, link: &Link) -> bool {
        let at_work = link.qid > 0 && link.state == State::Ready;
        match self.habit {
            Habit::Deaf => at_work,
            Habit::Turncoat => at_work && link.completed >= self.good,
            _ => false,
        }
    }

    fn heard(&mut self, link: &mut Link, frame: &Frame) {
        match (link.state, frame) {
            (State::Requested, Frame::Reply) => {
                link.state = State::Connect;
                let connect = connect_capsule(self.number, self.names, link.qid, self.cntlid);
                link.capsule(&connect);
            }
            (State::Connect, Frame::Response(cqe)) if cqe.status().is_success() => {
                if link.qid > 0 {
                    link.state = State::Ready;
                    return;
                }
                self.cntlid = u16::try_from(cqe.dw0() & 0xffff).unwrap();
                link.state = State::Enable;
                let enable = PropertyValue::Dword(Cc::ENABLE.0);
                link.capsule(&PropertyAccess::set(Property::CC, enable).to_bytes());
            }
            (State::Enable, Frame::Response(_)) => link.state = State::Ready,
            // Refused: it retries.
            (_, Frame::Reject | Frame::Response(_)) if link.state != State::Ready => {
                link.over = true;
            }
            (State::Ready, Frame::Response(_)) => {
                link.outstanding = link.outstanding.saturating_sub(1);
                link.completed += 1;
            }
            _ => {}
        }
    }

    /// Commands of an I/O queue.
    fn ask(&self, link: &mut Link) -> bool {
        if link.qid == 0 || link.state != State::Ready {
            return false;
        }
        let mut any = false;
        while link.outstanding < self.outstanding {
            let cid = u16::try_from(link.sent % 4096).unwrap();
            link.capsule(&self.command(cid).to_bytes());
            link.outstanding += 1;
            any = true;
        }
        any
    }

    fn command(&self, cid: u16) -> Sqe {
        let (opcode, len) = match self.habit {
            Habit::Silent => (io::WRITE, self.length),
            Habit::Flood => (io::READ, 4096),
            _ => (io::READ, self.length),
        };
        let mut sqe = Io::new(1, 0, len / 4096).to_sqe(opcode);
        sqe.cid = cid.into();
        sqe.dptr = Sgl::keyed(0x1000, len, 7).to_descriptor();
        sqe
    }
}

/// A received frame.
enum Frame {
    Reply,
    Reject,
    Response(Cqe),
    /// Data, or an RDMA Read.
    Other,
}

impl Link {
    fn connected(&mut self) {
        self.state = State::Requested;
        let private = Request::new(self.qid, ENTRIES);
        let private = private.as_bytes();
        // MPA revision 2 without CRC (RFC 6581, section 5.1); IRD and ORD are 16.
        let len = u16::try_from(private.len() + 4).unwrap();
        self.outbox.extend(b"MPA ID Req Frame\x10\x02");
        self.outbox.extend(len.to_be_bytes());
        self.outbox.extend([0, 16, 0, 16]);
        self.outbox.extend(private);
    }

    /// A Send of one segment (RFC 5041, section 4.3).
    fn capsule(&mut self, capsule: &[u8]) {
        self.sent += 1;
        let len = u16::try_from(18 + capsule.len()).unwrap();
        let mut frame = len.to_be_bytes().to_vec();
        frame.extend([0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0]);
        frame.extend(self.sent.to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(capsule);
        frame.resize(frame.len().next_multiple_of(4) + 4, 0);
        self.outbox.extend(frame);
    }

    fn receive(&mut self, streams: &mut SimStreams) -> bool {
        let mut bytes = [0; 16 << 10];
        match streams.recv(self.stream, &mut [IoSliceMut::new(&mut bytes)]) {
            Ok(0) => self.over = true,
            Ok(count) => {
                self.inbox.extend(&bytes[..count]);
                return true;
            }
            Err(error) => self.over |= error.kind() != ErrorKind::WouldBlock,
        }
        false
    }

    fn send(&mut self, streams: &mut SimStreams) -> bool {
        if self.outbox.is_empty() || self.state == State::Connecting {
            return false;
        }
        match streams.send(self.stream, &[IoSlice::new(&self.outbox)]) {
            Ok(count) => {
                self.outbox.drain(..count);
                count > 0
            }
            Err(error) => {
                self.over |= error.kind() != ErrorKind::WouldBlock;
                let _ = streams.want_send(self.stream, true);
                false
            }
        }
    }

    /// The next complete frame.
    fn frame(&mut self) -> Option<Frame> {
        if self.state == State::Requested {
            return self.reply();
        }
        let len = u16::from_be_bytes(*self.inbox.first_chunk()?);
        let whole = (2 + usize::from(len)).next_multiple_of(4) + 4;
        if self.inbox.len() < whole {
            return None;
        }
        let frame: Vec<u8> = self.inbox.drain(..whole).collect();
        // Untagged, on the queue of Sends, a response capsule.
        let is_send = frame[2] & 0x80 == 0 && matches!(frame[3] & 0xf, 3..=6);
        let is_response = is_send && len == 18 + 16;
        let response = is_response.then(|| Cqe::from_capsule(&frame[20..36]));
        Some(response.flatten().map_or(Frame::Other, Frame::Response))
    }

    fn reply(&mut self) -> Option<Frame> {
        let head = self.inbox.get(..20)?;
        let rejected = head[16] & 0x20 != 0;
        let len = 20 + usize::from(u16::from_be_bytes([head[18], head[19]]));
        if self.inbox.len() < len {
            return None;
        }
        self.inbox.drain(..len);
        Some(if rejected {
            Frame::Reject
        } else {
            Frame::Reply
        })
    }
}

/// A Connect with its data behind it.
fn connect_capsule(number: u8, names: u32, qid: u16, cntlid: u16) -> Vec<u8> {
    let name = format!("nqn.2026-11.org.example:hostile{number}-{names}");
    let mut id = [0xee; 16];
    id[0] = number;
    id[4..8].copy_from_slice(&names.to_le_bytes());
    let cntlid = if qid == 0 { 0xffff } else { cntlid };
    let nqn = |text: &str| Nqn::new(text).unwrap();
    let data = ConnectData::new(id, cntlid, &nqn(SUBNQN), &nqn(&name));
    let mut sqe = Connect::new(qid, ENTRIES, 0).to_sqe();
    let len = u32::try_from(data.as_bytes().len()).unwrap();
    sqe.dptr = Sgl::InCapsule { offset: 0, len }.to_descriptor();
    [&sqe.to_bytes()[..], data.as_bytes()].concat()
}
