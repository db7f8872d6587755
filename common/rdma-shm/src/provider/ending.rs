//! End of connections: by this side, by the peer, by a fault, or by a time-out.

use std::io;
use std::time::Duration;

use nvmeof_rdma::{CloseReason, Event, Fault, Peer, PrivateData};

use super::{Core, Shm};
use crate::conn::{Conn, Phase, log_peer};
use crate::message::Message;

impl Shm {
    /// Ends connections whose deadline has passed.
    pub(super) fn expire(&mut self, events: &mut Vec<Event>) -> bool {
        let mut worked = false;
        while let Some((at, qp)) = self.core.deadlines.first().copied()
            && at <= self.core.now
        {
            self.core.deadlines.pop_first();
            worked = true;
            self.with(qp, |core, conn| {
                conn.deadline = None;
                core.expired(conn, events);
            });
        }
        worked
    }
}

impl Core {
    fn expired(&mut self, conn: &mut Conn, events: &mut Vec<Event>) {
        let reason = match conn.phase {
            Phase::AwaitReply => CloseReason::Timeout {
                waiting_for: "the reply",
            },
            Phase::AwaitRequest => {
                self.log_refusal(conn.link.as_ref(), &"timed out waiting for its request");
                CloseReason::Local
            }
            // The peer announced the end and continues to fill its ring.
            Phase::Running => conn.reason.take().unwrap_or(CloseReason::Peer),
            Phase::Ending => {
                conn.send(&Message::Bye);
                CloseReason::Local
            }
            // The backing store of the peer may take its time.
            Phase::Busy => conn.reason.take().unwrap_or(CloseReason::Local),
            Phase::Requested | Phase::Prepared | Phase::Gone => return,
        };
        self.finish(conn, reason, events);
    }

    pub(super) fn disconnect_conn(&mut self, conn: &mut Conn, later: &mut Vec<Event>) {
        match conn.phase {
            Phase::AwaitReply => self.finish(conn, CloseReason::Local, later),
            Phase::Requested | Phase::Prepared => {
                conn.send(&Message::Reject(PrivateData::empty()));
                self.finish(conn, CloseReason::Local, later);
            }
            Phase::Running => {
                conn.phase = Phase::Ending;
                conn.outbound.wind_down(&mut self.keys);
                self.linger(conn);
            }
            Phase::AwaitRequest | Phase::Ending | Phase::Busy | Phase::Gone => {}
        }
    }

    /// Sets a deadline for the end of the connection.
    fn linger(&mut self, conn: &mut Conn) {
        let until = self.now.saturating_add(self.config.linger);
        self.set_deadline(conn, Some(until));
        self.heat(conn);
    }

    /// The peer closed or its process is gone. Records in its ring are still processed.
    pub(super) fn peer_ends(
        &mut self,
        conn: &mut Conn,
        reason: CloseReason,
        events: &mut Vec<Event>,
    ) {
        if conn.reason.is_none() {
            conn.reason = Some(reason);
            events.push(Event::Ending { qp: conn.id });
            self.linger(conn);
        }
    }

    /// The socket reached its end, possibly with an error.
    pub(super) fn end_of_link(
        &mut self,
        conn: &mut Conn,
        error: Option<io::Error>,
        events: &mut Vec<Event>,
    ) {
        // The socket ends when the peer does not use any local memory any more.
        conn.peer_takes = 0;
        let gone = |text| io::Error::new(io::ErrorKind::ConnectionReset, text);
        let reason = match conn.phase {
            Phase::Running => {
                let error = error.unwrap_or_else(|| gone("the peer's process is gone"));
                return self.peer_ends(conn, CloseReason::network(&error), events);
            }
            Phase::AwaitReply => CloseReason::network(&error.unwrap_or_else(|| {
                gone("the peer closed the connection before its reply; see its log")
            })),
            Phase::AwaitRequest => {
                self.log_refusal(
                    conn.link.as_ref(),
                    &"it closed the connection before its request",
                );
                CloseReason::Peer
            }
            Phase::Requested | Phase::Prepared => CloseReason::Peer,
            Phase::Busy => conn.reason.take().unwrap_or(CloseReason::Local),
            Phase::Ending | Phase::Gone => CloseReason::Local,
        };
        self.finish(conn, reason, events);
    }

