//! Memory regions, fixed pools and the buffers in them.
//!
//! A [`Region`] is memory from the kernel. A [`Pool`] cuts it into equal
//! pieces. A [`Buf`] is the one owner of one piece: whoever holds it may look
//! at the bytes and nobody else can. Lending a buffer to a device or a peer
//! means moving the `Buf` to whoever does the lending; it comes back as a
//! `Buf` when nobody else can touch the memory any more.
//!
//! [`Shared`] is memory of another kind: another process maps it too and may
//! change it at any moment, so that it is never seen as a slice. A [`Lender`]
//! has a region that another process shares: buffers in it go where others go,
//! but their bytes may change, so they are copied and never seen as a slice.
//!
//! This crate moves no data of others and knows nothing of RDMA or NVMe.
//!
//! Unsafe code is allowed here because memory that comes from `mmap` and is
//! handed out piece by piece is what the crate is for.
#![allow(unsafe_code, reason = "mapping memory and handing out its pieces")]

mod bounds;
mod buf;
mod classes;
mod free;
mod home;
mod lender;
pub mod marking;
mod memfd;
mod passed;
mod pool;
mod racy;
mod region;
mod shared;

pub use bounds::OutOfBounds;
pub use buf::Buf;
pub use classes::{ClassSpec, Classes};
pub use lender::{Foreign, ForeignRegion, Lender};
pub use memfd::SharedError;
pub use passed::receive_passed;
pub use pool::{Pool, PoolError, PoolLayout};
pub use region::{MemoryError, Pages, Region, RegionId, WeakRegion};
pub use shared::Shared;
