//! Software RDMA verbs without I/O: keys, queue pairs, iWARP.
//!
//! [`SoftRdma`] keeps the contract of [`nvmeof_rdma::Provider`] over any
//! transport of byte streams that implements [`Streams`]. On the wire it
//! speaks iWARP: MPA (RFC 5044, RFC 6581), DDP (RFC 5041), RDMAP (RFC 5040).
//!
//! What every provider in software needs is public by itself: [`KeyTable`] and
//! [`Slots`], and [`group`] for several that listen on the same addresses.
//!
//! This crate opens no socket and reads no clock: streams and time are given
//! to it.
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
pub use streams::{StreamEvent, StreamId, Streams};
