//! What arrives on a connection: posted receives, the peer's writes and reads,
//! answers to our reads.

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
    /// RDMA Reads the peer may have in flight.
    reads: usize,
    /// MSN of the next Send message; RFC 5041, section 5.3: they start at 1.
    send_msn: u32,
    /// MSN of the next Read Request.
    read_msn: u32,
    /// The Send message that is arriving, with what arrived of it.
    message: Option<(Opcode, usize)>,
    place: Destination,
    control: [u8; CONTROL_LEN],
    /// What the peer's Terminate said.
    pub(crate) terminated: Option<Fault>,
    /// Segments that brought next to nothing since somebody asked: they cost us as much
    /// as others and their sender hardly anything.
    pub(crate) idle: u64,
}

/// Payload of a segment that brings something, if it does not end a Send or the answer
/// to a Read, of which there are no more than we allow.
const SOME: usize = 64;

#[derive(Debug)]
struct Recv {
    tag: Tag,
    buf: Buf,
}

/// Where the payload of the segment at hand goes next.
#[derive(Clone, Copy, Debug)]
enum Destination {
    /// It has none.
    Nowhere,
    /// The first posted receive, from this byte.
    Receive(usize),
    /// Exposed memory.
    Exposed { key: u32, addr: u64 },
    /// The sink of our oldest RDMA Read.
    Sink,
    /// The control buffer, from this byte.
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

    /// Gives all receives back.
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

    /// What stands after the header of the segment at hand, if it is a Read
    /// Request: for the Terminate that answers it.
    pub(crate) fn request_bytes(&self) -> &[u8] {
        match self.place {
            Destination::Control(ReadRequest::LEN) => {
                self.control.get(..ReadRequest::LEN).unwrap_or_default()
            }
            _ => &[],
        }
    }
}

/// A connection's receiving state together with what its segments act on.
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
                self.outbound.check_answer(stag, to, header)?;
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
            Destination::Sink => self.outbound.answer_place(remaining),
            Destination::Control(at) => self.inbound.control.get_mut(at..at + remaining),
        };
        place.ok_or_else(faults::no_memory)
    }

    fn advance(&mut self, len: usize) {
        match &mut self.inbound.place {
            Destination::Nowhere => {}
            Destination::Receive(at) | Destination::Control(at) => *at += len,
            Destination::Exposed { addr, .. } => *addr = addr.wrapping_add(len as u64),
            Destination::Sink => self.outbound.answer_advance(len),
        }
    }

    fn finish(&mut self, header: &Header) -> Result<(), WireFault> {
        match header.kind {
            Kind::Tagged { .. } => {
                if header.opcode == Opcode::READ_RESPONSE && header.last {
                    self.outbound.answer_done();
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
                    let said = self.inbound.control.get(..header.payload);
                    let terminate = Terminate::parse(said.unwrap_or_default());
                    self.inbound.terminated = Some(terminate.into_fault());
                    Ok(())
                }
            },
        }
    }

    /// What most segments are, Sends and Writes, without a place to remember.
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
            // A copy: the header of the others need not lie in memory.
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

    /// How many bytes may be received to what follows the place of a large
    /// segment, behind the `missing` bytes of its payload: those of the next
    /// segment, most likely. An answer's segments come in order and its length
    /// is known (RFC 5040, section 5.2), and until it is whole nobody looks at
    /// what is in its memory.
    pub(crate) fn ahead(&self, header: &Header, missing: usize) -> usize {
        match self.inbound.place {
            Destination::Sink if !header.last && header.payload >= LARGE => {
                let left = self.outbound.answer_left().saturating_sub(missing);
                left.min(header.payload)
            }
            _ => 0,
        }
    }

    /// So many bytes were put where [`ahead`](Self::ahead) said, and everything
    /// before them was taken: now they are.
    ///
    /// # Errors
    /// A broken rule; the connection ends.
    pub(crate) fn take_ahead(&mut self, rx: &mut Rx, len: usize) -> Result<(), WireFault> {
        let is_next = rx.payload().is_some_and(|(_, missing)| missing >= len);
        if is_next && matches!(self.inbound.place, Destination::Sink) {
            return rx.placed(len, self);
        }
        // The peer sent something else.
        let bytes = self.outbound.answer_place(len).map(|bytes| bytes.to_vec());
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

    /// Where in the receive that is next the segment goes.
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
        if self.outbound.answering() >= self.inbound.reads {
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
        self.outbound.answer(&request, offset);
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
