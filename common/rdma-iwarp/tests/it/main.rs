//! Tests through the interface of the crate.
//!
//! Beside this folder, as a program of its own: what lowers a limit of the process.

mod attention;
mod conformance;
mod group;
mod sockets;

mod unix;
mod zero_copy;
