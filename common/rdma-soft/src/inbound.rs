//! The receiving side of a connection: posted receives, writes and reads of the peer,
//! responses to Reads of this side.

mod faults;

use std::collections::VecDeque;

use nvmeof_memory::Buf;
use nvmeof_rdma::{Event, Fault, Outcome, QpId, Received, RemoteKey, Rights, Tag};

use crate::iwarp::{
    Header, Kind, LARGE, Opcode, QUEUE_READ, QUEUE_SEND, ReadRequest, Rx, Sink, Terminate,
    WireFault, in_parts,
};
use crate::keys::{Access, KeyTable};
use crate::outbound::Outbound;

/// Room for the payload of a Terminate, the longest control message: code,
/// segment length and both headers are 52 bytes.
const CONTROL_LEN: usize = 64;

/// The receiving state of a connection above its frames.
#[derive(Debug)]
pub(crate) struct Inbound {
    recvs: VecDeque<Recv>,
    /// Maximum RDMA Reads of the peer in flight.
    reads: usize,
    /// MSN of the next Send message; RFC 5041, section 5.3: they start at 1.
    send_msn: u32,
    /// MSN of the next Read Request.
    read_msn: u32,
    /// The Send message that is arriving, and its received length.
    message: Option<(Opcode, usize)>,
    place: Destination,
    control: [u8; CONTROL_LEN],
    /// Fault in the peer's Terminate.
    pub(crate) terminated: Option<Fault>,
    /// Idle segments since the last query: they cost the receiver as much as others and their
    /// sender hardly anything.
    pub(crate) idle: u64,
}

/// Minimum payload of a segment that does not count as idle, unless it ends a Send or a Read
/// Response, whose numbers are limited anyway.
const SOME: usize = 64;

#[derive(Debug)]
struct Recv {
    tag: Tag,
    buf: Buf,
}

/// Destination of the payload of the current segment.
#[derive(Clone, Copy, Debug)]
enum Destination {
    /// No payload.
    Nowhere,
    /// The first posted receive, from this offset.
    Receive(usize),
    /// Exposed memory.
    Exposed { key: u32, addr: u64 },
    /// The sink of the oldest RDMA Read of this side.
    Sink,
    /// The control buffer, from this offset.
    Control(usize),
}

impl Inbound {
    pub(crate) fn new() -> Self {
        Self {
            recvs: VecDeque::new(),
            reads: 0,
            send_msn: 1,
            read_msn: 1,
            message: None,
            place: Destination::Nowhere,
            control: [0; CONTROL_LEN],
            terminated: None,
            idle: 0,
        }
    }

    pub(crate) fn prepare(&mut self, recvs: usize, reads: usize) {
        self.recvs.reserve_exact(recvs);
        self.reads = reads;
    }

    pub(crate) fn posted(&self) -> usize {
        self.recvs.len()
    }

    pub(crate) fn post(&mut self, tag: Tag, buf: Buf) {
        self.recvs.push_back(Recv { tag, buf });
    }

    /// Returns all receives.
    pub(crate) fn flush(&mut self, qp: QpId, events: &mut Vec<Event>) {
        for Recv { tag, buf } in self.recvs.drain(..) {
            events.push(Event::Received(Received {
                qp,
                tag,
                buf,
                len: 0,
                invalidated: None,
                solicited: false,
                outcome: Outcome::Flushed,
            }));
        }
    }

    /// The payload of the current segment, if it is a Read Request: for the Terminate that
    /// reports it.
    pub(crate) fn request_bytes(&self) -> &[u8] {
        match self.place {
            Destination::Control(ReadRequest::LEN) => {
                self.control.get(..ReadRequest::LEN).unwrap_or_default()
            }
            _ => &[],
        }
    }
}

/// The receiving state of a connection together with everything that its segments change.
pub(crate) struct Receiver<'a> {
    pub(crate) qp: QpId,
    pub(crate) inbound: &'a mut Inbound,
    pub(crate) outbound: &'a mut Outbound,
    pub(crate) keys: &'a mut KeyTable,
    pub(crate) events: &'a mut Vec<Event>,
}

