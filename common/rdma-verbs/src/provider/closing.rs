//! The end of queue pairs.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_rdma::{CloseReason, Completion, Event, Outcome, PrivateData, QpId, Received, explain};

use super::{LINGERING, Verbs, watch};
use crate::adapter::AdapterId;
use crate::blocking_calls::Calling;
use crate::conn::{Conn, Phase, Stopped, of_peer};
use crate::link::{Link, Room};
use crate::outstanding::{RecvItem, SendItem};
use crate::retired::Retired;
use crate::sys::{CmId, CmIdKey, Context};
use crate::words::{found_by, of_device, stopped_by_request};

/// Queue pairs torn down in one poll.
const ENDS_AT_ONCE: usize = 8;
/// How long work that is under way when the peer says good-bye may take to
/// come back as what it is.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// How long a device gets to refuse what it has completed already.
const REFUSAL: Duration = Duration::from_millis(10);
/// How long an id waits for the peer to notice that we left.
const FAREWELL: Duration = Duration::from_secs(2);

impl Verbs {
    /// A queue pair ends for a reason nobody asked for. The log hears it here if no owner
    /// knows the peer yet; otherwise its owner says it, who knows whom it is about.
    pub(super) fn fail(&mut self, qp: QpId, reason: CloseReason) {
        let Some(conn) = self.conns.get(qp) else {
            return;
        };
        if conn.phase == Phase::Ending {
            return;
        }
        if !conn.phase.is_connected()
            && let Some(left_out) = self.log.ask(self.now)
        {
            let (device, qp) = self.device_of(conn).unzip();
            of_peer!(warn, conn, device, qp, left_out, "{reason}");
        }
        self.end(qp, reason);
    }

    /// The device of a connection, and its number for the queue pair.
    fn device_of(&self, conn: &Conn) -> Option<(&str, u32)> {
        let link = conn.link.as_ref()?;
        let adapter = self.adapters.get(link.room.adapter.0 as usize)?;
        Some((adapter.as_ref()?.name.as_str(), link.qp_number))
    }

    /// A queue pair ends. The first reason stays.
    pub(super) fn end(&mut self, qp: QpId, reason: CloseReason) {
        let Some(conn) = self.conns.get_mut(qp) else {
            return;
        };
        if conn.phase == Phase::Ending {
            return;
        }
        if conn.phase.is_pending() {
            self.pending = self.pending.saturating_sub(1);
        }
        Self::note_leaving(&mut self.leaving, conn);
        conn.was_connected = conn.phase.is_connected();
        conn.phase = Phase::Ending;
        conn.reason.get_or_insert(reason);
        Self::set_deadline(&mut self.deadlines, conn, None);
        self.ending.push(qp);
    }

    /// A connection that stood is over: its owner learns that when queue pairs are torn
    /// down next, however long this one takes.
    pub(super) fn note_leaving(leaving: &mut Vec<QpId>, conn: &mut Conn) {
        if conn.phase == Phase::Running && !conn.left {
            conn.left = true;
            leaving.push(conn.id);
        }
    }

    pub(super) fn wind_down(&mut self, qp: QpId) {
        let Some(conn) = self.conns.get_mut(qp) else {
            return;
        };
        match conn.phase {
            Phase::Draining | Phase::Ending => {}
            Phase::Requested | Phase::Prepared => {
                // A peer that gets no answer would wait for its time-out.
                let _ = conn.cm.reject(&[]);
                self.end(qp, CloseReason::Local);
            }
            Phase::Running => {
                conn.phase = Phase::Draining;
                conn.reason = Some(CloseReason::Local);
                conn.reason_is_own = true;
                let deadline = self.now + self.config.linger;
                Self::set_deadline(&mut self.deadlines, conn, Some(deadline));
                self.post_chain(qp);
                self.drained(qp);
            }
            _ => self.end(qp, CloseReason::Local),
        }
    }

    /// The peer said good-bye. On InfiniBand and RoCE that is a datagram which
    /// may overtake the connection's own packets: what it refused before it
    /// left, and why, may still be on its way.
    pub(super) fn hear_out(&mut self, qp: QpId) {
        let Some(conn) = self.conns.get_mut(qp) else {
            return;
        };
        let iwarp = conn.link.as_ref().is_none_or(|link| link.iwarp);
        if iwarp || conn.sends.is_empty() {
            return self.end(qp, CloseReason::Peer);
        }
        Self::note_leaving(&mut self.leaving, conn);
        conn.phase = Phase::Draining;
        conn.reason.get_or_insert(CloseReason::Peer);
        let deadline = self.now + LAST_WORDS;
        Self::set_deadline(&mut self.deadlines, conn, Some(deadline));
    }

