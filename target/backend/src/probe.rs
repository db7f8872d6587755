//! Opening a file or block device and detecting its properties.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, fallocate, fcntl};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::sys::uio::pread;
use nvmeof_memory::{Pages, Pool, PoolLayout};
use nvmeof_uring::direct_alignment;

use crate::blocking::never_blocks;
use crate::hints::{atomic_write_size, folder, queue_text, queue_value};
use crate::remote::may_be_remote;
use crate::{BlockSize, Geometry, Hints, IoErrorKind, OpenError};

/// Number of attempts to take a lock that is held, and the pause between them.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// Opens and locks `path` and decides how to serve it.
pub(crate) fn open(
    path: &Path,
    readonly: bool,
    block_size: Option<BlockSize>,
) -> Result<(File, Geometry), OpenError> {
    let (file, device) = open_locked(path, readonly)?;
    let system = |what| move |error: io::Error| system(path, what, &error);
    let metadata = file.metadata().map_err(system("fstat"))?;
    let named = path.display().to_string();
    if device {
        check_zones(path, queue_text(&metadata, "queue/zoned").as_deref())?;
    }
    let size = size(&named, &file)?;
    let block_size = choose_block_size(path, block_size, device.then_some(&metadata))?;
    servable(&named, size, block_size)?;

    let access = choose_access(&file, device, block_size, size);
    let deallocate_zeroes = !readonly && can_deallocate(&file, size, device.then_some(&metadata));
    let block = block_size.bytes();
    let geometry = Geometry {
        size,
        block_size,
        hints: Hints::of(&file, block_size, deallocate_zeroes, access.is_ok()),
        buffer_alignment: access.as_ref().map_or(1, |direct| direct.memory),
        readonly,
        deallocate_zeroes,
        volatile_write_cache: true,
        direct: access.is_ok(),
        fua_alone: access.is_ok() && device && has_fua(&metadata),
        may_block: !never_blocks(&file, &metadata, device, access.is_ok()),
        may_be_remote: may_be_remote(&metadata, device),
    };
    if device
        && let Some(at_once) = atomic_write_size(&folder(&metadata))
        && at_once < block.into()
    {
        let name = path.display();
        tracing::warn!(path = %name, block_size = block, at_once, "torn writes possible: \
            the device writes less than a block atomically; a loss of power may leave a block \
            partly written");
    }
    report(path, &geometry, access.err());
    Ok((file, geometry))
}

/// Opens and locks a file or block device. Returns whether it is a device.
fn open_locked(path: &Path, readonly: bool) -> Result<(File, bool), OpenError> {
    let kind = std::fs::metadata(path).map_err(|error| explain(path, readonly, &error))?;
    let device = kind.file_type().is_block_device();
    if kind.is_dir() {
        return Err(OpenError::Directory(path.to_owned()));
    }
    if !device && !kind.is_file() {
        return Err(OpenError::NotStorage(path.to_owned()));
    }
    let mut options = OpenOptions::new();
    options.read(true).write(!readonly);
    if device && !readonly {
        // For a block device and without O_CREAT: fail if the kernel uses it itself, such as
        // by a mount (open(2)).
        options.custom_flags(OFlag::O_EXCL.bits());
    }
    let file = open_with_retries(path, &options);
    let file = file.map_err(|error| explain(path, readonly, &error))?;
    lock(path, &file, readonly)?;
    Ok((file, device))
}

/// Logs how `path` is served; `buffered`: why without O_DIRECT.
fn report(path: &Path, geometry: &Geometry, buffered: Option<&str>) {
    let (path, size, readonly) = (path.display(), geometry.size, geometry.readonly);
    let block_size = geometry.block_size.bytes();
    match buffered {
        None => {
            tracing::info!(%path, size, block_size, readonly, "opened with direct I/O (O_DIRECT)");
        }
        Some(why) => {
            tracing::info!(%path, size, block_size, readonly, why, "opened with buffered I/O");
        }
    }
    if geometry.may_block {
        tracing::info!(%path, "submitting I/O may block: worker threads of the kernel submit it");
    }
    if !readonly && !geometry.deallocate_zeroes {
        tracing::info!(%path, "deallocation is not supported: Deallocate has no effect");
    }
}

/// Current size of the file or block device, in bytes.
pub(crate) fn size(name: &str, file: &File) -> Result<u64, OpenError> {
    let system = |what| move |error: io::Error| system(Path::new(name), what, &error);
    match device_size(file) {
        // Linux sets the size of a device to 0 if its hardware is gone (blk_mark_disk_dead).
        Some(Ok(0)) => Err(OpenError::NoMedium(name.into())),
        Some(size) => size.map_err(system("lseek")),
        None => Ok(file.metadata().map_err(system("fstat"))?.len()),
    }
}