    /// The peer violated the protocol: notifies it and ends the connection.
    pub(super) fn end_fault(&mut self, conn: &mut Conn, fault: Fault, events: &mut Vec<Event>) {
        conn.send(&Message::Fault(fault.clone()));
        let reason = match conn.phase {
            Phase::Ending => CloseReason::Local,
            _ => CloseReason::PeerFault(fault),
        };
        self.finish(conn, reason, events);
    }

    /// Returns everything and reports the end. The peer keeps its own mapping of the memory
    /// and finds the published records there.
    pub(super) fn finish(&mut self, conn: &mut Conn, reason: CloseReason, events: &mut Vec<Event>) {
        if conn.phase == Phase::Gone {
            return;
        }
        if !self.still_used(conn).is_empty() {
            // Buffers return when no other process can access them; the peer's device may do
            // so for a while.
            conn.phase = Phase::Busy;
            conn.reason = Some(reason);
            self.check_later(conn);
            return;
        }
        if conn.phase.is_pending() {
            self.pending = self.pending.saturating_sub(1);
        }
        self.set_deadline(conn, None);
        let (qp, visible) = (conn.id, conn.is_visible());
        conn.phase = Phase::Gone;
        // Users of the peer's memory may keep the socket open.
        if let Some(link) = conn.link.take() {
            self.unwatch(&link);
        }
        conn.channel = None;
        conn.peer_memory = None;
        conn.outbound.flush(qp, &mut self.keys, events);
        conn.inbound.flush(qp, events);
        if visible {
            events.push(Event::Closed { qp, reason });
        }
    }

    /// Checks later whether the peer has released the memory. A backing store takes a moment;
    /// a peer that does not release memory for long was stopped, or its backing store does
    /// not respond, which is logged.
    fn check_later(&mut self, conn: &mut Conn) {
        let since = *conn.busy_since.get_or_insert(self.now);
        let waited = self.now.saturating_sub(since);
        let next = (waited / 4).clamp(FIRST_CHECK, LAST_CHECK);
        if waited >= LOG_AFTER && !conn.busy_logged {
            conn.busy_logged = true;
            log_memory_in_use(conn);
        }
        self.set_deadline(conn, Some(self.now.saturating_add(next)));
    }

    /// Revokes the grants of a connection's peer, and returns the keys that it uses
    /// nevertheless.
    pub(super) fn still_used(&self, conn: &Conn) -> Vec<u32> {
        let granted = conn.channel.as_ref().filter(|_| conn.peer_takes > 0);
        let used = granted.map(|channel| {
            let keys = self.shared_regions.keys_of(conn.id);
            keys.filter(|key| !channel.revoke(*key)).collect()
        });
        used.unwrap_or_default()
    }
}

/// Logs which process keeps a connection from ending.
fn log_memory_in_use(conn: &Conn) {
    let process = match conn.peer() {
        Some(Peer::Process { pid, .. }) => pid,
        _ => 0,
    };
    log_peer!(
        warn,
        conn,
        process,
        "memory of this process is still in use by process {process} after its connection \
         ended; it stays reserved until that process releases it or ends; check \
         whether it is stopped (`kill -CONT {process}` resumes it) or waits for I/O"
    );
}

/// First interval of checks whether a peer has released memory, if it does not close its
/// side.
const FIRST_CHECK: Duration = Duration::from_millis(5);
/// Last interval of these checks.
const LAST_CHECK: Duration = Duration::from_millis(250);
/// A backing store that works completes sooner.
const LOG_AFTER: Duration = Duration::from_secs(2);
