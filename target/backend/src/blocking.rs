//! Detecting backing stores that may block the thread that submits an operation or queries
//! the file.
//!
//! io_uring calls a file system from the submitting thread, with `IOCB_NOWAIT`, and uses a
//! worker thread only after `EAGAIN` (fsync(2) and fallocate(2) always use a worker). A file
//! system that waits in spite of that blocks the whole reactor: FUSE waits for its server
//! even to find out whether a file supports it (`fuse_file_poll`). A reactor therefore
//! submits operations itself only to backing stores that are known not to block.

use std::fs::{File, Metadata};
use std::ops::Deref;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::stat::{major, minor};
use nix::sys::statfs::{EXT4_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC, fstatfs};
use nvmeof_uring::close_elsewhere;

use crate::hints::folder;

/// Time limit for opening a file or device.
pub(crate) const OPENING: Duration = Duration::from_secs(10);

/// Drivers that accept requests without waiting, by the names of their devices. Missing on
/// purpose: nbd, rbd, drbd, loop and ublk, which wait for a server, a socket or another
/// file.
const DEVICES: [&str; 8] = ["nvme", "sd", "vd", "xvd", "pmem", "ram", "zram", "nullb"];
/// Stacked devices, which block if one of their components does.
const STACKED: [&str; 2] = ["dm-", "md"];
/// Maximum depth of stacked devices.
const LAYERS: usize = 8;

/// Whether operations on an open file or block device can be submitted by a thread that must
/// not block. False if unknown.
pub(crate) fn never_blocks(file: &File, metadata: &Metadata, device: bool, direct: bool) -> bool {
    if device {
        // Read-ahead of the page cache waits for room in the queue of the device.
        return direct && device_never_blocks(&folder(metadata), LAYERS);
    }
    match fstatfs(file).map(|it| it.filesystem_type()) {
        Ok(TMPFS_MAGIC) => true,
        Ok(EXT4_SUPER_MAGIC | XFS_SUPER_MAGIC) => {
            let (major, minor) = (major(metadata.dev()), minor(metadata.dev()));
            let below = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
            direct && device_never_blocks(&below, LAYERS)
        }
        _ => false,
    }
}

/// The same for the device with that folder in sysfs.
fn device_never_blocks(folder: &Path, layers: usize) -> bool {
    let (Ok(folder), Some(layers)) = (folder.canonicalize(), layers.checked_sub(1)) else {
        return false;
    };
    // A partition is in the folder of its device.
    let whole = match (folder.join("partition").exists(), folder.parent()) {
        (true, Some(parent)) => parent,
        _ => &folder,
    };
    let Some(name) = whole.file_name().and_then(|name| name.to_str()) else {
        return false;
    };
    let matches = |prefix: &&str| {
        let rest = name.strip_prefix(*prefix);
        rest.is_some_and(|rest| !rest.is_empty())
    };
    if DEVICES.iter().any(matches) {
        return true;
    }
    let Ok(mut parts) = std::fs::read_dir(whole.join("slaves")) else {
        return false;
    };
    STACKED.iter().any(matches)
        && parts.all(|part| part.is_ok_and(|part| device_never_blocks(&part.path(), layers)))
}

/// An open file or block device. If closing may block, a thread of its own closes it.
pub(crate) struct Opened {
    file: Option<File>,
    may_block: bool,
    is_device: bool,
}

impl Opened {
    /// Queries the type of the file, which may block.
    pub(crate) fn new(file: File, may_block: bool) -> Self {
        let metadata = file.metadata();
        Self {
            file: Some(file),
            may_block,
            is_device: metadata.is_ok_and(|it| it.file_type().is_block_device()),
        }
    }

    pub(crate) fn is_device(&self) -> bool {
        self.is_device
    }
}

impl Deref for Opened {
    type Target = File;

    fn deref(&self) -> &File {
        let file = self.file.as_ref();
        file.unwrap_or_else(|| unreachable!("only drop takes it"))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(file) = self.file.take()
            && self.may_block
        {
            close_elsewhere(file);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::os::unix::fs::symlink;

    use super::*;

    /// A device in `folder` that is stacked on others.
    fn device(folder: &Path, name: &str, on: &[&str]) -> PathBuf {
        let device = folder.join(name);
        std::fs::create_dir_all(device.join("slaves")).unwrap();
        for one in on {
            symlink(folder.join(one), device.join("slaves").join(one)).unwrap();
        }
        device
    }

    #[test]
    fn only_known_devices_never_block() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let is_fit = |name, on: &[&str]| device_never_blocks(&device(folder, name, on), LAYERS);
        for name in ["nvme0n1", "sda", "vdb", "zram0", "nullb0"] {
            assert!(is_fit(name, &[]), "{name}");
        }
        for name in [
            "nbd0", "rbd0", "loop0", "drbd0", "ublkb0", "mmcblk0", "sd", "x",
        ] {
            assert!(!is_fit(name, &[]), "{name}");
        }
        assert!(is_fit("dm-0", &["sda", "nvme0n1"]));
        assert!(!is_fit("dm-1", &["sda", "nbd0"]));
        assert!(is_fit("md0", &["dm-0", "vdb"]) && !is_fit("md1", &["dm-1", "vdb"]));
        assert!(!is_fit("dm-9", &["gone"]) && !is_fit("dm-8", &["dm-8"]));
        for (whole, fit) in [("sda", true), ("nbd0", false)] {
            let part = folder.join(whole).join("part1");
            std::fs::create_dir(&part).unwrap();
            std::fs::write(part.join("partition"), "1\n").unwrap();
            assert_eq!(device_never_blocks(&part, LAYERS), fit, "{whole}");
        }
        assert!(!device_never_blocks(&folder.join("nothing"), LAYERS));
    }

    #[test]
    fn files_never_block_only_with_direct_io_or_on_tmpfs() {
        let file = tempfile::tempfile().unwrap();
        let metadata = file.metadata().unwrap();
        let is_tmpfs = fstatfs(&file).unwrap().filesystem_type() == TMPFS_MAGIC;
        assert_eq!(never_blocks(&file, &metadata, false, false), is_tmpfs);
        let proc = File::open("/proc/self/status").unwrap();
        assert!(!never_blocks(&proc, &proc.metadata().unwrap(), false, true));
    }
}