/// Current size of a block device, in bytes; `None` for a file.
fn device_size(mut file: &File) -> Option<io::Result<u64>> {
    let metadata = file.metadata().ok()?;
    let is_device = metadata.file_type().is_block_device();
    is_device.then(|| file.seek(SeekFrom::End(0)))
}

/// The class of an error `kind` at byte `position` of `device`, if it is one. Linux returns
/// EIO for a block device that is gone, and ENOSPC for a write beyond its end, which is at 0
/// then (`blkdev_write_iter` in block/fops.c). A full thin-provisioned device returns ENOSPC
/// as well.
pub(crate) fn kind_at(device: Option<&File>, kind: IoErrorKind, position: u64) -> IoErrorKind {
    let size = match kind {
        IoErrorKind::Media | IoErrorKind::NoSpace | IoErrorKind::Other => {
            device.and_then(device_size)
        }
        _ => None,
    };
    let is_gone = match size {
        Some(Ok(size)) => size <= position,
        Some(Err(error)) => is_removed(&error),
        None => false,
    };
    if is_gone { IoErrorKind::Removed } else { kind }
}

fn is_removed(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    errno.map(IoErrorKind::of) == Some(IoErrorKind::Removed)
}

/// Refuses a block device whose zoned `model` requires sequential writes. A `host-aware`
/// device accepts random writes. Source: Documentation/ABI/stable/sysfs-block.
fn check_zones(path: &Path, model: Option<&str>) -> Result<(), OpenError> {
    match model {
        None | Some("none" | "host-aware") => Ok(()),
        Some(model) => Err(OpenError::Zoned {
            path: path.to_owned(),
            model: model.to_owned(),
        }),
    }
}

/// Checks that a file of `size` bytes can be served.
pub(crate) fn servable(name: &str, size: u64, block_size: BlockSize) -> Result<(), OpenError> {
    if size == 0 {
        return Err(OpenError::Empty(name.into()));
    }
    whole_blocks(name, size, block_size)
}

/// Whether a block of it is readable: the first, one in the middle or the last.
pub(crate) fn is_readable(file: &File, geometry: &Geometry) -> bool {
    let block = u64::from(geometry.block_size.bytes());
    let layout = PoolLayout {
        count: 1,
        stride: 4096,
        lead: 0,
    };
    // Without memory, assume that it is readable.
    let Some(mut buf) = Pool::new(layout, Pages::Normal)
        .ok()
        .and_then(|it| it.take())
    else {
        return true;
    };
    let len = usize::try_from(block).unwrap_or(4096);
    if buf.set_len(len).is_err() {
        return true;
    }
    let last = geometry.size.saturating_sub(block);
    let middle = last / 2 - last / 2 % block;
    [0, middle, last].into_iter().any(|offset| {
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        match pread(file, &mut buf, offset) {
            Ok(read) => read == len,
            Err(errno) => OpenError::is_passing_errno(errno),
        }
    })
}

/// Another descriptor of the same file, with the same lock.
pub(crate) fn duplicate(name: &str, file: &File) -> Result<File, OpenError> {
    let system = |error: io::Error| system(Path::new(name), "dup", &error);
    file.try_clone().map_err(system)
}

/// Checks that `size` is whole blocks.
pub(crate) fn whole_blocks(name: &str, size: u64, block_size: BlockSize) -> Result<(), OpenError> {
    let block = u64::from(block_size.bytes());
    let over = size % block;
    if over == 0 {
        return Ok(());
    }
    Err(OpenError::NotWholeBlocks {
        name: name.to_owned(),
        size,
        block_size: block_size.bytes(),
        up: size.saturating_add(block - over),
        fits: BlockSize::ALL
            .into_iter()
            .map(BlockSize::bytes)
            .rfind(|smaller| size.is_multiple_of(u64::from(*smaller))),
    })
}

fn explain(path: &Path, readonly: bool, error: &io::Error) -> OpenError {
    let path = path.to_owned();
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::ENOTDIR) => OpenError::Missing(path),
        Some(Errno::EACCES | Errno::EPERM) => OpenError::Permission { path, readonly },
        Some(Errno::EROFS) => OpenError::ReadOnlyStorage(path),
        Some(Errno::EISDIR) => OpenError::Directory(path),
        Some(Errno::EBUSY) => OpenError::DeviceInUse(path),
        _ => system(&path, "open", error),
    }
}

