//! What can go wrong: when a disk is opened, and when it is used.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nvmeof_uring::{FileTableFull, PolledError, RingError};
use nvmeof_wire::text;

use crate::NoAnswer;

/// A request failed. Names the disk and the place, for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{verb} at byte {offset} of {path} failed: {kind} ({errno})")]
pub struct IoError {
    /// What it means for whoever asked.
    pub kind: IoErrorKind,
    /// What the kernel said, or would have said.
    pub errno: Errno,
    /// What was asked.
    pub verb: &'static str,
    /// Path of the file, or the specification of what is not a file.
    pub path: Arc<str>,
    /// First byte that was not read or written.
    pub offset: u64,
}

/// What an error means for whoever asked: one for each thing a host can be
/// told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoErrorKind {
    /// The medium could not be read or written there.
    #[error("the medium failed")]
    Media,
    /// The file system, device or quota is full.
    #[error("no space is left")]
    NoSpace,
    /// The disk is gone, or shorter than when it was opened.
    #[error("the storage is gone or was shortened")]
    Removed,
    /// The disk may only be read.
    #[error("the disk is read-only")]
    ReadOnly,
    /// The range is not whole blocks inside the disk.
    #[error("the range is not whole blocks inside the disk")]
    OutOfRange,
    /// A limit of the file system or the alignment of direct I/O was missed.
    #[error("a limit of the storage was exceeded")]
    Limits,
    /// Anything else.
    #[error("the kernel refused")]
    Other,
}

impl IoError {
    /// Whether the disk is gone, or shorter than it was: not this operation alone
    /// failed.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.kind == IoErrorKind::Removed
    }

    /// An operation came for disk number `disk` after it was closed.
    #[must_use]
    pub fn not_open(disk: u32) -> Self {
        Self {
            kind: IoErrorKind::Removed,
            errno: Errno::ENODEV,
            verb: "reach",
            path: format!("disk {disk}").into(),
            offset: 0,
        }
    }
}

impl IoErrorKind {
    /// What `errno`, returned by an operation on a file, means.
    #[must_use]
    pub fn of(errno: Errno) -> Self {
        match errno {
            Errno::EIO
            | Errno::ENODATA
            | Errno::EREMOTEIO
            | Errno::EILSEQ
            | Errno::EUCLEAN
            | Errno::EBADMSG
            | Errno::ETIMEDOUT => Self::Media,
            Errno::ENOSPC | Errno::EDQUOT => Self::NoSpace,
            Errno::ENODEV
            | Errno::ENXIO
            | Errno::ESHUTDOWN
            | Errno::ENOTCONN
            | Errno::ENOLINK
            | Errno::ESTALE => Self::Removed,
            Errno::EROFS | Errno::EPERM | Errno::EBADF | Errno::EACCES => Self::ReadOnly,
            Errno::EFBIG | Errno::EINVAL => Self::Limits,
            _ => Self::Other,
        }
    }
}

