//! Commands that wait for a buffer: the reactor serves queues in fair order.

use std::collections::VecDeque;

use nvmeof_target_core::Limit;

use super::account::{Account, Provided, provide};
use super::slots::MissingBuffers;
use super::{Io, QueuePair, State};
use crate::tag::SlotId;

/// Commands of one queue pair that wait for a buffer.
#[derive(Debug, Default)]
pub(super) struct BufferWaits {
    /// In order of arrival.
    pub(super) commands: VecDeque<SlotId>,
    /// Whether the queue is listed at the reactor.
    pub(super) is_listed: bool,
    /// The limit that the first of them waits for, once it was counted.
    pub(super) full: Option<Limit>,
}

impl QueuePair {
    /// Serves the command that waits longest: this queue is next in the fair queue.
    /// Returns false if there is no buffer for it.
    pub(crate) fn allocate_buffers(&mut self, io: &mut Io<'_>) -> bool {
        self.awaiting.is_listed = false;
        if self.state == State::Closing {
            self.awaiting.commands.clear();
        }
        let fed = self.allocate_first(io);
        self.list(io);
        fed
    }

    fn allocate_first(&mut self, io: &mut Io<'_>) -> bool {
        let Some(slot) = self.awaiting.commands.front().copied() else {
            return false;
        };
        if let Some(command) = self.slots.get(slot)
            && let Some(action) = command.deferred.take()
        {
            let missing = command.missing(&action);
            let account = self.account.as_ref();
            let mut provided = provide(command, missing, account, io);
            if provided != Provided::Yes && missing.both() {
                // One at a time: otherwise commands that take one each would always go
                // first.
                let first = MissingBuffers {
                    spare: None,
                    ..missing
                };
                provided = provide(command, first, account, io);
            }
            if provided != Provided::Yes {
                command.deferred = Some(action);
                self.note_full(provided, io);
                self.note_shortage(provided, missing, io);
                return false;
            }
            self.awaiting.full = None;
            self.note_shortage(provided, missing, io);
            self.awaiting.commands.pop_front();
            self.perform(slot, action, io);
            self.settle(io);
        } else {
            self.awaiting.commands.pop_front();
        }
        true
    }

    /// Lists this queue in the fair queue of the reactor.
    pub(super) fn list(&mut self, io: &mut Io<'_>) {
        if !self.awaiting.is_listed && !self.awaiting.commands.is_empty() {
            self.awaiting.is_listed = true;
            let is_suspect = self.account.as_ref().is_some_and(Account::is_suspect);
            io.resources.awaiting.push(self.host(), self.id, is_suspect);
        }
    }
}
