//! Names of backing stores, and queries about them that an unresponsive device cannot block.
//!
//! This crate does not open or serve backing stores: `nvmeof-backend` does. Programs that only
//! read or write a configuration use this crate and need no io_uring.
#![forbid(unsafe_code)]

mod block_size;
mod ceph;
mod questions;
mod size;
mod spec;

pub use block_size::BlockSize;
pub use ceph::{CephAccess, RbdName, RbdNameError};
pub use questions::{QUERY_TIMEOUT, Queries, QueryTimeout, within};
pub use size::{SizeError, parse_size};
pub use spec::{Spec, SpecError};
