//! Buffers for the messages of authentication on queues without a controller. These use no data
//! buffer, because nothing is charged to a host that has proved nothing.
//!
//! # Why there is always one
//! A buffer belongs to a command of a queue that had no controller when the command took it. Such
//! a queue has [`FIRST`] slots, so it has no more buffers. A reactor has at most
//! [`MOST_UNCONNECTED`] times `limits.unconnected` of these queues. It counts a queue that got a
//! controller as one of them until its buffers have returned: see [`QueuePair::is_unconnected`].

use nvmeof_memory::{Buf, Pages, Pool, PoolError, PoolLayout, Region};
use nvmeof_rdma::Work;
use nvmeof_target_core::{Limits, Remote};

use super::path::slice;
use super::{FIRST, Io, QueuePair};
use crate::tag::SlotId;

/// Bytes of a message at most. The longest that is defined, a Reply with ffdhe8192 and SHA-512,
/// has 1,168; a Negotiate has 64 for each protocol that the host offers.
const MESSAGE_LEN: usize = 4096;

/// Queues without a controller of one reactor, as a multiple of `limits.unconnected`: those that
/// the limit counts and as many that are closing, and twice as many for queues that controllers
/// lack.
pub(crate) const MOST_UNCONNECTED: usize = 4;

/// The message buffers of one reactor.
pub(crate) struct MessageBuffers(Pool);

impl MessageBuffers {
    /// Buffers for all queues without a controller.
    ///
    /// # Errors
    /// [`PoolError`].
    pub(crate) fn new(limits: &Limits, pages: Pages) -> Result<Self, PoolError> {
        let layout = PoolLayout {
            count: MOST_UNCONNECTED * usize::from(limits.unconnected) * usize::from(FIRST),
            stride: MESSAGE_LEN,
            lead: 0,
        };
        Pool::new(layout, pages).map(Self)
    }

    pub(crate) fn region(&self) -> &Region {
        self.0.region()
    }

    /// Free buffers, and all buffers.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.0.available(), self.0.count())
    }

    fn take(&self, len: u32) -> Option<Buf> {
        let mut buf = self.0.take()?;
        buf.set_len(usize::try_from(len).ok()?).ok()?;
        Some(buf)
    }
}

impl QueuePair {
    /// Whether it counts as a queue without a controller: it has none, or some of its commands
    /// may still have a message buffer.
    pub(crate) fn is_unconnected(&self) -> bool {
        let mut messages = self.cold.messages.iter();
        !self.core.is_connected() || messages.any(|slot| self.slots.peek(*slot).is_some())
    }

    /// The queue identifier for which the peer asked.
    pub(crate) fn qid(&self) -> u16 {
        self.core.qid()
    }

    /// Pulls the data of a command on a queue without a controller: those of a Connect, or a
    /// message.
    #[cold]
    pub(super) fn pull_unconnected(&mut self, slot: SlotId, remote: Remote, io: &mut Io<'_>) {
        if self.core.claimed().is_none() {
            return self.pull_connect(slot, remote, io);
        }
        if !self.take_message(slot, remote.len, io) {
            return;
        }
        let local = self.slots.get(slot).and_then(|command| {
            command.on_wire = Some(io.now);
            command.data.lend()
        });
        let Some(local) = local else {
            return self.bug("no message buffer to pull into", io);
        };
        let remote = slice(remote);
        self.post(slot, Work::Read { local, remote }, io);
    }

    /// Takes a message buffer of `len` bytes for the command in `slot`. If there is none, which
    /// is a bug, closes the connection and returns false.
    #[cold]
    pub(super) fn take_message(&mut self, slot: SlotId, len: u32, io: &mut Io<'_>) -> bool {
        let slots = &self.slots;
        self.cold.messages.retain(|its| slots.peek(*its).is_some());
        let Some(command) = self.slots.get(slot) else {
            return false;
        };
        if !command.data.put(io.resources.messages.take(len)) {
            self.bug("no message buffer", io);
            return false;
        }
        self.cold.messages.push(slot);
        true
    }
}
