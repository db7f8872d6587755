//! Completion queues and their channels.

use std::collections::VecDeque;

use crate::raw::{Ptr, ibv_comp_channel, ibv_cq};
use crate::signal::Signal;

/// A channel for events of completion queues.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) raw: Ptr<ibv_comp_channel>,
    pub(crate) device: usize,
    pub(crate) signal: Signal,
    /// The queues of events that were not taken yet.
    pub(crate) events: VecDeque<usize>,
    /// Queues that use it.
    pub(crate) users: u32,
}

/// Whether the next completion raises an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Arm {
    No,
    /// One that the sender solicited, or an error.
    Solicited,
    Any,
}

/// Entries of a queue that are free once a completion is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Frees {
    /// So many of a send queue.
    Sends(u32),
    /// One of a receive queue.
    Receive,
    /// One of a shared receive queue.
    Shared(usize),
}

/// A completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) len: u32,
    pub(crate) invalidated: Option<u32>,
    /// The queue pair, and its number.
    pub(crate) qp: usize,
    pub(crate) number: u32,
    pub(crate) solicited: bool,
    pub(crate) frees: Frees,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) raw: Ptr<ibv_cq>,
    pub(crate) device: usize,
    pub(crate) channel: Option<usize>,
    pub(crate) capacity: usize,
    pub(crate) entries: VecDeque<Completion>,
    pub(crate) arm: Arm,
    /// It overflowed and takes no completions any more.
    pub(crate) failed: bool,
    /// Queue pairs that use it.
    pub(crate) users: u32,
    /// Events taken and not acknowledged, of its channel and of its device.
    pub(crate) unacknowledged: u32,
    pub(crate) unacknowledged_async: u32,
}

/// Result of adding a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    Quietly,
    /// It raises an event.
    WithEvent,
    /// There was no room: the queue failed.
    Overrun,
    /// The queue had failed before.
    Lost,
}

impl Cq {
    pub(crate) fn add(&mut self, completion: Completion) -> Added {
        if self.failed {
            return Added::Lost;
        }
        if self.entries.len() >= self.capacity {
            self.failed = true;
            return Added::Overrun;
        }
        let raises = match self.arm {
            Arm::No => false,
            Arm::Solicited => completion.solicited || completion.status != 0,
            Arm::Any => true,
        };
        self.entries.push_back(completion);
        if !raises {
            return Added::Quietly;
        }
        self.arm = Arm::No;
        Added::WithEvent
    }
}