    /// Ends a closing queue pair on which nothing is under way.
    pub(super) fn drained(&mut self, qp: QpId) {
        let Some(conn) = self.conns.get(qp) else {
            return;
        };
        if conn.phase == Phase::Draining && conn.sends.is_empty() {
            self.end(qp, CloseReason::Local);
        }
    }

    pub(super) fn reject_request(
        &mut self,
        qp: QpId,
        private_data: &PrivateData,
    ) -> Result<(), nvmeof_rdma::PostError> {
        use nvmeof_rdma::PostError;
        let conn = self.conns.get(qp).ok_or(PostError::Closed)?;
        if !conn.phase.is_pending() {
            return Err(conn.phase.refusal());
        }
        let iwarp = super::connecting::is_iwarp(&conn.cm);
        super::connecting::check_private(private_data, iwarp, super::connecting::REJECT)?;
        // A peer that is gone needs no answer.
        let _ = conn.cm.reject(private_data);
        self.end(qp, CloseReason::Local);
        Ok(())
    }

    /// Tears down the queue pairs that end. Returns whether there were any.
    pub(super) fn end_all(&mut self, events: &mut Vec<Event>) -> bool {
        let mut any = false;
        while self.end_some(events) {
            any = true;
        }
        any
    }

    /// Tears down some of the queue pairs that end: each takes calls into the
    /// kernel, and when many go at once the others are not to wait for all.
    /// Returns whether there were any.
    pub(super) fn end_some(&mut self, events: &mut Vec<Event>) -> bool {
        let leaving = self.leaving.drain(..);
        events.extend(leaving.map(|qp| Event::Ending { qp }));
        let some = self.ending.len().min(ENDS_AT_ONCE);
        let ending: Vec<QpId> = self.ending.drain(..some).collect();
        for qp in &ending {
            self.tear_down(*qp, events);
        }
        some > 0
    }

    fn tear_down(&mut self, qp: QpId, events: &mut Vec<Event>) {
        // Completions that are there already come back as what they are.
        while self.reap(events) {}
        let Some(conn) = self.conns.get(qp) else {
            return;
        };
        let Stopped {
            said_good_bye,
            held,
        } = match conn.stopped {
            Some(stopped) => stopped,
            None => self.stop(qp),
        };
        if self.awaits_last(qp) || self.awaits_refusal(qp) {
            return;
        }
        if let Some(conn) = self.conns.get_mut(qp).filter(|_| !held) {
            conn.cm.destroy_qp();
        }
        // Now no completion is added, and taking all that are left makes its
        // room in the completion queue free.
        while self.reap(events) {}
        let Some(mut conn) = self.conns.remove(qp) else {
            return;
        };
        flush(&mut conn, events);
        self.stop_drawing(&conn);
        let reason = conn.reason.take().unwrap_or(CloseReason::Local);
        let reason = match self.device_of(&conn) {
            Some((device, number)) => found_by(reason, device, number),
            None => reason,
        };
        let waits = said_good_bye && reason != CloseReason::Peer;
        of_peer!(debug, conn, "queue pair closed: {reason}");
        events.push(Event::Closed { qp, reason });
        let Conn {
            mut cm,
            link,
            calling,
            ..
        } = *conn;
        let link = match (link, calling) {
            (Some(link), Some(calling)) if held => {
                self.leave_unanswered(cm, link, &calling);
                return;
            }
            (link, _) => link,
        };
        if waits {
            cm.set_token(LINGERING);
            let deadline = self.now + FAREWELL;
            drop(self.lingering.add(cm.key(), deadline, cm));
        }
        if let Some(link) = link {
            let room = link.room;
            // Its memory is deregistered before its domain goes.
            drop(link);
            self.leave(room);
        }
    }

    /// Has the device do nothing more for the peer.
    fn stop(&mut self, qp: QpId) -> Stopped {
        let Some(conn) = self.conns.get_mut(qp) else {
            return Stopped::default();
        };
        conn.find_own_fault();
        let said_good_bye = if conn.was_connected {
            // Moves the queue pair to a state in which its device does
            // nothing for the peer any more, and tells the peer.
            conn.cm.disconnect().is_ok()
        } else {
            false
        };
        let result = if !said_good_bye && conn.link.is_some() {
            conn.cm.stop_qp()
        } else {
            Ok(())
        };
        let stopped = Stopped {
            said_good_bye,
            held: conn.hold(&result),
        };
        if conn.exposed {
            self.close_all_to_peer(qp);
        }
        if let Some(conn) = self.conns.get_mut(qp) {
            conn.stopped = Some(stopped);
        }
        stopped
    }

