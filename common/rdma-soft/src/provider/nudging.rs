//! First messages that a peer overlooks.
//!
//! Linux siw answers a connection request before it looks for data on that
//! socket (`siw_accept`): what a fast peer sent in between stays there until
//! more comes, and whoever waits for the answer to its first message sends no
//! more. So whoever called sends a Write of nothing when it heard nothing for a
//! while; nobody checks the key of one (RFC 5041, section 5.1), and nothing
//! is placed.

use std::time::Duration;

use super::SoftRdma;
use crate::Streams;
use crate::conn::Conn;

/// How long nothing is heard before the first nudge. Each of the others waits
/// three times as long as the one before, since it may have come too early too.
const FIRST: Duration = Duration::from_millis(100);
/// Nudges at most: the last one after 12 seconds.
const NUDGES: u8 = 5;

impl<S: Streams> SoftRdma<S> {
    /// Waits for the first message of a peer that was called.
    pub(super) fn listen_for_first(&mut self, conn: &mut Conn) {
        let wait = FIRST.saturating_mul(3_u32.pow(conn.nudges.into()));
        let deadline = (conn.nudges < NUDGES).then(|| self.now.saturating_add(wait));
        self.set_deadline(conn, deadline);
    }

    /// Nothing more to do once something was heard.
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
