//! Opening the backing stores of a configuration.

use std::path::PathBuf;

use nvmeof_backend::{Claim, Geometry, Hints, OpenError, identity};
use nvmeof_backend_spec::{RbdName, Spec};
use nvmeof_target_config::{Config, ConfigError, ConfiguredStore};
use nvmeof_target_core::{
    AuthenticationSpec, Model, NamespaceSpec, NamespaceState, PortSpec, Preferred,
};

use crate::held::{HeldGroups, Standby, Taken};
use crate::host_settings::{Admission, Former, Records, Unreadable};
use crate::lineage::Lineage;

/// The backing store of one namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served<'a> {
    /// Its number on the reactors.
    pub number: u32,
    /// Its geometry, or the last known one if it is not available.
    pub geometry: &'a Geometry,
    /// State of the namespace.
    pub state: NamespaceState,
}

/// A namespace whose backing store can never be opened.
#[derive(Debug)]
pub struct UnusableNamespace {
    /// NQN of the subsystem.
    pub nqn: String,
    /// NSID of the namespace.
    pub nsid: u32,
    /// The reason.
    pub error: ConfigError,
}

/// Opens and locks a backing store. Only examines an image whose group is not in `held`.
pub(crate) fn take(configured: &ConfiguredStore, held: &HeldGroups) -> Result<Taken, OpenError> {
    let ConfiguredStore {
        spec, block_size, ..
    } = configured;
    let Some(group) = configured.group else {
        let claim = match configured.polled {
            true => Claim::take_polled(spec, *block_size),
            false => Claim::take(spec, *block_size),
        };
        return claim.map(Taken::Open);
    };
    let Some(held) = held.get(group) else {
        let geometry = Claim::examine(spec, *block_size)?;
        let claim = None;
        return Ok(Taken::Standby(Standby { geometry, claim }));
    };
    let claim = Claim::take_through(spec, *block_size, Some(&held.clients))?;
    Ok(match held.serving {
        Some(_) => Taken::Open(claim),
        None => Taken::Standby(Standby {
            geometry: claim.geometry().clone(),
            claim: Some(claim),
        }),
    })
}

/// Tries to open the backing store of each enabled namespace of `config`, and closes all.
/// Returns those that can never be opened.
#[must_use]
pub fn unusable_namespaces(config: &Config) -> Vec<UnusableNamespace> {
    let mut files = Files::default();
    let mut unusable_namespaces = Vec::new();
    for (at, (name, configured)) in config.each_configured_store().enumerate() {
        let (nqn, nsid) = name;
        let taken =
            configured.and_then(|configured| take_alone(config, at, &configured, &mut files));
        match taken {
            Ok(_) => {}
            Err(error) if error.may_succeed_later() => {}
            Err(error) => unusable_namespaces.push(UnusableNamespace {
                nqn: nqn.to_owned(),
                nsid,
                error,
            }),
        }
    }
    unusable_namespaces
}

/// A backing store of `config`, or its incarnations file, that a process has locked which ended
/// since: its path and the PID. The kernel still executes writes of that process.
#[must_use]
pub fn locked_by_ended_process(config: &Config) -> Option<(PathBuf, u32)> {
    let stores = config
        .each_configured_store()
        .filter_map(|(_, configured)| configured.ok());
    let paths = stores.filter_map(|store| match store.spec {
        Spec::File { path, .. } => Some(path),
        Spec::Rbd { .. } | Spec::Ram { .. } | Spec::Null { .. } => None,
    });
    let state = config.control().state.as_deref();
    let incarnations = state.map(Lineage::path_beside);
    nvmeof_backend::locked_by_ended_process(paths.chain(incarnations))
}

/// Opens and locks the backing store of each enabled namespace, in order. One that cannot be
/// opened yet has an error: `serve` waits for it, and `check-config` lists it.
///
/// # Errors
/// [`ConfigError`] names file, line and key of the first one that can never be served.
pub fn open_present(config: &Config) -> Result<Vec<Result<Taken, ConfigError>>, ConfigError> {
    let records = Records::beside(config.control().state.as_deref());
    let opened = open_and_read(config, &records)?;
    Ok(opened.into_iter().map(|(taken, _)| taken).collect())
}

