//! Ranges of blocks on the command line of `nvmeof dsm` and `nvmeof copy`.

use clap::Args;
use nvmeof_initiator::Range;

use super::numbers::number;
use crate::failure::Failure;

/// Ranges of blocks, each with a first block and a number of blocks.
#[derive(Args, Debug)]
pub(crate) struct Ranges {
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
    /// Numbers of blocks of the ranges, counted from 1 (nvme copy counts from 0),
    /// separated by commas
    #[arg(long, alias = "blocks", value_name = "N,..", value_delimiter = ',', required = true,
          value_parser = number::<u32>(1..=u32::MAX.into()))]
    block_count: Vec<u32>,
}

impl Ranges {
    /// The ranges, in the order given.
    pub(crate) fn pairs(&self) -> Result<Vec<Range>, Failure> {
        let (starts, counts) = (&self.start_block, &self.block_count);
        if starts.len() != counts.len() {
            return Err(Failure::new(format!(
                "--start-block has {} values, --block-count has {}",
                starts.len(),
                counts.len()
            ))
            .with_remedy("give one --block-count value for each --start-block value"));
        }
        let pairs = starts.iter().zip(counts);
        let ranges = pairs.map(|(slba, count)| Range {
            slba: *slba,
            count: *count,
        });
        Ok(ranges.collect())
    }
}
