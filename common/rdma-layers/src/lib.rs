//! Wrappers around an RDMA provider, for tests and simulation. Each is a provider itself and
//! delegates to the inner one.
//!
//! * [`Faulty`] injects the failures that the contract allows, at random or by script.
//! * [`Sharing`] adds shared receive queues.
//! * [`Trace`] records every call and every event.
//!
//! Any of them can wrap any provider. [`forward!`] generates the methods that a wrapper does
//! not change. [`Dice`] provides the random numbers of faults and simulations.
//!
//! This crate contains no provider, and released programs do not link it.
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
