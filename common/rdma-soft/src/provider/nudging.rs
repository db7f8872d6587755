//! Nudges for peers that overlook the first message.
//!
//! Linux siw accepts a connection request before it checks for data on that socket
//! (`siw_accept`). Data that a fast peer sent in between stay there until more arrive, and a
//! peer that waits for the response to its first message sends no more. The active side
//! therefore sends an empty Write if it received nothing for a while. Its key is not checked
//! (RFC 5041, section 5.1), and nothing is placed.

use std::time::Duration;

use super::SoftRdma;
use crate::Streams;
use crate::conn::Conn;

/// Time without received data before the first nudge. Each further one waits three times as
/// long as the one before, because it may have come too early as well.
const FIRST: Duration = Duration::from_millis(100);
/// Maximum number of nudges: the last one after 12 seconds.
const NUDGES: u8 = 5;

impl<S: Streams> SoftRdma<S> {
    /// Waits for the first message of the peer, on the active side.
    pub(super) fn listen_for_first(&mut self, conn: &mut Conn) {
        let wait = FIRST.saturating_mul(3_u32.pow(conn.nudges.into()));
        let deadline = (conn.nudges < NUDGES).then(|| self.now.saturating_add(wait));
        self.set_deadline(conn, deadline);
    }

    /// Sends a nudge, unless something was received.
    pub(super) fn nudge(&mut self, conn: &mut Conn) {
        if conn.rx.frames() > 0 {
            return;
        }
        conn.nudges += 1;
        if conn.outbound.send_nothing() {
            self.list(conn);
        }
        self.listen_for_first(conn);
    }
}
