//! Command lines of operations that the controller does without a data transfer to the
//! host, and of Compare and Write.

use std::path::PathBuf;

use clap::Args;

use super::numbers::number;
use super::{Io, Ranges};

/// `verify`
#[derive(Args, Debug)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub(crate) io: Io,
    /// First block
    #[arg(long, value_name = "LBA", default_value_t = 0,
          value_parser = number::<u64>(0..=u64::MAX))]
    pub(crate) start_block: u64,
    /// Number of blocks, counted from 1 (nvme-cli counts from 0) [default: up to
    /// the end of the namespace]
    #[arg(long, value_name = "N", value_parser = number::<u64>(1..=u64::MAX))]
    pub(crate) block_count: Option<u64>,
}

/// `copy`
#[derive(Args, Debug)]
pub(crate) struct Copy {
    #[command(flatten)]
    pub(crate) io: Io,
    /// First block of the destination
    #[arg(long, alias = "sdlba", value_name = "LBA",
          value_parser = number::<u64>(0..=u64::MAX))]
    pub(crate) to: u64,
    #[command(flatten)]
    pub(crate) from: Ranges,
    /// Complete when the copy is on stable media (FUA)
    #[arg(long)]
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
    #[arg(long)]
    pub(crate) force_unit_access: bool,
}
