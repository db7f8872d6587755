//! RDMA provider: deterministic simulation in virtual time.
//!
//! A [`SimNet`] is a network inside one process. Each [`SimNet::endpoint`] is
//! a provider ([`Sim`]): the whole of software iWARP over byte streams that
//! the network carries. Time is virtual and moves only when
//! [`SimNet::advance`] or [`SimNet::advance_to_next`] is called. Bytes arrive
//! in pieces of random size after random times, receivers have bounded
//! windows, and [`Trouble`] can be made, by chance or on demand. All of it
//! follows from one seed: the same seed and the same calls give the same run.
//!
//! What an endpoint is slept on is a real descriptor all the same, so that whoever sleeps
//! is woken as anywhere else.
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
pub use trouble::Trouble;
