//! The file of changes belongs to one target.

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

/// Keeps other targets from the file of changes until it is dropped, or the
/// process ends.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

/// How often a lock that somebody holds is tried: a process that was killed
/// keeps it for a moment.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(25);

impl Lock {
    /// Takes it for `state`, which `config` names. The file itself is replaced
    /// at each change, so another one beside it has the lock (flock(2)).
    ///
    /// # Errors
    /// [`ConfigError`] when another target has it.
    pub(super) fn take(state: &Path, config: &Config) -> Result<Option<Self>, ConfigError> {
        match hold(state) {
            Ok(Some(file)) => Ok(Some(Self { _file: file })),
            Ok(None) => Err(taken(state, config)),
            // Nothing can be saved there either, which is told when it is tried.
            Err(error) => {
                tracing::warn!("{}", unlocked(state, &error));
                Ok(None)
            }
        }
    }
}

/// Says whether another target has the file of changes, and leaves nothing behind: a file
/// made here could keep the target's user out.
pub(super) fn is_free(state: &Path, config: &Config) -> Result<(), ConfigError> {
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(OFlag::O_NOFOLLOW.bits());
    let Ok(file) = options.open(beside(state)) else {
        return Ok(());
    };
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Err(taken(state, config)),
        _ => Ok(()),
    }
}

/// Another target has it. One that was killed does until the kernel is done with its
/// writes.
fn taken(state: &Path, config: &Config) -> ConfigError {
    let what = format!(
        "another target keeps its changes in {}; stop that one, or give this one a file of its \
         own",
        state.display()
    );
    let told = config.table_error("control", "state", &what);
    told.passing(true)
}

/// What is said of a lock that cannot be had.
fn unlocked(state: &Path, error: &io::Error) -> String {
    let path = beside(state);
    let what = format!(
        "{}: nothing keeps a second target from the changes: {}",
        path.display(),
        explain(error)
    );
    // A target that somebody else ran leaves its lock behind.
    match std::fs::symlink_metadata(&path) {
        Ok(it) if error.kind() == io::ErrorKind::PermissionDenied => {
            let uid = Uid::from_raw(it.uid());
            let user = User::from_uid(uid).ok().flatten();
            let owner = user.map_or_else(|| uid.to_string(), |user| user.name);
            format!(
                "{what}; the file is {owner}'s: remove it when no target of {owner} runs, and \
                 start this one again"
            )
        }
        _ => what,
    }
}

fn beside(state: &Path) -> PathBuf {
    with_ending(state, ".lock")
}

/// The locked file; `None` when somebody else has it.
fn hold(state: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(false).mode(0o600);
    let options = options.custom_flags(OFlag::O_NOFOLLOW.bits());
    let file = options.open(beside(state))?;
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
    fn a_lock_that_somebody_else_left_is_told_with_its_owner_and_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state.json");
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let said = unlocked(&state, &denied);
        assert!(said.contains("state.json.lock: nothing keeps"), "{said}");
        assert!(!said.contains("remove it"), "{said}");
        drop(hold(&state).unwrap());
        let me = Uid::current();
        let me = User::from_uid(me)
            .unwrap()
            .map_or(me.to_string(), |user| user.name);
        let said = unlocked(&state, &denied);
        assert!(
            said.contains(&format!("the file is {me}'s: remove it")),
            "{said}"
        );
    }
}
