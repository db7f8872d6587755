//! The file of changes belongs to one target.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use nix::fcntl::OFlag;

use crate::config::{Config, ConfigError};

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
            Ok(None) => {
                let what = format!(
                    "another target keeps its changes in {}; stop that one, or give this one a \
                     file of its own",
                    state.display()
                );
                Err(config.table_error("control", "state", &what))
            }
            // Nothing can be saved there either, which is told when it is tried.
            Err(error) => {
                tracing::warn!(
                    "{}: cannot be locked, so that nothing keeps a second target from it: {error}",
                    state.display()
                );
                Ok(None)
            }
        }
    }
}

/// The locked file; `None` when somebody else has it.
fn hold(state: &Path) -> io::Result<Option<File>> {
    let mut name = OsString::from(state.file_name().unwrap_or_default());
    name.push(".lock");
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(false).mode(0o600);
    let options = options.custom_flags(OFlag::O_NOFOLLOW.bits());
    let file = options.open(state.with_file_name(name))?;
    for _ in 0..TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(None)
}
