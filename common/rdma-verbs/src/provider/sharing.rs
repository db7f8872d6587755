//! Shared receive queues: their queue pairs, posted receives, and the end of a queue pair
//! that uses one.

use std::io;
use std::time::Duration;

use nvmeof_memory::Buf;
use nvmeof_rdma::{
    CloseReason, Event, PostError, QpId, RemoteKey, SharedReceives, SrqId, Tag, explain,
};

use super::Verbs;
use super::closing::received;
use crate::adapter::{Adapter, AdapterId};
use crate::conn::{Conn, Phase, SrqUse};
use crate::shared::Shared;
use crate::sys::{SrqKey, WorkCompletion};
use crate::words::of_device;

/// Time for a device to report that it takes no more receives for a stopped queue pair. Some
/// never report it.
const LAST: Duration = Duration::from_millis(200);

impl Verbs {
    pub(super) fn share_receives_of(
        &mut self,
        qp: QpId,
        recvs: u32,
        entries: u32,
    ) -> Option<SharedReceives> {
        let conn = self.conns.get(qp)?;
        if conn.phase != Phase::Requested || conn.draws.is_some() {
            return None;
        }
        let (key, local) = (conn.cm.context()?, conn.cm.local_addr());
        let id = self.adapter_of(local, key).ok()?;
        if self.adapter(id)?.lost_receives() {
            return None;
        }
        if self.receives_of(id).is_none() {
            self.make_shared(id, recvs, entries)?;
        }
        let receives = self.receives_of(id)?;
        if !receives.users.join(recvs) {
            if receives.users.is_empty() {
                self.adapter(id)?.drop_receives();
            }
            return None;
        }
        let shared = receives.is;
        if let Some(conn) = self.conns.get_mut(qp) {
            conn.draws = Some(SrqUse { of: id, recvs });
        }
        Some(shared)
    }

