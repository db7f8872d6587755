//! Safe owners of the objects of libibverbs and librdmacm. All unsafe code of this crate is
//! in this folder.
//!
//! Each owner keeps the objects that it was created from alive, so that objects are destroyed
//! in the order that the libraries require: a completion queue before its channel, a memory
//! region before its protection domain, everything before its context. This folder contains
//! no policy.

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
pub(crate) use context::{Context, ContextKey, DeviceAttr, DeviceEvent, PortAttr};
pub(crate) use library::Missing;
pub use library::{Lookup, provide_functions};
pub(crate) use memory::{MemoryRegion, MemoryWindow, Piece, ProtectionDomain};
pub(crate) use raw::{event, status};
pub(crate) use srq::{SharedReceiveQueue, SrqHandle, SrqKey};

/// Loads the libraries. Returns whether they are a stand-in for those of rdma-core, whose
/// devices do not exist for the kernel.
pub(crate) fn available() -> Result<bool, Missing> {
    library::functions().map(|functions| functions.stand_in)
}

/// Makes a descriptor of a library non-blocking.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> std::io::Result<()> {
    fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}

/// The error of a call that returned -1 or null.
fn last_error() -> std::io::Error {
    std::io::Error::last_os_error()
}

/// Result of a call that returns 0, -1 with errno, or an error number, which some drivers
/// negate.
fn check(result: libc::c_int) -> std::io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(last_error()),
        _ => Err(std::io::Error::from_raw_os_error(result.saturating_abs())),
    }
}
