//! Wire formats of NVMe and NVMe over Fabrics.
//!
//! Structures are laid out as on the wire, little-endian, with size and offsets asserted
//! beside each. A number of which a peer may send any value is a newtype with named
//! constants. Fields with a meaning beyond their bytes are parsed once: [`sgl::Sgl`],
//! [`nvm::Io`], [`admin::Identify`] and so on.
//!
//! This crate performs no I/O and no allocation. It says what bytes mean, not whether a
//! controller accepts them in its present state.
//!
//! ```
//! use nvmeof_wire::Sqe;
//! use nvmeof_wire::nvm::Io;
//! use nvmeof_wire::opcode::io;
//!
//! let capsule = Io::new(1, 2048, 8).to_sqe(io::READ).to_bytes();
//!
//! let sqe = Sqe::from_capsule(&capsule).unwrap();
//! assert_eq!(sqe.opcode, io::READ);
//! assert_eq!(Io::parse(&sqe).blocks, 8);
//! ```
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod admin;
pub mod aer;
pub mod ascii;
pub mod auth;
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
pub mod reservation;
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
