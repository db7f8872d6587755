//! What administrators use beside the target that serves: `ctl` asks and changes it, `top`
//! shows what it does, `import` makes a configuration of one of the Linux kernel's target.
//!
//! This crate links no reactor, no backing store and no io_uring: it talks over the control
//! socket, and reads and writes configurations.
#![forbid(unsafe_code)]

mod ctl;
mod import;
mod top;

use std::fmt::Display;
use std::io::{self, Write};

use nvmeof_wire::text::Lines;

pub use ctl::Ctl;
pub use import::Import;
#[doc(hidden)]
pub use import::fuzzed as import_fuzzed;
pub use top::Top;

/// The exit status of what failed.
pub const FAILED: u8 = 1;
/// The exit status of wrong usage or configuration.
pub const USAGE: u8 = 2;

/// Prints a message on standard error, after the name of the program.
pub fn complain(text: &dyn Display) {
    let text = format!("nvmeof-target: {text}\n");
    // Without standard error there is nobody to tell.
    let _ = io::stderr().write_all(Lines(&text).to_string().as_bytes());
}
