//! The state file: run-time changes in JSON.

use std::io;
use std::path::Path;

use nvmeof_rdma::explain;
use serde::{Deserialize, Serialize};

use nvmeof_atomic_file::{Files, Pending, ReadAccess, prepare};
use nvmeof_target_api::Edit;
use nvmeof_target_config::ConfigError;

/// The version of the format without changes of keys of hosts.
const VERSION: u32 = 1;
/// The version with them, so that a target that does not know them says what is wrong.
const WITH_KEYS: u32 = 2;

/// The run-time changes. With the configuration file they determine what is served.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    pub(super) version: u32,
    /// A document that was applied instead of the configuration file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) applied: Option<Applied>,
    /// In order, including deferred ones.
    #[serde(default)]
    pub(super) edits: Vec<Edit>,
}

/// A document that was applied as a whole.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Applied {
    /// Its name in messages.
    pub(super) name: String,
    pub(super) text: String,
}

/// Parsed first: another version may have other keys.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

impl State {
    /// Reads the file; there are no changes if it does not exist.
    ///
    /// # Errors
    /// [`ConfigError`] with cause and remedy.
    pub(super) fn load(path: &Path) -> Result<Self, ConfigError> {
        match std::fs::read(path) {
            Ok(bytes) => Self::parse(path, &bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::new()),
            Err(error) => Err(wrong(path, &format!("cannot be read: {}", explain(&error)))),
        }
    }

    /// Parses the content of the file `path`.
    ///
    /// # Errors
    /// [`ConfigError`] with cause and remedy.
    pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Self, ConfigError> {
        let damaged = |error: serde_json::Error| wrong(path, &format!("is damaged: {error}"));
        let Versioned { version } = serde_json::from_slice(bytes).map_err(damaged)?;
        if !(VERSION..=WITH_KEYS).contains(&version) {
            let what = format!(
                "has version {version}, but this target supports versions {VERSION} to {WITH_KEYS} \
                 only; use the target that wrote it"
            );
            return Err(wrong(path, &what));
        }
        let state: Self = serde_json::from_slice(bytes).map_err(damaged)?;
        // The version belongs to the file: it follows from the content when that is written.
        Ok(Self {
            version: VERSION,
            ..state
        })
    }

    pub(super) fn new() -> Self {
        Self {
            version: VERSION,
            ..Self::default()
        }
    }

    /// An applied document without later changes.
    pub(super) fn applied(name: String, text: String) -> Self {
        Self {
            applied: Some(Applied { name, text }),
            ..Self::new()
        }
    }

    /// Writes and syncs it beside the state file `path`, which a commit then replaces.
    ///
    /// # Errors
    /// With the name of the file.
    pub(super) fn prepare<'a, F: Files + ?Sized>(
        &self,
        files: &'a F,
        path: &Path,
    ) -> io::Result<Pending<'a, F>> {
        let has_keys = self.edits.iter().any(|edit| edit.host_of_keys().is_some());
        let version = if has_keys { WITH_KEYS } else { VERSION };
        let mut bytes = serde_json::to_vec_pretty(&Self {
            version,
            ..self.clone()
        })?;
        bytes.push(b'\n');
        prepare(files, path, &bytes, ReadAccess::Owner)
    }
}

fn wrong(path: &Path, what: &str) -> ConfigError {
    let what = format!(
        "{what}; repair it, or move it away to serve the configuration file without run-time \
         changes"
    );
    ConfigError::plain(path, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmeof_atomic_file::Real;

    #[test]
    fn written_state_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        assert_eq!(State::load(&path).unwrap(), State::new());
        let state = State {
            applied: Some(Applied {
                name: "a.toml".into(),
                text: "[[port]]\n".into(),
            }),
            edits: vec![Edit::NamespaceRemove {
                subsystem: Some("nqn".into()),
                nsid: 3,
            }],
            ..State::new()
        };
        state.prepare(&Real, &path).unwrap().commit().unwrap();
        assert_eq!(State::load(&path).unwrap(), state);
    }

    #[test]
    fn state_with_keys_of_hosts_has_version_2() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        let remove = Edit::HostRemoveKey {
            host: "nqn".into(),
            replaces: None,
        };
        let write = |edits: Vec<Edit>| {
            let state = State {
                edits,
                ..State::new()
            };
            state.prepare(&Real, &path).unwrap().commit().unwrap();
            assert_eq!(State::load(&path).unwrap(), state);
            std::fs::read_to_string(&path).unwrap()
        };
        assert!(write(vec![remove]).contains("\"version\": 2"));
        assert!(write(Vec::new()).contains("\"version\": 1"));
    }

    #[test]
    fn invalid_state_file_is_refused_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        for (text, words) in [
            ("", "damaged"),
            ("{\"version\": 1, \"edits\": [", "damaged"),
            ("{\"version\": 1, \"more\": 1}", "damaged"),
            ("{\"version\": 2, \"more\": 1}", "damaged"),
            ("{\"version\": 3, \"more\": 1}", "version 3"),
            (
                "{\"version\": 1, \"edits\": [{\"edit\": \"namespace_fly\"}]}",
                "damaged",
            ),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = State::load(&path).unwrap_err().to_string();
            let message = error.contains(words) && error.contains("move it away");
            assert!(message && error.contains("state.json"), "{error}");
        }
    }
}
