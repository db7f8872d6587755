//! Tests through the interface of the crate.
//!
//! Tests that lower a limit of the process or start programs are programs of their own, in
//! the parent directory. Until exec(2), a child holds the file locks that other tests of its
//! process release.

mod active;
mod at_once;
mod atomic;
mod conformance;
mod model;
mod opening;
