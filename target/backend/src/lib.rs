//! Storage behind namespaces: files, block devices, RAM, null.
//!
//! A [`Spec`] says what to serve. A [`Claim`] is the right to serve it, taken
//! once in the process: it opens and locks the file and decides how it is
//! read and written. Each reactor opens the claim in its own [`Disks`], which
//! owns the reactor's one io_uring. A [`Request`] goes in with its buffer and
//! comes out as a [`Done`] with the same buffer.
//!
//! This crate knows bytes and offsets, not logical blocks, namespaces or NVMe
//! statuses; it does not order requests and does not sleep.
#![forbid(unsafe_code)]

mod backend;
mod blocking;
mod claim;
mod disks;
mod error;
mod file;
mod geometry;
mod hints;
mod losses;
mod null;
mod numbers;
mod polling;
mod probe;
mod ram;
mod request;
mod resize;
mod storage;

pub use backend::{Backend, Io};
pub use claim::{Claim, WeakClaim, identity};
pub use disks::{Disks, StorageOpenError};
pub use error::{CloseError, IoError, IoErrorKind, NoPolling, OpenError};
pub use geometry::Geometry;
pub use hints::Hints;
pub use losses::{Losses, Lost, StorageId, counted, flush_begins, stamp};
pub use numbers::Numbers;
pub use request::{Done, Op, Refused, Request, Why};
pub use resize::ResizeError;
pub use storage::{Storage, StorageError};
// Of the interface above.
pub use nvmeof_backend_spec::{BlockSize, NoAnswer, Spec};