/// [`open_present`]. Puts in force what hosts set according to `records`, also of a namespace that
/// waits.
///
/// # Errors
/// [`ConfigError`], as it.
pub(crate) fn open_with(
    config: &Config,
    records: &Records,
) -> Result<(Vec<Result<Taken, ConfigError>>, Former), ConfigError> {
    let mut former = Former::default();
    let opened = open_and_read(config, records)?.into_iter().enumerate();
    let adopted = opened.map(|(at, (taken, admission))| {
        former.append(
            records
                .adopt(admission)
                .map_err(|error| unreadable(config, at, &error))?,
        );
        taken
    });
    Ok((adopted.collect(), former))
}

/// A backing store, and what hosts set of its namespace.
type Read = (Result<Taken, ConfigError>, Option<Admission>);

fn open_and_read(config: &Config, records: &Records) -> Result<Vec<Read>, ConfigError> {
    let mut files = Files::default();
    let configured = config.configured_stores()?.into_iter().enumerate();
    configured
        .map(|(at, configured)| {
            let taken = match take_alone(config, at, &configured, &mut files) {
                Err(error) if !error.may_succeed_later() => return Err(error),
                taken => taken,
            };
            // Also of a namespace that is not served yet: hosts may see its size.
            let claim = taken.as_ref().ok().and_then(Taken::claim);
            Ok(match records.read(&configured, claim) {
                Ok(admission) => (taken, admission),
                Err(error) => (Err(unreadable(config, at, &error)), None),
            })
        })
        .collect()
}

/// Opens and locks the backing store of the enabled namespace at index `at`; `files` are those
/// of the other namespaces.
fn take_alone(
    config: &Config,
    at: usize,
    configured: &ConfiguredStore,
    files: &mut Files,
) -> Result<Taken, ConfigError> {
    let is_free = files.add(&configured.spec);
    if !is_free.map_err(|error| open_error(config, at, &error))? {
        let what = format!(
            "{}: another namespace of this configuration is served from the same file, device or \
             image; name another one, or serve both read-only",
            configured.spec
        );
        return Err(config.path_error(at, &what));
    }
    let taken = take(configured, &HeldGroups::default());
    taken.map_err(|error| open_error(config, at, &error))
}

/// The error for the backing store of the enabled namespace at index `at`, over all subsystems.
pub(crate) fn open_error(config: &Config, at: usize, error: &OpenError) -> ConfigError {
    let what = error.to_string();
    let refused = match error {
        OpenError::CannotPoll { .. } => config.polled_error(at, &what),
        OpenError::Rbd { why, .. } if why.key().is_some() => {
            config.table_error("ceph", why.key().unwrap_or_default(), &what)
        }
        _ => config.path_error(at, &what),
    };
    refused.passing(error.may_succeed_later())
}

/// The error for the namespace at index `at`, whose record of what hosts set cannot be read.
pub(crate) fn unreadable(config: &Config, at: usize, error: &Unreadable) -> ConfigError {
    config.path_error(at, &error.to_string()).passing(true)
}

/// The model with these backing stores, in the order of the enabled namespaces, and these keys of
/// hosts. Groups of `[[ha.group]]` that are not served, according to `held`, are inaccessible.
///
/// # Errors
/// [`ConfigError`] names file, line and key.
pub(crate) fn model_of<'a>(
    config: &Config,
    stores: impl IntoIterator<Item = Served<'a>>,
    ports: &[PortSpec],
    held: &HeldGroups,
    keys: AuthenticationSpec,
) -> Result<Model, ConfigError> {
    let mut stores = stores.into_iter();
    let fill_in = |spec: &mut NamespaceSpec| {
        if let Some(store) = stores.next() {
            fill_in(spec, store);
        }
    };
    config.model_of(fill_in, ports, &held.standby(config), keys)
}

/// Completes a namespace with the properties of its backing store.
fn fill_in(spec: &mut NamespaceSpec, store: Served<'_>) {
    let Served {
        number,
        geometry,
        state,
    } = store;
    spec.state = state;
    let block_size = geometry.block_size.bytes();
    spec.store = number;
    spec.blocks = geometry.size / u64::from(block_size);
    spec.block_size = block_size;
    spec.readonly |= geometry.readonly;
    spec.deallocate = geometry.deallocate_zeroes;
    spec.volatile_cache = geometry.volatile_write_cache;
    spec.preferred = preferred(&geometry.hints);
}

/// The preferred sizes that Identify reports to hosts.
pub(crate) fn preferred(hints: &Hints) -> Preferred {
    Preferred {
        write: hints.write.unwrap_or(0),
        deallocate: hints.deallocate.unwrap_or(0),
        optimal_write: hints.optimal_write.unwrap_or(0),
        atomic: hints.atomic.unwrap_or(0),
    }
}

