//! Ranges of blocks on the command line.

use std::path::{Path, PathBuf};

use clap::Args;
use nvmeof_initiator::Range;

use super::Target;
use super::numbers::{exact_size, number};
use crate::failure::Failure;

/// The first blocks of ranges.
#[derive(Args, Debug)]
struct Starts {
    /// First blocks of the ranges, separated by commas
    #[arg(
        long,
        alias = "slbs",
        value_name = "LBA,..",
        value_delimiter = ',',
        required = true,
        value_parser = number::<u64>(0..=u64::MAX)
    )]
    start_block: Vec<u64>,
}

/// Ranges of `nvmeof dsm`, each with a first block and a number of blocks.
#[derive(Args, Debug)]
pub(crate) struct Ranges {
    #[command(flatten)]
    starts: Starts,
    /// Numbers of blocks of the ranges, counted from 1, separated by commas
    #[arg(short = 'b', long, alias = "blocks", value_name = "N,..", value_delimiter = ',',
          required = true, value_parser = number::<u32>(1..=u32::MAX.into()))]
    block_count: Vec<u32>,
}

/// Ranges of `nvmeof copy`.
#[derive(Args, Debug)]
pub(crate) struct SourceRanges {
    #[command(flatten)]
    starts: Starts,
    /// Numbers of blocks of the ranges, counted from 1, separated by commas
    #[arg(long, value_name = "N,..", value_delimiter = ',',
          required_unless_present = "nlb", conflicts_with = "nlb",
          value_parser = number::<u32>(1..=u32::MAX.into()))]
    block_count: Vec<u32>,
    /// Numbers of blocks of the ranges as in nvme copy, counted from 0: 0 is one block
    #[arg(short = 'b', long, value_name = "N,..", value_delimiter = ',',
          value_parser = number::<u32>(0..=MOST_NLB))]
    nlb: Vec<u32>,
    /// Refused: the long name of -b in nvme-cli
    #[arg(long, hide = true, value_name = "LIST", value_parser = ambiguous_blocks)]
    blocks: Option<String>,
}

/// `nvme copy --blocks` counts from 0. Earlier versions of `nvmeof` counted from 1.
fn ambiguous_blocks(_: &str) -> Result<String, String> {
    Err(
        "--blocks of nvme copy counts from 0, --block-count from 1; write --nlb (-b), which \
         counts from 0, or --block-count"
            .to_owned(),
    )
}

/// The largest NLB of a command: 16 bits, counted from 0.
const MOST_NLB: u64 = 65535;

impl Ranges {
    /// The ranges, in the order given.
    pub(crate) fn pairs(&self) -> Result<Vec<Range>, Failure> {
        pairs(&self.starts, &self.block_count, "--block-count")
    }
}

impl SourceRanges {
    /// The ranges, in the order given.
    pub(crate) fn pairs(&self) -> Result<Vec<Range>, Failure> {
        if self.nlb.is_empty() {
            return pairs(&self.starts, &self.block_count, "--block-count");
        }
        let counts: Vec<u32> = self.nlb.iter().map(|nlb| nlb.saturating_add(1)).collect();
        pairs(&self.starts, &counts, "--nlb")
    }
}

fn pairs(starts: &Starts, counts: &[u32], option: &str) -> Result<Vec<Range>, Failure> {
    let starts = &starts.start_block;
    if starts.len() != counts.len() {
        return Err(Failure::new(format!(
            "--start-block has {} values, {option} has {}",
            starts.len(),
            counts.len()
        ))
        .with_remedy(format!(
            "give one {option} value for each --start-block value"
        )));
    }
    let pairs = starts.iter().zip(counts);
    let ranges = pairs.map(|(slba, count)| Range {
        slba: *slba,
        count: *count,
    });
    Ok(ranges.collect())
}

/// A number of blocks, counted from 1 or, as in nvme-cli, from 0.
#[derive(Args, Debug)]
pub(crate) struct BlockCount {
    /// Number of blocks, counted from 1 (nvme-cli counts from 0)
    #[arg(long, value_name = "N", conflicts_with = "nlb",
          value_parser = number::<u64>(1..=u64::MAX))]
    block_count: Option<u64>,
    /// Number of blocks as in nvme-cli, counted from 0: 0 is one block
    #[arg(short = 'c', long, value_name = "N", value_parser = number::<u64>(0..=MOST_NLB))]
    nlb: Option<u64>,
}

impl BlockCount {
    /// The number of blocks, counted from 1, if one is given.
    pub(crate) fn blocks(&self) -> Option<u64> {
        let counted_from_0 = self.nlb.map(|nlb| nlb.saturating_add(1));
        self.block_count.or(counted_from_0)
    }

