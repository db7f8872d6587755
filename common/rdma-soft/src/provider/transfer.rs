//! Data transfer between streams and memory.

use std::io::{self, IoSlice, IoSliceMut};

use nvmeof_rdma::{CloseReason, Event};

use super::SoftRdma;
use crate::Streams;
use crate::conn::{Conn, Phase, log_peer};
use crate::inbound::Receiver;
use crate::iwarp::{Rx, Sink, WireFault, codes};

/// Bytes received behind the rest of a payload while large ones are expected: the next header
/// or some small messages, and little payload that has to be copied.
const BETWEEN: usize = 2 * 1024;
/// Maximum slices of one send call, and of one with less to send: filling the array costs
/// time, whether the slices are used or not.
const SLICES: usize = 256;
const SOME_SLICES: usize = 64;
const FEW_SLICES: usize = 8;
/// Maximum send calls for one connection before others are served.
const SEND_CALLS: usize = 8;
/// Maximum receive calls likewise: the responses to all go into one send call.
const RECEIVE_CALLS: usize = 4;

impl<S: Streams> SoftRdma<S> {
    /// Receives once. Returns whether anything arrived.
    pub(super) fn receive(&mut self, conn: &mut Conn, events: &mut Vec<Event>) -> bool {
        match conn.phase {
            Phase::AwaitRequest | Phase::AwaitReply => self.receive_frame(conn, events),
            Phase::Running => self.receive_more(conn, events),
            Phase::Ending => self.receive_nothing(conn, events),
            Phase::Requested | Phase::Prepared => self.receive_early(conn, events),
            Phase::Connecting | Phase::Releasing | Phase::Gone => false,
        }
    }

    /// Receives as long as there is more than one call takes, and other connections have not
    /// waited for long.
    fn receive_more(&mut self, conn: &mut Conn, events: &mut Vec<Event>) -> bool {
        let mut worked = false;
        for _ in 0..RECEIVE_CALLS {
            let received = self.receive_data(conn, events);
            worked |= received != Received::Nothing;
            if received != Received::Full || conn.phase != Phase::Running || conn.idles() {
                break;
            }
        }
        worked
    }

    fn receive_data(&mut self, conn: &mut Conn, events: &mut Vec<Event>) -> Received {
        let (idles, frames) = (conn.idles(), conn.rx.frames());
        let (rx, scratch) = (&mut conn.rx, &mut self.scratch);
        let mut sink = Receiver {
            qp: conn.id,
            inbound: &mut conn.inbound,
            outbound: &mut conn.outbound,
            keys: &mut self.keys,
            events,
        };
        let room = if rx.expects_large() || idles {
            BETWEEN
        } else {
            scratch.len()
        };
        let room = scratch.get_mut(..room).unwrap_or_default();
        let plan = Plan::new(rx, &sink);
        let offered = plan.missing + plan.ahead + room.len();
        let recv = |bufs: &mut [IoSliceMut<'_>]| self.streams.recv(conn.stream, bufs);
        let received = match plan.receive(&mut sink, room, recv) {
            Ok(received) => received,
            Err(fault) => {
                self.end_fault(conn, fault, events);
                return Received::Part;
            }
        };
        let count = match received {
            Ok(0) => {
                self.end_of_stream(conn, events);
                return Received::Part;
            }
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if conn.broken {
                    // Sending failed, and everything that arrived before was processed.
                    self.finish(conn, events);
                }
                return Received::Nothing;
            }
            Err(error) => {
                self.end_network(conn, &error, events);
                return Received::Part;
            }
        };
        let result = plan.take(count, scratch, rx, &mut sink);
        if conn.rx.frames() > 0 {
            conn.outbound.held = false;
        }
        if conn.idle > 0 || conn.inbound.idle > 0 {
            conn.count_idle(frames);
        }
        if let Some(fault) = conn.inbound.terminated.take() {
            conn.reason = CloseReason::Terminated(fault);
            self.finish(conn, events);
        } else if let Err(fault) = result {
            self.end_fault(conn, fault, events);
        } else if conn.broken {
            self.list(conn);
        }
        if count == offered {
            Received::Full
        } else {
            Received::Part
        }
    }