/// Files, devices and images of the namespaces of one configuration.
#[derive(Default)]
struct Files {
    /// Each, and whether it is read-only.
    taken: Vec<(Named, bool)>,
}

/// Identity of a file or device, or the name of an image.
#[derive(PartialEq, Eq)]
enum Named {
    File((u64, u64)),
    Image(RbdName),
}

impl Files {
    /// Adds the backing store of one more namespace. False if another namespace has the same
    /// one, unless both are read-only.
    fn add(&mut self, spec: &Spec) -> Result<bool, OpenError> {
        let named = match spec {
            Spec::File { path, .. } => identity(path)?.map(Named::File),
            Spec::Rbd { image, .. } => Some(Named::Image(image.clone())),
            Spec::Ram { .. } | Spec::Null { .. } => None,
        };
        let Some(named) = named else {
            return Ok(true);
        };
        let readonly = spec.readonly();
        let clashes = |(other, reads): &(_, bool)| *other == named && !(*reads && readonly);
        let is_free = !self.taken.iter().any(clashes);
        self.taken.push((named, readonly));
        Ok(is_free)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const GOOD: &str = r#"[[port]]
traddr = "127.0.0.1"
trsvcid = 4420
provider = "iwarp"

[[subsystem]]
nqn = "nqn.2026-11.org.example:disk"
allow_any_host = true
[[subsystem.namespace]]
nsid = 1
path = "ram:1M"
block_size = 512
"#;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(Path::new("target.toml"), text.to_owned())
    }

    /// All backing stores, or the error of the first that cannot be opened.
    fn open(config: &Config) -> Result<Vec<Taken>, ConfigError> {
        open_present(config)?.into_iter().collect()
    }

    /// The message names that line and all of `words`.
    #[track_caller]
    fn assert_names(error: &str, line: usize, words: &[&str]) {
        assert!(
            error.starts_with(&format!("target.toml:{line}: ")),
            "{error}"
        );
        for word in words {
            assert!(error.contains(word), "{word:?} is not in {error}");
        }
    }

    #[test]
    fn path_must_name_a_free_file_of_whole_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        let text = GOOD.replace("ram:1M", path.to_str().unwrap());
        let config = parse(&text).unwrap();
        let opened = |config: &Config| open(config).map(|_| ()).unwrap_err().to_string();
        assert_names(&opened(&config), 11, &["path", "disk.img", "no such file"]);
        std::fs::write(&path, [0; 1000]).unwrap();
        assert_names(&opened(&config), 11, &["1000", "512"]);
        std::fs::write(&path, [0; 4096]).unwrap();
        let held = open(&config).unwrap();
        assert_names(&opened(&config), 11, &["locked"]);
        let waits = open_present(&config).unwrap().pop().unwrap();
        assert_names(&waits.map(drop).unwrap_err().to_string(), 11, &["locked"]);
        drop(held);
        assert!(open_present(&config).unwrap().iter().all(Result::is_ok));
        let same = format!("{}/./disk.img", dir.path().display());
        let twice = format!("{text}[[subsystem.namespace]]\nnsid = 2\npath = \"{same}\"\n");
        let error = open_present(&parse(&twice).unwrap()).map(drop).unwrap_err();
        assert!(!error.may_succeed_later());
        assert_names(
            &error.to_string(),
            15,
            &["path", "another namespace of this"],
        );
        for (bad, word) in [("ram:x", "ram"), ("", "empty"), ("null:", "null")] {
            let config = parse(&GOOD.replace("ram:1M", bad)).unwrap();
            assert_names(&opened(&config), 11, &["path", word]);
        }
    }

    #[test]
    fn iopoll_without_support_is_reported_with_its_line() {
        let text = GOOD.replace("block_size = 512", "block_size = 512\niopoll = true");
        let error = open(&parse(&text).unwrap()).map(drop).unwrap_err();
        let words = ["iopoll", "ram:1048576", "leave iopoll out"];
        assert_names(&error.to_string(), 13, &words);
        let config = parse(&text.replace("iopoll = true", "iopoll = false")).unwrap();
        assert!(open(&config).is_ok());
    }

    #[test]
    fn missing_file_of_command_line_is_reported() {
        let listen = "127.0.0.1:4420".parse().unwrap();
        let none = Config::of_namespaces(&["/nonexistent".into()], listen, &[], None).unwrap();
        let error = open(&none).map(|_| ()).unwrap_err().to_string();
        assert!(
            error.starts_with("--namespace: /nonexistent: no such file"),
            "{error}"
        );
    }
}
