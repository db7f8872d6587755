//! The lineage of a target: its processes with the same state file, one after the other. Each
//! proves to hosts that nothing of the ones before it is in flight any more.
//!
//! The proof is a lock (flock(2)) on the incarnations file beside the state file. A process
//! holds it with its descriptor and with every io_uring of its reactors. The kernel releases it
//! when all threads of the process have ended, and all operations of these rings. Whoever gets
//! the lock of the same file therefore knows that nothing of a predecessor is in flight, on
//! whichever backing store. The file also has the secret of [`IncarnationKey`], by which a
//! process recognizes what its predecessors told hosts.
//!
//! The secret alone is worth nothing: the key is bound to the inode and to the boot, because
//! neither a lock of another inode nor one of another kernel proves anything.
//!
//! Some backing stores do not keep to this ([`Claim::ends_with_ring`]). Before a process serves
//! one of them, it replaces the secret: then its successors recognize nothing of it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::num::NonZeroU16;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC, fstatfs,
};
use nvmeof_atomic_file::with_ending;
use nvmeof_backend::Claim;
use nvmeof_rdma::explain;
use nvmeof_target_core::IncarnationKey;

/// The place of this process in its lineage. Its predecessors have ended.
#[derive(Debug)]
pub struct Lineage {
    path: PathBuf,
    /// The incarnations file, locked.
    file: File,
    key: IncarnationKey,
    /// Whether successors recognize what `key` issues.
    is_valid: Mutex<bool>,
}

/// Why there is no proof for hosts.
#[derive(Debug, thiserror::Error)]
pub enum LineageError {
    /// The file, or what the key is bound to, cannot be read or written.
    #[error("{}: {}", path.display(), explain(error))]
    System {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The lock of the file may be more, or less, than one of this kernel.
    #[error(
        "{}: the file system of control.state is none of ext4, XFS, Btrfs and tmpfs",
        .0.display()
    )]
    FileSystem(PathBuf),
    /// A predecessor still has it.
    #[error("{}: still locked, by a process that was killed or by its last writes", .0.display())]
    Locked(PathBuf),
}

/// Attempts to take the lock: the kernel destroys the rings of a process shortly after its end.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(25);

/// Identity of the running kernel: random, at each boot (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

impl Lineage {
    /// The path of the incarnations file beside the state file.
    #[must_use]
    pub fn path_beside(state: &Path) -> PathBuf {
        with_ending(state, ".incarnations")
    }

    /// Takes the next place in the lineage of the state file. The caller holds the lock of the
    /// state file. `None` if nothing can be proven to hosts, which is logged.
    #[must_use]
    pub fn take(state: &Path) -> Option<Self> {
        let boot = fs::read(BOOT_ID).map_err(|error| LineageError::System {
            path: BOOT_ID.into(),
            error,
        });
        let taken = boot.and_then(|boot| Self::take_at(Self::path_beside(state), &boot));
        let unproven = |error: &LineageError| {
            tracing::warn!(
                "incarnations not verified: {error}; hosts that lost a controller of an earlier \
                 process wait for its Command Quiesce Time"
            );
        };
        taken.inspect_err(unproven).ok()
    }

    fn take_at(path: PathBuf, boot: &[u8]) -> Result<Self, LineageError> {
        let system = |error| LineageError::System {
            path: path.clone(),
            error,
        };
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let options = options.mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
        let file = options.open(&path).map_err(system)?;
        let kind = fstatfs(&file).map_err(|errno| system(errno.into()))?;
        // These have no flock operation of their own: Linux locks the inode, and releases the
        // lock with the last reference to the open file.
        if !matches!(
            kind.filesystem_type(),
            EXT4_SUPER_MAGIC | XFS_SUPER_MAGIC | BTRFS_SUPER_MAGIC | TMPFS_MAGIC
        ) {
            return Err(LineageError::FileSystem(path));
        }
        if !lock(&file).map_err(system)? {
            return Err(LineageError::Locked(path));
        }
        let last = Record::read(&file, &path).map_err(system)?;
        let (process, record) = last.unwrap_or_else(Record::new).next();
        record.write(&file).map_err(system)?;
        let metadata = file.metadata().map_err(system)?;
        let (dev, ino) = (metadata.dev().to_le_bytes(), metadata.ino().to_le_bytes());
        // The inode number is not used again while a predecessor has the file open.
        let bound = [&dev[..], &ino, boot].concat();
        let key = IncarnationKey::new(record.secret.to_be_bytes(), &bound, process);
        Ok(Self {
            path,
            file,
            key,
            is_valid: Mutex::new(true),
        })
    }

    /// The locked file, and its name for messages. Each ring that writes must hold it.
    pub(crate) fn lock(&self) -> (String, &File) {
        (self.path.display().to_string(), &self.file)
    }

