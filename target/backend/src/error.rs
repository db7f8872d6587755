//! Errors of backing stores: when they are opened, and when they are used.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nvmeof_uring::{FileTableFull, PolledError, RingError};
use nvmeof_wire::text;

use crate::{QueryTimeout, RbdRefusal};

/// A request failed. Names the backing store and the offset, for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {verb} at byte {offset} failed: {kind} ({errno})")]
pub struct IoError {
    /// The class of the error, from which the NVMe status follows.
    pub kind: IoErrorKind,
    /// The error number of the kernel, or the one that it would have returned.
    pub errno: Errno,
    /// The operation.
    pub verb: &'static str,
    /// Path of the file, or the specification of a store in memory.
    pub path: Arc<str>,
    /// First byte that was not read or written.
    pub offset: u64,
}

/// Class of an error: one for each NVMe status that a host can get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoErrorKind {
    /// The medium could not be read or written there.
    #[error("medium error")]
    Media,
    /// The file system, device or quota is full.
    #[error("no space left")]
    NoSpace,
    /// The backing store is gone, or shorter than when it was opened.
    #[error("the backing store is gone or was truncated")]
    Removed,
    /// The cluster has blocklisted this client, because another one has taken over. Nothing is
    /// executed any more, and the other client serves the same data.
    #[error("the cluster has blocklisted this client")]
    Fenced,
    /// Another gateway serves the same data, or is about to.
    #[error("this gateway does not serve it at present")]
    Standby,
    /// The backing store is read-only.
    #[error("the backing store is read-only")]
    ReadOnly,
    /// The range is outside of the backing store, or not whole blocks.
    #[error("the range is outside of the backing store or not whole blocks")]
    OutOfRange,
    /// The operation exceeds a limit of the file system, or is not aligned for direct I/O.
    #[error("a limit or an alignment of the backing store was violated")]
    Limits,
    /// Anything else.
    #[error("unexpected error")]
    Other,
}

impl IoError {
    /// Whether the backing store is gone or was truncated, so that more than this
    /// operation fails.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.kind == IoErrorKind::Removed
    }

    /// An operation arrived for backing store number `store` after it was closed.
    #[must_use]
    pub fn not_open(store: u32) -> Self {
        Self {
            kind: IoErrorKind::Removed,
            errno: Errno::ENODEV,
            verb: "access",
            path: format!("backing store {store}").into(),
            offset: 0,
        }
    }
}

impl IoErrorKind {
    /// The class of `errno`, which an operation on a file returned.
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

/// A backing store could not be opened. The message contains the remedy.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No such file.
    #[error(
        "{path}: no such file; {}",
        if .0.starts_with("/dev") {
            "correct the path or reconnect the device (`lsblk` lists block devices)".to_owned()
        } else {
            format!(
                "correct the path, or mount its file system; create a new, empty file with \
                 `truncate -s 1G {}`",
                shell_quoted(.0)
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
        "{path}: no permission to open it for {access}; run as a user with access, change its \
         mode or owner{}",
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
        "{path}: is on a read-only file system or device; serve it read-only",
        path = .0.display()
    )]
    ReadOnlyStorage(PathBuf),
    /// Another process or namespace has locked it.
    #[error(
        "{path}: is locked by another process or namespace that serves it; stop that one (`fuser \
         {word}` names it){}",
        if *.readonly { "" } else { ", or serve both read-only" },
        path = .path.display(),
        word = shell_quoted(.path)
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
         mapper); unmount or detach it first (`lsblk {word}` shows the user)",
        path = .0.display(),
        word = shell_quoted(.0)
    )]
    DeviceInUse(PathBuf),
    /// Empty.
    #[error(
        "{path}: the file has 0 bytes; set its size with `truncate -s 1G {word}`",
        path = .0.display(),
        word = shell_quoted(.0)
    )]
    Empty(PathBuf),
    /// A block device without a size.
    #[error(
        "{path}: the block device has 0 bytes: it is gone, or has no medium; see `dmesg`, and \
         reconnect the device or insert a medium",
        path = .0.display()
    )]
    NoMedium(PathBuf),
    /// A zoned block device that requires sequential writes.
    #[error(
        "{path}: the block device has zones that require sequential writes (queue/zoned in its \
         folder of /sys/dev/block is {model}), but hosts write at any offset; serve a file on a \
         file system for such devices (btrfs, f2fs) or a device without zones",
        path = .path.display()
    )]
    Zoned {
        /// The device.
        path: PathBuf,
        /// The value of `queue/zoned`.
        model: String,
    },
    /// Not whole blocks.
    #[error(
        "{name}: {size} bytes is not a multiple of the block size of {block_size}; {}{}",
        // Not `ram:SIZE` or `null:SIZE`, and no device, whose size cannot be set.
        if let Some(image) = .name.strip_prefix("rbd:") {
            format!("extend it with `rbd resize --size {up}B {image}`")
        } else if .name.contains('/') && !.name.starts_with("/dev/") {
            let word = shell_quoted(Path::new(.name));
            format!("extend it with `truncate -s {up} {word}`, which keeps its data")
        } else {
            format!("the next size is {up}")
        },
        .fits.map_or_else(String::new, |fits| format!(", or use block_size = {fits}"))
    )]
    NotWholeBlocks {
        /// Path or specification.
        name: String,
        /// Its size, in bytes.
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
        "{path}: a block size of {asked} bytes is less than the {device} bytes of a logical block \
         of the device; use block_size = {device}",
        path = .path.display()
    )]
    DeviceBlocks {
        /// The device.
        path: PathBuf,
        /// Its logical block, in bytes.
        device: u32,
        /// The requested block size, in bytes.
        asked: u32,
    },
    /// No memory for the table of a RAM backing store.
    #[error("ram:{0}: not enough memory; reduce its size")]
    Memory(u64),
    /// Its device cannot be polled.
    #[error("{name} cannot be polled: {why}; or leave iopoll out")]
    CannotPoll {
        /// Path or specification.
        name: String,
        /// Why, and what to do.
        why: NoPolling,
    },
    /// An RBD image cannot be served.
    #[error("{name}: {why}")]
    Rbd {
        /// The image.
        name: String,
        /// Why, and what to do.
        why: RbdRefusal,
    },
    /// The ring has no free slot for its file.
    #[error(
        "{name}: {source}; add fewer namespaces at once, or restart the target, which sizes the \
         table for the namespaces that it serves then and for more (within `ulimit -n`)"
    )]
    Ring {
        /// Path or specification.
        name: String,
        /// Why.
        source: FileTableFull,
    },
    /// The file system or device does not respond in time.
    #[error("{path}: {why}", path = .path.display())]
    Unresponsive {
        /// The file.
        path: PathBuf,
        /// How long the target waited.
        why: QueryTimeout,
    },
    /// Anything else.
    #[error("{path}: {what} failed: {errno}", path = .path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// The system call that failed.
        what: &'static str,
        /// Its error number.
        errno: Errno,
    },
}

