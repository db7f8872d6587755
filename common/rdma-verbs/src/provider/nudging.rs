//! First messages that a device overlooks.
//!
//! Linux siw answers a request before it looks for data on that socket
//! (`siw_accept`): what a fast peer sent in between stays there until more
//! comes, and whoever waits for the answer to its first message sends no more.

use std::time::Duration;

use nvmeof_rdma::QpId;

use super::Verbs;
use super::queueing::chain;
use crate::conn::{Phase, of_peer};
use crate::outstanding::SendItem;
use crate::siw;
use crate::sys::{Payload, Segment, SendOp};

/// How long a new connection may be silent. Long enough that a peer which was
/// not overlooked is hardly ever nudged: siw answers a Read of nothing with the
/// length of what it sends at that moment, if it sends something.
const SILENCE: Duration = Duration::from_secs(1);

/// A name for nothing. Some hardware refuses Reads of no bytes from key 0.
const NO_KEY: u32 = 1;

impl Verbs {
    /// Waits for the first message on a new connection.
    pub(super) fn listen_for_first(&mut self, qp: QpId) {
        let Some(conn) = self.conns.get_mut(qp) else {
            return;
        };
        let adapter = conn.link.as_ref().map(|link| link.room.adapter.0 as usize);
        let adapter = adapter.and_then(|index| self.adapters.get(index)?.as_ref());
        if adapter.is_some_and(|adapter| adapter.attr.vendor_id == siw::VENDOR) {
            let deadline = self.now + SILENCE;
            Self::set_deadline(&mut self.deadlines, conn, Some(deadline));
        }
    }

    /// If nothing was heard yet, moves some bytes, behind which a device finds
    /// what it overlooked. Only whoever accepted overlooks something: if that was
    /// this side, the peer answers a Read of nothing (RFC 5040, section 5.2);
    /// otherwise the peer gets a Write of nothing.
    pub(super) fn nudge(&mut self, qp: QpId) {
        let Some(conn) = self.conns.get_mut(qp) else {
            return;
        };
        let heard = conn.recvs.came_back() > 0;
        let quiet = conn.phase == Phase::Running && conn.sends.is_empty();
        if heard || !quiet {
            return;
        }
        let (addr, key) = (0, NO_KEY);
        let accepted = conn.listener.is_some();
        if accepted && conn.reads_out == 0 {
            return;
        }
        let op = if accepted {
            let local = Some(Segment { addr, len: 0, key });
            SendOp::Read { local, addr, key }
        } else {
            let payload = Payload::Inline(&[]);
            SendOp::Write { payload, addr, key }
        };
        of_peer!(debug, conn, "silent since it stands: nudges it");
        conn.internal += 1;
        chain(conn, SendItem::Nudge, op, true);
        self.post_chain(qp);
    }
}