    /// Whether the number is counted as in nvme-cli.
    pub(crate) fn is_nlb(&self) -> bool {
        self.nlb.is_some()
    }

    /// The number of blocks of a command that requires it.
    pub(crate) fn required(&self) -> Result<u64, Failure> {
        let missing = || {
            Failure::usage("the number of blocks is missing")
                .with_remedy("give --block-count N, or --nlb N, which counts from 0")
        };
        self.blocks().ok_or_else(missing)
    }
}

/// A range of blocks, and a file.
#[derive(Args, Debug)]
pub(crate) struct Run {
    /// First block [default: 0]
    #[arg(long, value_name = "LBA", value_parser = number::<u64>(0..=u64::MAX))]
    start_block: Option<u64>,
    #[command(flatten)]
    count: BlockCount,
    /// Bytes to transfer, a multiple of the block size: 4096 or 4KiB
    #[arg(short = 'z', long, value_name = "SIZE",
          value_parser = exact_size::<u64>(1..=u64::MAX))]
    data_size: Option<u64>,
    /// File, or - for standard input or output
    #[arg(short = 'd', long, value_name = "FILE")]
    pub(crate) data: PathBuf,
}

/// The blocks of a transfer, and the file.
#[derive(Debug)]
pub(crate) struct Extent<'a> {
    /// First block.
    pub(crate) start: u64,
    /// Number of blocks, if the command line has one.
    pub(crate) count: Option<u64>,
    /// The option with the number of blocks.
    pub(crate) option: &'static str,
    /// The file, or `-`.
    pub(crate) data: &'a Path,
}

impl Extent<'_> {
    /// The number of blocks for a message, with its option.
    pub(crate) fn length(&self, count: u64) -> String {
        match self.option {
            "--block-count" => format!("--block-count is {count}"),
            option => format!("{option} is {count} blocks"),
        }
    }
}

impl Run {
    /// Refuses an ambiguous `-s`.
    pub(crate) fn check(&self, target: &Target) -> Result<(), Failure> {
        let as_nvme_cli = match (self.count.is_nlb(), self.data_size) {
            (true, _) => Some("--nlb (-c)"),
            (false, Some(_)) => Some("--data-size (-z)"),
            (false, None) => None,
        };
        check_start(target, self.start_block, as_nvme_cli)
    }

    /// The blocks, of `block_size` bytes each.
    pub(crate) fn extent(&self, block_size: u32) -> Result<Extent<'_>, Failure> {
        let of_size = self
            .data_size
            .map(|size| whole_blocks(size, block_size))
            .transpose()?;
        let given = self.count.blocks();
        let option = match (self.count.block_count, self.count.nlb) {
            (Some(_), _) => "--block-count",
            (None, Some(_)) => "--nlb",
            (None, None) => "--data-size",
        };
        if let (Some(given), Some(of_size), Some(size)) = (given, of_size, self.data_size)
            && given != of_size
        {
            return Err(Failure::usage(format!(
                "--data-size {size} is {of_size} blocks of {block_size} bytes, {option} is \
                 {given} blocks"
            ))
            .with_remedy(format!("leave --data-size or {option} out")));
        }
        Ok(Extent {
            start: self.start_block.unwrap_or(0),
            count: given.or(of_size),
            option,
            data: &self.data,
        })
    }
}

fn whole_blocks(size: u64, block_size: u32) -> Result<u64, Failure> {
    let block_size = u64::from(block_size);
    if size.is_multiple_of(block_size) {
        return Ok(size / block_size);
    }
    let up = size.checked_next_multiple_of(block_size).unwrap_or(size);
    Err(Failure::usage(format!(
        "--data-size {size} is not a whole number of blocks of {block_size} bytes"
    ))
    .with_remedy(format!("give a multiple, such as {up}")))
}

/// Refuses `-s` beside an option that counts as nvme-cli does, unless `--start-block` is
/// given: `-s` is the port here, and the first block in nvme-cli.
pub(crate) fn check_start(
    target: &Target,
    start_block: Option<u64>,
    as_nvme_cli: Option<&str>,
) -> Result<(), Failure> {
    let (Some(port), None, Some(option)) = (target.trsvcid, start_block, as_nvme_cli) else {
        return Ok(());
    };
    Err(Failure::usage(format!(
        "-s {port} is the port (--trsvcid); with {option}, it may be meant as the first block, \
         as in nvme-cli"
    ))
    .with_remedy(format!(
        "add --start-block with the first block, if {port} is the port; otherwise replace -s by \
         --start-block"
    )))
}
