//! Which namespaces hosts write protected, in a file beside that of what was changed
//! at run time: an administrator changes one and hosts the other.
//!
//! The book is what counts, also for a namespace that is not served at present, since
//! its file is missing for example: it is protected as soon as it comes. An entry
//! leaves the book when a host takes its protection back, or when an administrator
//! removes the namespace or its subsystem by name. A document that does not have it
//! says nothing of hosts.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use nvmeof_rdma::explain;
use nvmeof_target_core::{KeptProtection, Target};
use nvmeof_wire::Nqn;
use serde::{Deserialize, Serialize};

use keeper::Write;
pub(crate) use keeper::{Keeper, Keeping};
use nvmeof_atomic_file::{Readers, replace, with_ending};
use nvmeof_target_config::ConfigError;

mod keeper;

/// The format of the file.
const VERSION: u32 = 1;

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    /// By the names of their subsystems.
    protected: BTreeMap<String, Vec<Entry>>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    nsid: u32,
    /// 32 hexadecimal digits.
    uuid: String,
}

/// The file and what is in it.
#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    book: Contents,
    /// Whether the file may be another: it could not be written the last time.
    unsure: bool,
}

/// Namespaces are protected in `target` as they were when it was last stopped, and
/// hosts may protect them. `state` is the file beside which that is kept.
///
/// # Errors
/// [`ConfigError`] says what is wrong with the file and what to do.
pub(crate) fn beside(state: &Path, target: &Target) -> Result<Keeper<File>, ConfigError> {
    let path = path_beside(state);
    let book = read(&path)?;
    for (subsystem, entries) in &book.protected {
        let Ok(subsystem) = Nqn::new(subsystem) else {
            continue;
        };
        for kept in entries.iter().filter_map(Entry::kept) {
            let there = target.restore_protection(&subsystem, kept);
            tracing::debug!(%subsystem, nsid = kept.nsid, there, "was write protected by a host");
        }
    }
    Ok(Keeper::of(File::new(path, book), target))
}

/// The book beside the file of changes.
#[must_use]
pub fn path_beside(state: &Path) -> PathBuf {
    with_ending(state, ".protected")
}

fn read(path: &Path) -> Result<Contents, ConfigError> {
    let wrong = |what: String| {
        let what = format!(
            "{what}; repair it, or move it away to have none of the namespaces protected that \
             hosts protected"
        );
        ConfigError::plain(path, what)
    };
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Contents {
                version: VERSION,
                protected: BTreeMap::new(),
            });
        }
        Err(error) => return Err(wrong(format!("cannot be read: {}", explain(&error)))),
    };
    let book: Contents =
        serde_json::from_slice(&bytes).map_err(|error| wrong(format!("is damaged: {error}")))?;
    let entries = || book.protected.values().flatten();
    if book.version != VERSION || entries().any(|entry| entry.kept().is_none()) {
        return Err(wrong("is damaged, or of another version".to_owned()));
    }
    Ok(book)
}

impl Entry {
    fn of(kept: &KeptProtection) -> Self {
        Self {
            nsid: kept.nsid,
            uuid: format!("{:032x}", u128::from_be_bytes(kept.uuid)),
        }
    }

    fn kept(&self) -> Option<KeptProtection> {
        let uuid = u128::from_str_radix(&self.uuid, 16).ok()?;
        Some(KeptProtection {
            nsid: self.nsid,
            uuid: uuid.to_be_bytes(),
        })
    }
}

impl File {
    fn new(path: PathBuf, book: Contents) -> Self {
        let unsure = false;
        Self { path, book, unsure }
    }

    fn put(&self, book: &Contents) -> io::Result<()> {
        let mut bytes = serde_json::to_vec_pretty(book)?;
        bytes.push(b'\n');
        replace(&self.path, &bytes, Readers::Owner)
    }
}

