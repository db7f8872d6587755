//! The file of write protections that hosts set. It is beside the state file: an administrator
//! changes that one, and hosts change this one.
//!
//! The file decides, also for a namespace that is not served at present, for example because its
//! backing store is missing: it is protected as soon as it is served. An entry is removed when a
//! host removes the protection, or when an administrator removes the namespace or its subsystem
//! by name. A configuration without the namespace does not remove the entry.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use nvmeof_rdma::explain;
use nvmeof_target_core::{SavedProtection, Target};
use nvmeof_wire::Nqn;
use serde::{Deserialize, Serialize};

use keeper::Write;
pub(crate) use keeper::{Keeper, KeeperHandle};
use nvmeof_atomic_file::{ReadAccess, replace, with_ending};
use nvmeof_target_config::ConfigError;

mod keeper;

/// The format of the file.
const VERSION: u32 = 1;

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    /// By subsystem NQN.
    protected: BTreeMap<String, Vec<Entry>>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    nsid: u32,
    /// 32 hexadecimal digits.
    uuid: String,
}

/// The file and its contents.
#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    contents: Contents,
    /// Whether the file may differ, because the last write failed.
    is_uncertain: bool,
}

/// Restores the protections in `target` from the file beside `state`, and lets hosts change them.
///
/// # Errors
/// [`ConfigError`] with the fault of the file and a remedy.
pub(crate) fn beside(state: &Path, target: &Target) -> Result<Keeper<File>, ConfigError> {
    let path = path_beside(state);
    let contents = read(&path)?;
    for (subsystem, entries) in &contents.protected {
        let Ok(subsystem) = Nqn::new(subsystem) else {
            continue;
        };
        for kept in entries.iter().filter_map(Entry::kept) {
            let there = target.restore_protection(&subsystem, kept);
            tracing::debug!(%subsystem, nsid = kept.nsid, there, "was write protected by a host");
        }
    }
    Ok(Keeper::of(File::new(path, contents), target))
}

/// The path of the file of write protections beside the state file.
#[must_use]
pub fn path_beside(state: &Path) -> PathBuf {
    with_ending(state, ".protected")
}

fn read(path: &Path) -> Result<Contents, ConfigError> {
    let wrong = |what: String| {
        let what = format!(
            "{what}; repair it, or move it away, which removes all write protections of hosts"
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
    let contents: Contents =
        serde_json::from_slice(&bytes).map_err(|error| wrong(format!("is damaged: {error}")))?;
    let entries = || contents.protected.values().flatten();
    if contents.version != VERSION || entries().any(|entry| entry.kept().is_none()) {
        return Err(wrong("is damaged, or of another version".to_owned()));
    }
    Ok(contents)
}

impl Entry {
    fn of(kept: &SavedProtection) -> Self {
        Self {
            nsid: kept.nsid,
            uuid: format!("{:032x}", u128::from_be_bytes(kept.uuid)),
        }
    }

    fn kept(&self) -> Option<SavedProtection> {
        let uuid = u128::from_str_radix(&self.uuid, 16).ok()?;
        Some(SavedProtection {
            nsid: self.nsid,
            uuid: uuid.to_be_bytes(),
        })
    }
}

impl File {
    fn new(path: PathBuf, contents: Contents) -> Self {
        let is_uncertain = false;
        Self {
            path,
            contents,
            is_uncertain,
        }
    }

    fn put(&self, contents: &Contents) -> io::Result<()> {
        let mut bytes = serde_json::to_vec_pretty(contents)?;
        bytes.push(b'\n');
        replace(&self.path, &bytes, ReadAccess::Owner)
    }
}

impl Write for File {
    fn write(&mut self, changes: &[(Nqn, Vec<SavedProtection>)]) -> io::Result<()> {
        let mut new = self.contents.clone();
        for (subsystem, namespaces) in changes {
            let entries: Vec<Entry> = namespaces.iter().map(Entry::of).collect();
            if entries.is_empty() {
                new.protected.remove(subsystem.as_str());
            } else {
                new.protected.insert(subsystem.as_str().to_owned(), entries);
            }
        }
        if new == self.contents && !self.is_uncertain {
            return Ok(());
        }
        if let Err(error) = self.put(&new) {
            tracing::error!("cannot save write protection set by a host: {error}");
            // The new file may be in place all the same, but hosts were notified of the contents
            // of the one before.
            self.is_uncertain = true;
            if self.put(&self.contents).is_ok() {
                self.is_uncertain = false;
            }
            return Err(error);
        }
        (self.contents, self.is_uncertain) = (new, false);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_target_core::{Limits, Model, NamespaceSpec, SubsystemSpec};

    use super::*;

    const SUBNQN: &str = "nqn.2026-11.org.example:disk";

    fn target() -> Target {
        let namespace = |nsid| NamespaceSpec {
            nsid,
            blocks: 1000,
            store: nsid,
            uuid: Some([u8::try_from(nsid).unwrap(); 16]),
            ..NamespaceSpec::default()
        };
        let subsystem = SubsystemSpec {
            nqn: SUBNQN.into(),
            namespaces: vec![namespace(1), namespace(2)],
            ..SubsystemSpec::default()
        };
        Target::new(Model::build(Limits::default(), &[], &[subsystem]).unwrap())
    }

    #[test]
    fn saved_protection_is_restored_at_start() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state.json");
        let _ = beside(&state, &target()).unwrap();
        let file = path_beside(&state);
        assert!(!file.exists(), "nothing to store");
        let mut written = File::new(file.clone(), read(&file).unwrap());
        let nqn = Nqn::new(SUBNQN).unwrap();
        let kept = |nsid| SavedProtection {
            nsid,
            uuid: [1; 16],
        };
        written.write(&[(nqn, vec![kept(1), kept(2)])]).unwrap();
        let again = read(&file).unwrap();
        assert_eq!(again, written.contents);
        let entries: Vec<_> = again.protected.values().flatten().collect();
        let kept: Vec<_> = entries.iter().filter_map(|entry| entry.kept()).collect();
        assert_eq!(kept.len(), 2);
        // The second has another UUID than the namespace that was protected.
        let target = target();
        assert!(target.restore_protection(&nqn, kept[0]));
        assert!(!target.restore_protection(&nqn, kept[1]));
        let _ = beside(&state, &target).unwrap();
        written.write(&[(nqn, vec![])]).unwrap();
        assert!(read(&file).unwrap().protected.is_empty());
    }

    #[test]
    fn failed_write_is_repeated_with_next_change() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("kept");
        std::fs::create_dir(&inner).unwrap();
        let file = path_beside(&inner.join("state.json"));
        let mut written = File::new(file.clone(), read(&file).unwrap());
        let nqn = Nqn::new(SUBNQN).unwrap();
        let kept = SavedProtection {
            nsid: 1,
            uuid: [1; 16],
        };
        written.write(&[(nqn, vec![kept])]).unwrap();
        std::fs::rename(&inner, folder.path().join("elsewhere")).unwrap();
        written.write(&[(nqn, vec![])]).unwrap_err();
        std::fs::create_dir(&inner).unwrap();
        // The contents are as before, but the file is in an unknown state.
        written.write(&[(nqn, vec![kept])]).unwrap();
        assert_eq!(read(&file).unwrap().protected.len(), 1);
    }

    #[test]
    fn damaged_protection_file_is_an_error() {
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
