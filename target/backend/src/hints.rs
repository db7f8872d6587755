//! In which sizes a disk is written and freed best, as far as it tells.

use std::fs::{File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use nix::sys::stat::{major, minor};
use nix::sys::statvfs::fstatvfs;

use crate::BlockSize;

/// In which sizes a disk is written and freed best. In bytes, each a multiple of the
/// logical block; `None` where nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// What begins elsewhere, or is no multiple of this, costs reading what is
    /// around it first. A power of two.
    pub write: Option<u32>,
    /// Of what begins elsewhere, or is no multiple of this, some is not freed. A power of
    /// two.
    pub deallocate: Option<u32>,
    /// Writes that are multiples of this are the fastest; a multiple of `write`.
    pub optimal_write: Option<u32>,
}

/// Largest size believed, in bytes: more than any device has.
const MOST: u64 = 1 << 30;

impl Hints {
    /// Those of an open file or block device whose bytes are given back or not.
    pub(crate) fn of(file: &File, block_size: BlockSize, frees: bool) -> Self {
        let Ok(told) = file.metadata() else {
            return Self::default();
        };
        let mut hints = if told.file_type().is_block_device() {
            Self::of_device(&|name| queue_value(&told, name), block_size)
        } else {
            let fragment = fstatvfs(file).map(|it| it.fragment_size());
            Self::of_file(fragment.unwrap_or(0), told.blksize(), block_size)
        };
        hints.deallocate = hints.deallocate.filter(|_| frees);
        hints
    }

    /// `told` gives what the kernel says of a block device. Source:
    /// Documentation/ABI/stable/sysfs-block.
    fn of_device(told: &dyn Fn(&str) -> Option<u64>, block_size: BlockSize) -> Self {
        let size = |name| granularity(told(name).unwrap_or(0), block_size);
        // A partition that begins in the middle of a physical block has no place
        // that is a multiple.
        let is_aligned = |name| told(name).unwrap_or(0) == 0;
        let physical = size("queue/physical_block_size");
        let write = physical.max(size("queue/minimum_io_size"));
        let write = write.filter(|_| is_aligned("alignment_offset"));
        // Zero where it cannot deallocate at all.
        let frees = told("queue/discard_max_bytes").unwrap_or(0) > 0;
        let deallocate = size("queue/discard_granularity");
        let deallocate = deallocate.filter(|_| frees && is_aligned("discard_alignment"));
        let optimal = told("queue/optimal_io_size").unwrap_or(0);
        Self {
            write,
            deallocate,
            optimal_write: multiple(optimal, write, block_size),
        }
    }

    /// Of a file in a file system with blocks of `fragment` bytes, which likes to be
    /// asked for `preferred` bytes at once (fstat(2), `st_blksize`). Holes are
    /// punched in its blocks.
    fn of_file(fragment: u64, preferred: u64, block_size: BlockSize) -> Self {
        let write = granularity(fragment, block_size);
        Self {
            write,
            deallocate: write,
            optimal_write: multiple(preferred, write, block_size),
        }
    }
}

/// The size told, if it can be one.
fn granularity(told: u64, block_size: BlockSize) -> Option<u32> {
    let block = u64::from(block_size.bytes());
    let fits = told.is_power_of_two() && (block..=MOST).contains(&told);
    fits.then(|| u32::try_from(told).ok()).flatten()
}

/// The size told, if it is a multiple of that granularity, or else of the block. A
/// stripe need not be a power of two.
fn multiple(told: u64, granularity: Option<u32>, block_size: BlockSize) -> Option<u32> {
    let unit = granularity.unwrap_or(block_size.bytes());
    let fits = told.is_multiple_of(unit.into()) && (1..=MOST).contains(&told);
    fits.then(|| u32::try_from(told).ok()).flatten()
}

/// A number the kernel tells about a block device, as [`queue_text`] does.
/// A negative one, which stands for misaligned, is the largest.
pub(crate) fn queue_value(device: &Metadata, name: &str) -> Option<u64> {
    match queue_text(device, name)?.as_str() {
        // Of stacked devices that do not fit together.
        text if text.starts_with('-') => Some(u64::MAX),
        text => text.parse().ok(),
    }
}

