//! Wrappers around a provider: each is a provider itself and delegates.
//!
//! * [`Trace`] writes down what is called and what happens.
//! * [`Faulty`] makes things fail that may fail by the contract.
//! * [`Sharing`] adds shared receive queues.
//!
//! Any of them fits around any provider. What one does not change it leaves to
//! [`forward!`](crate::forward).

mod boxed;
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
