//! The formats of output.

use clap::ValueEnum;

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Normal,
    /// For programs.
    Json,
}
