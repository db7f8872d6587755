//! Software RDMA without I/O: memory keys, queue pairs, iWARP.
//!
//! [`SoftRdma`] implements the contract of [`nvmeof_rdma::Provider`] over any byte streams
//! that implement [`Streams`]. Its protocol is iWARP: MPA (RFC 5044, RFC 6581), DDP (RFC
//! 5041), RDMAP (RFC 5040).
//!
//! Parts that every software provider needs are public: [`KeyTable`] and [`Slots`], and
//! [`group`] for providers that listen on the same addresses.
//!
//! This crate opens no socket and reads no clock: its owner provides streams and time. It
//! contains nothing of NVMe.
#![forbid(unsafe_code)]

mod config;
mod conn;
pub mod group;
mod inbound;
pub mod iwarp;
mod keys;
mod outbound;
mod provider;
mod slots;
mod streams;
#[cfg(test)]
mod testing;

pub use config::SoftConfig;
pub use keys::{Access, KeyFault, KeyTable};
pub use provider::SoftRdma;
pub use slots::Slots;
pub use streams::{Accepted, StreamEvent, StreamId, Streams};
