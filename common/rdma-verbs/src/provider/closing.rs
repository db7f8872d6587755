//! Closing of queue pairs.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_rdma::{CloseReason, Completion, Event, Outcome, PrivateData, QpId, Received, explain};

use super::{LINGERING, Verbs, watch};
use crate::adapter::AdapterId;
use crate::blocking_calls::PendingCall;
use crate::conn::{Conn, Phase, Stopped, log_peer};
use crate::link::{Link, Room};
use crate::outstanding::{RecvItem, SendItem};
use crate::retired::Retired;
use crate::sys::{CmId, CmIdKey, Context};
use crate::words::{found_by, of_device, stopped_by_request};

/// Maximum queue pairs torn down in one poll.
const ENDS_AT_ONCE: usize = 8;
/// Time for outstanding work to complete with its own status after the peer has disconnected.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// Time for a device to refuse a request that it has completed already.
const REFUSAL: Duration = Duration::from_millis(10);
/// Time for which an id waits until the peer is notified of the disconnect.
const FAREWELL: Duration = Duration::from_secs(2);

impl Verbs {
    /// Ends a queue pair with an unexpected reason. It is logged here if the peer was not
    /// reported to an owner yet; otherwise the owner logs it, with the names that it knows.
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
            log_peer!(warn, conn, device, qp, left_out, "{reason}");
        }
        self.end(qp, reason);
    }

    /// The device of a connection, and its queue pair number.
    fn device_of(&self, conn: &Conn) -> Option<(&str, u32)> {
        let link = conn.link.as_ref()?;
        let adapter = self.adapters.get(link.room.adapter.0 as usize)?;
        Some((adapter.as_ref()?.name.as_str(), link.qp_number))
    }

    /// Ends a queue pair. The first reason stays.
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

    /// Records that an established connection is over: its owner is notified by the next
    /// tear-down of queue pairs, however long that of this one takes.
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
                // A peer without a response would wait for its time-out.
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

    /// The peer disconnected. On InfiniBand and RoCE that is a datagram which may overtake
    /// packets of the connection: a refusal by the peer, with its reason, may still be in
    /// flight.
    pub(super) fn on_peer_disconnect(&mut self, qp: QpId) {
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

    /// Ends a closing queue pair without outstanding work.
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
        // A peer that is gone needs no response.
        let _ = conn.cm.reject(private_data);
        self.end(qp, CloseReason::Local);
        Ok(())
    }

    /// Tears down all ended queue pairs. Returns whether there were any.
    pub(super) fn end_all(&mut self, events: &mut Vec<Event>) -> bool {
        let mut any = false;
        while self.end_some(events) {
            any = true;
        }
        any
    }

    /// Tears down some of the ended queue pairs: each takes system calls, and when many end
    /// at once others should not wait for all. Returns whether there were any.
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
        // Completions that exist already return with their own status.
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
        // Now no completion is added; taking all remaining ones frees its share of the
        // completion queue.
        while self.reap(events) {}
        let Some(mut conn) = self.conns.remove(qp) else {
            return;
        };
        flush(&mut conn, events);
        if conn.exposed {
            self.return_all_of(qp, events);
        }
        self.detach_srq(&conn);
        let reason = conn.reason.take().unwrap_or(CloseReason::Local);
        let reason = match self.device_of(&conn) {
            Some((device, number)) => found_by(reason, device, number),
            None => reason,
        };
        let waits = said_good_bye && reason != CloseReason::Peer;
        log_peer!(debug, conn, "queue pair closed: {reason}");
        events.push(Event::Closed { qp, reason });
        let Conn {
            mut cm,
            link,
            pending_call,
            ..
        } = *conn;
        let link = match (link, pending_call) {
            (Some(link), Some(pending_call)) if held => {
                self.destroy_in_thread(cm, link, &pending_call);
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
            // Its memory is deregistered before its domain is destroyed.
            drop(link);
            self.leave(room);
        }
    }

    /// Stops the queue pair, so that its device does nothing for the peer any more.
    fn stop(&mut self, qp: QpId) -> Stopped {
        let Some(conn) = self.conns.get_mut(qp) else {
            return Stopped::default();
        };
        conn.find_own_fault();
        let said_good_bye = if conn.was_connected {
            // Moves the queue pair to the error state, and notifies the peer.
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

    /// Whether the device may not have reported its refusal to the peer yet: rxe completes a
    /// receive first, and a queue pair that is destroyed in between does not report it.
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

    /// Lets a thread, which may block for the peer's response, destroy a stopped queue pair.
    fn destroy_in_thread(&mut self, cm: CmId, link: Link, pending_call: &PendingCall<Retired>) {
        self.settling += 1;
        let mailbox = Arc::clone(&self.mailbox);
        let retired = Retired { cm, link, mailbox };
        if let Err(retired) = pending_call.leave(retired) {
            self.blocking_calls.run(move || retired.settle());
        }
    }

    /// Releases the resources of a destroyed queue pair.
    pub(super) fn leave(&mut self, room: Room) {
        if let Some(adapter) = self.adapter(room.adapter) {
            adapter.release(room.queue, room.claimed);
            adapter.users = adapter.users.saturating_sub(1);
        }
        self.close_adapter(room.adapter);
    }

    /// Removes an id that waited for its peer.
    pub(super) fn stop_lingering(&mut self, id: CmIdKey) {
        drop(self.lingering.take(id));
    }

    /// The device was removed: ends everything on it.
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

    /// Closes an unused device: one that was removed, or one that could not report its
    /// removal.
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
            // Makes librdmacm close a device that is no longer listed: the kernel waits for
            // that.
            let _ = Context::all();
        }
    }

    /// Ends everything immediately.
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

    /// Processes passed deadlines.
    pub(super) fn expire(&mut self, events: &mut Vec<Event>) -> bool {
        let mut any = false;
        while let Some((deadline, qp)) = self.deadlines.first().copied() {
            if deadline > self.now {
                break;
            }
            self.deadlines.pop_first();
            any = true;
            self.time_out(qp);
        }
        any |= self.end_unreturned(events);
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
            Phase::Connecting => "the peer's response",
            Phase::Requested | Phase::Prepared => {
                let _ = conn.cm.reject(&[]);
                "a response to the request"
            }
            Phase::Accepting => "the peer's confirmation",
            Phase::Running if !conn.unexplained => return self.nudge(qp),
            Phase::Running => {
                // The device stopped it without a reason.
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

    /// Stops waiting for a device before its queue pair is destroyed: it took too long, or
    /// there is no need to wait.
    pub(super) fn wait_no_longer(&mut self, qp: QpId) {
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
    /// Whether destroying the queue pair would block for the peer's response and may be left
    /// to another thread. Not if the queue pair could not be `stopped`: its buffers return to
    /// their owner now, so the destruction has to be waited for. A held queue pair is still
    /// connecting, and has exposed nothing to a peer. A device that is gone
    /// (`EIO`) accesses no buffers.
    fn hold(&self, stopped: &io::Result<()>) -> bool {
        if !self.is_held() {
            return false;
        }
        match stopped {
            Ok(()) => return true,
            Err(error) if error.raw_os_error() == Some(libc::EIO) => return true,
            Err(error) => {
                let error = explain(error);
                log_peer!(error, self, "a queue pair cannot be stopped: {error}");
            }
        }
        while self
            .pending_call
            .as_ref()
            .is_some_and(|one| one.is_in_progress())
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    /// On InfiniBand and RoCE a queue pair whose peer only disconnects is not in the error
    /// state: if it is, its device stopped it because of a request of the peer.
    fn find_own_fault(&mut self) {
        let Some(link) = &self.link else { return };
        let by_peer = self.reason == Some(CloseReason::Peer) && !self.reason_is_own;
        if by_peer && !link.iwarp && self.was_connected && self.cm.qp_failed() {
            self.reason = Some(stopped_by_request());
        }
    }
}

/// Returns everything outstanding, in order.
fn flush(conn: &mut Conn, events: &mut Vec<Event>) {
    let qp = conn.id;
    let stuck = conn.stuck.take();
    events.extend(stuck.and_then(|(item, outcome)| completion(qp, item, outcome)));
    while let Some((item, outcome)) = conn.sends.pop_anyway() {
        // The memory is closed before its owner gets it back.
        if let SendItem::Work { keeps: true, .. } = item {
            let _ = conn.close_kept();
        }
        events.extend(completion(qp, item, outcome));
    }
    while let Some((item, outcome)) = conn.recvs.pop_anyway() {
        events.push(Event::Received(received(qp, item, outcome)));
    }
}

/// The caller's event for an entry of a send queue.
#[inline]
pub(super) fn completion(qp: QpId, item: SendItem, outcome: Outcome) -> Option<Event> {
    let SendItem::Work { tag, kind, buf, .. } = item else {
        return None;
    };
    Some(Event::Completion(Completion {
        qp,
        tag,
        kind,
        buf,
        outcome,
    }))
}

/// The caller's event for a receive.
#[inline]
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
        // Verbs report a solicited event only through the completion channel.
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
