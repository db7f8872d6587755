//! Calls and their results.

use std::time::Duration;

use nvmeof_initiator_core::{
    Blocks, Command, CommandCompletion, Range, ReservationCommand, blocks, reservation,
};
use nvmeof_memory::Buf;
use nvmeof_wire::Status;

use crate::Error;
use crate::error::MachineError;

/// A call: operation, buffer, and an identifier of the caller.
#[derive(Debug)]
pub struct Call {
    /// The operation.
    pub work: Work,
    /// The payload: the view has exactly the length of `work`; `None` without payload.
    /// [`Done::buf`] returns it.
    pub buf: Option<Buf>,
    /// Returned unchanged in [`Done::user`].
    pub user: u64,
    /// Time-out of the call.
    pub timeout: CallTimeout,
}

/// The operation of a call.
#[derive(Clone, Debug)]
pub enum Work {
    /// One command. Boxed, because it is large and rare: reads and writes are
    /// [`Blocks`](Self::Blocks), which are moved often.
    Single(Box<Command>),
    /// An operation on a range of blocks, split into commands within the limits of the
    /// controller.
    Blocks(Blocks),
}

const _: () = assert!(size_of::<Work>() <= 40, "work moves often");

/// Time-out of a call; when it expires, the queue is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallTimeout {
    /// The time-out of the queue.
    Default,
    /// This time-out.
    After(Duration),
    /// None: an Asynchronous Event Request.
    Never,
}

/// A call that ended.
#[derive(Debug)]
pub struct Done {
    /// As given.
    pub user: u64,
    /// As given; filled if the call reads and succeeded. `None` also if the queue was lost
    /// and the target still uses the memory: see [`Connection`](super::Connection).
    pub buf: Option<Buf>,
    /// The command specific result (dwords 0 and 1 of the completion; 0 for a call of several
    /// commands), or the error.
    pub result: Result<u64, Error>,
    /// The operation, if the call failed: to send it again.
    pub work: Option<Box<Work>>,
}

impl Done {
    /// How its only command completed; `None` if the connection was lost before.
    pub(super) fn completion(&self) -> Option<CommandCompletion> {
        match &self.result {
            Ok(result) => Some(CommandCompletion {
                status: Status::SUCCESS,
                result: *result,
            }),
            Err(Error::Command(error)) => Some(CommandCompletion {
                status: error.status,
                result: error.result,
            }),
            Err(_) => None,
        }
    }
}

/// Why a call was refused.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full: poll, then retry.
    #[error("the queue is full")]
    Full,
    /// The queue is not connected yet, or not any more.
    #[error("the queue is not connected: {0}")]
    NotConnected(Error),
    /// The length of the payload differs from that of the command.
    #[error("the command transfers {expected} bytes, the view of the buffer has {got} bytes")]
    Length {
        /// Bytes the command moves.
        expected: u64,
        /// Bytes in view.
        got: u64,
    },
    /// The number of blocks is 0, for which there is no command: NLB is a 0's based value
    /// (NVM 1.0).
    #[error("the call has 0 blocks: must be 1 or more")]
    Empty,
    /// A fused operation needs room for two commands, and the queue has room for one.
    #[error("a fused operation requires a queue of three entries or more")]
    Narrow,
    /// The provider refused the buffer.
    #[error("the buffer cannot be used: {0}")]
    Buffer(nvmeof_rdma::ExposeError),
    /// The provider refused the command.
    #[error("the provider refused the command: {0}")]
    Refused(nvmeof_rdma::PostError),
}

impl SubmitError {
    /// The same for the command `name` of a queue itself: its caller is not at fault.
    pub(super) fn of_own_command(&self, name: &'static str) -> MachineError {
        let error = match self {
            Self::Buffer(why) => MachineError::not_exposed(why),
            _ => None,
        };
        let internal = || MachineError::Internal(format!("cannot send {name}: {self}"));
        error.unwrap_or_else(internal)
    }
}

impl Call {
    /// A call with the time-out of the queue.
    #[must_use]
    pub fn new(work: Work, buf: Option<Buf>, user: u64) -> Self {
        Self {
            work,
            buf,
            user,
            timeout: CallTimeout::Default,
        }
    }
}

impl Work {
    /// Flush of a namespace, without a buffer.
    #[must_use]
    pub fn flush(nsid: u32) -> Self {
        blocks::flush(nsid).into()
    }

    /// Deallocate the blocks of `ranges`, 1 to [`MAX_RANGES`](blocks::MAX_RANGES). Writes them to
    /// `buf` and sets its length: pass it with the call. `None` with another number of ranges, or
    /// if `buf` is too short.
    #[must_use]
    pub fn deallocate(nsid: u32, ranges: &[Range], buf: &mut Buf) -> Option<Self> {
        let command = blocks::deallocate(nsid, ranges)?;
        buf.set_len(ranges.len() * blocks::RANGE_LEN).ok()?;
        blocks::put_ranges(ranges, buf);
        Some(command.into())
    }

    /// A command that changes the reservations of a namespace. Writes its keys to `buf` and sets
    /// its length, 16 or 8 bytes: pass it with the call. `None` if `buf` is too short.
    #[must_use]
    pub fn reservation(nsid: u32, request: &ReservationCommand, buf: &mut Buf) -> Option<Self> {
        buf.set_len(request.payload_len()).ok()?;
        request.put(buf);
        Some(request.command(nsid).into())
    }

    /// Reservation Report of a namespace into `buf`: pass it with the call.
    /// [`ReservationReport::parse`](crate::ReservationReport::parse) reads what it has then.
    /// Fills it with zeroes before, for a target that sends less. `None` if its length is 0 or no
    /// multiple of 4.
    #[must_use]
    pub fn reservation_report(nsid: u32, buf: &mut Buf) -> Option<Self> {
        let len = u32::try_from(buf.len()).ok()?;
        if len == 0 || !len.is_multiple_of(4) {
            return None;
        }
        buf.fill(0);
        Some(reservation::report(nsid, len).into())
    }

    /// The specification's name of its first command.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Single(command) => command.name(),
            Self::Blocks(blocks) => blocks.name(0),
        }
    }

    /// Whether it may change data or reservations of a namespace. Not for admin commands.
    #[must_use]
    pub fn changes_data(&self) -> bool {
        match self {
            Self::Single(command) => command.changes_data(),
            Self::Blocks(blocks) => blocks.changes_data(),
        }
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
    /// Number of its commands that must be adjacent in the queue.
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