    fn end_of_stream(&mut self, conn: &mut Conn, events: &mut Vec<Event>) {
        conn.reason = if conn.rx.at_boundary() {
            CloseReason::Peer
        } else {
            let text = format!(
                "the stream ended inside a frame, {} was due",
                conn.rx.waiting_for()
            );
            CloseReason::PeerFault(WireFault::new(codes::MPA_LOST, text).into_fault())
        };
        self.finish(conn, events);
    }

    /// Discards data that arrive on an ending connection.
    fn receive_nothing(&mut self, conn: &mut Conn, events: &mut Vec<Event>) -> bool {
        let bufs = &mut [IoSliceMut::new(&mut self.scratch)];
        match self.streams.recv(conn.stream, bufs) {
            Ok(count) if count > 0 => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Ok(_) | Err(_) => {
                self.finish(conn, events);
                true
            }
        }
    }

    /// Sends as much as possible, reports completed work, and ends a connection whose last
    /// bytes are sent.
    pub(super) fn advance(&mut self, conn: &mut Conn, events: &mut Vec<Event>) -> bool {
        let before = events.len();
        let sent = self.transmit(conn);
        self.release(conn);
        if conn.phase == Phase::Running || conn.phase == Phase::Ending {
            conn.outbound.complete(conn.id, events);
        }
        let may_finish = match conn.phase {
            Phase::Ending => conn.broken || !(has_output(conn) || conn.outbound.is_kept()),
            Phase::Releasing => !conn.outbound.is_kept(),
            _ => false,
        };
        if may_finish {
            self.finish(conn, events);
        }
        sent || events.len() > before
    }

    /// Learns what the stream had released in its last poll.
    #[inline]
    pub(super) fn release(&mut self, conn: &mut Conn) {
        if conn.outbound.is_kept() {
            conn.outbound.released(self.streams.released(conn.stream));
        }
    }

    /// Sends until the stream is full, nothing is left, or others are to be served. Returns
    /// whether anything was sent.
    pub(super) fn transmit(&mut self, conn: &mut Conn) -> bool {
        let mut worked = false;
        for _ in 0..SEND_CALLS {
            if conn.outbound.blocked || conn.broken || !may_send(conn) {
                break;
            }
            let (sent, offered) = match self.send_once(conn) {
                None => break,
                Some(Ok(counts)) => counts,
                Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => (0, 1),
                Some(Err(error)) => {
                    // A Terminate with the reason may have arrived already.
                    conn.broken = true;
                    if conn.phase == Phase::Running {
                        conn.reason = CloseReason::network(&error);
                    }
                    self.list(conn);
                    break;
                }
            };
            worked |= sent > 0;
            if sent < offered {
                conn.outbound.blocked = true;
                if !conn.wants_send {
                    self.want_send(conn, true);
                }
                return worked;
            }
        }
        if conn.wants_send && !conn.outbound.blocked {
            self.want_send(conn, false);
        }
        if !conn.outbound.blocked && !conn.broken && may_send(conn) && has_output(conn) {
            self.list(conn);
        }
        worked
    }

    fn want_send(&mut self, conn: &mut Conn, want: bool) {
        conn.wants_send = want;
        if let Err(error) = self.streams.want_send(conn.stream, want) {
            log_peer!(error, conn, %error, "cannot modify an epoll registration");
        }
    }

    /// One send call. `None`: there is nothing to send.
    fn send_once(&mut self, conn: &mut Conn) -> Option<io::Result<(usize, usize)>> {
        let frame = conn.frame_out.get(conn.frame_sent..).unwrap_or_default();
        if !frame.is_empty() {
            let offered = frame.len();
            let sent = self.streams.send(conn.stream, &[IoSlice::new(frame)]);
            if let Ok(count) = &sent {
                conn.frame_sent += count;
            }
            return Some(sent.map(|count| (count, offered)));
        }
        conn.outbound.stage(&mut self.keys);
        if !conn.outbound.has_output() {
            return None;
        }
        Some(match conn.outbound.slices() {
            count if count <= FEW_SLICES => self.send_slices::<FEW_SLICES>(conn),
            count if count <= SOME_SLICES => self.send_slices::<SOME_SLICES>(conn),
            _ => self.send_slices::<SLICES>(conn),
        })
    }

