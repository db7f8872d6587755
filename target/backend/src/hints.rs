//! Preferred sizes of writes and deallocations, as the device or file system reports them.

use std::fs::{File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};
use nix::sys::statvfs::fstatvfs;

use crate::BlockSize;

/// Preferred sizes of writes and deallocations. In bytes, each a multiple of the logical
/// block; `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Granularity and alignment of writes: others cause a read-modify-write. A power of
    /// two.
    pub write: Option<u32>,
    /// Granularity and alignment of deallocations: others free only a part. A power of two.
    pub deallocate: Option<u32>,
    /// Optimal size of writes; a multiple of `write`.
    pub optimal_write: Option<u32>,
    /// Writes between two multiples of this are atomic, also on a loss of power. A power of
    /// two, and a page at most; `None` if no more than a block is known to be atomic.
    pub atomic: Option<u32>,
}

/// Maximum of `atomic`: the kernel may split a write of several pages.
const PAGE: u64 = 4096;

/// Largest plausible size in bytes: more than that of any device.
const MOST: u64 = 1 << 30;

impl Hints {
    /// Those of an open file or block device that supports deallocation (`frees`) and direct
    /// I/O (`direct`) or not.
    pub(crate) fn of(file: &File, block_size: BlockSize, frees: bool, direct: bool) -> Self {
        let Ok(metadata) = file.metadata() else {
            return Self::default();
        };
        let mut hints = if metadata.file_type().is_block_device() {
            let at_once = atomic_write_size(&folder(&metadata)).filter(|_| direct);
            Self::of_device(&|name| queue_value(&metadata, name), at_once, block_size)
        } else {
            let fragment = fstatvfs(file).map(|it| it.fragment_size());
            Self::of_file(fragment.unwrap_or(0), metadata.blksize(), block_size)
        };
        hints.deallocate = hints.deallocate.filter(|_| frees);
        hints
    }

    /// `attribute` returns an attribute of a block device in sysfs. The device writes
    /// `at_once` bytes [atomically](atomic_write_size).
    /// Source: Documentation/ABI/stable/sysfs-block.
    fn of_device(
        attribute: &dyn Fn(&str) -> Option<u64>,
        at_once: Option<u64>,
        block_size: BlockSize,
    ) -> Self {
        let size = |name| granularity(attribute(name).unwrap_or(0), block_size);
        // A partition that begins in the middle of a physical block has no aligned offset.
        let is_aligned = |name| attribute(name).unwrap_or(0) == 0;
        let physical = size("queue/physical_block_size");
        let write = physical.max(size("queue/minimum_io_size"));
        let write = write.filter(|_| is_aligned("alignment_offset"));
        // Zero if it does not support deallocation.
        let frees = attribute("queue/discard_max_bytes").unwrap_or(0) > 0;
        let deallocate = size("queue/discard_granularity");
        let deallocate = deallocate.filter(|_| frees && is_aligned("discard_alignment"));
        let optimal = attribute("queue/optimal_io_size").unwrap_or(0);
        let at_once = at_once.filter(|size| size.is_power_of_two());
        let atomic = granularity(at_once.unwrap_or(0).min(PAGE), block_size);
        Self {
            write,
            deallocate,
            optimal_write: multiple(optimal, write, block_size),
            atomic: atomic.filter(|_| is_aligned("alignment_offset")),
        }
    }

    /// Of a file in a file system with blocks of `fragment` bytes and a preferred I/O size of
    /// `preferred` bytes (fstat(2), `st_blksize`). Holes consist of its blocks.
    fn of_file(fragment: u64, preferred: u64, block_size: BlockSize) -> Self {
        let write = granularity(fragment, block_size);
        Self {
            write,
            deallocate: write,
            optimal_write: multiple(preferred, write, block_size),
            // A file system may place and write its blocks in any way.
            atomic: None,
        }
    }
}

/// The reported size, if it is valid.
fn granularity(size: u64, block_size: BlockSize) -> Option<u32> {
    let block = u64::from(block_size.bytes());
    let fits = size.is_power_of_two() && (block..=MOST).contains(&size);
    fits.then(|| u32::try_from(size).ok()).flatten()
}

/// The reported size, if it is a multiple of the granularity, or of the block if there is
/// none. A stripe need not be a power of two.
fn multiple(size: u64, granularity: Option<u32>, block_size: BlockSize) -> Option<u32> {
    let unit = granularity.unwrap_or(block_size.bytes());
    let fits = size.is_multiple_of(unit.into()) && (1..=MOST).contains(&size);
    fits.then(|| u32::try_from(size).ok()).flatten()
}

/// Maximum depth of stacked devices.
const LAYERS: usize = 8;

/// Bytes that the device in that folder of sysfs writes atomically: its physical block, "the
/// smallest unit a physical storage device can write atomically. ... For stacked block
/// devices the physical_block_size variable contains the maximum physical_block_size of the
/// component devices", so this is the minimum of its components. Source:
/// Documentation/ABI/stable/sysfs-block.
pub(crate) fn atomic_write_size(folder: &Path) -> Option<u64> {
    at_once(folder, LAYERS)
}