impl Sink for Receiver<'_> {
    fn start(&mut self, header: &Header) -> Result<(), WireFault> {
        self.begin()?;
        self.inbound.place = match header.kind {
            Kind::Tagged { stag, to } if header.opcode == Opcode::WRITE => {
                self.start_write(header, stag, to)?
            }
            Kind::Tagged { stag, to } => {
                self.outbound.check_response(stag, to, header)?;
                Destination::Sink
            }
            Kind::Untagged {
                queue, msn, offset, ..
            } => match queue {
                QUEUE_SEND => Destination::Receive(self.start_send(header, msn, offset)?),
                QUEUE_READ => self.start_read(header, msn, offset)?,
                _ => start_terminate(header, msn, offset)?,
            },
        };
        Ok(())
    }

    fn place(&mut self, remaining: usize) -> Result<&mut [u8], WireFault> {
        let place = match self.inbound.place {
            Destination::Nowhere => None,
            Destination::Receive(at) => {
                let recv = self.inbound.recvs.front_mut();
                recv.and_then(|recv| recv.buf.get_mut(at..at.checked_add(remaining)?))
            }
            Destination::Exposed { key, addr } => {
                let access = self.write_access(key, addr, remaining);
                let bytes = self.keys.bytes_mut(&access);
                return bytes.map_err(|why| faults::tagged(why, &access));
            }
            Destination::Sink => self.outbound.response_place(remaining),
            Destination::Control(at) => self.inbound.control.get_mut(at..at + remaining),
        };
        place.ok_or_else(faults::no_memory)
    }

    fn advance(&mut self, len: usize) {
        match &mut self.inbound.place {
            Destination::Nowhere => {}
            Destination::Receive(at) | Destination::Control(at) => *at += len,
            Destination::Exposed { addr, .. } => *addr = addr.wrapping_add(len as u64),
            Destination::Sink => self.outbound.response_advance(len),
        }
    }

    fn finish(&mut self, header: &Header) -> Result<(), WireFault> {
        match header.kind {
            Kind::Tagged { .. } => {
                if header.opcode == Opcode::READ_RESPONSE && header.last {
                    self.outbound.response_done();
                } else {
                    self.inbound.idle += u64::from(header.payload < SOME);
                }
                Ok(())
            }
            Kind::Untagged {
                invalidate, queue, ..
            } => match queue {
                QUEUE_SEND => self.finish_send(header, invalidate),
                QUEUE_READ => self.finish_read(),
                _ => {
                    let received = self.inbound.control.get(..header.payload);
                    let terminate = Terminate::parse(received.unwrap_or_default());
                    self.inbound.terminated = Some(terminate.into_fault());
                    Ok(())
                }
            },
        }
    }

    /// Fast path for complete Sends and Writes, without intermediate state.
    fn segment(&mut self, header: &Header, payload: &[u8]) -> Result<(), WireFault> {
        match header.kind {
            Kind::Untagged {
                queue: QUEUE_SEND,
                invalidate,
                msn,
                offset,
            } => {
                self.begin()?;
                let at = self.start_send(header, msn, offset)?;
                let recv = self.inbound.recvs.front_mut();
                let buf = recv.and_then(|recv| recv.buf.get_mut(at..));
                if let Some(place) = buf.and_then(|buf| buf.get_mut(..payload.len())) {
                    place.copy_from_slice(payload);
                }
                self.finish_send(header, invalidate)
            }
            Kind::Tagged { stag, to } if header.opcode == Opcode::WRITE => {
                self.begin()?;
                self.inbound.idle += u64::from(payload.len() < SOME);
                // RFC 5041, section 5.1: without payload there is nothing to
                // check the tag for.
                if !payload.is_empty() {
                    let access = self.write_access(stag, to, payload.len());
                    let place = self.keys.bytes_mut(&access);
                    let place = place.map_err(|why| faults::tagged(why, &access))?;
                    place.copy_from_slice(payload);
                }
                Ok(())
            }
            // A copy, so that the header need not be in memory in the other cases.
            _ => in_parts(self, &{ *header }, payload),
        }
    }
}