/// A path, quoted for a shell command to copy.
fn shell_quoted(path: &Path) -> String {
    text::ShellWord(&path.to_string_lossy()).to_string()
}

impl OpenError {
    /// Whether the cluster has blocklisted the client that had the image open.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Rbd { why, .. } if *why == RbdRefusal::Blocklisted)
    }

    /// Whether it shows that a block device was removed.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self {
            Self::NoMedium(_) => true,
            Self::Rbd { why, .. } => !why.is_transient(),
            Self::System { errno, .. } => IoErrorKind::of(*errno) == IoErrorKind::Removed,
            _ => false,
        }
    }

    /// Whether opening may succeed later with the same configuration: the file or device
    /// does not exist yet, is locked, or is not accessible at the moment. A file or device
    /// that exists and does not fit the configuration (a directory, a size that is not
    /// whole blocks, another block size) is a configuration error.
    #[must_use]
    pub fn may_succeed_later(&self) -> bool {
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
            Self::Rbd { why, .. } => why.may_succeed_later(),
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

    /// Whether its cause is a transient shortage of the process or the machine and not the
    /// file or device: a retry may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::System { errno, .. } => Self::is_passing_errno(*errno),
            Self::Memory(_) | Self::Ring { .. } | Self::Unresponsive { .. } => true,
            Self::Rbd { why, .. } => why.is_transient(),
            _ => false,
        }
    }

    /// The same for an error number.
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

/// A backing store was not closed.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// Requests are in flight: poll until they have completed.
    #[error("{0} requests are in flight")]
    Busy(usize),
    /// Not open here.
    #[error("the backing store is not open")]
    NotOpen,
    /// The ring.
    #[error(transparent)]
    Ring(#[from] RingError),
}

/// Why the device of a backing store cannot be polled (`IOPOLL`).
#[derive(Debug, thiserror::Error)]
pub enum NoPolling {
    /// It has no device.
    #[error("it is in memory; use a block device or a file on one")]
    Memory,
    /// It is in a cluster.
    #[error("it is an RBD image; use a block device or a file on one")]
    Image,
    /// Only direct I/O can be polled.
    #[error("I/O is buffered: the log says why O_DIRECT is not used")]
    Buffered,
    /// The device has no poll queues.
    #[error(
        "its device has no poll queues (queue/io_poll in its folder of /sys/dev/block is not 1); \
         load the driver with poll queues (nvme.poll_queues=2 on the kernel command line)"
    )]
    Device,
    /// The file system or the kernel does not support it.
    #[error("a test read failed ({0}); use the block device itself, or another file system")]
    Refused(Errno),
    /// No buffer for a test read could be allocated.
    #[error("not enough memory for a test read")]
    Buffer,
    /// The second ring could not be used.
    #[error(transparent)]
    Ring(#[from] PolledError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_of_size_zero_is_gone_and_empty_file_is_not() {
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
            assert!(gone.is_gone() && !gone.is_transient(), "{gone}");
        }
        for there in [OpenError::Empty(path.clone()), system(Errno::EMFILE)] {
            assert!(!there.is_gone(), "{there}");
        }
    }

    #[test]
    fn may_pass_holds_for_missing_files_but_not_for_unsuitable_ones() {
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
            assert!(passing.may_succeed_later(), "{passing}");
        }
        for wrong in [
            OpenError::Directory(path.clone()),
            OpenError::Empty(path.clone()),
            system(Errno::ENAMETOOLONG),
        ] {
            assert!(!wrong.may_succeed_later(), "{wrong}");
        }
    }
}
