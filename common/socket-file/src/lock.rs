//! A lock file: held by one process, and released when that process exits.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{Flock, FlockArg, OFlag};

use crate::about;

/// Attempts to lock a file that other processes remove in the meantime.
const ATTEMPTS: u32 = 256;

/// Locks the file at `path` and creates it if it does not exist. The holder removes the
/// file when it is done. A lock of a removed file excludes no other process and does not
/// count.
pub(crate) fn take(path: &Path) -> io::Result<Flock<File>> {
    for _ in 0..ATTEMPTS {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(OFlag::O_NOFOLLOW.bits())
            .open(path)
            .map_err(|error| about(path, error))?;
        if let Some(lock) = take_linked(file, path)? {
            return Ok(lock);
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Locks a file that was opened at `path`; `None` if it has been removed since.
fn take_linked(file: File, path: &Path) -> io::Result<Option<Flock<File>>> {
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|_| io::Error::from(io::ErrorKind::AddrInUse))?;
    let (ours, found) = (lock.metadata()?, fs::symlink_metadata(path));
    let same = |found: &Metadata| (found.dev(), found.ino()) == (ours.dev(), ours.ino());
    Ok(found.is_ok_and(|found| same(&found)).then_some(lock))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_of_removed_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let file = || File::create(&path).unwrap();
        assert!(take_linked(file(), &path).unwrap().is_some());
        let before = file();
        fs::remove_file(&path).unwrap();
        let copy = before.try_clone().unwrap();
        assert!(take_linked(copy, &path).unwrap().is_none());
        let _another = file();
        assert!(take_linked(before, &path).unwrap().is_none());
        assert!(take(&path).is_ok());
    }
}
