//! Tests through the interface of the crate.

mod fake;
mod held;
mod host;
mod names;
mod polled;