    /// The key of this process, as long as successors recognize what it issues.
    pub(crate) fn key(&self) -> Option<IncarnationKey> {
        let valid = self.is_valid.lock();
        let valid = *valid.unwrap_or_else(PoisonError::into_inner);
        valid.then(|| self.key.clone())
    }

    /// Prepares to serve `stores`. If the end of the process and of its rings does not prove that
    /// all operations on one of them have ended, successors will recognize nothing of this
    /// process.
    ///
    /// # Errors
    /// [`LineageError`] if that cannot be recorded. Then these must not be served.
    pub(crate) fn admit<'a>(
        &self,
        stores: impl IntoIterator<Item = &'a Claim>,
    ) -> Result<(), LineageError> {
        let unproven = stores.into_iter().find(|store| !store.ends_with_ring());
        unproven.map_or(Ok(()), |store| self.revoke(store.name()))
    }

    /// Successors recognize nothing of this process, because of a backing store.
    fn revoke(&self, store: &str) -> Result<(), LineageError> {
        let valid = self.is_valid.lock();
        let mut valid = valid.unwrap_or_else(PoisonError::into_inner);
        if !*valid {
            return Ok(());
        }
        let written = Record::new().write(&self.file);
        written.map_err(|error| LineageError::System {
            path: self.path.clone(),
            error,
        })?;
        *valid = false;
        tracing::info!(
            "{store}: writes may outlive this process; if it is killed, hosts wait for the \
             Command Quiesce Time before they send writes again"
        );
        Ok(())
    }
}

/// Locks the file. False if another process holds the lock.
fn lock(file: &File) -> io::Result<bool> {
    for _ in 0..TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(false)
}

/// The contents of the incarnations file: one line of fixed length, so that it is overwritten
/// in place. The lock is on the inode, which must not be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    secret: u128,
    /// Processes that have had this secret.
    process: u16,
}

const MAGIC: &str = "nvmeof-target incarnations 1";

impl Record {
    /// A new secret, which no process has had.
    fn new() -> Self {
        let random = RandomState::new();
        let [high, low] = [0u8, 1].map(|half| u128::from(random.hash_one(half)));
        Self {
            secret: (high << 64) | low,
            process: 0,
        }
    }

    /// The number of the next process, and the record with it.
    fn next(self) -> (NonZeroU16, Self) {
        match self.process.checked_add(1).and_then(NonZeroU16::new) {
            Some(next) => {
                let process = next.get();
                (next, Self { process, ..self })
            }
            // The numbers are used up.
            None => {
                let process = NonZeroU16::MIN;
                let record = Self {
                    process: process.get(),
                    ..Self::new()
                };
                (process, record)
            }
        }
    }

    fn to_line(self) -> String {
        let Self { secret, process } = self;
        format!("{MAGIC} {secret:032x} {process:05}\n")
    }

    fn parse(line: &str) -> Option<Self> {
        let (secret, process) = line.strip_prefix(MAGIC)?.trim().split_once(' ')?;
        let record = Self {
            secret: u128::from_str_radix(secret, 16).ok()?,
            process: process.parse().ok()?,
        };
        (record.to_line() == line).then_some(record)
    }

    /// The record in the file; `None` in a new file, and in a damaged one, which is logged.
    fn read(file: &File, path: &Path) -> io::Result<Option<Self>> {
        let longest = Self::new().to_line().len() + 1;
        let mut bytes = Vec::new();
        let most = u64::try_from(longest).unwrap_or(u64::MAX);
        file.take(most).read_to_end(&mut bytes)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let record = std::str::from_utf8(&bytes).ok().and_then(Self::parse);
        if record.is_none() {
            let path = path.display();
            tracing::warn!(
                "{path}: damaged, and written anew; hosts that lost a controller of an earlier \
                 process wait for its Command Quiesce Time"
            );
        }
        Ok(record)
    }

    /// Writes the record durably. A write that is torn leaves a file that does not parse, or
    /// another secret: both recognize nothing.
    fn write(self, file: &File) -> io::Result<()> {
        let line = self.to_line();
        file.write_all_at(line.as_bytes(), 0)?;
        file.set_len(u64::try_from(line.len()).unwrap_or(u64::MAX))?;
        file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_backend::UringStores;
    use nvmeof_uring::RingConfig;
    use tempfile::TempDir;

    use super::*;

    const BOOT: &[u8] = b"boot";

    /// The incarnations file in a folder of its own.
    fn folder() -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = Lineage::path_beside(&folder.path().join("state.json"));
        (folder, path)
    }

    /// One process after the other.
    fn process(path: &Path) -> IncarnationKey {
        let lineage = Lineage::take_at(path.to_owned(), BOOT).unwrap();
        lineage.key().unwrap()
    }