fn at_once(folder: &Path, layers: usize) -> Option<u64> {
    let own = ["", "../"].into_iter().find_map(|up| {
        let path = folder.join(format!("{up}queue/physical_block_size"));
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    })?;
    // The folder is empty for a device that is not stacked; a partition does not have it.
    let Ok(slaves) = std::fs::read_dir(folder.join("slaves")) else {
        return Some(own);
    };
    let layers = layers.checked_sub(1)?;
    slaves.into_iter().try_fold(own, |least, slave| {
        let of_slave = at_once(&slave.ok()?.path(), layers)?;
        Some(least.min(of_slave))
    })
}

/// The folder of a block device in sysfs.
pub(crate) fn folder(device: &Metadata) -> PathBuf {
    let (major, minor) = (major(device.rdev()), minor(device.rdev()));
    format!("/sys/dev/block/{major}:{minor}").into()
}

/// A number in sysfs about a block device, see [`queue_text`]. A negative one, which stands
/// for misaligned, is returned as the maximum.
pub(crate) fn queue_value(device: &Metadata, name: &str) -> Option<u64> {
    match queue_text(device, name)?.as_str() {
        // Of stacked devices with incompatible alignments.
        text if text.starts_with('-') => Some(u64::MAX),
        text => text.parse().ok(),
    }
}

/// An attribute of a block device in sysfs, by its path below the device. A partition has a
/// folder of its own, and the queue of the whole device. Source:
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

    /// Hints of a device with these attributes and blocks of 512 bytes.
    fn hints_of(all: &[(&str, u64)]) -> Hints {
        let attribute = |name: &str| {
            let mut found = all.iter().filter(|(one, _)| *one == name);
            found.next().map(|(_, value)| *value)
        };
        Hints::of_device(&attribute, attribute(AT_ONCE), BlockSize::B512)
    }

    /// Not an attribute of the kernel.
    const AT_ONCE: &str = "at once";
    const PHYSICAL: &str = "queue/physical_block_size";
    const MINIMUM: &str = "queue/minimum_io_size";
    const OPTIMAL: &str = "queue/optimal_io_size";
    const DISCARD: &str = "queue/discard_granularity";
    const DISCARDS: (&str, u64) = ("queue/discard_max_bytes", 1 << 20);

    #[test]
    fn hints_of_a_device_come_from_its_queue_limits() {
        assert_eq!(hints_of(&[]), Hints::default());
        let store = [
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
        assert_eq!(hints_of(&store), expected);
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
        assert_eq!(hints_of(&raid), expected, "and it takes no discards");
        let larger = hints_of(&[(PHYSICAL, 8192), (MINIMUM, 4096)]);
        assert_eq!(larger.write, Some(8192), "the larger of both");
    }

    #[test]
    fn reported_atomic_write_is_at_most_one_page() {
        let atomic =
            |size, others: &[(&str, u64)]| hints_of(&[&[(AT_ONCE, size)], others].concat()).atomic;
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
        // The device writes a block of the namespace in several parts.
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
    fn stacked_devices_report_the_smallest_atomic_write() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name, physical, on: &[&str]| {
            atomic_write_size(&device(folder.path(), name, physical, on))
        };
        assert_eq!(at("sda", 4096, &[]), Some(4096));
        assert_eq!(at("sdb", 512, &[]), Some(512));
        std::fs::create_dir(folder.path().join("sda/sda1")).unwrap();
        let partition = folder.path().join("sda/sda1");
        assert_eq!(
            atomic_write_size(&partition),
            Some(4096),
            "the queue of the whole"
        );
        assert_eq!(at("dm-0", 4096, &["sda/sda1"]), Some(4096));
        assert_eq!(at("md0", 4096, &["sda/sda1", "sdb"]), Some(512));
        assert_eq!(at("dm-1", 4096, &["dm-0", "md0"]), Some(512));
        // Unknown or missing devices may have any size.
        assert_eq!(at("dm-2", 4096, &["sda", "gone"]), None);
        assert_eq!(at("ring", 4096, &["ring"]), None);
        assert_eq!(atomic_write_size(folder.path()), None);
    }

    #[test]
    fn invalid_hints_are_left_out() {
        for bad in [0, 256, 511, 513, 4095, 12288, 1 << 31, u64::MAX] {
            let all = [(PHYSICAL, bad), (MINIMUM, bad), (DISCARD, bad), DISCARDS];
            assert_eq!(hints_of(&all), Hints::default(), "{bad}");
        }
        let wrong_minimum = hints_of(&[(PHYSICAL, 4096), (MINIMUM, 12288)]);
        assert_eq!(wrong_minimum.write, Some(4096));
        for bad in [0, 512, 4097, 6144, 1 << 31] {
            let hints = hints_of(&[(PHYSICAL, 4096), (OPTIMAL, bad)]);
            assert_eq!(hints.optimal_write, None, "{bad}");
        }
        assert_eq!(hints_of(&[(OPTIMAL, 1536)]).optimal_write, Some(1536));
        assert_eq!(hints_of(&[(OPTIMAL, 1537)]).optimal_write, None);
        // Smaller than the block of the namespace.
        let attribute = |name: &str| (name == PHYSICAL).then_some(2048);
        let hints = Hints::of_device(&attribute, None, BlockSize::B4096);
        assert_eq!(hints, Hints::default());
    }

    #[test]
    fn misaligned_partition_has_no_granularity() {
        let all = |offset, discard| {
            hints_of(&[
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
    fn hints_of_file_are_those_of_its_file_system() {
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
