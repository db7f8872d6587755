//! Style checks that run as tests: `cargo xtask test tidy`.
//!
//! Each check is a function from text to a list of problems, with a test whose input must
//! fail. `tests/repository.rs` and `tests/documents.rs` apply the checks to the repository.
//! This crate does not repeat checks of rustfmt, rustc and clippy.
#![forbid(unsafe_code)]

pub mod crates;
pub mod cycles;
pub mod features;
pub mod functions;
pub mod instructions;
pub mod licences;
pub mod links;
pub mod logging;
pub mod mentions;
pub mod messages;
pub mod names;
pub mod options;
pub mod phrases;
pub mod publishing;
pub mod reference;
pub mod sources;
pub mod spdx;
pub mod toolchain;
pub mod tree;

/// A problem: location, cause and remedy.
pub type Problem = String;
