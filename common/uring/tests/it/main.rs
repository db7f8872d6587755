//! Tests through the interface of the crate.
//!
//! Beside this folder, as programs of their own: what lowers a limit of the process
//! or looks at its threads.

mod lent;
mod ring;
