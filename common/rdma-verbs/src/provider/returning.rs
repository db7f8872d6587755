//! Withdrawn buffers whose access a device still has to end.
//!
//! Only memory windows need that: the local request that invalidates them, or that binds them,
//! has to complete. Nothing waits for it here. A poll returns the buffer when the request is
//! complete, or when the queue pair is destroyed, which the deadline of the buffer causes.

use std::time::Duration;

use nvmeof_rdma::{Event, QpId, RemoteKey};

use super::Verbs;
use super::exposing::{Access, Exposure, TIMEOUT, WindowState};
use super::queueing::{chain, list};
use crate::conn::{Phase, Table};
use crate::outstanding::SendItem;
use crate::sys::SendOp;
use crate::windows::KeyMap;
use crate::words::not_acknowledged;

/// The kernel's default for [`VerbsConfig::ack_timeout`](crate::VerbsConfig)
/// (`CMA_IBOE_PACKET_LIFETIME`, and the way back): 2.1 s.
const ACK_TIMEOUT: u8 = 19;
/// The deadline until the next poll, which knows the time.
const NOT_SET: Duration = Duration::MAX;

/// A withdrawn key whose buffer has not returned.
#[derive(Debug)]
pub(super) struct Returning {
    /// When its queue pair ends, unless its send queue made progress.
    pub(super) deadline: Duration,
    key: RemoteKey,
    /// Number of returned requests of the send queue when the deadline was set.
    progress: u64,
}

impl Verbs {
    /// The buffer of `key`, which is exposed, is withdrawn.
    #[cold]
    pub(super) fn return_later(&mut self, key: RemoteKey) {
        if let Some(exposure) = self.exposed.get_mut(&key) {
            exposure.withdrawn = true;
        }
        self.invalidate(key);
        self.returning.push_back(Returning {
            deadline: NOT_SET,
            key,
            progress: 0,
        });
        self.touched.push(key);
        self.is_behind = true;
    }

    /// Returns withdrawn buffers that peers cannot access any more. Sets the deadlines of others,
    /// and requests invalidations for which there was no entry.
    #[cold]
    pub(super) fn return_touched(&mut self, events: &mut Vec<Event>) {
        self.set_deadlines();
        let mut touched = std::mem::take(&mut self.touched);
        for key in touched.drain(..) {
            // Others returned already, and their key may be in use again.
            let withdrawn = |exposure: &&mut Exposure| exposure.withdrawn;
            let Some(exposure) = self.exposed.get_mut(&key).filter(withdrawn) else {
                continue;
            };
            if exposure.is_closable() {
                self.return_one(key, events);
            } else if exposure.is_overtaken() {
                let (qp, buf) = (exposure.qp, exposure.buf.take());
                self.forget_deadline(key);
                events.extend(buf.map(|buf| Event::Withdrawn { qp, key, buf }));
            } else if !self.invalidate(key) {
                self.touched.push(key);
            }
        }
        touched.append(&mut self.touched);
        self.touched = touched;
    }

    /// Sets the deadlines of keys that were withdrawn since the last poll.
    fn set_deadlines(&mut self) {
        let deadline = self.now + self.resend_time();
        let newest = self.returning.iter_mut().rev();
        for one in newest.take_while(|one| one.deadline == NOT_SET) {
            one.deadline = deadline;
            one.progress = progress(&self.exposed, &self.conns, one.key).map_or(0, |(_, it)| it);
        }
    }

    fn return_one(&mut self, key: RemoteKey, events: &mut Vec<Event>) {
        let Some(exposure) = self.exposed.remove(&key) else {
            return;
        };
        self.forget_deadline(key);
        let qp = exposure.qp;
        let buf = self.end_exposure(key, exposure);
        events.extend(buf.map(|buf| Event::Withdrawn { qp, key, buf }));
    }

