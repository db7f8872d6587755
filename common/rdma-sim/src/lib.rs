//! RDMA provider: deterministic simulation in virtual time.
//!
//! A [`SimNet`] is a network inside one process. Each [`SimNet::endpoint`] is a provider
//! ([`Sim`]): complete software iWARP over byte streams of the network. Time is virtual and
//! moves only by [`SimNet::advance`] or [`SimNet::advance_to_next`]. Bytes arrive in pieces
//! of random size after random times, receivers have bounded windows, and [`NetworkFault`] is
//! injected at random or on demand. Everything depends on one seed: the same seed and the
//! same calls yield the same run.
//!
//! Each endpoint has a real file descriptor to sleep on, so that wake-ups work as with other
//! providers.
//!
//! This crate opens no socket, reads no clock and starts no thread.
#![forbid(unsafe_code)]

mod chance;
mod config;
mod delivery;
mod endpoint;
mod net;
mod sim;
mod socket;
mod streams;
mod trouble;
mod wake_pipe;

pub use config::{SimChances, SimConfig};
pub use sim::{Sim, SimNet};
pub use streams::SimStreams;
pub use trouble::NetworkFault;
