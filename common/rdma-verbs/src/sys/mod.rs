//! Safe owners of what libibverbs and librdmacm hand out. All unsafe code of
//! this crate is in this folder.
//!
//! Each owner keeps what it was made from alive, so that things go in the
//! order the libraries demand: a completion queue before its channel, a memory
//! region before its protection domain, everything before its context. Nothing
//! here decides anything.

mod address;
mod chain;
mod channel;
mod cm;
mod completion;
mod context;
mod library;
mod memory;
mod raw;
mod srq;

use std::os::fd::BorrowedFd;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

pub(crate) use chain::{INLINE, Payload, RecvChain, Segment, SendChain, SendOp, SendRequest};
pub(crate) use channel::{CmEvent, CmEventKind, EventChannel};
pub(crate) use cm::{CmId, CmIdKey, ConnectParams, QpParts, QpSizes};
pub(crate) use completion::{Batch, CompletionChannel, CompletionQueue, CqKey, WorkCompletion};
pub(crate) use context::{AsyncNote, Context, ContextKey, DeviceAttr, PortAttr};
pub(crate) use library::Missing;
pub(crate) use memory::{MemoryRegion, MemoryWindow, Piece, ProtectionDomain};
pub(crate) use raw::{event, status};
pub(crate) use srq::{Drawn, SharedReceiveQueue, SrqKey};

/// Whether the libraries are there.
pub(crate) fn available() -> Result<(), Missing> {
    library::functions().map(|_| ())
}

/// Has reads of a descriptor of a library return at once.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> std::io::Result<()> {
    fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}

/// What a call that returned -1 or null said.
fn last_error() -> std::io::Error {
    std::io::Error::last_os_error()
}

/// What a call said that returns 0, -1 with errno, or an error number, which
/// some drivers negate.
fn check(result: libc::c_int) -> std::io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(last_error()),
        _ => Err(std::io::Error::from_raw_os_error(result.saturating_abs())),
    }
}