    /// Whether the device may not have told the peer yet what it refused: rxe
    /// completes a receive first, and a queue pair that is destroyed in between
    /// says nothing any more.
    fn awaits_refusal(&mut self, qp: QpId) -> bool {
        let Some(conn) = self.conns.get_mut(qp) else {
            return false;
        };
        let iwarp = conn.link.as_ref().is_none_or(|link| link.iwarp);
        let refused = matches!(conn.reason, Some(CloseReason::PeerFault(_)));
        if iwarp || !refused || conn.refused {
            return false;
        }
        conn.refused = true;
        let deadline = self.now + REFUSAL;
        Self::set_deadline(&mut self.deadlines, conn, Some(deadline));
        true
    }

    /// Has a queue pair that is stopped destroyed by a thread that may wait
    /// for the peer's answer.
    fn leave_unanswered(&mut self, cm: CmId, link: Link, calling: &Calling<Retired>) {
        self.settling += 1;
        let mailbox = Arc::clone(&self.mailbox);
        let retired = Retired { cm, link, mailbox };
        if let Err(retired) = calling.leave(retired) {
            self.blocking_calls.run(move || retired.settle());
        }
    }

    /// A queue pair is gone: its place on the device is free.
    pub(super) fn leave(&mut self, room: Room) {
        if let Some(adapter) = self.adapter(room.adapter) {
            adapter.release(room.queue, room.claimed);
            adapter.users = adapter.users.saturating_sub(1);
        }
        self.close_adapter(room.adapter);
    }

    /// An id that waited for its peer is done with.
    pub(super) fn stop_lingering(&mut self, id: CmIdKey) {
        drop(self.lingering.take(id));
    }

    /// The device goes: everything on it ends.
    pub(super) fn lose_adapter(&mut self, id: AdapterId) {
        let Some(adapter) = self.adapter(id) else {
            return;
        };
        if adapter.gone {
            return;
        }
        adapter.gone = true;
        tracing::warn!(device = adapter.name, "the RDMA device is gone");
        let text = format!("the RDMA device {} is gone", adapter.name);
        let on_it = self.conns.iter_mut().filter(|conn| {
            let link = conn.link.as_ref();
            link.is_some_and(|link| link.room.adapter == id)
        });
        let on_it: Vec<QpId> = on_it.map(|conn| conn.id).collect();
        for qp in on_it {
            self.end(qp, of_device(io::ErrorKind::NetworkDown, text.clone()));
        }
        self.close_adapter(id);
    }

    /// Closes a device that nothing uses: one that goes, or one that could not
    /// tell when it goes.
    pub(super) fn close_adapter(&mut self, id: AdapterId) {
        let Some(place) = self.adapters.get_mut(id.0 as usize) else {
            return;
        };
        let idle = |one: &mut crate::adapter::Adapter| {
            let drawn = one.receives.as_ref().is_some_and(|it| !it.users.is_empty());
            one.users == 0 && !drawn && (one.gone || one.anchor.is_none())
        };
        let Some(mut adapter) = place.take_if(idle) else {
            return;
        };
        for fd in [adapter.channel.fd(), adapter.context.async_fd()] {
            let _ = self.epoll.delete(fd);
        }
        adapter.windows.clear();
        let gone = adapter.gone;
        drop(adapter);
        if gone {
            // Has librdmacm close a device that is no longer listed: the
            // kernel waits for that.
            let _ = Context::all();
        }
    }

    /// Ends everything at once.
    pub(super) fn tear_down_all(&mut self) {
        let all: Vec<QpId> = self.conns.iter_mut().map(|conn| conn.id).collect();
        for qp in all {
            self.end(qp, CloseReason::Local);
            self.wait_no_longer(qp);
        }
        self.end_all(&mut Vec::new());
        self.lingering.clear();
        self.adapters.clear();
    }

    /// What is due by now.
    pub(super) fn expire(&mut self) -> bool {
        let mut any = false;
        while let Some((deadline, qp)) = self.deadlines.first().copied() {
            if deadline > self.now {
                break;
            }
            self.deadlines.pop_first();
            any = true;
            self.time_out(qp);
        }
        while let Some(cm) = self.lingering.take_due(self.now) {
            drop(cm);
        }
        self.retry_listeners();
        any
    }

