//! Queues and commands of one reactor that wait for a buffer, and the reserve for
//! commands that wait for a second one.

use nvmeof_memory::{Buf, ClassSpec, Classes, Pages, PoolError};

use crate::fair_queue::{FairQueue, HostId};
use crate::tag::SlotId;

/// Commands that wait for a buffer: a fair queue of the queues that have such commands,
/// each listed once, and the commands that wait for a second buffer. A listed queue may
/// be closed already.
#[derive(Debug)]
pub(crate) struct AwaitingBuffers {
    trusted: FairQueue<SlotId>,
    /// Queues of addresses that stalled lately. All these addresses together count as one
    /// in the fair queue.
    suspect: FairQueue<SlotId>,
    /// Buffers given to the other queues since a suspect one was served.
    since: usize,
    pub(crate) seconds: SecondBuffers,
}

impl AwaitingBuffers {
    pub(crate) fn new(seconds: SecondBuffers) -> Self {
        Self {
            trusted: FairQueue::default(),
            suspect: FairQueue::default(),
            since: 0,
            seconds,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.has_queues() && self.seconds.is_empty()
    }

    /// Whether commands wait for their first buffer.
    pub(crate) fn has_queues(&self) -> bool {
        !(self.trusted.is_empty() && self.suspect.is_empty())
    }

    /// Number of queues that wait.
    pub(crate) fn len(&self) -> usize {
        self.trusted.len() + self.suspect.len()
    }

    /// Adds a queue of `host`; `is_suspect` if its address stalled lately.
    pub(crate) fn push(&mut self, host: HostId, queue: SlotId, is_suspect: bool) {
        self.queues(is_suspect).push(host, queue);
    }

    /// The queues that wait, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &SlotId> {
        self.trusted.iter().chain(self.suspect.iter())
    }

    /// The queues of addresses that stalled lately, or those of all others.
    pub(crate) fn queues(&mut self, is_suspect: bool) -> &mut FairQueue<SlotId> {
        match is_suspect {
            true => &mut self.suspect,
            false => &mut self.trusted,
        }
    }

    /// Whether addresses that stalled lately are served next: each other address was
    /// served since.
    pub(crate) fn is_suspect_next(&self) -> bool {
        self.since >= self.trusted.addresses()
    }

    /// Counts that a queue of [`queues`](Self::queues) got a buffer.
    pub(crate) fn served(&mut self, is_suspect: bool) {
        self.since = if is_suspect { 0 } else { self.since + 1 };
    }
}

/// The reserve of second buffers, and the commands that wait for one: see `queue/second.rs`.
#[derive(Debug)]
pub(crate) struct SecondBuffers {
    /// One buffer of the longest kind.
    reserve: Classes,
    /// Commands, by queue and slot. Some may have ended already.
    waiting: FairQueue<(SlotId, SlotId)>,
}

impl SecondBuffers {
    /// A reserve for buffers of these lengths.
    ///
    /// # Errors
    /// [`PoolError`].
    pub(crate) fn new(specs: &[ClassSpec]) -> Result<Self, PoolError> {
        let len = specs.iter().map(|spec| spec.len).max().unwrap_or_default();
        Ok(Self {
            reserve: Classes::new(&[ClassSpec { len, count: 1 }], Pages::Normal)?,
            waiting: FairQueue::default(),
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The commands that wait.
    pub(crate) fn fair_queue(&mut self) -> &mut FairQueue<(SlotId, SlotId)> {
        &mut self.waiting
    }

    #[cold]
    pub(crate) fn push(&mut self, host: HostId, command: (SlotId, SlotId)) {
        self.waiting.push(host, command);
    }

    pub(crate) fn take(&self, len: u32) -> Option<Buf> {
        self.reserve.take(usize::try_from(len).ok()?)
    }
}