/// A disk could not be opened. The message says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No such file.
    #[error(
        "{path}: no such file; {}",
        if .0.starts_with("/dev") {
            "correct the path or bring the device back (`lsblk` shows those there are)".to_owned()
        } else {
            format!(
                "correct the path, or mount its file system; a new, empty disk is made with \
                 `truncate -s 1G {}`",
                word(.0)
            )
        },
        path = .0.display()
    )]
    Missing(PathBuf),
    /// A directory.
    #[error(
        "{path}: is a directory; name a regular file in it or a block device",
        path = .0.display()
    )]
    Directory(PathBuf),
    /// Neither a regular file nor a block device.
    #[error("{path}: is neither a regular file nor a block device", path = .0.display())]
    NotStorage(PathBuf),
    /// No permission.
    #[error(
        "{path}: no permission to open it for {access}; run as a user who may, change its mode \
         or owner{}",
        if *.readonly { "" } else { ", or serve it read-only" },
        path = .path.display(),
        access = if *.readonly { "reading" } else { "reading and writing" }
    )]
    Permission {
        /// The file.
        path: PathBuf,
        /// Only reading was asked for.
        readonly: bool,
    },
    /// The file system or device is read-only.
    #[error(
        "{path}: lies on a read-only file system or device; serve it read-only",
        path = .0.display()
    )]
    ReadOnlyStorage(PathBuf),
    /// Somebody else has it.
    #[error(
        "{path}: is locked by another process or namespace that serves it; stop that one (`fuser \
         {word}` names it){}",
        if *.readonly { "" } else { ", or serve both read-only" },
        path = .path.display(),
        word = word(.path)
    )]
    Locked {
        /// The file.
        path: PathBuf,
        /// Only reading was asked for.
        readonly: bool,
    },
    /// A block device in use by the kernel.
    #[error(
        "{path}: the kernel itself uses this block device (mounted, swap, RAID, LVM or device \
         mapper); unmount or detach it first (`lsblk {word}` shows by what)",
        path = .0.display(),
        word = word(.0)
    )]
    DeviceInUse(PathBuf),
    /// Empty.
    #[error(
        "{path}: has 0 bytes; give it a size with `truncate -s 1G {word}`",
        path = .0.display(),
        word = word(.0)
    )]
    Empty(PathBuf),
    /// A block device without a size.
    #[error(
        "{path}: the block device has 0 bytes: it is gone, or there is no medium in it; see \
         `dmesg`, and bring it back",
        path = .0.display()
    )]
    NoMedium(PathBuf),
    /// A block device that is not written at any place.
    #[error(
        "{path}: the block device has zones that are only written one block after the other \
         (queue/zoned in its folder of /sys/dev/block is {model}), and hosts write anywhere; \
         serve a file on a file system for such devices (btrfs, f2fs) or a device without zones",
        path = .path.display()
    )]
    Zoned {
        /// The device.
        path: PathBuf,
        /// What the kernel calls it.
        model: String,
    },
    /// Not whole blocks.
    #[error(
        "{name}: {size} bytes is not a multiple of the block size of {block_size}; {}{}",
        // Not `ram:SIZE` or `null:SIZE`, and no device: its size is what it is.
        if .name.contains('/') && !.name.starts_with("/dev/") {
            let word = word(Path::new(.name));
            format!("extend it with `truncate -s {up} {word}`, which keeps its data")
        } else {
            format!("the next size is {up}")
        },
        .fits.map_or_else(String::new, |fits| format!(", or use block_size = {fits}"))
    )]
    NotWholeBlocks {
        /// Path or specification.
        name: String,
        /// Bytes it has.
        size: u64,
        /// Bytes of a block.
        block_size: u32,
        /// Smallest possible size above.
        up: u64,
        /// The largest block size that would do.
        fits: Option<u32>,
    },
    /// The device has larger blocks than asked for.
    #[error(
        "{path}: the device has blocks of {device} bytes, namespaces on it cannot have \
             {asked}; use block_size = {device}",
        path = .path.display()
    )]
    DeviceBlocks {
        /// The device.
        path: PathBuf,
        /// Its logical block, in bytes.
        device: u32,
        /// What was asked for.
        asked: u32,
    },
    /// No memory for the table of a RAM disk.
    #[error("ram:{0}: no memory for it; make it smaller")]
    Memory(u64),
    /// Its device cannot be polled.
    #[error("{name} cannot be polled: {why}; or leave iopoll out")]
    CannotPoll {
        /// Path or specification.
        name: String,
        /// Why, and what to do.
        why: NoPolling,
    },
    /// The ring took no further file.
    #[error(
        "{name}: {source}; add fewer namespaces at once, or restart the target, which makes room \
         for all that it serves then and for more (as far as `ulimit -n` goes)"
    )]
    Ring {
        /// Path or specification.
        name: String,
        /// Why.
        source: FileTableFull,
    },
    /// It takes too long.
    #[error("{path}: {why}", path = .path.display())]
    Unresponsive {
        /// The file.
        path: PathBuf,
        /// How long it took.
        why: NoAnswer,
    },
    /// Anything else.
    #[error("{path}: {what} failed: {errno}", path = .path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// What failed.
        what: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
}

/// A path as a word of a command to copy.
fn word(path: &Path) -> String {
    text::ShellWord(&path.to_string_lossy()).to_string()
}

