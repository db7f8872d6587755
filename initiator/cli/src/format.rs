//! Output formats.

use clap::ValueEnum;

/// An output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Text.
    Normal,
    /// JSON.
    Json,
}