impl Write for File {
    fn write(&mut self, changes: &[(Nqn, Vec<KeptProtection>)]) -> io::Result<()> {
        let mut new = self.book.clone();
        for (subsystem, namespaces) in changes {
            let entries: Vec<Entry> = namespaces.iter().map(Entry::of).collect();
            if entries.is_empty() {
                new.protected.remove(subsystem.as_str());
            } else {
                new.protected.insert(subsystem.as_str().to_owned(), entries);
            }
        }
        if new == self.book && !self.unsure {
            return Ok(());
        }
        if let Err(error) = self.put(&new) {
            tracing::error!("cannot save write protection set by a host: {error}");
            // It may have taken its place all the same, and hosts were told what is in
            // the one before.
            self.unsure = true;
            if self.put(&self.book).is_ok() {
                self.unsure = false;
            }
            return Err(error);
        }
        (self.book, self.unsure) = (new, false);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_target_core::{Limits, Model, NamespaceSpec, SubsystemSpec};

    use super::*;

    const DISK: &str = "nqn.2026-11.org.example:disk";

    fn target() -> Target {
        let namespace = |nsid| NamespaceSpec {
            nsid,
            blocks: 1000,
            disk: nsid,
            uuid: Some([u8::try_from(nsid).unwrap(); 16]),
            ..NamespaceSpec::default()
        };
        let subsystem = SubsystemSpec {
            nqn: DISK.into(),
            namespaces: vec![namespace(1), namespace(2)],
            ..SubsystemSpec::default()
        };
        Target::new(Model::build(Limits::default(), &[], &[subsystem]).unwrap())
    }

    #[test]
    fn what_is_kept_is_protected_when_the_target_is_started_again() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state.json");
        let _ = beside(&state, &target()).unwrap();
        let file = path_beside(&state);
        assert!(!file.exists(), "nothing is to be kept");
        let mut written = File::new(file.clone(), read(&file).unwrap());
        let nqn = Nqn::new(DISK).unwrap();
        let kept = |nsid| KeptProtection {
            nsid,
            uuid: [1; 16],
        };
        written.write(&[(nqn, vec![kept(1), kept(2)])]).unwrap();
        let again = read(&file).unwrap();
        assert_eq!(again, written.book);
        let entries: Vec<_> = again.protected.values().flatten().collect();
        let kept: Vec<_> = entries.iter().filter_map(|entry| entry.kept()).collect();
        assert_eq!(kept.len(), 2);
        // The second is another namespace than the one that was protected.
        let target = target();
        assert!(target.restore_protection(&nqn, kept[0]));
        assert!(!target.restore_protection(&nqn, kept[1]));
        let _ = beside(&state, &target).unwrap();
        written.write(&[(nqn, vec![])]).unwrap();
        assert!(read(&file).unwrap().protected.is_empty());
    }

    #[test]
    fn a_file_that_could_not_be_written_is_written_the_next_time() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("kept");
        std::fs::create_dir(&inner).unwrap();
        let file = path_beside(&inner.join("state.json"));
        let mut written = File::new(file.clone(), read(&file).unwrap());
        let nqn = Nqn::new(DISK).unwrap();
        let kept = KeptProtection {
            nsid: 1,
            uuid: [1; 16],
        };
        written.write(&[(nqn, vec![kept])]).unwrap();
        std::fs::rename(&inner, folder.path().join("elsewhere")).unwrap();
        written.write(&[(nqn, vec![])]).unwrap_err();
        std::fs::create_dir(&inner).unwrap();
        // As before, but who knows what is there.
        written.write(&[(nqn, vec![kept])]).unwrap();
        assert_eq!(read(&file).unwrap().protected.len(), 1);
    }

    #[test]
    fn a_file_that_is_damaged_is_not_taken_for_none() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state.json");
        let file = path_beside(&state);
        for text in [
            "{",
            r#"{"version": 2, "protected": {}}"#,
            r#"{"version": 1, "protected": {"n": [{"nsid": 1, "uuid": "x"}]}}"#,
        ] {
            std::fs::write(&file, text).unwrap();
            let error = beside(&state, &target()).map(drop).unwrap_err().to_string();
            assert!(error.contains("is damaged"), "{error}");
            assert!(error.contains("state.json.protected"), "{error}");
        }
    }
}