impl OpenError {
    /// Whether it tells that a block device which was there is so no more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self {
            Self::NoMedium(_) => true,
            Self::System { errno, .. } => IoErrorKind::of(*errno) == IoErrorKind::Removed,
            _ => false,
        }
    }

    /// Whether opening may succeed later though nobody changes the configuration: the
    /// storage is not there yet, somebody else has it, or it cannot be reached at the
    /// moment. What is there and cannot be served as the configuration says it (a
    /// directory, a size of part of a block, another block size) is an error of the
    /// configuration.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Missing(_)
            | Self::Permission { .. }
            | Self::ReadOnlyStorage(_)
            | Self::Locked { .. }
            | Self::DeviceInUse(_)
            | Self::NoMedium(_)
            | Self::Memory(_)
            | Self::Unresponsive { .. }
            | Self::Ring { .. } => true,
            // The path itself is wrong.
            Self::System { errno, .. } => !matches!(errno, Errno::ENAMETOOLONG | Errno::EINVAL),
            Self::Directory(_)
            | Self::NotStorage(_)
            | Self::Empty(_)
            | Self::Zoned { .. }
            | Self::NotWholeBlocks { .. }
            | Self::DeviceBlocks { .. }
            | Self::CannotPoll { .. } => false,
        }
    }

    /// Whether it tells of the process or the machine at this moment, and nothing of
    /// the storage: it may be gone when retrying.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::System { errno, .. } => Self::is_passing_errno(*errno),
            Self::Memory(_) | Self::Ring { .. } | Self::Unresponsive { .. } => true,
            _ => false,
        }
    }

    /// The same of what the kernel said.
    pub(crate) fn is_passing_errno(errno: Errno) -> bool {
        matches!(
            errno,
            Errno::EMFILE
                | Errno::ENFILE
                | Errno::ENOMEM
                | Errno::ENOBUFS
                | Errno::EINTR
                | Errno::EAGAIN
        )
    }
}

/// A disk was not closed.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// Requests are in flight: poll until they are done.
    #[error("{0} requests are in flight")]
    Busy(usize),
    /// Not open here.
    #[error("the disk is not open")]
    NotOpen,
    /// The ring.
    #[error(transparent)]
    Ring(#[from] RingError),
}

/// Why a disk's device cannot be polled.
#[derive(Debug, thiserror::Error)]
pub enum NoPolling {
    /// It has none.
    #[error("it lies in memory; name a block device or a file on one")]
    Memory,
    /// Only direct I/O goes to the device.
    #[error("I/O is buffered: the log says why O_DIRECT is not used")]
    Buffered,
    /// The device has no queues without interrupts.
    #[error(
        "its device has no queues for that (queue/io_poll in its folder of /sys/dev/block is not \
         1); load the driver with some (nvme.poll_queues=2 on the kernel's command line)"
    )]
    Device,
    /// The file system or the kernel does not pass it on.
    #[error("a test read said {0}; use the block device itself, or another file system")]
    Refused(Errno),
    /// There is no memory to try with.
    #[error("there is no memory for a test read")]
    Buffer,
    /// The ring for it.
    #[error(transparent)]
    Ring(#[from] PolledError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_a_size_is_gone_and_an_empty_file_is_not() {
        let path = PathBuf::from("/dev/disk");
        let system = |errno| OpenError::System {
            path: path.clone(),
            what: "lseek",
            errno,
        };
        for gone in [
            OpenError::NoMedium(path.clone()),
            system(Errno::ENXIO),
            system(Errno::ENODEV),
        ] {
            assert!(gone.is_gone() && !gone.is_passing(), "{gone}");
        }
        for there in [OpenError::Empty(path.clone()), system(Errno::EMFILE)] {
            assert!(!there.is_gone(), "{there}");
        }
    }

    #[test]
    fn what_is_not_there_yet_may_pass_and_what_does_not_fit_does_not() {
        let path = PathBuf::from("/srv/disk");
        let system = |errno| OpenError::System {
            path: path.clone(),
            what: "open",
            errno,
        };
        let readonly = false;
        for passing in [
            OpenError::Missing(path.clone()),
            OpenError::Locked {
                path: path.clone(),
                readonly,
            },
            OpenError::Permission {
                path: path.clone(),
                readonly,
            },
            OpenError::DeviceInUse(path.clone()),
            system(Errno::ENXIO),
            system(Errno::ESTALE),
            system(Errno::ENOSPC),
        ] {
            assert!(passing.may_pass(), "{passing}");
        }
        for wrong in [
            OpenError::Directory(path.clone()),
            OpenError::Empty(path.clone()),
            system(Errno::ENAMETOOLONG),
        ] {
            assert!(!wrong.may_pass(), "{wrong}");
        }
    }
}
