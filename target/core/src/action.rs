//! Actions that a queue requests of the engine, and events that the engine reports.

use std::ops::Range;

use nvmeof_dhchap::{Work, WorkResult};
use nvmeof_wire::{Cqe, Status};

use crate::PendingSave;

/// Memory of the host that a command describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address of the first byte, as in the SGL descriptor.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// The remote key (`R_Key`).
    pub key: u32,
}

/// What to do next for one command.
#[derive(Debug)]
#[must_use]
pub enum Action {
    /// Take a buffer of `remote.len` bytes, fill it by RDMA Read, then
    /// [`Event::Pulled`].
    Pull {
        /// Source of the data.
        remote: Remote,
        /// Bytes of a second buffer that is needed later, or 0. Take both
        /// now, so that no command waits for a buffer while holding one.
        spare: u32,
    },
    /// As [`Pull`](Self::Pull), but into the capsule, behind the command: the
    /// data of one half of a fused operation. They begin at byte 64.
    PullBehind {
        /// Source of the data.
        remote: Remote,
    },
    /// One half of a fused operation has its data. When both halves have theirs,
    /// the first half gets [`Event::Execute`].
    Fuse,
    /// Run the operation of the backing store, then [`Event::Executed`]. Data of a
    /// write or compare are where [`Request::data`](crate::Request::data) says.
    Execute(IoOp),
    /// Take a buffer of `len` bytes, then [`Event::Buffer`].
    Produce {
        /// Bytes.
        len: u32,
    },
    /// Wait until the save completes or fails, then [`Event::Saved`]. Do not block: a
    /// stalled file delays it without bound.
    AwaitSave(PendingSave),
    /// Run this computation of an authentication on another thread, then [`Event::Computed`]:
    /// it takes up to tens of milliseconds.
    Compute(Work),
    /// Send the response. This request is complete.
    Respond(Response),
    /// Nothing to do: the response follows as an [`Order`]. This request is complete.
    Hold,
    /// Close the queue pair. This request is complete.
    Close(CloseCause),
}

/// The response to a command. It is large, so it is not `Copy`.
#[derive(Clone, Debug)]
pub struct Response {
    /// Destination of the data in the request's buffer: write its first `len` bytes by RDMA
    /// Write first. Only the message of an Authentication Receive may be shorter than the buffer.
    pub push: Option<Remote>,
    /// The response capsule.
    pub cqe: Cqe,
    /// A key of the host that the response invalidates.
    pub invalidate: Option<u32>,
}

/// An event of a request.
#[derive(Debug)]
pub enum Event<'a> {
    /// All requested data have been transferred.
    Pulled(&'a [u8]),
    /// The operation of the backing store completed. `data` is the content of the
    /// request's buffer, if it has one; only Dataset Management reads it.
    Executed {
        /// The outcome.
        outcome: Executed,
        /// The data that were pulled or arrived in the capsule. They may be empty for
        /// every operation but [`IoKind::Deallocate`].
        data: &'a [u8],
    },
    /// This half of a fused operation may execute: the first one when both have
    /// their data, the second one when the first succeeded.
    Execute,
    /// A buffer of the requested length.
    Buffer(&'a mut [u8]),
    /// The save of [`Action::AwaitSave`] completed or failed.
    Saved {
        /// Whether it succeeded.
        saved: bool,
    },
    /// The result of [`Action::Compute`].
    Computed(WorkResult),
}

/// The outcome of an operation of a backing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed {
    /// It succeeded.
    Ok,
    /// The data of a compare differ.
    Miscompare,
    /// No space left (ENOSPC).
    NoSpace,
    /// The backing store is read-only.
    ReadOnly,
    /// The backing store does not support the operation.
    Unsupported,
    /// The backing store is gone, or shorter than before.
    Gone,
    /// Another target has taken over the storage, and serves the same data.
    Fenced,
    /// Another gateway serves the namespace, or is about to.
    Standby,
    /// An I/O error.
    Failed,
}

