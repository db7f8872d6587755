//! Wrappers around an RDMA provider, for tests and simulation: each is a provider itself
//! and delegates.
//!
//! * [`Faulty`] injects the failures that the contract allows, by chance or by script.
//! * [`Sharing`] adds shared receive queues.
//! * [`Trace`] writes down every call and every event.
//!
//! Any of them fits around any provider. A method that a wrapper does not change is
//! written by [`forward!`]. [`Dice`] holds the random numbers of faults and simulations.
//!
//! This crate holds no provider of its own, and no crate that ships links it.
#![forbid(unsafe_code)]

mod dice;
mod faults;
mod faulty;
mod forward;
mod sharing;
mod trace;

#[cfg(test)]
mod stub;

pub use dice::{Dice, OneIn};
pub use faults::{Faults, Injected};
pub use faulty::Faulty;
pub use sharing::Sharing;
pub use trace::{Trace, TraceLog};
