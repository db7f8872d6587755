//! Command lines of operations that the controller does without a data transfer to the
//! host, and of Compare and Write.

use std::path::PathBuf;

use clap::Args;

use super::numbers::number;
use super::{BlockCount, Io, SourceRanges};

/// `verify`
#[derive(Args, Debug)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub(crate) io: Io,
    /// First block [default: 0]
    #[arg(long, value_name = "LBA", value_parser = number::<u64>(0..=u64::MAX))]
    pub(crate) start_block: Option<u64>,
    /// Without a number: up to the end of the namespace.
    #[command(flatten)]
    pub(crate) count: BlockCount,
}

/// `copy`
#[derive(Args, Debug)]
pub(crate) struct Copy {
    #[command(flatten)]
    pub(crate) io: Io,
    /// First block of the destination
    #[arg(short = 'd', long, alias = "sdlba", value_name = "LBA",
          value_parser = number::<u64>(0..=u64::MAX))]
    pub(crate) to: u64,
    #[command(flatten)]
    pub(crate) from: SourceRanges,
    /// Complete when the copy is on stable media (FUA)
    #[arg(short = 'f', long)]
    pub(crate) force_unit_access: bool,
}

/// `compare-write`
#[derive(Args, Debug)]
pub(crate) struct CompareWrite {
    #[command(flatten)]
    pub(crate) io: Io,
    /// First block
    #[arg(long, value_name = "LBA", value_parser = number::<u64>(0..=u64::MAX))]
    pub(crate) start_block: u64,
    /// File with the expected data, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) compare: PathBuf,
    /// File with the new data, of the same length, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) data: PathBuf,
    /// Complete when the data are on stable media (FUA)
    #[arg(short = 'f', long)]
    pub(crate) force_unit_access: bool,
}