    /// Forgets the deadline of a key. It is mostly the first one.
    fn forget_deadline(&mut self, key: RemoteKey) {
        let of = self.returning.iter().position(|one| one.key == key);
        of.and_then(|at| self.returning.remove(at));
    }

    /// Returns all withdrawn buffers of a queue pair that is destroyed.
    pub(super) fn return_all_of(&mut self, qp: QpId, events: &mut Vec<Event>) {
        let of = |one: &Exposure| one.qp == qp && one.withdrawn;
        let keys = self.exposed.iter().filter(|(_, one)| of(one));
        let keys: Vec<RemoteKey> = keys.map(|(key, _)| *key).collect();
        for key in keys {
            self.return_one(key, events);
        }
    }

    /// Ends queue pairs on which an invalidation takes too long: when such a queue pair is
    /// destroyed, its peer can access nothing, whatever keys exist. Each request before it in the
    /// send queue has as much time. Returns whether the time of any has passed.
    pub(super) fn end_unreturned(&mut self, events: &mut Vec<Event>) -> bool {
        let now = self.now;
        let is_due = |first: Option<&Returning>| first.is_some_and(|one| one.deadline <= now);
        if !is_due(self.returning.front()) {
            return false;
        }
        // After a long pause, a poll leaves completions, and those of the requests may be among
        // them. Nothing is posted meanwhile, so there is an end of them.
        while self.reap(events) {}
        self.return_touched(events);
        let deadline = now + self.resend_time();
        while is_due(self.returning.front())
            && let Some(one) = self.returning.pop_front()
        {
            match progress(&self.exposed, &self.conns, one.key) {
                Some((qp, progress)) if progress == one.progress => {
                    self.fail(qp, not_acknowledged());
                }
                Some((_, progress)) => self.returning.push_back(Returning {
                    deadline,
                    progress,
                    ..one
                }),
                None => {}
            }
        }
        true
    }

    /// Time for one retransmission by the device: the local request to invalidate a window
    /// waits behind it. A queue pair that is blocked for longer is closed, because the owner of
    /// the buffer waits.
    fn resend_time(&self) -> Duration {
        let exponent = self.config.ack_timeout.unwrap_or(ACK_TIMEOUT);
        // 4.096 µs times 2 to that power (InfiniBand Architecture, 9.7.6.1.3), and half of it
        // for the response. Bounded, so that it never takes minutes.
        let micros = 4u64.checked_shl(exponent.into()).unwrap_or(u64::MAX);
        let time = Duration::from_micros(micros.saturating_add(micros / 2));
        time.clamp(TIMEOUT, Duration::from_secs(5))
    }

    /// Requests the invalidation of a window that wants it. Returns false if there is no entry
    /// for the request.
    fn invalidate(&mut self, key: RemoteKey) -> bool {
        let wants = |exposure: &&Exposure| exposure.wants_invalidating();
        let Some(qp) = self.exposed.get(&key).filter(wants).map(|one| one.qp) else {
            return true;
        };
        if !self.has_entry(qp) {
            return false;
        }
        self.make_room(qp, 1);
        let Some(conn) = self.conns.get_mut(qp) else {
            return true;
        };
        // It is destroyed by the next poll.
        if conn.phase == Phase::Ending {
            return true;
        }
        let op = SendOp::Invalidate { key: key.0 };
        chain(conn, SendItem::Invalidate(key), op, true);
        conn.internal += 1;
        list(&mut self.listed, conn);
        if let Some(exposure) = self.exposed.get_mut(&key)
            && let Access::Window { state, .. } = &mut exposure.access
        {
            *state = WindowState::Closing;
        }
        true
    }
}

/// The queue pair of an exposed key, and the number of returned requests of its send queue.
fn progress(exposed: &KeyMap<Exposure>, conns: &Table, key: RemoteKey) -> Option<(QpId, u64)> {
    let qp = exposed.get(&key)?.qp;
    Some((qp, conns.get(qp)?.sends.returned()))
}
