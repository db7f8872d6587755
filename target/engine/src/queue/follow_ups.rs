//! Log lines and notifications of a queue.

use std::fmt;
use std::time::Duration;

use nvmeof_target_core::FollowUps;

use super::{Io, QueuePair, log_peer};
use crate::peer_log::PeerLog;

/// A log line about a connection, as [`log_peer!`], with a rate limit by peer: a host can
/// provoke any number of them.
macro_rules! limited {
    ($level:ident, $queue_pair:expr, $log:expr, $now:expr, $($text:tt)+) => {
        if let Some(left_out) = $log.ask($queue_pair.link.peer, $now) {
            log_peer!($level, $queue_pair, left_out, $($text)+);
        }
    };
}
pub(super) use limited;

impl QueuePair {
    /// Handles further requests of the core besides its action.
    pub(super) fn handle_follow_ups(&mut self, follow_ups: FollowUps, io: &mut Io<'_>) {
        if follow_ups.contains(FollowUps::REMARK)
            && let Some(remark) = self.core.take_remark()
        {
            let log = &mut io.resources.connect_log;
            if !self.core.is_connected() {
                self.log_unconnected(format_args!("{remark}"), io.now, log);
            } else if follow_ups.contains(FollowUps::WARNING) {
                limited!(warn, self, log, io.now, "{remark}");
            } else {
                limited!(info, self, log, io.now, "{remark}");
            }
        }
        if follow_ups.contains(FollowUps::DEADLINE) {
            io.resources.poll_by(self.next_deadline());
        }
        if follow_ups.contains(FollowUps::CALL) {
            io.resources.calls.extend(self.core.take_calls());
        }
        io.resources.follow_ups |= follow_ups;
        if follow_ups.contains(FollowUps::POLL) {
            self.poll(io);
        }
    }

    /// A rate-limited log line about a connection without a controller.
    pub(super) fn log_unconnected(
        &self,
        what: fmt::Arguments<'_>,
        now: Duration,
        log: &mut PeerLog,
    ) {
        if let Some(left_out) = log.ask(self.link.peer, now) {
            let (peer, queue) = (self.link.peer, self.core.qid());
            // Names of a Connect that has proved nothing yet.
            match self.core.claimed() {
                Some((host, subsystem)) => tracing::warn!(
                    %peer, host, subsystem, queue, left_out,
                    "not connected to a controller: {what}"
                ),
                None => tracing::warn!(
                    %peer, queue, left_out,
                    "not connected to a controller: {what}"
                ),
            }
        }
    }
}