    /// One send call of at most `N` slices. Returns how many bytes were sent and how many
    /// could have been.
    fn send_slices<const N: usize>(&mut self, conn: &mut Conn) -> io::Result<(usize, usize)> {
        let mut slices = [IoSlice::new(&[]); N];
        let (used, offered) = conn.outbound.gather(&self.keys, &mut slices);
        let slices = slices.get(..used).unwrap_or_default();
        let payload = conn.outbound.stable_payload();
        let accepted = self.streams.send_kept(conn.stream, slices, payload)?;
        conn.outbound.sent(accepted, &mut self.keys);
        conn.sent += accepted.bytes as u64;
        Ok((accepted.bytes, offered))
    }
}

/// Destinations of one receive call: the missing part of the current payload goes to its
/// destination, the bytes between it and the payload of the next segment to the scratch
/// buffer, that payload behind the first one, and everything else to the rest of the scratch
/// buffer. Two large segments of a Read Response take one call that way.
#[derive(Clone, Copy)]
struct Plan {
    missing: usize,
    between: usize,
    /// 0 if the destination of the next segment is unknown.
    ahead: usize,
}

impl Plan {
    #[inline]
    fn new(rx: &Rx, sink: &Receiver<'_>) -> Self {
        let (missing, ahead) = match rx.payload() {
            Some((header, missing)) => (missing, sink.ahead(header, missing)),
            None => (0, 0),
        };
        Self {
            missing,
            between: if ahead > 0 { rx.between() } else { 0 },
            ahead,
        }
    }

    /// One call of `recv`.
    #[inline]
    fn receive(
        &self,
        sink: &mut Receiver<'_>,
        room: &mut [u8],
        recv: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> Result<io::Result<usize>, WireFault> {
        if self.missing == 0 {
            return Ok(recv(&mut [IoSliceMut::new(room)]));
        }
        let place = sink.place(self.missing + self.ahead)?;
        if self.ahead == 0 {
            return Ok(recv(&mut [IoSliceMut::new(place), IoSliceMut::new(room)]));
        }
        let (place, next) = place.split_at_mut(self.missing.min(place.len()));
        let (between, room) = room.split_at_mut(self.between.min(room.len()));
        let bufs = [place, between, next, room];
        Ok(recv(&mut bufs.map(IoSliceMut::new)))
    }

    /// Processes the `count` received bytes.
    #[inline]
    fn take(
        &self,
        count: usize,
        scratch: &[u8],
        rx: &mut Rx,
        sink: &mut Receiver<'_>,
    ) -> Result<(), WireFault> {
        let placed = count.min(self.missing);
        if placed > 0 {
            rx.placed(placed, sink)?;
        }
        let left = count - placed;
        if self.ahead == 0 {
            return rx.consume(scratch.get(..left).unwrap_or_default(), sink);
        }
        self.take_behind(left, scratch, rx, sink)
    }

    /// Processes `left` bytes that arrived behind the payload, some of them for the
    /// destination of the next one.
    #[cold]
    fn take_behind(
        &self,
        left: usize,
        scratch: &[u8],
        rx: &mut Rx,
        sink: &mut Receiver<'_>,
    ) -> Result<(), WireFault> {
        let between = left.min(self.between);
        rx.consume(scratch.get(..between).unwrap_or_default(), sink)?;
        let ahead = (left - between).min(self.ahead);
        if ahead > 0 {
            sink.take_ahead(rx, ahead)?;
        }
        let rest = left - between - ahead;
        let rest = scratch.get(self.between..self.between + rest);
        rx.consume(rest.unwrap_or_default(), sink)
    }
}

/// Result of a receive call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Received {
    Nothing,
    Part,
    /// It was full: there may be more.
    Full,
}

/// Whether the connection is in a phase that sends.
fn may_send(conn: &Conn) -> bool {
    match conn.phase {
        Phase::AwaitReply | Phase::Running | Phase::Ending => true,
        Phase::Connecting
        | Phase::AwaitRequest
        | Phase::Requested
        | Phase::Prepared
        | Phase::Releasing
        | Phase::Gone => false,
    }
}

fn has_output(conn: &Conn) -> bool {
    conn.frame_sent < conn.frame_out.len() || conn.outbound.has_output() || conn.outbound.has_more()
}