impl Receiver<'_> {
    /// Before every segment.
    #[inline]
    fn begin(&mut self) -> Result<(), WireFault> {
        self.inbound.place = Destination::Nowhere;
        match self.inbound.terminated {
            None => Ok(()),
            Some(_) => Err(faults::after_terminate()),
        }
    }

    /// Number of bytes that may be received behind the destination of a large segment, after
    /// the `missing` bytes of its payload: most likely those of the next segment. The
    /// segments of a Read Response are in order and its length is known (RFC 5040, section
    /// 5.2), and its memory is not read until it is complete. The length of an RDMA Write is
    /// not known (RFC 5041, section 4.1), and behind it may be bytes that the peer wrote
    /// before.
    pub(crate) fn ahead(&self, header: &Header, missing: usize) -> usize {
        match self.inbound.place {
            Destination::Sink if !header.last && header.payload >= LARGE => {
                let left = self.outbound.response_left().saturating_sub(missing);
                left.min(header.payload)
            }
            _ => 0,
        }
    }

    /// Processes `len` bytes that were received to the memory described by
    /// [`ahead`](Self::ahead), after everything before them.
    ///
    /// # Errors
    /// A protocol violation; the connection ends.
    pub(crate) fn take_ahead(&mut self, rx: &mut Rx, len: usize) -> Result<(), WireFault> {
        let is_next = rx.payload().is_some_and(|(_, missing)| missing >= len);
        if is_next && matches!(self.inbound.place, Destination::Sink) {
            return rx.placed(len, self);
        }
        // The peer sent something else.
        let bytes = self
            .outbound
            .response_place(len)
            .map(|bytes| bytes.to_vec());
        rx.consume(&bytes.unwrap_or_default(), self)
    }

    fn write_access(&self, key: u32, addr: u64, len: usize) -> Access {
        Access {
            owner: self.qp,
            key,
            rights: Rights::REMOTE_WRITE,
            addr,
            len,
        }
    }

    fn start_write(&self, header: &Header, stag: u32, to: u64) -> Result<Destination, WireFault> {
        // RFC 5041, section 5.1: without payload there is nothing to check
        // the tag for.
        if header.payload == 0 {
            return Ok(Destination::Nowhere);
        }
        let access = self.write_access(stag, to, header.payload);
        match self.keys.check(&access) {
            Ok(_) => Ok(Destination::Exposed {
                key: stag,
                addr: to,
            }),
            Err(why) => Err(faults::tagged(why, &access)),
        }
    }

    /// Offset of the segment in the next receive.
    #[inline]
    fn start_send(&self, header: &Header, msn: u32, offset: u32) -> Result<usize, WireFault> {
        check_msn(msn, self.inbound.send_msn, "Send")?;
        let (opcode, so_far) = self.inbound.message.unwrap_or((header.opcode, 0));
        if opcode != header.opcode {
            return Err(faults::other_opcode(opcode, header.opcode));
        }
        let Some(recv) = self.inbound.recvs.front() else {
            return Err(faults::no_receive(msn));
        };
        if usize::try_from(offset) != Ok(so_far) {
            return Err(faults::offset(offset, so_far));
        }
        let room = recv.buf.len();
        if header.payload > room.saturating_sub(so_far) {
            return Err(faults::too_long(so_far + header.payload, room));
        }
        Ok(so_far)
    }

    #[inline(always)]
    fn finish_send(&mut self, header: &Header, invalidate: u32) -> Result<(), WireFault> {
        let (_, so_far) = self.inbound.message.unwrap_or((header.opcode, 0));
        let len = so_far + header.payload;
        if !header.last {
            self.inbound.idle += u64::from(header.payload < SOME);
            self.inbound.message = Some((header.opcode, len));
            return Ok(());
        }
        let invalidated = header.opcode.invalidates().then_some(RemoteKey(invalidate));
        if let Some(key) = invalidated {
            let invalid = self.keys.invalidate(self.qp, key.0);
            invalid.map_err(|why| faults::invalidate(key, why))?;
        }
        self.inbound.message = None;
        self.inbound.send_msn = self.inbound.send_msn.wrapping_add(1);
        if let Some(Recv { tag, buf }) = self.inbound.recvs.pop_front() {
            self.events.push(Event::Received(Received {
                qp: self.qp,
                tag,
                buf,
                len,
                invalidated,
                solicited: header.opcode.solicited(),
                outcome: Outcome::Success,
            }));
        }
        Ok(())
    }

    fn start_read(&self, header: &Header, msn: u32, offset: u32) -> Result<Destination, WireFault> {
        check_msn(msn, self.inbound.read_msn, "Read Request")?;
        if offset != 0 || !header.last || header.payload != ReadRequest::LEN {
            return Err(faults::read_request(header.payload, offset));
        }
        // RFC 5040, section 5.2.1: Read Requests beyond the IRD find no
        // buffer on queue 1.
        if self.outbound.responding() >= self.inbound.reads {
            return Err(faults::too_many_reads(self.inbound.reads));
        }
        Ok(Destination::Control(0))
    }

    fn finish_read(&mut self) -> Result<(), WireFault> {
        let request = self.inbound.control.first_chunk();
        let request = ReadRequest::parse(request.unwrap_or(&[0; ReadRequest::LEN]));
        let mut offset = 0;
        // RFC 5040, section 5.2: a Read of nothing names nothing.
        if request.len > 0 {
            let access = Access {
                owner: self.qp,
                key: request.source_stag,
                rights: Rights::REMOTE_READ,
                addr: request.source_to,
                len: usize::try_from(request.len).unwrap_or(usize::MAX),
            };
            offset = self
                .keys
                .check(&access)
                .map_err(|why| faults::source(why, &access))?;
            self.keys.begin_read(request.source_stag);
        } else {
            self.inbound.idle += 1;
        }
        self.inbound.read_msn = self.inbound.read_msn.wrapping_add(1);
        self.outbound.respond(&request, offset);
        Ok(())
    }
}

fn start_terminate(header: &Header, msn: u32, offset: u32) -> Result<Destination, WireFault> {
    check_msn(msn, 1, "Terminate")?;
    if offset != 0 || !header.last || header.payload > CONTROL_LEN {
        return Err(faults::terminate(header.payload, CONTROL_LEN));
    }
    Ok(Destination::Control(0))
}

#[inline]
fn check_msn(msn: u32, expected: u32, what: &str) -> Result<(), WireFault> {
    match msn == expected {
        true => Ok(()),
        false => Err(faults::msn(msn, expected, what)),
    }
}
