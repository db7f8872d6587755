//! Locking the state file against other targets.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::unistd::{Uid, User};
use nvmeof_rdma::explain;

use nvmeof_atomic_file::with_ending;
use nvmeof_target_config::{Config, ConfigError};

/// Excludes other targets from the state file until it is dropped or the process ends.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

/// Attempts to take a lock that is held: a killed process keeps it for a moment.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(25);

impl Lock {
    /// Locks the state file `state` of `config`. Each change replaces that file, so the lock
    /// (flock(2)) is on another one beside it.
    ///
    /// # Errors
    /// [`ConfigError`] if another target holds it.
    pub(super) fn take(state: &Path, config: &Config) -> Result<Option<Self>, ConfigError> {
        match hold(state) {
            Ok(Some(file)) => Ok(Some(Self { _file: file })),
            Ok(None) => Err(taken(state, config)),
            // Saving will most likely fail too, and reports it then.
            Err(error) => {
                tracing::warn!("{}", unlocked(state, &error));
                Ok(None)
            }
        }
    }
}

/// Checks that no other target holds the state file. Creates no file: one made here could be
/// inaccessible to the target's user.
pub(super) fn is_free(state: &Path, config: &Config) -> Result<(), ConfigError> {
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(OFlag::O_NOFOLLOW.bits());
    let Ok(file) = options.open(lock_path(state)) else {
        return Ok(());
    };
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Err(taken(state, config)),
        _ => Ok(()),
    }
}

/// The error if another target holds the lock. A killed target holds it until the kernel has
/// completed its writes.
fn taken(state: &Path, config: &Config) -> ConfigError {
    let what = format!(
        "another target uses the state file {}; stop that target, or set another control.state \
         for this one",
        state.display()
    );
    let error = config.table_error("control", "state", &what);
    error.passing(true)
}

/// The warning if the lock file cannot be opened or locked.
fn unlocked(state: &Path, error: &io::Error) -> String {
    let path = lock_path(state);
    let what = format!(
        "{}: cannot be locked against a second target: {}",
        path.display(),
        explain(error)
    );
    // A target of another user may have left the file.
    match std::fs::symlink_metadata(&path) {
        Ok(it) if error.kind() == io::ErrorKind::PermissionDenied => {
            let uid = Uid::from_raw(it.uid());
            let user = User::from_uid(uid).ok().flatten();
            let owner = user.map_or_else(|| uid.to_string(), |user| user.name);
            format!(
                "{what}; the file belongs to {owner}: remove it when no target of {owner} runs, \
                 then restart this target"
            )
        }
        _ => what,
    }
}

fn lock_path(state: &Path) -> PathBuf {
    with_ending(state, ".lock")
}

/// The locked file; `None` if another process holds the lock.
fn hold(state: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(false).mode(0o600);
    let options = options.custom_flags(OFlag::O_NOFOLLOW.bits());
    let file = options.open(lock_path(state))?;
    for _ in 0..TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_lock_file_is_reported_with_owner_and_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state.json");
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let message = unlocked(&state, &denied);
        assert!(
            message.contains("state.json.lock: cannot be locked"),
            "{message}"
        );
        assert!(!message.contains("remove it"), "{message}");
        drop(hold(&state).unwrap());
        let me = Uid::current();
        let me = User::from_uid(me)
            .unwrap()
            .map_or(me.to_string(), |user| user.name);
        let message = unlocked(&state, &denied);
        assert!(
            message.contains(&format!("the file belongs to {me}: remove it")),
            "{message}"
        );
    }
}
