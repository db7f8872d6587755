//! What goes into a queue and what comes back.

use std::time::Duration;

use nvmeof_initiator_core::{Blocks, Command, blocks};
use nvmeof_memory::Buf;

use crate::Error;

/// A call: what to do, with which memory, and the caller's name for it.
#[derive(Debug)]
pub struct Call {
    /// What to do.
    pub work: Work,
    /// The payload: the part in view, exactly as long as `work` says; `None`
    /// when there is none. It comes back in [`Done::buf`].
    pub buf: Option<Buf>,
    /// Handed back untouched in [`Done::user`].
    pub user: u64,
    /// How long to wait for an answer.
    pub patience: Patience,
}

/// What to do.
#[derive(Clone, Debug)]
pub enum Work {
    /// One command as it is. Boxed, because it is long and rare: reads and
    /// writes are [`Blocks`](Self::Blocks), which go from hand to hand.
    Single(Box<Command>),
    /// An operation on a run of blocks, cut into as many commands as the
    /// controller's limits ask for.
    Blocks(Blocks),
}

const _: () = assert!(size_of::<Work>() <= 40, "work moves often");

/// How long to wait for an answer before the queue is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// As long as the queue was told.
    Usual,
    /// As long as this.
    For(Duration),
    /// For ever: an Asynchronous Event Request.
    Endless,
}

/// A call that ended.
#[derive(Debug)]
pub struct Done {
    /// As given.
    pub user: u64,
    /// As given; filled when the call was one that reads and it succeeded. `None` also
    /// when the queue was lost and somebody still uses the memory: see
    /// [`Connection`](super::Connection).
    pub buf: Option<Buf>,
    /// The command specific result (dwords 0 and 1 of the completion; 0 for a
    /// call of several commands), or what went wrong.
    pub result: Result<u64, Error>,
}

/// Why a call was not taken.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SubmitError {
    /// As many calls are in flight as the queue has room for: poll, then try
    /// again.
    #[error("the queue is full")]
    Full,
    /// The queue is not connected yet, or not any more.
    #[error("the queue is not connected: {0}")]
    NotConnected(Error),
    /// The payload is not as long as the command says.
    #[error("the command moves {expected} bytes, the buffer has {got} in view")]
    Length {
        /// Bytes the command moves.
        expected: u64,
        /// Bytes in view.
        got: u64,
    },
    /// The call is for no blocks, of which there is no command: a count of 0 means one
    /// block on the wire (NVM 1.0, NLB is a 0's based value).
    #[error("the call is for no blocks: its count has to be 1 or more")]
    Empty,
    /// A fused operation takes two places, and the queue has but one.
    #[error("a fused operation needs a queue of three entries or more")]
    Narrow,
    /// The provider does not take the buffer.
    #[error("the buffer cannot be used: {0}")]
    Buffer(nvmeof_rdma::ExposeError),
    /// The provider does not take the command.
    #[error("the provider refused the command: {0}")]
    Refused(nvmeof_rdma::PostError),
}

impl Call {
    /// A call with the queue's usual patience.
    #[must_use]
    pub fn new(work: Work, buf: Option<Buf>, user: u64) -> Self {
        Self {
            work,
            buf,
            user,
            patience: Patience::Usual,
        }
    }
}

impl Work {
    /// Puts what was written to a namespace before on stable media: a Flush,
    /// without a buffer.
    #[must_use]
    pub fn flush(nsid: u32) -> Self {
        blocks::flush(nsid).into()
    }

    /// Bytes of payload.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Single(command) => u64::from(command.len()),
            Self::Blocks(blocks) => blocks.bytes(),
        }
    }
}

impl Work {
    /// Commands of it that have to be next to each other on the queue.
    pub(super) fn together(&self) -> usize {
        match self {
            Self::Single(_) => 1,
            Self::Blocks(blocks) => blocks.together(),
        }
    }
}

impl From<Command> for Work {
    fn from(command: Command) -> Self {
        Self::Single(Box::new(command))
    }
}

impl From<Blocks> for Work {
    fn from(blocks: Blocks) -> Self {
        Self::Blocks(blocks)
    }
}