fn system(path: &Path, what: &'static str, error: &io::Error) -> OpenError {
    let errno = error.raw_os_error().map(Errno::from_raw);
    OpenError::System {
        path: path.to_owned(),
        what,
        errno: errno.unwrap_or(Errno::UnknownErrno),
    }
}

/// Opens a file, with retries: a block device that was served until now may be closed by a
/// thread of its own, shortly after its claim was dropped.
fn open_with_retries(path: &Path, options: &OpenOptions) -> io::Result<File> {
    for _ in 0..LOCK_TRIES {
        match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                std::thread::sleep(LOCK_PAUSE);
            }
            opened => return opened,
        }
    }
    options.open(path)
}

fn lock(path: &Path, file: &File, readonly: bool) -> Result<(), OpenError> {
    // A killed process keeps its lock until the kernel has torn its io_uring down, shortly
    // after its end; a target that is restarted immediately has to wait for that. Also,
    // udev locks a block device for a moment after each close.
    for _ in 0..LOCK_TRIES {
        let locked = if readonly {
            file.try_lock_shared()
        } else {
            file.try_lock()
        };
        match locked {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(error)) => {
                tracing::warn!(path = %path.display(), %error, "the file system has no \
                    locks: nothing keeps a second target from serving this file");
                return Ok(());
            }
        }
    }
    let path = path.to_owned();
    Err(OpenError::Locked { path, readonly })
}

/// The requested block size, if the device supports it, or the smallest suitable one.
fn choose_block_size(
    path: &Path,
    requested: Option<BlockSize>,
    device: Option<&Metadata>,
) -> Result<BlockSize, OpenError> {
    let logical = device.and_then(|device| queue_value(device, "queue/logical_block_size"));
    let logical = u32::try_from(logical.unwrap_or(512)).unwrap_or(u32::MAX);
    let suits = |size: &BlockSize| size.bytes() >= logical;
    let suitable = || BlockSize::ALL.into_iter().find(suits);
    let chosen = requested.or_else(suitable).unwrap_or(BlockSize::B4096);
    if chosen.bytes() < logical {
        return Err(OpenError::DeviceBlocks {
            path: path.to_owned(),
            device: logical,
            asked: chosen.bytes(),
        });
    }
    Ok(chosen)
}

/// Requirements of direct I/O on buffers.
struct Direct {
    /// Alignment of their address, in bytes.
    memory: u32,
}

/// Switches `file` to direct I/O if single blocks can be read that way. Otherwise it stays
/// buffered, and the reason is returned.
fn choose_access(
    file: &File,
    device: bool,
    block_size: BlockSize,
    size: u64,
) -> Result<Direct, &'static str> {
    let block = block_size.bytes();
    // tmpfs accepts O_DIRECT since Linux 6.6, but still uses the page cache. Device nodes
    // are on such a file system too, but not their data.
    if !device && fstatfs(file).is_ok_and(|it| it.filesystem_type() == TMPFS_MAGIC) {
        return Err("the file is in memory (tmpfs)");
    }
    let reported = direct_alignment(file).ok().flatten();
    if let Some(alignment) = reported {
        if alignment.offset == 0 || alignment.memory == 0 {
            return Err("the file system does not support direct I/O for this file");
        }
        if alignment.offset > block {
            return Err("direct I/O requires larger blocks than those of the namespace");
        }
        if alignment.memory > 4096 {
            return Err("direct I/O requires buffers aligned to more than 4096 bytes");
        }
    }
    set_direct(file, true).map_err(|_| "the file system refuses O_DIRECT")?;
    // A reported alignment is verified by a read. If none is reported, try the common ones.
    let candidates = reported.map_or(vec![512, 4096], |alignment| {
        vec![alignment.memory.next_power_of_two()]
    });
    for memory in candidates {
        if try_read(file, block, memory, size).is_some() {
            return Ok(Direct { memory });
        }
    }
    let _ = set_direct(file, false);
    Err("a test read of one block with O_DIRECT failed")
}

fn set_direct(file: &File, on: bool) -> Result<(), Errno> {
    let flags = OFlag::from_bits_retain(fcntl(file, FcntlArg::F_GETFL)?);
    let wanted = if on {
        flags | OFlag::O_DIRECT
    } else {
        flags - OFlag::O_DIRECT
    };
    fcntl(file, FcntlArg::F_SETFL(wanted)).map(drop)
}

