//! What a queue tells the log and its reactor.

use std::fmt;
use std::time::Duration;

use nvmeof_target_core::News;

use super::{Io, QueuePair, of_peer};
use crate::peer_log::PeerLog;

/// A line in the log about a connection, as of [`of_peer!`], unless its peer had too many
/// lately: a host can provoke any number of them.
macro_rules! limited {
    ($level:ident, $queue_pair:expr, $log:expr, $now:expr, $($text:tt)+) => {
        if let Some(left_out) = $log.ask($queue_pair.link.peer, $now) {
            of_peer!($level, $queue_pair, left_out, $($text)+);
        }
    };
}
pub(super) use limited;

impl QueuePair {
    /// Does what the core wants besides its action.
    pub(super) fn tell(&mut self, news: News, io: &mut Io<'_>) {
        if news.contains(News::REMARK)
            && let Some(remark) = self.core.take_remark()
        {
            if self.core.is_connected() {
                limited!(
                    info,
                    self,
                    &mut io.resources.connect_log,
                    io.now,
                    "{remark}"
                );
            } else {
                self.tell_of_stranger(
                    format_args!("{remark}"),
                    io.now,
                    &mut io.resources.connect_log,
                );
            }
        }
        if news.contains(News::DEADLINE) {
            io.resources.poll_by(self.next_deadline());
        }
        if news.contains(News::CALL) {
            io.resources.calls.extend(self.core.take_calls());
        }
        io.resources.news |= news;
        if news.contains(News::POLL) {
            self.poll(io);
        }
    }

    /// A line in the log about a connection that nobody was let in on: few,
    /// however many such connections there are.
    pub(super) fn tell_of_stranger(
        &self,
        what: fmt::Arguments<'_>,
        now: Duration,
        log: &mut PeerLog,
    ) {
        if let Some(left_out) = log.ask(self.link.peer, now) {
            let (peer, queue) = (self.link.peer, self.core.qid());
            tracing::warn!(%peer, queue, left_out, "not connected to a controller: {what}");
        }
    }
}
