//! What a queue asks its edge to do, and what the edge tells it.

use std::ops::Range;

use nvmeof_wire::{Cqe, Status};

use crate::Keeping;

/// Memory of the host that a command names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address of the first byte, as the host named it.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// The key that opens it.
    pub key: u32,
}

/// What to do next for one command.
#[derive(Debug)]
#[must_use]
pub enum Action {
    /// Take a buffer of `remote.len` bytes, fill it by RDMA Read, then
    /// [`Event::Pulled`].
    Pull {
        /// Where the data is.
        remote: Remote,
        /// Bytes of a second buffer that is needed later, or 0: take both
        /// now, so that nobody waits for a buffer while holding one.
        spare: u32,
    },
    /// As [`Pull`](Self::Pull), but into the capsule, behind the command: the
    /// data of one half of a fused operation. They begin at byte 64.
    PullBehind {
        /// Where the data are.
        remote: Remote,
    },
    /// One half of a fused operation has its data: when the other has, too, it
    /// is [`Event::Turn`] of the first.
    Fuse,
    /// Run the operation on the disk, then [`Event::Executed`]. Data of a
    /// write or compare is where [`Request::data`](crate::Request::data) says.
    Execute(IoOp),
    /// Take a buffer of `len` bytes, then [`Event::Room`].
    Produce {
        /// Bytes.
        len: u32,
    },
    /// Wait until it is kept or cannot be, then [`Event::Kept`]. It may take as long
    /// as a file that hangs: everything else goes on.
    Keep(Keeping),
    /// Send the answer. Nothing more happens to this request.
    Respond(Response),
    /// Nothing to do: the answer comes later as an
    /// [`Order`]. Nothing more happens to this request.
    Hold,
    /// Close the queue pair. Nothing more happens to this request.
    Close(CloseCause),
}

/// The answer to a command.
#[derive(Clone, Copy, Debug)]
pub struct Response {
    /// Where the data of the request's buffer goes first, all of it, by RDMA
    /// Write.
    pub push: Option<Remote>,
    /// The response capsule.
    pub cqe: Cqe,
    /// A key of the host that the response invalidates.
    pub invalidate: Option<u32>,
}

/// Something happened to a request.
#[derive(Debug)]
pub enum Event<'a> {
    /// The data are in place: all the bytes asked for.
    Pulled(&'a [u8]),
    /// The disk operation ended. `data` is what the request's buffer has, if
    /// it has one; only Dataset Management looks at it.
    Executed {
        /// How it ended.
        outcome: Executed,
        /// The data that were pulled or came in the capsule; may be empty for
        /// every operation but [`IoKind::Deallocate`].
        data: &'a [u8],
    },
    /// It is the turn of this half of a fused operation: of the first when both
    /// have their data, of the second when the first succeeded.
    Turn,
    /// A buffer of the length asked for.
    Room(&'a mut [u8]),
    /// It is known whether it was kept.
    Kept {
        /// Whether it was.
        kept: bool,
    },
}

/// How a disk operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed {
    /// Done.
    Ok,
    /// The data of a compare differ.
    Miscompare,
    /// No room left on the disk.
    NoSpace,
    /// The disk does not allow it.
    ReadOnly,
    /// The disk cannot do this at all.
    Unsupported,
    /// The disk is gone, or shorter than it was.
    Gone,
    /// The disk failed.
    Failed,
}

impl Executed {
    /// The status of a command whose operation on the disk ended so.
    pub(crate) fn status(self, kind: IoKind) -> Status {
        match (self, kind) {
            (Self::Ok, _) => Status::SUCCESS,
            (Self::Miscompare, _) => Status::COMPARE_FAILURE,
            (Self::NoSpace, _) => Status::CAPACITY_EXCEEDED,
            (Self::ReadOnly, _) => Status::NAMESPACE_WRITE_PROTECTED,
            (Self::Unsupported, _) => Status::INVALID_OPCODE,
            (Self::Gone, _) => Status::NAMESPACE_NOT_READY,
            (Self::Failed, IoKind::Read | IoKind::Compare | IoKind::Fetch { .. }) => {
                Status::UNRECOVERED_READ_ERROR
            }
            (
                Self::Failed,
                IoKind::Write
                | IoKind::Store
                | IoKind::WriteZeroes { .. }
                | IoKind::Flush
                | IoKind::FlushOwn
                | IoKind::Settle,
            ) => Status::WRITE_FAULT,
            (Self::Failed, IoKind::Deallocate) => Status::INTERNAL_ERROR,
        }
    }
}

/// One operation on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoOp {
    /// The disk, as the namespace was described.
    pub disk: u32,
    /// What to do.
    pub kind: IoKind,
    /// First byte.
    pub offset: u64,
    /// Bytes. A flush is of all the disk, whatever it says here: 0, or what it is
    /// done for.
    pub len: u64,
    /// Whether the data must be on stable storage when it is done.
    pub fua: bool,
}

