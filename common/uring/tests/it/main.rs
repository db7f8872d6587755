//! Tests through the interface of the crate.
//!
//! Tests that lower a limit of the process or inspect its threads are programs of their
//! own, in the parent directory.

mod lent;
mod ring;
