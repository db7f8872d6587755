//! The file of sizes beside the state file: size and block size of each namespace that was
//! served. With these, a namespace whose backing store is missing at the next start keeps its
//! size for hosts. Its identifiers follow from the configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nvmeof_backend::{BlockSize, Geometry, Hints};
use nvmeof_rdma::explain;
use serde::{Deserialize, Serialize};

use super::Manager;
use super::pool::{NamespaceStore, WaitingStore};
use crate::waits::WaitReason;
use nvmeof_atomic_file::{ReadAccess, replace, with_ending};
use nvmeof_target_config::ConfiguredStore;

/// The format of the file.
const VERSION: u32 = 1;

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    /// By subsystem NQN and NSID.
    namespaces: BTreeMap<String, BTreeMap<u32, Entry>>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// Path of the backing store: with another path it is another namespace.
    path: String,
    bytes: u64,
    block_size: u32,
}

/// The file and its contents.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    path: Option<PathBuf>,
    /// Contents as last read or written; `None`: the file must be written.
    contents: Mutex<Option<Contents>>,
}

impl Remembered {
    /// Reads the file beside `state`. Without a readable file, namespaces are inactive until
    /// their backing stores are available.
    pub(crate) fn beside(state: Option<&Path>) -> Self {
        let Some(path) = state.map(path_beside) else {
            return Self::default();
        };
        let contents = match std::fs::read(&path) {
            Ok(bytes) => Contents::parse(&bytes).map_err(|why| format!("is damaged: {why}")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Contents::default()),
            Err(error) => Err(format!("cannot be read: {}", explain(&error))),
        };
        let contents = contents.inspect_err(|why| {
            tracing::warn!(
                "{}: {why}; namespaces are inactive until their backing stores are available",
                path.display()
            );
        });
        Self {
            path: Some(path),
            contents: Mutex::new(contents.ok()),
        }
    }

    /// The missing backing store of a namespace, as hosts know it.
    pub(super) fn awaited(&self, configured: &ConfiguredStore, waits: WaitReason) -> WaitingStore {
        let contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        let known = contents
            .as_ref()
            .and_then(|contents| contents.entry(configured));
        let placeholder = configured.block_size.unwrap_or(BlockSize::B512);
        let (size, block_size) = known.unwrap_or((placeholder.bytes().into(), placeholder));
        WaitingStore {
            geometry: Geometry {
                size,
                block_size,
                hints: Hints::default(),
                buffer_alignment: 1,
                readonly: configured.spec.readonly(),
                deallocate_zeroes: false,
                volatile_write_cache: true,
                direct: false,
                fua_alone: false,
                may_block: false,
                may_be_remote: true,
            },
            is_known: known.is_some(),
            waits,
        }
    }

    /// Saves the sizes of these backing stores.
    fn keep(&self, stores: &[NamespaceStore]) {
        let Some(path) = &self.path else {
            return;
        };
        let next = Contents::of(stores);
        let mut contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        if contents.as_ref() == Some(&next) {
            return;
        }
        let written = serde_json::to_vec_pretty(&next)
            .map_err(std::io::Error::from)
            .and_then(|bytes| replace(path, &bytes, ReadAccess::Owner));
        match written {
            Ok(()) => *contents = Some(next),
            Err(error) => tracing::warn!(
                "sizes of namespaces cannot be saved: {error}; namespaces whose backing store is \
                 missing at the next start will be inactive"
            ),
        }
    }
}

impl Manager {
    /// Saves the current sizes of the namespaces for the next start.
    pub(crate) fn remember(&self) {
        self.remembered.keep(&self.snapshot().stores);
    }
}

/// The path of the file of sizes beside the state file.
pub(crate) fn path_beside(state: &Path) -> PathBuf {
    with_ending(state, ".sizes")
}

impl Default for Contents {
    fn default() -> Self {
        Self {
            version: VERSION,
            namespaces: BTreeMap::new(),
        }
    }
}

impl Contents {
    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let contents: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        match contents.version {
            VERSION => Ok(contents),
            other => Err(format!("version {other} is not {VERSION}")),
        }
    }

    /// The sizes of files, devices and images that are served, or that were served and wait now.
    fn of(stores: &[NamespaceStore]) -> Self {
        let mut contents = Self::default();
        for store in stores {
            let unknown = store.waiting().is_some_and(|awaited| !awaited.is_known);
            if unknown || store.configured.spec.is_memory() {
                continue;
            }
            let geometry = store.served().geometry;
            let entry = Entry {
                path: path_of(&store.configured),
                bytes: geometry.size,
                block_size: geometry.block_size.bytes(),
            };
            let of_subsystem = contents.namespaces.entry(store.configured.nqn.clone());
            of_subsystem
                .or_default()
                .insert(store.configured.nsid, entry);
        }
        contents
    }

    /// Size and block size of a namespace, if they can be and are of the same path.
    fn entry(&self, configured: &ConfiguredStore) -> Option<(u64, BlockSize)> {
        let entry = self
            .namespaces
            .get(&configured.nqn)?
            .get(&configured.nsid)?;
        let block_size = BlockSize::from_bytes(entry.block_size)?;
        let is_possible = entry.bytes > 0
            && i64::try_from(entry.bytes).is_ok()
            && entry.bytes.is_multiple_of(block_size.bytes().into())
            && configured
                .block_size
                .is_none_or(|configured| configured == block_size)
            && entry.path == path_of(configured);
        is_possible.then_some((entry.bytes, block_size))
    }
}

fn path_of(configured: &ConfiguredStore) -> String {
    configured.spec.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured(path: &str, block_size: Option<BlockSize>) -> ConfiguredStore {
        ConfiguredStore {
            nqn: "nqn.2026-11.org.example:disk".into(),
            nsid: 1,
            spec: path.parse().unwrap(),
            block_size,
            polled: false,
            group: None,
        }
    }

    fn contents(path: &str, bytes: u64, block_size: u32) -> Contents {
        let entry = Entry {
            path: path.into(),
            bytes,
            block_size,
        };
        let of_subsystem = BTreeMap::from([(1, entry)]);
        Contents {
            namespaces: BTreeMap::from([("nqn.2026-11.org.example:disk".into(), of_subsystem)]),
            ..Contents::default()
        }
    }

    #[test]
    fn namespace_is_known_by_path_and_valid_size() {
        let known = |contents: &Contents, configured: &ConfiguredStore| {
            contents.entry(configured).is_some()
        };
        let store = configured("/srv/disk", None);
        assert!(known(&contents("/srv/disk", 4096, 512), &store));
        assert!(!known(&contents("/srv/other", 4096, 512), &store));
        for (bytes, block_size) in [(0, 512), (1000, 512), (4096, 100), (1 << 63, 512)] {
            let kept = contents("/srv/disk", bytes, block_size);
            assert!(!known(&kept, &store), "{bytes} {block_size}");
        }
        let other = configured("/srv/disk", Some(BlockSize::B4096));
        assert!(!known(&contents("/srv/disk", 4096, 512), &other));
    }

    #[test]
    fn damaged_size_file_is_ignored_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state.json");
        for text in ["{", r#"{"version": 2, "namespaces": {}}"#] {
            std::fs::write(path_beside(&state), text).unwrap();
            let kept = Remembered::beside(Some(&state));
            assert!(kept.contents.lock().unwrap().is_none(), "{text}");
            kept.keep(&[]);
            let again = Remembered::beside(Some(&state));
            assert_eq!(*again.contents.lock().unwrap(), Some(Contents::default()));
        }
    }
}
