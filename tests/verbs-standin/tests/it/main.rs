//! The provider over stand-in devices.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod conformance;
mod fabric;
mod faults;
mod libraries;
mod resources;
mod watched;
mod withdrawing;
