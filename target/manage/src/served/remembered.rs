//! What hosts know of namespaces, in a file beside that of what was changed at run time:
//! size and block size of each that was served. With these a namespace whose storage is
//! not there at the next start stays what hosts took it for. Its identifiers follow from
//! the configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nvmeof_backend::{BlockSize, Geometry, Hints, Spec};
use nvmeof_rdma::explain;
use serde::{Deserialize, Serialize};

use super::Manager;
use super::pool::{Awaited, Disk};
use crate::waits::Waits;
use nvmeof_atomic_file::{Readers, replace, with_ending};
use nvmeof_target_config::Wanted;

/// The format of the file.
const VERSION: u32 = 1;

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    /// By the names of their subsystems, and their numbers.
    namespaces: BTreeMap<String, BTreeMap<u32, Entry>>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// What it was served from: with another path it is another namespace.
    path: String,
    bytes: u64,
    block_size: u32,
}

/// The file, and what is in it.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    path: Option<PathBuf>,
    /// As it was read or written last; none: it has to be written.
    book: Mutex<Option<Contents>>,
}

impl Remembered {
    /// What is kept beside `state`. A file that cannot be read is as good as none: then
    /// namespaces whose storage is not there are not active until it is.
    pub(crate) fn beside(state: Option<&Path>) -> Self {
        let Some(path) = state.map(path_beside) else {
            return Self::default();
        };
        let book = match std::fs::read(&path) {
            Ok(bytes) => Contents::parse(&bytes).map_err(|why| format!("is damaged: {why}")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Contents::default()),
            Err(error) => Err(format!("cannot be read: {}", explain(&error))),
        };
        let book = book.inspect_err(|why| {
            tracing::warn!(
                "{}: {why}; namespaces whose storage is not there are not active until it is",
                path.display()
            );
        });
        Self {
            path: Some(path),
            book: Mutex::new(book.ok()),
        }
    }

    /// The disk of a namespace whose storage is not there, as hosts know it.
    pub(super) fn awaited(&self, wanted: &Wanted, waits: Waits) -> Awaited {
        let book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let known = book.as_ref().and_then(|book| book.entry(wanted));
        let placeholder = wanted.block_size.unwrap_or(BlockSize::B512);
        let (size, block_size) = known.unwrap_or((placeholder.bytes().into(), placeholder));
        Awaited {
            geometry: Geometry {
                size,
                block_size,
                hints: Hints::default(),
                buffer_alignment: 1,
                readonly: wanted.spec.readonly(),
                deallocate_zeroes: false,
                volatile_write_cache: true,
                direct: false,
                fua_alone: false,
                may_block: false,
            },
            is_known: known.is_some(),
            waits,
        }
    }

    /// Keeps what hosts know of these disks.
    fn keep(&self, disks: &[Disk]) {
        let Some(path) = &self.path else {
            return;
        };
        let next = Contents::of(disks);
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        if book.as_ref() == Some(&next) {
            return;
        }
        let written = serde_json::to_vec_pretty(&next)
            .map_err(std::io::Error::from)
            .and_then(|bytes| replace(path, &bytes, Readers::Owner));
        match written {
            Ok(()) => *book = Some(next),
            Err(error) => tracing::warn!(
                "sizes of namespaces cannot be kept for the next start: {error}; storage that is \
                 not there then leaves its namespaces inactive"
            ),
        }
    }
}

impl Manager {
    /// Keeps what hosts know of the namespaces at this moment for the next start.
    pub(crate) fn remember(&self) {
        self.remembered.keep(&self.seen().disks);
    }
}

/// The file beside that of changes.
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
        let book: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        match book.version {
            VERSION => Ok(book),
            other => Err(format!("version {other} is not {VERSION}")),
        }
    }

    /// Of files and devices that are served, or were and are waited for.
    fn of(disks: &[Disk]) -> Self {
        let mut book = Self::default();
        for disk in disks {
            let unknown = disk.awaited().is_some_and(|awaited| !awaited.is_known);
            if unknown || !matches!(disk.wanted.spec, Spec::File { .. }) {
                continue;
            }
            let geometry = disk.served().geometry;
            let entry = Entry {
                path: path_of(&disk.wanted),
                bytes: geometry.size,
                block_size: geometry.block_size.bytes(),
            };
            let of_subsystem = book.namespaces.entry(disk.wanted.nqn.clone());
            of_subsystem.or_default().insert(disk.wanted.nsid, entry);
        }
        book
    }

    /// Size and block size of a namespace, if they can be and are of the same path.
    fn entry(&self, wanted: &Wanted) -> Option<(u64, BlockSize)> {
        let entry = self.namespaces.get(&wanted.nqn)?.get(&wanted.nsid)?;
        let block_size = BlockSize::from_bytes(entry.block_size)?;
        let is_possible = entry.bytes > 0
            && i64::try_from(entry.bytes).is_ok()
            && entry.bytes.is_multiple_of(block_size.bytes().into())
            && wanted.block_size.is_none_or(|wanted| wanted == block_size)
            && entry.path == path_of(wanted);
        is_possible.then_some((entry.bytes, block_size))
    }
}

fn path_of(wanted: &Wanted) -> String {
    wanted.spec.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(path: &str, block_size: Option<BlockSize>) -> Wanted {
        Wanted {
            nqn: "nqn.2026-11.org.example:disk".into(),
            nsid: 1,
            spec: path.parse().unwrap(),
            block_size,
            polled: false,
        }
    }

    fn book(path: &str, bytes: u64, block_size: u32) -> Contents {
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
    fn a_namespace_is_known_by_its_path_with_a_size_that_can_be() {
        let known = |book: &Contents, wanted: &Wanted| book.entry(wanted).is_some();
        let disk = wanted("/srv/disk", None);
        assert!(known(&book("/srv/disk", 4096, 512), &disk));
        assert!(!known(&book("/srv/other", 4096, 512), &disk));
        for (bytes, block_size) in [(0, 512), (1000, 512), (4096, 100), (1 << 63, 512)] {
            let kept = book("/srv/disk", bytes, block_size);
            assert!(!known(&kept, &disk), "{bytes} {block_size}");
        }
        let other = wanted("/srv/disk", Some(BlockSize::B4096));
        assert!(!known(&book("/srv/disk", 4096, 512), &other));
    }

    #[test]
    fn a_damaged_file_is_as_good_as_none_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state.json");
        for text in ["{", r#"{"version": 2, "namespaces": {}}"#] {
            std::fs::write(path_beside(&state), text).unwrap();
            let kept = Remembered::beside(Some(&state));
            assert!(kept.book.lock().unwrap().is_none(), "{text}");
            kept.keep(&[]);
            let again = Remembered::beside(Some(&state));
            assert_eq!(*again.book.lock().unwrap(), Some(Contents::default()));
        }
    }
}
