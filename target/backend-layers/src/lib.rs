//! Wrappers around a backing store, for tests: each is a [`Backend`] itself and delegates.
//!
//! * [`Faulty`] makes requests fail and transfers end early, by chance or by script.
//! * [`Delayed`] holds results back, so that they come out of order.
//!
//! Either fits around any backend, also around the other one:
//! [`Disks::open_wrapped`](nvmeof_backend::Disks::open_wrapped) puts them on.
//!
//! This crate holds no backend of its own, and no crate that ships links it.
//!
//! [`Backend`]: nvmeof_backend::Backend
#![forbid(unsafe_code)]

mod delayed;
mod dice;
mod faulty;

pub use delayed::Delayed;
pub use faulty::{Fault, Faulty, Plan};
