//! Tests through the interface of the crate.
//!
//! Beside this folder, as programs of their own: what lowers a limit of the process, and
//! what starts programs. Until exec(2), a child holds the file locks that other tests of
//! its process give up.

mod at_once;
mod atomic;
mod conformance;
mod model;
mod opening;