    #[test]
    fn each_process_follows_the_one_before() {
        let (_folder, path) = folder();
        let [first, second, third] = [(); 3].map(|()| process(&path));
        assert!(second.follows(&first) && third.follows(&first) && third.follows(&second));
        assert!(!first.follows(&first) && !first.follows(&second));
        let mode = fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600, "the secret is readable for others");
    }

    #[test]
    fn process_after_a_boot_follows_none() {
        let (_folder, path) = folder();
        let first = process(&path);
        let second = Lineage::take_at(path, b"another").unwrap();
        assert!(!second.key().unwrap().follows(&first));
    }

    /// A copy has a lock of its own: the process with the other file may still run.
    #[test]
    fn process_with_a_copied_file_follows_none() {
        let (folder, path) = folder();
        let running = Lineage::take_at(path.clone(), BOOT).unwrap();
        let copy = folder.path().join("copy");
        fs::copy(&path, &copy).unwrap();
        assert!(!process(&copy).follows(&running.key().unwrap()));
    }

    #[test]
    fn damaged_file_is_written_anew() {
        let (_folder, path) = folder();
        let first = process(&path);
        let line = fs::read(&path).unwrap();
        let mut longer = line.clone();
        longer.push(b'\n');
        let upper: Vec<u8> = line.to_ascii_uppercase();
        for damaged in [&line[..line.len() - 1], &longer, &upper, b"\xff", &[0; 70]] {
            fs::write(&path, damaged).unwrap();
            let second = process(&path);
            assert!(!second.follows(&first), "{damaged:?}");
            assert!(process(&path).follows(&second), "{damaged:?}");
        }
    }

    #[test]
    fn process_numbers_that_are_used_up_begin_with_another_secret() {
        let (_folder, path) = folder();
        let first = process(&path);
        let file = OpenOptions::new().write(true).read(true).open(&path);
        let file = file.unwrap();
        let record = Record::read(&file, &path).unwrap().unwrap();
        let process_number = u16::MAX - 1;
        Record {
            process: process_number,
            ..record
        }
        .write(&file)
        .unwrap();
        let last = process(&path);
        assert!(last.follows(&first));
        let next = process(&path);
        assert!(!next.follows(&last) && !next.follows(&first));
        assert!(process(&path).follows(&next));
    }

    #[test]
    fn unproven_store_hides_the_process_from_its_successors() {
        let (_folder, path) = folder();
        let lineage = Lineage::take_at(path.clone(), BOOT).unwrap();
        let issued = lineage.key().unwrap();
        let memory = Claim::take(&"ram:1M".parse().unwrap(), None).unwrap();
        lineage.admit([&memory]).unwrap();
        assert_eq!(lineage.key(), Some(issued.clone()));
        lineage.revoke("/nfs/disk.img").unwrap();
        assert_eq!(lineage.key(), None);
        drop(lineage);
        let second = process(&path);
        assert!(!second.follows(&issued));
        assert!(process(&path).follows(&second));
    }

    /// The stores of a reactor whose ring holds the lock of `lineage`.
    fn stores_of(lineage: &Lineage) -> UringStores {
        let mut stores = UringStores::new(RingConfig::default()).unwrap();
        let (name, file) = lineage.lock();
        stores.hold(&name, file).unwrap();
        stores
    }

    #[test]
    fn lock_is_released_with_the_last_ring() {
        let (_folder, path) = folder();
        let lineage = Lineage::take_at(path.clone(), BOOT).unwrap();
        let first = lineage.key().unwrap();
        let stores = stores_of(&lineage);
        drop(lineage);
        let taken = Lineage::take_at(path.clone(), BOOT);
        assert!(matches!(taken, Err(LineageError::Locked(_))), "{taken:?}");
        drop(stores);
        assert!(process(&path).follows(&first));
    }

    /// As of a process that was killed: its descriptors are closed, the kernel has its ring.
    #[test]
    fn ring_without_a_process_holds_the_lock() {
        let (_folder, path) = folder();
        let lineage = Lineage::take_at(path.clone(), BOOT).unwrap();
        std::mem::forget(stores_of(&lineage));
        std::mem::forget(lineage);
        let mut closed = 0;
        for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
            if fs::read_link(entry.path()).is_ok_and(|link| link == path) {
                let number = entry.file_name().into_string().unwrap();
                nix::unistd::close(number.parse::<i32>().unwrap()).unwrap();
                closed += 1;
            }
        }
        assert_eq!(closed, 2, "descriptors of the file");
        let taken = Lineage::take_at(path, BOOT);
        assert!(matches!(taken, Err(LineageError::Locked(_))), "{taken:?}");
    }

    #[test]
    fn file_that_cannot_be_opened_proves_nothing() {
        let (folder, path) = folder();
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), &path).unwrap();
        let taken = Lineage::take_at(path, BOOT);
        assert!(
            matches!(taken, Err(LineageError::System { .. })),
            "{taken:?}"
        );
        // A file system with other rules for locks.
        let taken = Lineage::take_at("/proc/self/comm".into(), BOOT);
        assert!(
            matches!(taken, Err(LineageError::FileSystem(_))),
            "{taken:?}"
        );
    }
}
