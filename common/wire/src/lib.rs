//! Byte formats of NVMe and NVMe over Fabrics.
//!
//! Structures are laid out as on the wire, little-endian, with size and
//! offsets asserted beside each. Numbers a peer may choose freely are newtypes
//! with named constants. What has a meaning beyond its bytes is parsed once
//! into it: [`sgl::Sgl`], [`nvm::Io`], [`admin::Identify`] and so on.
//!
//! This crate does no I/O, allocates nothing and decides nothing: it says what
//! bytes mean, not whether they are allowed here and now.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod admin;
pub mod aer;
pub mod ascii;
pub mod cm;
pub mod cqe;
pub mod fabrics;
pub mod features;
pub mod identify;
pub mod log;
pub mod nqn;
mod number;
pub mod nvm;
pub mod opcode;
pub mod registers;
pub mod sgl;
pub mod sqe;
pub mod status;
pub mod text;

pub use ascii::Ascii;
pub use cqe::Cqe;
pub use nqn::Nqn;
pub use sgl::{Sgl, SglDescriptor};
pub use sqe::Sqe;
pub use status::Status;
