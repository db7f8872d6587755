//! Where the settings of hosts are kept: the contract, and a folder of files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nvmeof_atomic_file::{Files, ReadAccess, Real, prepare};
use nvmeof_rdma::explain;

use super::encoding::{Record, decode, encode};

/// Stores records by name. Each has a version, which counts its changes; a name without a record
/// has version 0. Called by threads that may block, and by no reactor.
pub(super) trait StateStore: Send {
    /// Begins a change, or reading a record: its operations have a common time limit.
    fn begin(&mut self) {}

    /// A record.
    ///
    /// # Errors
    /// [`StateError`] if it cannot be read, or is damaged.
    fn read(&mut self, name: &str) -> Result<Record, StateError>;

    /// Replaces the record `name`, whose version is `expected`. Without bytes, it is removed. When
    /// this returns the new version, the record is on stable storage.
    ///
    /// # Errors
    /// [`StateError::Changed`] if it has another version; then nothing changed. Otherwise, the old
    /// or the new record is stored.
    fn replace(&mut self, name: &str, expected: u64, bytes: &[u8]) -> Result<u64, StateError>;

    /// Replaces the record `name` after a change of which it is not known whether it took effect.
    /// Also replaces a damaged one.
    ///
    /// # Errors
    /// [`StateError::Changed`] if it is a record of another writer; then nothing changed.
    /// Otherwise, the old or the new record is stored.
    fn overwrite(&mut self, name: &str, bytes: &[u8]) -> Result<u64, StateError>;

    /// The names of all records, and perhaps others; none of a place that others use as well.
    ///
    /// # Errors
    /// [`StateError`].
    fn names(&mut self) -> Result<Vec<String>, StateError> {
        Ok(Vec::new())
    }

    /// Where a record is, for messages.
    fn place(&self, name: &str) -> String;

    /// What an administrator does to remove a record, for messages.
    fn removal(&self, name: &str) -> String;
}

/// Why a record was not read or replaced.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    /// Another writer has changed it.
    #[error("{place}: has version {found}, and version {expected} was expected")]
    Changed {
        /// The record.
        place: String,
        /// The version that the caller knows.
        expected: u64,
        /// Its version.
        found: u64,
    },
    /// It is not one that was written completely.
    #[error("{place}: is damaged: {why}")]
    Damaged {
        /// The record.
        place: String,
        /// What is wrong.
        why: String,
    },
    /// Another place has another one.
    #[error("{place} and {other} differ")]
    Differs {
        /// The record.
        place: String,
        /// The other one.
        other: String,
    },
    /// Not now.
    #[error("{place}: {why}")]
    Waiting {
        /// The record.
        place: String,
        /// Cause, and remedy unless the target retries.
        why: String,
    },
    /// This process has lost the image, and may not change its record any more. What is stored is
    /// known when the image is opened again.
    #[error("{place}: {why}")]
    Lost {
        /// The record.
        place: String,
        /// The cause.
        why: String,
    },
    /// The system.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// A folder with one file for each record.
pub(super) struct Folder<F = Real> {
    path: PathBuf,
    files: F,
    /// Whether the names in it are on stable storage.
    is_synced: bool,
}

impl Folder {
    /// The folder at `path`, which is created when there is something to store. The caller has
    /// locked it against other processes.
    pub(super) fn at(path: PathBuf) -> Self {
        Self {
            path,
            files: Real,
            is_synced: false,
        }
    }
}

impl<F: Files> Folder<F> {
    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Puts the names on stable storage, after a change that may have been interrupted.
    fn sync(&mut self) -> io::Result<()> {
        if self.is_synced {
            return Ok(());
        }
        match self.files.sync_folder(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            synced => synced.map_err(|error| about(&self.path, &error))?,
        }
        self.is_synced = true;
        Ok(())
    }

