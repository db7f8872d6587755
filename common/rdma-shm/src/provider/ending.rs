//! How connections end: by us, by the peer, by a fault, or by time.

use std::io;
use std::time::Duration;

use nvmeof_rdma::{CloseReason, Event, Fault, Peer, PrivateData};

use super::{Core, Shm};
use crate::conn::{Conn, Phase, of_peer};
use crate::message::Message;

impl Shm {
    /// Ends what took too long.
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
                self.say(conn.link.as_ref(), &"its request did not come in time");
                CloseReason::Local
            }
            // The peer said that it ends and goes on filling its ring.
            Phase::Running => conn.reason.take().unwrap_or(CloseReason::Peer),
            Phase::Ending => {
                conn.say(&Message::Bye);
                CloseReason::Local
            }
            // The disk of the peer may take its time.
            Phase::Busy => conn.reason.take().unwrap_or(CloseReason::Local),
            Phase::Requested | Phase::Prepared | Phase::Gone => return,
        };
        self.finish(conn, reason, events);
    }

    pub(super) fn disconnect_conn(&mut self, conn: &mut Conn, later: &mut Vec<Event>) {
        match conn.phase {
            Phase::AwaitReply => self.finish(conn, CloseReason::Local, later),
            Phase::Requested | Phase::Prepared => {
                conn.say(&Message::Reject(PrivateData::empty()));
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

    /// Gives the connection a bounded time to come to its end.
    fn linger(&mut self, conn: &mut Conn) {
        let until = self.now.saturating_add(self.config.linger);
        self.set_deadline(conn, Some(until));
        self.heat(conn);
    }

    /// The peer said that it ends, or is gone. What is in its ring counts.
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

    /// The socket came to its end, for a reason if there is one.
    pub(super) fn end_of_link(
        &mut self,
        conn: &mut Conn,
        error: Option<io::Error>,
        events: &mut Vec<Event>,
    ) {
        // The socket ends when nobody there uses anything of ours any more.
        conn.peer_takes = 0;
        let gone = |text| io::Error::new(io::ErrorKind::ConnectionReset, text);
        let reason = match conn.phase {
            Phase::Running => {
                let error = error.unwrap_or_else(|| gone("the peer's process is gone"));
                return self.peer_ends(conn, CloseReason::network(&error), events);
            }
            Phase::AwaitReply => CloseReason::network(&error.unwrap_or_else(|| {
                gone("the peer closed before it replied; its log may tell why")
            })),
            Phase::AwaitRequest => {
                self.say(conn.link.as_ref(), &"it ended before its request");
                CloseReason::Peer
            }
            Phase::Requested | Phase::Prepared => CloseReason::Peer,
            Phase::Busy => conn.reason.take().unwrap_or(CloseReason::Local),
            Phase::Ending | Phase::Gone => CloseReason::Local,
        };
        self.finish(conn, reason, events);
    }

    /// The peer broke a rule: it is told, and the connection ends.
    pub(super) fn end_fault(&mut self, conn: &mut Conn, fault: Fault, events: &mut Vec<Event>) {
        conn.say(&Message::Fault(fault.clone()));
        let reason = match conn.phase {
            Phase::Ending => CloseReason::Local,
            _ => CloseReason::PeerFault(fault),
        };
        self.finish(conn, reason, events);
    }

    /// Gives everything back and reports the end. The peer keeps its own
    /// mapping of the memory and finds there what we put.
    pub(super) fn finish(&mut self, conn: &mut Conn, reason: CloseReason, events: &mut Vec<Event>) {
        if conn.phase == Phase::Gone {
            return;
        }
        if !self.still_used(conn).is_empty() {
            // Buffers are handed back when nobody else can touch them, which
            // the peer's device may do for a while.
            conn.phase = Phase::Busy;
            conn.reason = Some(reason);
            self.look_again(conn);
            return;
        }
        if conn.phase.is_pending() {
            self.pending = self.pending.saturating_sub(1);
        }
        self.set_deadline(conn, None);
        let (qp, visible) = (conn.id, conn.is_visible());
        conn.phase = Phase::Gone;
        // Who uses memory of the peer may keep the socket open.
        if let Some(link) = conn.link.take() {
            self.unwatch(&link);
        }
        conn.channel = None;
        conn.taken = None;
        conn.outbound.flush(qp, &mut self.keys, events);
        conn.inbound.flush(qp, events);
        if visible {
            events.push(Event::Closed { qp, reason });
        }
    }

    /// Looks later whether the peer lets go. A disk takes a moment; who does not let
    /// go for long was stopped, or its disk hangs, and somebody has to know.
    fn look_again(&mut self, conn: &mut Conn) {
        let since = *conn.busy_since.get_or_insert(self.now);
        let waited = self.now.saturating_sub(since);
        let next = (waited / 4).clamp(LOOK_SOON, LOOK_LATE);
        if waited >= TELL_AFTER && !conn.busy_told {
            conn.busy_told = true;
            tell(conn);
        }
        self.set_deadline(conn, Some(self.now.saturating_add(next)));
    }

    /// Takes back what the peer of a connection was granted, and says which
    /// keys it uses nevertheless.
    pub(super) fn still_used(&self, conn: &Conn) -> Vec<u32> {
        let granted = conn.channel.as_ref().filter(|_| conn.peer_takes > 0);
        let used = granted.map(|channel| {
            let keys = self.given.keys_of(conn.id);
            keys.filter(|key| !channel.revoke(*key)).collect()
        });
        used.unwrap_or_default()
    }
}

/// The log learns which process keeps a connection from ending.
fn tell(conn: &Conn) {
    let process = match conn.peer() {
        Some(Peer::Process { pid, .. }) => pid,
        _ => 0,
    };
    of_peer!(
        warn,
        conn,
        process,
        "memory of this process is still in use by process {process} after its connection \
         ended; it stays reserved until that process releases it or ends: is the process \
         stopped (`kill -CONT {process}` resumes it), or waiting for a disk?"
    );
}

/// How soon it is looked first whether a peer lets go of memory, if it does not say
/// so by ending its side.
const LOOK_SOON: Duration = Duration::from_millis(5);
/// And how late at last.
const LOOK_LATE: Duration = Duration::from_millis(250);
/// A disk that answers does so sooner.
const TELL_AFTER: Duration = Duration::from_secs(2);
