//! Wrappers around a backing store, for tests: each is a [`Backend`] itself and delegates.
//!
//! * [`Faulty`] makes requests fail and transfers short, at random or by script.
//! * [`Delayed`] delays completions, so that they are out of order.
//!
//! Each wraps any backend, also the other wrapper, with
//! [`UringStores::open_wrapped`](nvmeof_backend::UringStores::open_wrapped).
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