    /// Stores a record in the place of one with version `before`, or removes it.
    fn put(&mut self, name: &str, before: u64, bytes: &[u8]) -> Result<u64, StateError> {
        let file = self.file(name);
        // Until this change has succeeded as a whole.
        self.is_synced = false;
        if bytes.is_empty() {
            match self.files.remove(&file) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed.map_err(|error| about(&file, &error))?,
            }
            self.sync()?;
            return Ok(0);
        }
        self.create().map_err(|error| about(&self.path, &error))?;
        let (version, text) = encode(before, bytes)?;
        prepare(&self.files, &file, &text, ReadAccess::Owner)?.commit()?;
        self.is_synced = true;
        Ok(version)
    }

    fn create(&self) -> io::Result<()> {
        use std::os::unix::fs::DirBuilderExt;
        match fs::DirBuilder::new().mode(0o700).create(&self.path) {
            Ok(()) => {
                // Else a loss of power could take it with all records.
                let parent = self.path.parent().filter(|it| *it != Path::new(""));
                self.files.sync_folder(parent.unwrap_or(Path::new(".")))
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl<F: Files + Send> StateStore for Folder<F> {
    fn read(&mut self, name: &str) -> Result<Record, StateError> {
        // A target that was killed while it replaced a record may not have done so.
        self.sync()?;
        let file = self.file(name);
        let text = match fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Record::default()),
            Err(error) => return Err(about(&file, &error).into()),
        };
        decode(&text).map_err(|why| StateError::Damaged {
            place: self.place(name),
            why: why.to_owned(),
        })
    }

    fn replace(&mut self, name: &str, expected: u64, bytes: &[u8]) -> Result<u64, StateError> {
        let found = self.read(name)?.version;
        if found != expected {
            let place = self.place(name);
            return Err(StateError::Changed {
                place,
                expected,
                found,
            });
        }
        self.put(name, found, bytes)
    }

    fn overwrite(&mut self, name: &str, bytes: &[u8]) -> Result<u64, StateError> {
        let found = match self.read(name) {
            // Its version is unknown.
            Err(StateError::Damaged { .. }) => 0,
            found => found?.version,
        };
        self.put(name, found, bytes)
    }

    fn names(&mut self) -> Result<Vec<String>, StateError> {
        let listed = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed.map_err(|error| about(&self.path, &error))?,
        };
        let name = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.map_err(|error| about(&self.path, &error))?;
            // Names of records are plain text.
            Ok(entry.file_name().into_string().ok())
        };
        listed.filter_map(|entry| name(entry).transpose()).collect()
    }

    fn place(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }

    fn removal(&self, _: &str) -> String {
        "move this file away".to_owned()
    }
}

fn about(path: &Path, error: &io::Error) -> io::Error {
    let text = format!("{}: {}", path.display(), explain(error));
    io::Error::new(error.kind(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let folder = tempfile::tempdir().unwrap();
        let records = Folder::at(folder.path().join("records"));
        (folder, records)
    }

    #[test]
    fn record_is_replaced_if_its_version_is_expected() {
        let (_folder, mut records) = folder();
        assert_eq!(records.read("a").unwrap(), Record::default());
        assert_eq!(records.replace("a", 0, b"one\ntwo").unwrap(), 1);
        assert_eq!(records.replace("a", 1, b"three").unwrap(), 2);
        let refused = records.replace("a", 1, b"four").unwrap_err();
        assert!(
            matches!(
                refused,
                StateError::Changed {
                    expected: 1,
                    found: 2,
                    ..
                }
            ),
            "{refused}"
        );
        let record = records.read("a").unwrap();
        assert_eq!((record.version, &record.bytes[..]), (2, &b"three"[..]));
        assert_eq!(records.replace("a", 2, b"").unwrap(), 0);
        assert_eq!(records.read("a").unwrap(), Record::default());
        assert_eq!(
            records.replace("b", 0, b"").unwrap(),
            0,
            "nothing to remove"
        );
    }

    #[test]
    fn every_damaged_byte_is_noticed() {
        let (_folder, mut records) = folder();
        records.replace("a", 0, b"{\"nsid\": 1}\n").unwrap();
        let file = records.file("a");
        let whole = fs::read(&file).unwrap();
        for at in 0..whole.len() {
            let mut text = whole.clone();
            text[at] ^= 0x04;
            fs::write(&file, &text).unwrap();
            let damaged = records.read("a");
            assert!(
                matches!(damaged, Err(StateError::Damaged { .. })),
                "{damaged:?}"
            );
            fs::write(&file, &whole[..at]).unwrap();
            assert!(records.read("a").is_err(), "cut off after {at} bytes");
            records.replace("a", 1, b"").unwrap_err();
        }
        let version = records.overwrite("a", b"whole").unwrap();
        assert_eq!(records.read("a").unwrap().bytes, b"whole");
        assert_eq!(
            records.replace("a", version, b"again").unwrap(),
            version + 1
        );
        fs::write(&file, "damaged").unwrap();
        assert_eq!(records.overwrite("a", b"").unwrap(), 0);
        assert_eq!(records.read("a").unwrap(), Record::default());
    }
}
