//! Style checks that run as tests: `cargo xtask test tidy`.
//!
//! Each check takes text and returns what is wrong with it, so that each has a
//! test with an input that must fail; `tests/repository.rs` gives them the
//! repository. What rustfmt, rustc and clippy check is not checked again here.
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
pub mod reference;
pub mod sources;
pub mod spdx;
pub mod tree;

/// Something that is not as it should be: where, what, and what to do.
pub type Problem = String;
