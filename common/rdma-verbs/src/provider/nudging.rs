//! Nudges for devices that overlook the first message.
//!
//! Linux siw accepts a request before it checks for data on that socket (`siw_accept`). Data
//! that a fast peer sent in between stay there until more arrive, and a peer that waits for
//! the response to its first message sends no more.

use std::time::Duration;

use nvmeof_rdma::QpId;

use super::Verbs;
use super::queueing::chain;
use crate::conn::{Phase, log_peer};
use crate::outstanding::SendItem;
use crate::siw;
use crate::sys::{Payload, Segment, SendOp};

/// Time for which a new connection may be silent. Long enough that a peer which was not
/// overlooked hardly ever gets a nudge: siw responds to a Read of no bytes with the length of
/// the message that it sends at that moment, if any.
const SILENCE: Duration = Duration::from_secs(1);

/// A key for Reads of no bytes. Some hardware refuses key 0.
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

    /// If nothing was received yet, sends some bytes, after which a device finds the
    /// overlooked data. Only an accepting device overlooks data: if that was this side, the
    /// peer responds to a Read of no bytes (RFC 5040, section 5.2); otherwise the peer gets
    /// an empty Write.
    pub(super) fn nudge(&mut self, qp: QpId) {
        let Some(conn) = self.conns.get_mut(qp) else {
            return;
        };
        let received = conn.recvs.returned() > 0;
        let quiet = conn.phase == Phase::Running && conn.sends.is_empty();
        if received || !quiet {
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
            let payload = Payload::NOTHING;
            SendOp::Write { payload, addr, key }
        };
        log_peer!(
            debug,
            conn,
            "the peer has been silent since the connection was established, sending a nudge"
        );
        conn.internal += 1;
        chain(conn, SendItem::Internal, op, true);
        self.post_chain(qp);
    }
}
