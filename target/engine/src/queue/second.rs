//! The second buffer of a command that holds one of the same length or a longer one: a
//! Compare has its data in one and the data of its backing store in the other; the list
//! of a Copy takes a buffer as long as its pieces.
//!
//! Such a command must not wait for a buffer as others do, or such commands could hold
//! all buffers. It takes one from the pool if there is one. Otherwise it waits for the
//! reserve, which is for such commands only. The command with the reserve waits only for
//! its backing store, or for a range lock whose holder has all that it needs.

use super::account::{Provided, provide};
use super::slots::{Command, MissingBuffers};
use super::{Io, QueuePair, State};
use crate::tag::SlotId;

impl Command {
    /// Length of the second buffer, if it lacks one and holds another that is not
    /// shorter.
    #[cold]
    pub(super) fn missing_second(&self, missing: MissingBuffers) -> Option<u32> {
        let held = u32::try_from(self.data.get()?.capacity()).unwrap_or(u32::MAX);
        missing.spare.filter(|len| *len <= held)
    }
}

impl QueuePair {
    /// Whether the command in `slot` has a second buffer of `len` bytes; if not, the
    /// command is queued for one.
    #[cold]
    pub(super) fn has_second(&mut self, slot: SlotId, len: u32, io: &mut Io<'_>) -> bool {
        // First come, first served.
        let has = io.resources.awaiting.seconds.is_empty() && self.take_second(slot, len, io);
        if !has {
            io.resources
                .awaiting
                .seconds
                .push(self.host(), (self.id, slot));
        }
        has
    }

    fn take_second(&mut self, slot: SlotId, len: u32, io: &mut Io<'_>) -> bool {
        let Some(command) = self.slots.get(slot) else {
            return true;
        };
        let missing = MissingBuffers {
            spare: Some(len),
            ..MissingBuffers::NOTHING
        };
        provide(command, missing, self.account.as_ref(), io) == Provided::Yes
            || command.spare.put(io.resources.awaiting.seconds.take(len))
    }

    /// The command in `slot` is next to get its second buffer. Returns false if there is
    /// none.
    pub(crate) fn allocate_second(&mut self, slot: SlotId, io: &mut Io<'_>) -> bool {
        if self.state == State::Closing {
            return true;
        }
        let Some(command) = self.slots.get(slot) else {
            return true;
        };
        // Without an action, the command was aborted.
        let Some(action) = command.deferred.take() else {
            return true;
        };
        let second = command.missing_second(command.missing(&action));
        if let Some(len) = second
            && !self.take_second(slot, len, io)
        {
            if let Some(command) = self.slots.get(slot) {
                command.deferred = Some(action);
            }
            return false;
        }
        self.perform(slot, action, io);
        self.settle(io);
        true
    }
}
