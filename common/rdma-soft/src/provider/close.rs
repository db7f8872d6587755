//! End of connections: by this side, by the peer, by the network, or by a time-out.

use std::io::{self, IoSliceMut};
use std::time::Duration;

use nvmeof_rdma::{CloseReason, Event};

use super::{Owner, SoftRdma};
use crate::conn::{Conn, Phase, log_peer};
use crate::iwarp::WireFault;
use crate::{StreamId, Streams};

/// Maximum streams that wait for the peer's end; beyond that, the oldest is closed early.
const MAX_LINGERING: usize = 256;
/// Time for the kernel to release the memory of a reset stream. A network device that transmits
/// nothing is reset by its driver after some seconds (`ndo_tx_timeout` of the kernel).
const RELEASE: Duration = Duration::from_secs(30);
/// Maximum receive calls per poll that discard data of a lingering stream.
const DRAIN_CALLS: usize = 4;

impl<S: Streams> SoftRdma<S> {
    /// Orderly end: queued work is sent, for a bounded time.
    pub(super) fn wind_down(&mut self, conn: &mut Conn, reason: CloseReason) {
        if conn.phase.has_ended() {
            return;
        }
        conn.reason = reason;
        conn.outbound.wind_down(&mut self.keys);
        self.start_ending(conn);
    }

    /// The peer violated the protocol: notifies it and ends the connection.
    pub(super) fn end_fault(&mut self, conn: &mut Conn, fault: WireFault, events: &mut Vec<Event>) {
        let header = conn.rx.header_bytes();
        let request = conn.inbound.request_bytes();
        conn.outbound
            .cut_short(&fault, header, request, &mut self.keys);
        conn.reason = CloseReason::PeerFault(fault.into_fault());
        if conn.broken {
            self.finish(conn, events);
        } else {
            // The peer may be notified long before everything queued is sent.
            if conn.phase == Phase::Running {
                events.push(Event::Ending { qp: conn.id });
            }
            self.start_ending(conn);
        }
    }

    fn start_ending(&mut self, conn: &mut Conn) {
        self.leave_pending(conn);
        // A stream that is not connected yet has nothing to send.
        if conn.phase == Phase::Connecting {
            conn.frame_out.clear();
        }
        conn.phase = Phase::Ending;
        let deadline = self.now.saturating_add(self.config.linger);
        self.set_deadline(conn, Some(deadline));
        self.list(conn);
    }

    /// Ends a connection after a failure of the network.
    pub(super) fn end_network(
        &mut self,
        conn: &mut Conn,
        error: &io::Error,
        events: &mut Vec<Event>,
    ) {
        if conn.phase != Phase::Ending && !conn.broken {
            conn.reason = CloseReason::network(error);
        }
        conn.broken = true;
        self.finish(conn, events);
    }

    /// Returns everything and reports the end, or first has the stream release what it refers
    /// to.
    pub(super) fn finish(&mut self, conn: &mut Conn, events: &mut Vec<Event>) {
        if conn.phase == Phase::Gone {
            return;
        }
        // What is released before a reset of this side counts as transmitted.
        self.reap_released(conn);
        if conn.outbound.is_kept() {
            return self.start_releasing(conn, events);
        }
        self.leave_pending(conn);
        self.set_deadline(conn, None);
        let ours = matches!(conn.reason, CloseReason::Local | CloseReason::PeerFault(_));
        let linger = ours && conn.phase == Phase::Ending && !conn.broken;
        conn.phase = Phase::Gone;
        conn.outbound.flush(conn.id, &mut self.keys, events);
        conn.inbound.flush(conn.id, events);
        if conn.visible {
            events.push(Event::Closed {
                qp: conn.id,
                reason: conn.reason.clone(),
            });
        }
        if linger {
            self.linger(conn.stream);
        } else {
            self.owners.remove(conn.stream);
            self.streams.close(conn.stream);
        }
    }

    /// Learns what the stream has released by now.
    fn reap_released(&mut self, conn: &mut Conn) {
        if conn.outbound.is_kept() {
            let released = self.streams.reap_released(conn.stream);
            conn.outbound.released(released);
        }
    }