impl Executed {
    /// The status of a command whose operation had this outcome.
    pub(crate) fn status(self, kind: IoKind) -> Status {
        match (self, kind) {
            (Self::Ok, _) => Status::SUCCESS,
            (Self::Miscompare, _) => Status::COMPARE_FAILURE,
            (Self::NoSpace, _) => Status::CAPACITY_EXCEEDED,
            (Self::ReadOnly, _) => Status::NAMESPACE_WRITE_PROTECTED,
            (Self::Unsupported, _) => Status::INVALID_OPCODE,
            (Self::Gone, _) => Status::NAMESPACE_NOT_READY,
            // Base 2.1, Path Related Status: an error of this controller only. Hosts send the
            // command again over another path.
            (Self::Fenced, _) => Status::INTERNAL_PATH_ERROR,
            (Self::Standby, _) => Status::ANA_INACCESSIBLE,
            (Self::Failed, IoKind::Read | IoKind::Compare | IoKind::Fetch { .. }) => {
                Status::UNRECOVERED_READ_ERROR
            }
            (
                Self::Failed,
                IoKind::Write
                | IoKind::WriteFetched
                | IoKind::WriteZeroes { .. }
                | IoKind::Flush
                | IoKind::FlushOwn
                | IoKind::Settle
                | IoKind::Await { .. },
            ) => Status::WRITE_FAULT,
            (Self::Failed, IoKind::Deallocate) => Status::INTERNAL_ERROR,
        }
    }
}

/// One operation of a backing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoOp {
    /// The backing store ([`NamespaceSpec::store`](crate::NamespaceSpec::store)).
    pub store: u32,
    /// The kind of operation.
    pub kind: IoKind,
    /// First byte.
    pub offset: u64,
    /// Length in bytes. A flush always covers the whole store; its length is 0, or
    /// that of the range for which it is done.
    pub len: u64,
    /// Whether the data must be on stable storage when it completes.
    pub fua: bool,
}

impl IoOp {
    /// A flush of the whole backing store.
    pub(crate) fn flush(store: u32) -> Self {
        Self {
            store,
            kind: IoKind::Flush,
            offset: 0,
            len: 0,
            fua: false,
        }
    }

    /// Whether it reads data of a host's command.
    #[must_use]
    pub fn reads(&self) -> bool {
        matches!(
            self.kind,
            IoKind::Read | IoKind::Compare | IoKind::Fetch { .. }
        )
    }

    /// Whether it changes data.
    #[inline]
    #[must_use]
    pub fn changes(&self) -> bool {
        match self.kind {
            IoKind::Read
            | IoKind::Compare
            | IoKind::Fetch { .. }
            | IoKind::Flush
            | IoKind::FlushOwn
            | IoKind::Settle
            | IoKind::Await { .. } => false,
            IoKind::Write
            | IoKind::WriteFetched
            | IoKind::WriteZeroes { .. }
            | IoKind::Deallocate => true,
        }
    }

    /// Its byte range.
    #[must_use]
    pub fn bytes(&self) -> Range<u64> {
        self.offset..self.offset + self.len
    }
}

/// Whether two byte ranges overlap.
#[must_use]
pub fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Kinds of operations of backing stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoKind {
    /// Read into a buffer of `len` bytes.
    Read,
    /// Write the request's data.
    Write,
    /// Read `len` bytes into another buffer and compare them with the request's data.
    Compare,
    /// Read `len` bytes into a second buffer, which is reused for the next piece. They
    /// are not transferred to the host.
    Fetch {
        /// Size of the buffer for the longest piece, in pages of
        /// [`PAGE`](Self::PAGE) bytes.
        pages: u8,
    },
    /// Make all earlier writes stable.
    Flush,
    /// [`Flush`](Self::Flush), if the host has completed writes that are not known to be
    /// stable; otherwise nothing.
    FlushOwn,
    /// Wait for all commands in flight, on every reactor, that began before and
    /// [will write](crate::Request::will_write) to this storage; then
    /// [`Flush`](Self::Flush).
    Settle,
    /// Wait for all commands in flight, on every reactor, that began before and will write to this
    /// storage; with `reads`, also for those that will read it.
    Await {
        /// Whether to wait for reads, too.
        reads: bool,
    },
    /// Write the `len` bytes of the second buffer, which were fetched last.
    WriteFetched,
    /// Write zeroes; may also deallocate (DEAC).
    WriteZeroes {
        /// Whether the blocks may be deallocated.
        deallocate: bool,
    },
    /// Deallocate. Later reads return zeroes.
    Deallocate,
}

