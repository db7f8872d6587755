//! In which sizes a disk is written and freed best, as far as it tells.

use std::fs::{File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

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
    /// What lies between two multiples of this is written as a whole or not at all, also
    /// when power is lost. A power of two, and a page at most; `None` where no more than
    /// a block is known to be.
    pub atomic: Option<u32>,
}

/// More than this is not told to be written as a whole: the kernel may divide what lies
/// in several pages.
const PAGE: u64 = 4096;

/// Largest size believed, in bytes: more than any device has.
const MOST: u64 = 1 << 30;

impl Hints {
    /// Those of an open file or block device whose bytes are given back or not, and go
    /// past the page cache or not.
    pub(crate) fn of(file: &File, block_size: BlockSize, frees: bool, direct: bool) -> Self {
        let Ok(told) = file.metadata() else {
            return Self::default();
        };
        let mut hints = if told.file_type().is_block_device() {
            let at_once = written_at_once(&folder(&told)).filter(|_| direct);
            Self::of_device(&|name| queue_value(&told, name), at_once, block_size)
        } else {
            let fragment = fstatvfs(file).map(|it| it.fragment_size());
            Self::of_file(fragment.unwrap_or(0), told.blksize(), block_size)
        };
        hints.deallocate = hints.deallocate.filter(|_| frees);
        hints
    }

    /// `told` gives what the kernel says of a block device, of which so many bytes are
    /// [written at once](written_at_once). Source: Documentation/ABI/stable/sysfs-block.
    fn of_device(
        told: &dyn Fn(&str) -> Option<u64>,
        at_once: Option<u64>,
        block_size: BlockSize,
    ) -> Self {
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
        let at_once = at_once.filter(|size| size.is_power_of_two());
        let atomic = granularity(at_once.unwrap_or(0).min(PAGE), block_size);
        Self {
            write,
            deallocate,
            optimal_write: multiple(optimal, write, block_size),
            atomic: atomic.filter(|_| is_aligned("alignment_offset")),
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
            // Where its blocks lie, and how they get there, is the file system's affair.
            atomic: None,
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

/// Devices on devices that are looked through.
const LAYERS: usize = 8;

/// Bytes that the device in that folder of sysfs writes as a whole or not at all: its
/// physical block, "the smallest unit a physical storage device can write atomically. ...
/// For stacked block devices the physical_block_size variable contains the maximum
/// physical_block_size of the component devices", so of those the least counts. Source:
/// Documentation/ABI/stable/sysfs-block.
pub(crate) fn written_at_once(folder: &Path) -> Option<u64> {
    at_once(folder, LAYERS)
}

fn at_once(folder: &Path, layers: usize) -> Option<u64> {
    let own = ["", "../"].into_iter().find_map(|up| {
        let path = folder.join(format!("{up}queue/physical_block_size"));
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    })?;
    // A device that lies on none has an empty folder, a partition has no such folder.
    let Ok(slaves) = std::fs::read_dir(folder.join("slaves")) else {
        return Some(own);
    };
    let layers = layers.checked_sub(1)?;
    slaves.into_iter().try_fold(own, |least, slave| {
        let of_slave = at_once(&slave.ok()?.path(), layers)?;
        Some(least.min(of_slave))
    })
}

/// Where the kernel tells about a block device.
pub(crate) fn folder(device: &Metadata) -> PathBuf {
    let (major, minor) = (major(device.rdev()), minor(device.rdev()));
    format!("/sys/dev/block/{major}:{minor}").into()
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
    let folder = folder(device);
    let ups: &[&str] = match name.starts_with("queue/") {
        true => &["", "../"],
        false => &[""],
    };
    ups.iter().find_map(|up| {
        let path = folder.join(format!("{up}{name}"));
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
        Hints::of_device(&told, told(AT_ONCE), BlockSize::B512)
    }

    /// Not what the kernel tells.
    const AT_ONCE: &str = "at once";
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
            atomic: None,
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
            atomic: None,
        };
        assert_eq!(told(&raid), expected, "and it takes no discards");
        let larger = told(&[(PHYSICAL, 8192), (MINIMUM, 4096)]);
        assert_eq!(larger.write, Some(8192), "the larger of both");
    }

    #[test]
    fn a_page_at_most_is_told_to_be_written_as_a_whole() {
        let atomic =
            |size, others: &[(&str, u64)]| told(&[&[(AT_ONCE, size)], others].concat()).atomic;
        assert_eq!(atomic(4096, &[(PHYSICAL, 4096)]), Some(4096));
        assert_eq!(atomic(16384, &[(PHYSICAL, 16384)]), Some(4096));
        assert_eq!(atomic(512, &[]), Some(512), "one block");
        for bad in [0, 256, 1536, 4097, u64::MAX] {
            assert_eq!(atomic(bad, &[]), None, "{bad}");
        }
        let shifted = [("alignment_offset", 3584)];
        assert_eq!(
            atomic(4096, &shifted),
            None,
            "of a partition within a block"
        );
        // A block of the namespace that the device writes in several parts.
        let larger = Hints::of_device(&|_| None, Some(512), BlockSize::B4096);
        assert_eq!(larger.atomic, None);
        assert_eq!(Hints::of_file(4096, 4096, BlockSize::B512).atomic, None);
    }

    /// A device in `folder` with that physical block, on the others.
    fn device(folder: &Path, name: &str, physical: u32, on: &[&str]) -> PathBuf {
        let device = folder.join(name);
        for part in ["queue", "slaves"] {
            std::fs::create_dir_all(device.join(part)).unwrap();
        }
        let file = device.join("queue/physical_block_size");
        std::fs::write(file, format!("{physical}\n")).unwrap();
        for one in on {
            let link = device.join("slaves").join(one.replace('/', "-"));
            std::os::unix::fs::symlink(folder.join(one), link).unwrap();
        }
        device
    }

    #[test]
    fn of_devices_on_devices_the_least_counts() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name, physical, on: &[&str]| {
            written_at_once(&device(folder.path(), name, physical, on))
        };
        assert_eq!(at("sda", 4096, &[]), Some(4096));
        assert_eq!(at("sdb", 512, &[]), Some(512));
        std::fs::create_dir(folder.path().join("sda/sda1")).unwrap();
        let partition = folder.path().join("sda/sda1");
        assert_eq!(
            written_at_once(&partition),
            Some(4096),
            "the queue of the whole"
        );
        assert_eq!(at("dm-0", 4096, &["sda/sda1"]), Some(4096));
        assert_eq!(at("md0", 4096, &["sda/sda1", "sdb"]), Some(512));
        assert_eq!(at("dm-1", 4096, &["dm-0", "md0"]), Some(512));
        // What is not known may be anything.
        assert_eq!(at("dm-2", 4096, &["sda", "gone"]), None);
        assert_eq!(at("ring", 4096, &["ring"]), None);
        assert_eq!(written_at_once(folder.path()), None);
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
        let hints = Hints::of_device(&told, None, BlockSize::B4096);
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
            atomic: None,
        };
        assert_eq!(hints, expected);
        let nothing = Hints::of_file(0, 0, BlockSize::B512);
        assert_eq!(nothing, Hints::default());
        let file = tempfile::tempfile().unwrap();
        let hints = Hints::of(&file, BlockSize::B512, true, true);
        let fragment = fstatvfs(&file).unwrap().fragment_size();
        assert_eq!(hints.write.map(u64::from), Some(fragment));
        assert_eq!(hints.deallocate, hints.write);
        let keeps = Hints::of(&file, BlockSize::B512, false, true);
        assert_eq!((keeps.write, keeps.deallocate), (hints.write, None));
    }
}