/// Reads the last block into memory that is aligned to exactly `memory` bytes.
fn try_read(file: &File, block: u32, memory: u32, size: u64) -> Option<()> {
    let layout = PoolLayout {
        count: 1,
        stride: 3 * 4096,
        lead: 0,
    };
    let mut buf = Pool::new(layout, Pages::Normal).ok()?.take()?;
    let (start, block_len) = (memory as usize, block as usize);
    buf.set_view(start..start + block_len).ok()?;
    let last = i64::try_from(size - u64::from(block)).ok()?;
    let read = pread(file, &mut buf, last).ok()?;
    (read == block_len).then_some(())
}

/// Whether a block device implements FUA. Without it the kernel flushes the whole cache for a
/// durable write. Source: Documentation/ABI/stable/sysfs-block.
fn has_fua(device: &Metadata) -> bool {
    queue_value(device, "queue/fua") == Some(1)
}

/// Whether punching holes is supported and leaves zeroes.
fn can_deallocate(file: &File, size: u64, device: Option<&Metadata>) -> bool {
    if let Some(device) = device {
        return queue_value(device, "queue/write_zeroes_max_bytes").is_some_and(|most| most > 0);
    }
    // Beyond the end there are no data, and the result is the same.
    let behind = size.checked_next_multiple_of(1 << 20);
    let Some(behind) = behind.and_then(|offset| i64::try_from(offset).ok()) else {
        return false;
    };
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(file, mode, behind, 4096).is_ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileTypeExt;
    use std::process::Command;
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// Held by tests that create devices or list all of them.
    static DEVICES: Mutex<()> = Mutex::new(());

    /// Whether the device supports direct reads; `None` without permission or medium.
    fn is_direct(path: &Path) -> Option<bool> {
        let is_device = std::fs::metadata(path).ok()?.file_type().is_block_device();
        let mut file = File::open(path).ok().filter(|_| is_device)?;
        let size = file
            .seek(SeekFrom::End(0))
            .ok()
            .filter(|size| *size >= 4096)?;
        Some(choose_access(&file, true, BlockSize::B4096, size).is_ok())
    }

    #[test]
    fn host_managed_zoned_device_is_refused() {
        let path = Path::new("/dev/zoned");
        for fits in [None, Some("none"), Some("host-aware")] {
            assert!(check_zones(path, fits).is_ok(), "{fits:?}");
        }
        for model in ["host-managed", "whatever comes later"] {
            let error = check_zones(path, Some(model)).unwrap_err();
            let message = error.to_string();
            assert!(
                message.contains("/dev/zoned") && message.contains(model),
                "{message}"
            );
        }
    }

    /// A loop device of `file`, where this process may create one.
    fn device_of(file: &Path) -> Option<String> {
        let run = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(file)
            .output();
        let run = run.ok().filter(|it| it.status.success())?;
        Some(String::from_utf8(run.stdout).ok()?.trim().to_owned())
    }

    #[test]
    fn error_beyond_end_of_device_is_removed() {
        let _no_other = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let file = File::open(&path).unwrap();
        let all = [
            IoErrorKind::Media,
            IoErrorKind::NoSpace,
            IoErrorKind::Other,
            IoErrorKind::ReadOnly,
        ];
        for kind in all {
            assert_eq!(
                kind_at(Some(&file), kind, 2 << 20),
                kind,
                "a file is not a device"
            );
        }
        let Some(name) = device_of(&path) else {
            let _ = writeln!(
                io::stderr(),
                "SKIPPED: cannot create a loop device; run as root"
            );
            return;
        };
        let device = File::open(&name).unwrap();
        let of = |position| all.map(|kind| kind_at(Some(&device), kind, position));
        let (inside, behind) = (of((1 << 20) - 512), of(1 << 20));
        let losetup = |option: &str| {
            let run = Command::new("losetup")
                .args([option, name.as_str()])
                .status();
            run.unwrap().success()
        };
        // The device shrinks to 0 bytes.
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(0)
            .unwrap();
        let emptied = losetup("--set-capacity");
        let refused = size(&name, &device);
        assert!(losetup("--detach") && emptied);
        assert_eq!(inside, all);
        let [media, space, other, readonly] = behind;
        assert_eq!([media, space, other], [IoErrorKind::Removed; 3]);
        assert_eq!(readonly, IoErrorKind::ReadOnly);
        assert!(
            matches!(refused, Err(OpenError::NoMedium(_))),
            "{refused:?}"
        );
    }

    #[test]
    fn block_device_node_on_tmpfs_can_be_direct() {
        let _no_other = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        let nodes = std::fs::read_dir("/dev").unwrap();
        let nodes = nodes.filter_map(|node| is_direct(&node.ok()?.path()));
        let direct: Vec<_> = nodes.collect();
        assert!(direct.is_empty() || direct.contains(&true));
    }
}
