//! Tools for administrators of a target: `ctl` shows and changes it, `top` shows its load,
//! `import` converts a configuration of the Linux kernel target (nvmet).
//!
//! This crate links no reactor, backing store or io_uring: it uses the control socket, and
//! reads and writes configurations.
#![forbid(unsafe_code)]

mod ctl;
mod import;
mod remedy;
mod top;

use std::fmt::Display;
use std::io::{self, Write};

use nvmeof_wire::text::Lines;

pub use ctl::Ctl;
pub use import::Import;
#[doc(hidden)]
pub use import::fuzzed as import_fuzzed;
pub use top::Top;

/// The exit status of a failure.
pub const FAILED: u8 = 1;
/// The exit status of an error of usage or configuration.
pub const USAGE: u8 = 2;

/// Prints a message on standard error, after the name of the program.
pub fn complain(text: &dyn Display) {
    let text = format!("nvmeof-target: {text}\n");
    // A write error has no other place to be reported.
    let _ = io::stderr().write_all(Lines(&text).to_string().as_bytes());
}