    /// The stream refers to memory of work. Bytes that are written there now may be
    /// transmitted in place of the sent ones, so the work does not return yet. The reset drops
    /// what is queued and ends retransmission; packets that are in a queue of the network
    /// device are released when the device has transmitted or dropped them.
    #[cold]
    fn start_releasing(&mut self, conn: &mut Conn, events: &mut Vec<Event>) {
        if conn.phase == Phase::Releasing {
            return;
        }
        if conn.phase == Phase::Running {
            events.push(Event::Ending { qp: conn.id });
        }
        conn.phase = Phase::Releasing;
        conn.outbound.reset();
        self.streams.reset(conn.stream);
        self.set_deadline(conn, Some(self.now.saturating_add(RELEASE)));
        self.list(conn);
    }

    /// The kernel does not release memory of a connection that ended long ago.
    #[cold]
    fn abandon(&mut self, conn: &mut Conn) {
        let count = conn.outbound.abandon();
        if let Some(left_out) = self.log.ask(self.now) {
            let after = RELEASE.as_secs();
            log_peer!(
                error,
                conn,
                left_out,
                "the kernel still refers to {count} sent buffers {after} s after the connection \
                 ended; they are not used again; restart the program to get their memory back"
            );
        }
    }

    /// Waits for the peer to end the stream too: closing with unread bytes would make TCP
    /// reset the connection, and the peer might lose the last data.
    fn linger(&mut self, stream: StreamId) {
        // A lingering stream gets an event for that in any case.
        let _ = self.streams.want_send(stream, false);
        self.streams.shutdown_send(stream);
        self.owners.insert(stream, Owner::Linger);
        let deadline = self.now.saturating_add(self.config.linger);
        self.lingering.push_back((deadline, stream));
        if self.lingering.len() > MAX_LINGERING
            && let Some((_, oldest)) = self.lingering.pop_front()
        {
            self.end_linger(oldest);
        }
        self.drain(stream);
    }

    pub(super) fn drain(&mut self, stream: StreamId) -> bool {
        for _ in 0..DRAIN_CALLS {
            let bufs = &mut [IoSliceMut::new(&mut self.scratch)];
            match self.streams.recv(stream, bufs) {
                Ok(count) if count > 0 => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Ok(_) | Err(_) => {
                    self.end_linger(stream);
                    return false;
                }
            }
        }
        true
    }

    fn end_linger(&mut self, stream: StreamId) {
        if self.owners.get(stream) == Some(Owner::Linger) {
            self.owners.remove(stream);
            self.streams.close(stream);
        }
    }

    /// Ends connections whose deadline has passed.
    pub(super) fn expire(&mut self, events: &mut Vec<Event>) -> bool {
        let mut worked = false;
        while let Some((_, stream)) = self.lingering.pop_front_if(|(at, _)| *at <= self.now) {
            self.end_linger(stream);
        }
        while let Some((at, qp)) = self.deadlines.first().copied()
            && at <= self.now
        {
            self.deadlines.pop_first();
            worked = true;
            self.with(qp, |this, conn| {
                conn.deadline = None;
                if conn.phase == Phase::Running {
                    return this.nudge(conn);
                }
                let waiting_for = match conn.phase {
                    Phase::Connecting => Some("the TCP connection"),
                    Phase::AwaitReply => Some("the MPA reply"),
                    Phase::AwaitRequest => Some("the MPA request"),
                    _ => None,
                };
                if let Some(waiting_for) = waiting_for {
                    if !conn.visible {
                        this.warn_limited(
                            conn.remote,
                            &format_args!("timed out waiting for {waiting_for}"),
                        );
                    }
                    conn.reason = CloseReason::Timeout { waiting_for };
                }
                if conn.phase == Phase::Releasing {
                    this.reap_released(conn);
                    if conn.outbound.is_kept() {
                        this.abandon(conn);
                    }
                }
                conn.broken = true;
                this.finish(conn, events);
            });
        }
        worked
    }
}
