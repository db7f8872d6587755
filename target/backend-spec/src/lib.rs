//! What backing stores are called, and questions about them that storage which hangs
//! cannot hold up.
//!
//! This crate opens nothing and serves nothing: `nvmeof-backend` does. Programs that only
//! read or write a configuration use it without io_uring.
#![forbid(unsafe_code)]

mod block_size;
mod questions;
mod size;
mod spec;

pub use block_size::BlockSize;
pub use questions::{ANSWERING, NoAnswer, Questions, within};
pub use size::{SizeError, parse_size};
pub use spec::{Spec, SpecError};