/// What the kernel tells about a block device, by its path below the device. A
/// partition has a place of its own, and the queue of the whole device. Source:
/// Documentation/ABI/stable/sysfs-block.
pub(crate) fn queue_text(device: &Metadata, name: &str) -> Option<String> {
    let (major, minor) = (major(device.rdev()), minor(device.rdev()));
    let ups: &[&str] = match name.starts_with("queue/") {
        true => &["", "../"],
        false => &[""],
    };
    ups.iter().find_map(|up| {
        let path = format!("/sys/dev/block/{major}:{minor}/{up}{name}");
        let text = std::fs::read_to_string(path).ok()?;
        Some(text.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// Of a device that tells this, with blocks of 512 bytes.
    fn told(all: &[(&str, u64)]) -> Hints {
        let told = |name: &str| {
            let mut found = all.iter().filter(|(one, _)| *one == name);
            found.next().map(|(_, value)| *value)
        };
        Hints::of_device(&told, BlockSize::B512)
    }

    const PHYSICAL: &str = "queue/physical_block_size";
    const MINIMUM: &str = "queue/minimum_io_size";
    const OPTIMAL: &str = "queue/optimal_io_size";
    const DISCARD: &str = "queue/discard_granularity";
    const DISCARDS: (&str, u64) = ("queue/discard_max_bytes", 1 << 20);

    #[test]
    fn hints_of_a_device_are_what_its_queue_tells() {
        assert_eq!(told(&[]), Hints::default());
        let disk = [
            (PHYSICAL, 4096),
            (MINIMUM, 4096),
            (OPTIMAL, 0),
            (DISCARD, 4096),
            DISCARDS,
        ];
        let expected = Hints {
            write: Some(4096),
            deallocate: Some(4096),
            optimal_write: None,
        };
        assert_eq!(told(&disk), expected);
        // Chunks of 64 KiB, three of them with data in a stripe.
        let raid = [
            (PHYSICAL, 512),
            (MINIMUM, 65536),
            (OPTIMAL, 196_608),
            (DISCARD, 1 << 20),
        ];
        let expected = Hints {
            write: Some(65536),
            deallocate: None,
            optimal_write: Some(196_608),
        };
        assert_eq!(told(&raid), expected, "and it takes no discards");
        let larger = told(&[(PHYSICAL, 8192), (MINIMUM, 4096)]);
        assert_eq!(larger.write, Some(8192), "the larger of both");
    }

    #[test]
    fn hints_that_cannot_be_are_left_out() {
        for bad in [0, 256, 511, 513, 4095, 12288, 1 << 31, u64::MAX] {
            let all = [(PHYSICAL, bad), (MINIMUM, bad), (DISCARD, bad), DISCARDS];
            assert_eq!(told(&all), Hints::default(), "{bad}");
        }
        let wrong_minimum = told(&[(PHYSICAL, 4096), (MINIMUM, 12288)]);
        assert_eq!(wrong_minimum.write, Some(4096));
        for bad in [0, 512, 4097, 6144, 1 << 31] {
            let hints = told(&[(PHYSICAL, 4096), (OPTIMAL, bad)]);
            assert_eq!(hints.optimal_write, None, "{bad}");
        }
        assert_eq!(told(&[(OPTIMAL, 1536)]).optimal_write, Some(1536));
        assert_eq!(told(&[(OPTIMAL, 1537)]).optimal_write, None);
        // Smaller than what hosts see as a block.
        let told = |name: &str| (name == PHYSICAL).then_some(2048);
        let hints = Hints::of_device(&told, BlockSize::B4096);
        assert_eq!(hints, Hints::default());
    }

    #[test]
    fn a_partition_that_begins_within_a_physical_block_has_no_granularity() {
        let all = |offset, discard| {
            told(&[
                (PHYSICAL, 4096),
                (DISCARD, 65536),
                DISCARDS,
                ("alignment_offset", offset),
                ("discard_alignment", discard),
            ])
        };
        let sizes = |hints: Hints| (hints.write, hints.deallocate);
        assert_eq!(sizes(all(0, 0)), (Some(4096), Some(65536)));
        assert_eq!(sizes(all(3584, 0)), (None, Some(65536)));
        assert_eq!(sizes(all(0, 512)), (Some(4096), None));
    }

    #[test]
    fn hints_of_a_file_are_those_of_its_file_system() {
        let hints = Hints::of_file(4096, 131_072, BlockSize::B512);
        let expected = Hints {
            write: Some(4096),
            deallocate: Some(4096),
            optimal_write: Some(131_072),
        };
        assert_eq!(hints, expected);
        let nothing = Hints::of_file(0, 0, BlockSize::B512);
        assert_eq!(nothing, Hints::default());
        let file = tempfile::tempfile().unwrap();
        let hints = Hints::of(&file, BlockSize::B512, true);
        let fragment = fstatvfs(&file).unwrap().fragment_size();
        assert_eq!(hints.write.map(u64::from), Some(fragment));
        assert_eq!(hints.deallocate, hints.write);
        let keeps = Hints::of(&file, BlockSize::B512, false);
        assert_eq!((keeps.write, keeps.deallocate), (hints.write, None));
    }
}