impl IoKind {
    /// Bytes of a page, the unit of the buffer of [`Fetch`](Self::Fetch).
    pub const PAGE: u32 = 4096;
}

/// Location of the data of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// It has none.
    None,
    /// In the capsule, in this byte range.
    Capsule(Range<usize>),
    /// In the memory of the host.
    Remote(Remote),
    /// In the memory of the host, in several segments that descriptors in the capsule
    /// describe: [`Request::pieces`](crate::Request::pieces) reads them.
    List {
        /// Offset of the descriptors in the capsule.
        at: u16,
        /// Number of descriptors.
        count: u8,
        /// Bytes of data.
        len: u32,
    },
}

/// An action of a queue that does not follow an event of a request.
#[derive(Debug)]
#[must_use]
pub enum Order {
    /// Send the response to a command that was held.
    Respond(Response),
    /// Look for the command with this identifier. If it has not started, complete
    /// it with [`Queue::abort`](crate::Queue::abort), or with
    /// [`Queue::abort_unseen`](crate::Queue::abort_unseen) if
    /// [`Queue::begin`](crate::Queue::begin) was not called for it. In any case,
    /// report the outcome with [`Queue::aborted`](crate::Queue::aborted).
    Abort {
        /// Command identifier.
        cid: u16,
    },
    /// Close the queue pair.
    Close(CloseCause),
}

/// Why the target closes a queue pair. Displays as cause and expectation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseCause {
    /// The host sent a Disconnect command. Its response is sent first.
    #[error("the host disconnected the queue")]
    Disconnected,
    /// No Connect command arrived in time.
    #[error("no Connect command arrived within {seconds} s of the connection")]
    NoConnect {
        /// The timeout.
        seconds: u64,
    },
    /// The first command was not Connect, or another command arrived during Connect.
    #[error("a command arrived before the queue was connected, expected one Connect command")]
    NotConnected,
    /// Too many other commands arrived before the host had authenticated itself, or one during
    /// another one.
    #[error(
        "commands arrived before the host was authenticated, expected Authentication Send and \
         Receive, one at a time"
    )]
    NotAuthenticated,
    /// The host did not prove its key.
    #[error("the host was not authenticated")]
    AuthenticationFailed,
    /// The host did not continue its authentication in time.
    #[error("the host did not continue its authentication within {seconds} s")]
    AuthenticationTimeout {
        /// The timeout of one step.
        seconds: u64,
    },
    /// The host proved its key, but the Connect of the queue was refused then.
    #[error("the host was authenticated, but its Connect was refused")]
    NotJoined,
    /// The Keep Alive Timer expired.
    #[error("the host sent no command for its Keep Alive Timeout of {kato_ms} ms")]
    KeepAlive {
        /// The Keep Alive Timeout (KATO).
        kato_ms: u32,
    },
    /// The controller of this queue was reset, shut down or lost.
    #[error("controller {cntlid} of this queue is gone or was reset")]
    ControllerGone {
        /// Its identifier.
        cntlid: u16,
    },
    /// A message that is not a valid capsule.
    #[error("received a capsule of {len} bytes, expected {expected}")]
    BadCapsule {
        /// Its length.
        len: usize,
        /// The expected length.
        expected: &'static str,
    },
    /// The engine reported an event that does not match the last action.
    #[error("internal error: {what}; please report this")]
    Internal {
        /// What happened.
        what: &'static str,
    },
}
