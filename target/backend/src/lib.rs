//! Backing stores of namespaces: files, block devices, RBD images, RAM, null.
//!
//! A [`Spec`] names a backing store. A [`Claim`] is the exclusive right to serve it, taken
//! once in the process: it opens and locks the file and selects direct or buffered I/O.
//! Each reactor opens the claim in its own [`UringStores`], which owns the io_uring of the
//! reactor. A [`Request`] owns its buffer, which its completion, a [`Done`], returns.
//!
//! This crate knows bytes and offsets, not logical blocks, namespaces or NVMe statuses. It
//! does not order requests and does not sleep.
#![forbid(unsafe_code)]

mod backend;
mod backing_stores;
mod blocking;
mod claim;
mod error;
mod file;
mod geometry;
mod hints;
mod lock_holder;
mod losses;
mod null;
mod numbers;
mod polling;
mod probe;
mod ram;
mod rbd;
mod rbd_refusal;
mod remote;
mod request;
mod resize;
mod uring_stores;

pub use backend::{Backend, Io};
pub use backing_stores::{BackingStores, BackingStoresError};
pub use claim::{Claim, WeakClaim, identity};
pub use error::{CloseError, IoError, IoErrorKind, NoPolling, OpenError};
pub use geometry::Geometry;
pub use hints::Hints;
pub use lock_holder::locked_by_ended_process;
pub use losses::{Losses, Lost, StorageId, counted, flush_begins, stamp};
pub use numbers::Numbers;
pub use rbd::{ImageRecords, RbdClients, RecordsError, SharedRecord, release_images};
pub use rbd_refusal::RbdRefusal;
pub use request::{Done, Op, RefusalReason, Request, Submitted};
pub use resize::ResizeError;
pub use uring_stores::{UringStores, UringStoresError};
// Of the interface above.
pub use nvmeof_backend_spec::{BlockSize, CephAccess, QueryTimeout, Spec};