impl IoOp {
    /// A flush of all the disk.
    pub(crate) fn flush(disk: u32) -> Self {
        Self {
            disk,
            kind: IoKind::Flush,
            offset: 0,
            len: 0,
            fua: false,
        }
    }

    /// Whether it changes what the disk holds.
    #[inline]
    #[must_use]
    pub fn changes(&self) -> bool {
        match self.kind {
            IoKind::Read
            | IoKind::Compare
            | IoKind::Fetch { .. }
            | IoKind::Flush
            | IoKind::FlushOwn
            | IoKind::Settle => false,
            IoKind::Write | IoKind::Store | IoKind::WriteZeroes { .. } | IoKind::Deallocate => true,
        }
    }

    /// The bytes that it is about.
    #[must_use]
    pub fn bytes(&self) -> Range<u64> {
        self.offset..self.offset + self.len
    }
}

/// Whether two ranges of bytes of one disk have some in common.
#[must_use]
pub fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// What to do to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoKind {
    /// Read into a buffer of `len` bytes.
    Read,
    /// Write the request's data.
    Write,
    /// Read `len` bytes elsewhere and compare them with the request's data.
    Compare,
    /// Read `len` bytes into a second buffer, which stays for the next of
    /// these. The host gets none of them.
    Fetch {
        /// What the longest of them takes: the buffer has so many pages of
        /// [`PAGE`](Self::PAGE) bytes.
        pages: u8,
    },
    /// Make everything that was written stable.
    Flush,
    /// [`Flush`](Self::Flush), if the host has written something that was answered and is
    /// not known to be stable; nothing otherwise.
    FlushOwn,
    /// Wait until no command is in flight, on whatever reactor, that
    /// [will write](crate::Request::will_write) to what is behind the disk and
    /// was begun before; then [`Flush`](Self::Flush).
    Settle,
    /// Write the `len` bytes of the second buffer, which were fetched last.
    Store,
    /// Write zeroes; may also give up the space (DEAC).
    WriteZeroes {
        /// Whether the space may be given up.
        deallocate: bool,
    },
    /// Give up the space. Reads of it give zeroes afterwards.
    Deallocate,
}

impl IoKind {
    /// Bytes of a page, in which the buffer of [`Fetch`](Self::Fetch) is counted.
    pub const PAGE: u32 = 4096;
}

/// Where the data of a request are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// It has none.
    None,
    /// In the capsule, at these bytes of it.
    Capsule(Range<usize>),
    /// In the host's memory.
    Remote(Remote),
    /// In the host's memory, at several places, which descriptors in the capsule
    /// name: [`Request::pieces`](crate::Request::pieces) reads them.
    List {
        /// Where the descriptors begin in the capsule.
        at: u16,
        /// How many there are.
        count: u8,
        /// Bytes of data.
        len: u32,
    },
}

/// What a queue wants without having been asked.
#[derive(Debug)]
#[must_use]
pub enum Order {
    /// Send this answer to a command that was held.
    Respond(Response),
    /// Look for the command of that identifier. If nothing was done for it yet,
    /// have it answered with [`Queue::abort`](crate::Queue::abort), or with
    /// [`Queue::abort_unseen`](crate::Queue::abort_unseen) if it was not even
    /// begun. In any case say what became of it, with
    /// [`Queue::aborted`](crate::Queue::aborted).
    Abort {
        /// Command identifier.
        cid: u16,
    },
    /// Close the queue pair.
    Close(CloseCause),
}

/// Why a queue pair is closed by us. Displays as cause and expectation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseCause {
    /// The host sent a Disconnect command. The response goes first.
    #[error("the host disconnected the queue")]
    Disconnected,
    /// No Connect command came in time.
    #[error("no Connect command came within {seconds} s of the connection")]
    NoConnect {
        /// How long we waited.
        seconds: u64,
    },
    /// Something else than one Connect command at a time came first.
    #[error("a command came before the queue was connected, expected one Connect and no other")]
    NotConnected,
    /// The host fell silent.
    #[error("the host sent no command for its keep-alive time of {kato_ms} ms")]
    KeepAlive {
        /// What the host asked for.
        kato_ms: u32,
    },
    /// The controller this I/O queue belongs to was reset, shut down or lost.
    #[error("controller {cntlid} of this queue is gone or was reset")]
    ControllerGone {
        /// Which controller.
        cntlid: u16,
    },
    /// A capsule that is no capsule.
    #[error("a capsule of {len} bytes came, expected {expected}")]
    BadCapsule {
        /// Its length.
        len: usize,
        /// What would be right.
        expected: &'static str,
    },
    /// The edge reported something that does not fit what it was asked to do.
    #[error("internal error: {what}; please report this")]
    Internal {
        /// What happened.
        what: &'static str,
    },
}
