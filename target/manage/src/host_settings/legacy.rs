//! The file of write protections that targets before 0.2 kept for all namespaces.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use nvmeof_atomic_file::{Files, Real, with_ending};
use nvmeof_rdma::explain;
use nvmeof_target_config::ConfigError;
use nvmeof_target_core::{SavedProtection, SavedSettings};
use nvmeof_wire::Nqn;
use serde::Deserialize;

use super::record::{NamespaceRecord, parse_hex};
use super::store::{StateError, StateStore};
use super::{Records, locked, name_of};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    /// By subsystem NQN.
    protected: BTreeMap<String, Vec<Entry>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    nsid: u32,
    /// 32 hexadecimal digits.
    uuid: String,
}

impl Records {
    /// Moves the contents of the former file beside `state` to records, and removes it.
    ///
    /// # Errors
    /// [`ConfigError`] with a remedy.
    pub(crate) fn convert_legacy(&self, state: &Path) -> Result<(), ConfigError> {
        let path = with_ending(state, ".protected");
        let wrong = |what: String| {
            let what = format!(
                "{what}; repair it, or move it away, which removes all write protections of hosts"
            );
            ConfigError::plain(&path, what)
        };
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(wrong(format!("cannot be read: {}", explain(&error)))),
        };
        let records = parse(&bytes).map_err(|error| wrong(format!("is damaged: {error}")))?;
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        let mut store = locked(folder);
        for ((subsystem, nsid), record) in records {
            let put = put(&mut *store, &name_of(&subsystem, nsid), &record);
            put.map_err(|error| wrong(format!("cannot be converted: {error}")))?;
        }
        let folder = path.parent().filter(|it| *it != Path::new(""));
        let removed = Real.remove(&path);
        // Else a loss of power could bring back a protection that a host removes later.
        let removed = removed.and_then(|()| Real.sync_folder(folder.unwrap_or(Path::new("."))));
        removed.map_err(|error| wrong(format!("cannot be removed: {}", explain(&error))))
    }
}

fn parse(bytes: &[u8]) -> Result<BTreeMap<(Nqn, u32), NamespaceRecord>, String> {
    let contents: Contents = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if contents.version != 1 {
        return Err(format!("version {} is not supported", contents.version));
    }
    let mut records = BTreeMap::new();
    for (subsystem, entries) in contents.protected {
        let subsystem = Nqn::new(&subsystem).map_err(|error| error.to_string())?;
        let protected = entries.iter().map(|entry| {
            let uuid = parse_hex(&entry.uuid)?;
            let nsid = entry.nsid;
            Ok::<_, String>(SavedProtection { nsid, uuid })
        });
        let mut by_nsid = BTreeMap::<u32, SavedSettings>::new();
        for one in protected {
            let one = one?;
            by_nsid.entry(one.nsid).or_default().protected.push(one);
        }
        for (nsid, settings) in by_nsid {
            let now = SystemTime::UNIX_EPOCH;
            let record = NamespaceRecord::of((&subsystem, nsid), &settings, None, now);
            records.insert((subsystem, nsid), record);
        }
    }
    Ok(records)
}

/// Stores the record, unless there is one: it is newer.
fn put(store: &mut dyn StateStore, name: &str, record: &NamespaceRecord) -> Result<(), StateError> {
    if store.read(name)?.version == 0 {
        let bytes = record.bytes().map_err(io::Error::from)?;
        store.replace(name, 0, &bytes)?;
    }
    Ok(())
}