    fn make_shared(&mut self, id: AdapterId, recvs: u32, entries: u32) -> Option<()> {
        let srq = SrqId(self.shared_made + 1);
        let adapter = self.adapter(id)?;
        if recvs > entries && !adapter.retries_well() {
            return None;
        }
        match adapter.share_receives(srq, entries) {
            Ok(receives) => {
                let entries = receives.is.entries;
                tracing::debug!(device = adapter.name, entries, "sharing receives");
                self.shared_made += 1;
                Some(())
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => None,
            Err(error) => {
                let error = explain(&error);
                tracing::warn!(
                    device = adapter.name,
                    "cannot create a shared receive queue, each queue pair has its own receives: \
                     {error}"
                );
                None
            }
        }
    }

    fn receives_of(&mut self, id: AdapterId) -> Option<&mut Shared> {
        self.adapter(id)?.receives.as_mut()
    }

    pub(super) fn queue_shared(
        &mut self,
        srq: SrqId,
        tag: Tag,
        buf: Buf,
    ) -> Result<(), (PostError, Buf)> {
        let of = |one: &Adapter| one.receives.as_ref().is_some_and(|it| it.is.srq == srq);
        let mut adapters = (0..).zip(&mut self.adapters);
        let adapter = adapters.find_map(|(number, one)| {
            let one = one.as_mut().filter(|one| of(one))?;
            Some((number, one))
        });
        let Some((number, adapter)) = adapter else {
            return Err((PostError::Closed, buf));
        };
        let Some(receives) = &mut adapter.receives else {
            return Err((PostError::Closed, buf));
        };
        if receives.is_full() {
            let depth = receives.is.entries;
            return Err((PostError::QueueFull { depth }, buf));
        }
        let domain = adapter.shared.as_ref();
        let Some(room) = domain.and_then(|domain| domain.room(&buf)) else {
            return Err((PostError::NotRegistered, buf));
        };
        // Like receives of a queue pair.
        receives.queue(tag, buf, room);
        if receives.is_chain_full() || self.listed.is_empty() {
            self.post_shared(AdapterId(number));
        } else {
            self.has_shared = true;
        }
        Ok(())
    }

    /// Posts the shared receives of all devices.
    #[inline]
    pub(super) fn post_all_shared(&mut self) {
        if self.has_shared {
            self.post_chained();
        }
    }

    fn post_chained(&mut self) {
        self.has_shared = false;
        for number in 0..self.adapters.len() {
            if let Ok(number) = u32::try_from(number) {
                self.post_shared(AdapterId(number));
            }
        }
    }

    /// Posts the chained receives of a device. If that fails, all queue pairs that use them end.
    pub(super) fn post_shared(&mut self, id: AdapterId) {
        let Some(adapter) = self.adapter(id) else {
            return;
        };
        let chained = adapter.receives.as_mut().filter(|it| it.has_chained());
        let Some((receives, Err(error))) = chained.map(|it| {
            let posted = it.post();
            (it, posted)
        }) else {
            return;
        };
        let users: Vec<_> = receives.users().collect();
        let why = explain(&error);
        tracing::warn!(device = adapter.name, "cannot post shared receives: {why}");
        for qp in users {
            self.fail(qp, CloseReason::failed("posting a receive", &error));
        }
    }

    /// Handles the completion of a shared receive.
    pub(super) fn on_shared(
        &mut self,
        id: AdapterId,
        number: u64,
        wc: WorkCompletion<'_>,
        events: &mut Vec<Event>,
    ) {
        let Some(receives) = self.receives_of(id) else {
            return;
        };
        let qp = receives.user(wc.qp());
        let item = receives.take(number);
        let (Some(qp), Some(mut item)) = (qp, item) else {
            tracing::error!(
                qp = wc.qp(),
                "shared receive completed for an unknown queue pair"
            );
            return;
        };
        let outcome = self.recv_outcome(qp, wc, events);
        item.len = wc.len();
        item.invalidated = wc.invalidated().map(RemoteKey);
        events.push(Event::Received(received(qp, item, outcome)));
    }

    /// Whether a stopped queue pair may not be destroyed yet. Its device may hold receives
    /// that it took and that are not completed: they complete before it reports the last one,
    /// and would be lost with the queue pair (InfiniBand Architecture, volume 1, section
    /// 10.2.9: "Last WQE Reached").
    pub(super) fn awaits_last(&mut self, qp: QpId) -> bool {
        let Some(conn) = self.conns.get_mut(qp) else {
            return false;
        };
        let awaited = conn.draws.filter(|_| conn.was_connected && !conn.drew_last);
        let Some(SrqUse { of: id, .. }) = awaited else {
            return false;
        };
        let there = |one: &Adapter| !one.gone;
        let adapter = self.adapters.get(id.0 as usize).and_then(Option::as_ref);
        if !adapter.is_some_and(there) {
            return false;
        }
        if conn.deadline.is_none() {
            let deadline = self.now + LAST;
            Self::set_deadline(&mut self.deadlines, conn, Some(deadline));
        }
        true
    }

    /// The device takes no more receives for a queue pair, or the time for its report has
    /// passed.
    pub(super) fn on_last_receive(&mut self, qp: QpId) {
        let Some(conn) = self.conns.get_mut(qp) else {
            return;
        };
        let waits = conn.stopped.is_some() && !conn.drew_last;
        conn.drew_last = true;
        if waits {
            Self::set_deadline(&mut self.deadlines, conn, None);
            self.ending.push(qp);
        }
    }

    /// A shared receive queue failed: queue pairs that use it get no message any more.
    pub(super) fn srq_failed(&mut self, id: AdapterId, which: Option<SrqKey>) {
        let Some(receives) = self.receives_of(id) else {
            return;
        };
        if which != Some(receives.srq().key()) {
            // It belongs to another thread.
            return;
        }
        let drawers: Vec<QpId> = receives.users().collect();
        for qp in drawers {
            let text = "the device stopped the shared receive queue";
            self.fail(qp, of_device(io::ErrorKind::ConnectionAborted, text));
        }
    }

    /// Removes a destroyed queue pair, of which no completion is left. The last one that uses
    /// the queue destroys it, with the posted receives.
    pub(super) fn detach_srq(&mut self, conn: &Conn) {
        let Some(SrqUse { of, recvs }) = conn.draws else {
            return;
        };
        let Some(adapter) = self.adapter(of) else {
            return;
        };
        let Some(receives) = &mut adapter.receives else {
            return;
        };
        if let Some(link) = &conn.link {
            receives.forget(link.qp_number);
        }
        receives.users.leave(recvs);
        if receives.users.is_empty() {
            adapter.drop_receives();
            self.close_adapter(of);
        }
    }
}
