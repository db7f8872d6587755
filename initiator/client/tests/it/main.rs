//! Tests through the interface of the crate.

mod authentication;
mod calls;
mod discovery;
mod fake;
mod held;
mod host;
mod multipath;
mod names;
mod paths;
mod polled;
mod reservations;
mod returning;
