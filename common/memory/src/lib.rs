//! Memory regions, buffer pools and the buffers in them.
//!
//! A [`Region`] is memory from the kernel. A [`Pool`] divides it into pieces of equal
//! length. A [`Buf`] is the only owner of one piece: no other code can access its bytes. To
//! give a device or a peer access to a buffer, the `Buf` moves to the code that grants the
//! access. It returns as a `Buf` after the access has ended.
//!
//! [`Shared`] is memory that another process maps too and may change at any time, so it is
//! never accessed as a slice. A [`Lender`] has a region that another process shares. Buffers
//! in it are used like others, but their bytes may change, so they are copied and never
//! accessed as a slice.
//!
//! This crate does no I/O and knows nothing of RDMA or NVMe.
//!
//! ```
//! use nvmeof_memory::{Pages, Pool, PoolLayout};
//!
//! let layout = PoolLayout { count: 8, stride: 4096, lead: 0 };
//! let pool = Pool::new(layout, Pages::Normal)?;
//! let mut buf = pool.take().expect("a new pool has free buffers");
//! buf.set_len(512)?;
//! buf.fill(0xa5);
//! assert_eq!((buf.len(), pool.available()), (512, 7));
//! drop(buf);
//! assert_eq!(pool.available(), 8);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Unsafe code is allowed here because the crate maps memory and gives out pieces of it.
#![allow(unsafe_code, reason = "mapping memory and giving out its pieces")]

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
mod secret;
mod shared;
mod wait;
mod waiters;

pub use bounds::OutOfBounds;
pub use buf::Buf;
pub use classes::{ClassSpec, Classes};
pub use lender::{Foreign, ForeignRegion, Lender};
pub use memfd::SharedError;
pub use passed::receive_passed;
pub use pool::{Pool, PoolError, PoolLayout};
pub use region::{MemoryError, Pages, Region, RegionId, WeakRegion};
pub use secret::Secret;
pub use shared::Shared;
pub use wait::WaitForBuf;