    fn time_out(&mut self, qp: QpId) {
        let Some(conn) = self.conns.get_mut(qp) else {
            return;
        };
        conn.deadline = None;
        let waiting_for = match conn.phase {
            Phase::Resolving => "the peer's address to be resolved",
            Phase::Routing => "a route to the peer",
            Phase::Connecting => "the peer's answer",
            Phase::Requested | Phase::Prepared => {
                let _ = conn.cm.reject(&[]);
                "an answer to the request"
            }
            Phase::Accepting => "the peer's confirmation",
            Phase::Running if !conn.unexplained => return self.nudge(qp),
            Phase::Running => {
                // The device stopped it and nothing said why.
                let text = "the device stopped the queue pair";
                self.fail(qp, of_device(io::ErrorKind::ConnectionAborted, text));
                return;
            }
            Phase::Draining => {
                self.end(qp, CloseReason::Local);
                return;
            }
            Phase::Ending => return self.wait_no_longer(qp),
        };
        self.end(qp, CloseReason::Timeout { waiting_for });
    }

    /// What a device still had to do before its queue pair is destroyed took
    /// too long, or is not waited for.
    fn wait_no_longer(&mut self, qp: QpId) {
        let Some(conn) = self.conns.get_mut(qp) else {
            return;
        };
        conn.drew_last = true;
        conn.refused = true;
        if conn.stopped.is_some() {
            Self::set_deadline(&mut self.deadlines, conn, None);
            self.ending.push(qp);
        }
    }

    fn retry_listeners(&mut self) {
        let now = self.now;
        if self.lost.iter().all(|(due, _)| *due > now) {
            return;
        }
        let group = &self.group;
        self.lost.retain_mut(|(due, addr)| {
            if *due > now {
                return true;
            }
            *due = now + crate::listening::RETRY;
            !group.retry(*addr)
        });
    }
}

impl Conn {
    /// Whether destroying the queue pair would wait for the peer's answer, and
    /// may be left to others. Not when the queue pair could not be `stopped`:
    /// the buffers posted there go back to their owner now, so that would have
    /// to be waited for. A device that is gone (`EIO`) touches none.
    fn hold(&self, stopped: &io::Result<()>) -> bool {
        if !self.is_held() {
            return false;
        }
        match stopped {
            Ok(()) => return true,
            Err(error) if error.raw_os_error() == Some(libc::EIO) => return true,
            Err(error) => {
                let error = explain(error);
                of_peer!(error, self, "a queue pair cannot be stopped: {error}");
            }
        }
        while self.calling.as_ref().is_some_and(|one| one.is_under_way()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    /// On InfiniBand and RoCE a queue pair whose peer only says good-bye is
    /// not in the error state: if it is, its device stopped it for what the
    /// peer asked.
    fn find_own_fault(&mut self) {
        let Some(link) = &self.link else { return };
        let told = self.reason == Some(CloseReason::Peer) && !self.reason_is_own;
        if told && !link.iwarp && self.was_connected && self.cm.qp_failed() {
            self.reason = Some(stopped_by_request());
        }
    }
}

/// Gives back everything that is outstanding, in order.
fn flush(conn: &mut Conn, events: &mut Vec<Event>) {
    let qp = conn.id;
    let stuck = conn.stuck.take();
    events.extend(stuck.and_then(|(item, outcome)| completion(qp, item, outcome)));
    while let Some((item, outcome)) = conn.sends.pop_anyway() {
        events.extend(completion(qp, item, outcome));
    }
    while let Some((item, outcome)) = conn.recvs.pop_anyway() {
        events.push(Event::Received(received(qp, item, outcome)));
    }
}

/// What the caller sees of something that was on a send queue.
pub(super) fn completion(qp: QpId, item: SendItem, outcome: Outcome) -> Option<Event> {
    let SendItem::Work {
        tag,
        kind,
        sink,
        buf,
        _head: _,
    } = item
    else {
        return None;
    };
    // The peer loses the memory before its owner gets it back.
    drop(sink);
    Some(Event::Completion(Completion {
        qp,
        tag,
        kind,
        buf,
        outcome,
    }))
}

/// What the caller sees of a receive.
pub(super) fn received(qp: QpId, item: RecvItem, outcome: Outcome) -> Received {
    let done = outcome.is_success();
    let len = if done {
        item.len.min(item.buf.len())
    } else {
        0
    };
    Received {
        qp,
        tag: item.tag,
        len,
        invalidated: item.invalidated.filter(|_| done),
        // Verbs tell a sender's wish for an event to the completion channel
        // only.
        solicited: false,
        buf: item.buf,
        outcome,
    }
}

/// The token of a watched adapter.
pub(super) fn watched(token: u64) -> Option<(u64, AdapterId)> {
    let kind = token & !u64::from(u32::MAX);
    let number = u32::try_from(token & u64::from(u32::MAX)).ok()?;
    matches!(kind, watch::COMPLETIONS | watch::ASYNC).then_some((kind, AdapterId(number)))
}
