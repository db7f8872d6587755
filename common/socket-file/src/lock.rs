//! A lock that is a file: held by one process, gone with it.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{Flock, FlockArg, OFlag};

use crate::about;

/// How often a lock is tried whose file others remove meanwhile.
const TRIES: u32 = 256;

/// Locks the file at `path`, which is made if it is not there. Whoever holds
/// the lock removes the file in the end: a lock of a file that is not there any
/// more is none.
pub(crate) fn take(path: &Path) -> io::Result<Flock<File>> {
    for _ in 0..TRIES {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(OFlag::O_NOFOLLOW.bits())
            .open(path)
            .map_err(|error| about(path, error))?;
        if let Some(lock) = take_whole(file, path)? {
            return Ok(lock);
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Locks a file that was opened at `path`. `None` when it was removed since.
fn take_whole(file: File, path: &Path) -> io::Result<Option<Flock<File>>> {
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|_| io::Error::from(io::ErrorKind::AddrInUse))?;
    let (ours, there) = (lock.metadata()?, fs::symlink_metadata(path));
    let same = |there: &Metadata| (there.dev(), there.ino()) == (ours.dev(), ours.ino());
    Ok(there.is_ok_and(|there| same(&there)).then_some(lock))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_of_a_file_that_was_removed_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let file = || File::create(&path).unwrap();
        assert!(take_whole(file(), &path).unwrap().is_some());
        let before = file();
        fs::remove_file(&path).unwrap();
        let copy = before.try_clone().unwrap();
        assert!(take_whole(copy, &path).unwrap().is_none());
        let _another = file();
        assert!(take_whole(before, &path).unwrap().is_none());
        assert!(take(&path).is_ok());
    }
}
