//! Hosts of a saved configuration with keys for in-band authentication. The imported
//! configuration names a file for each key.
//!
//! No key is printed.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nvmeof_dhchap::Key;
use nvmeof_wire::Nqn;
use zeroize::Zeroizing;

use super::report::{Report, quoted};
use super::saved::Object;

/// A host that nvmet authenticates.
#[derive(Debug)]
pub(super) struct Host {
    /// The place in the file.
    location: String,
    pub(super) nqn: String,
    pub(super) key: SavedKey,
    pub(super) controller_key: Option<SavedKey>,
    /// The only hash function, if it is not the default of nvmet.
    pub(super) hash: Option<&'static str>,
    /// The only group, if it is not the default of nvmet.
    pub(super) dh_group: Option<&'static str>,
}

/// A key, and the name of its file.
#[derive(Debug)]
pub(super) struct SavedKey {
    location: String,
    pub(super) file: String,
    /// The key, or why it is none.
    key: Result<Key, String>,
}

/// The folder of the files with keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyFolder {
    pub(super) path: PathBuf,
    /// Whether the import writes the files.
    is_written: bool,
}

/// The folder of the service, which the configuration names if it is not written to a file.
const SERVICE: &str = "/etc/nvmeof/keys";
/// The folder beside a configuration.
const BESIDE: &str = "keys";

/// Names of nvmet and of this target. nvmet prefers the first one by default, and so does this
/// target.
const HASHES: [(&str, &str); 3] = [
    ("hmac(sha256)", "sha256"),
    ("hmac(sha384)", "sha384"),
    ("hmac(sha512)", "sha512"),
];
/// Both have the same names. By default nvmet exchanges no key.
const GROUPS: [(&str, &str); 6] = [
    ("null", "null"),
    ("ffdhe2048", "ffdhe2048"),
    ("ffdhe3072", "ffdhe3072"),
    ("ffdhe4096", "ffdhe4096"),
    ("ffdhe6144", "ffdhe6144"),
    ("ffdhe8192", "ffdhe8192"),
];

impl KeyFolder {
    /// The folder for a configuration that is written to `output`, or printed.
    ///
    /// # Errors
    /// The working directory is unknown.
    pub(super) fn of(output: Option<&Path>) -> io::Result<Self> {
        let Some(output) = output else {
            return Ok(Self::service());
        };
        // The target may have another working directory.
        let output = std::path::absolute(output)?;
        Ok(Self {
            path: output.with_file_name(BESIDE),
            is_written: true,
        })
    }

    /// The folder of the service. No file is written there.
    pub(super) fn service() -> Self {
        Self {
            path: SERVICE.into(),
            is_written: false,
        }
    }

    /// Writes the keys of `hosts`, each to a new file that only its owner can access. Adds the
    /// paths to `written`.
    ///
    /// # Errors
    /// The path that cannot be written, and why.
    pub(super) fn write(
        &self,
        hosts: &[Host],
        written: &mut Vec<PathBuf>,
    ) -> Result<(), (PathBuf, io::Error)> {
        let keys = hosts.iter().flat_map(Host::keys);
        let keys: Vec<_> = keys
            .filter_map(|it| Some((&it.file, it.key.as_ref().ok()?)))
            .collect();
        if !self.is_written || keys.is_empty() {
            return Ok(());
        }
        let created = match fs::create_dir(&self.path) {
            // The user of the service has to reach its files, whatever the umask is.
            Ok(()) => fs::set_permissions(&self.path, Permissions::from_mode(0o755)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        };
        created.map_err(|error| (self.path.clone(), error))?;
        for (name, key) in keys {
            let path = self.path.join(name);
            let mut options = OpenOptions::new();
            let file = options.write(true).create_new(true).mode(0o600).open(&path);
            let mut file = file.map_err(|error| (path.clone(), error))?;
            written.push(path.clone());
            let text = key.to_text();
            let done = file
                .write_all(text.as_bytes())
                .and_then(|()| file.write_all(b"\n"))
                .and_then(|()| file.sync_all());
            done.map_err(|error| (path, error))?;
        }
        Ok(())
    }
}

impl Host {
    fn keys(&self) -> impl Iterator<Item = &SavedKey> {
        std::iter::once(&self.key).chain(&self.controller_key)
    }

    /// Reports its files in `folder`.
    pub(super) fn report(&self, folder: &KeyFolder, report: &mut Report) {
        let path = |key: &SavedKey| folder.path.join(&key.file).display().to_string();
        let mut good = Vec::new();
        for key in self.keys() {
            match &key.key {
                Ok(_) => good.push(path(key)),
                Err(why) => {
                    report.is_good = false;
                    // Without its table, every host could use the name.
                    let what = format!("is not a key: {why}");
                    let remedy = format!("write the key to the file {}", path(key));
                    report.lost(&key.location, &what, &remedy);
                }
            }
        }
        if good.is_empty() {
            return;
        }
        let (files, name) = (good.join(" "), quoted(&self.nqn));
        if folder.is_written {
            let what = format!("the keys of {name} are written to {files}");
            let remedy =
                format!("give the files to the user of the target: `chown nvmeof {files}`");
            report.note(&self.location, &what, &remedy);
        } else {
            let what = format!("the keys of {name} are not printed; they belong in {files}");
            let remedy = "`nvmeof-target import --output FILE` writes them to the folder keys \
                          beside FILE";
            report.note(&self.location, &what, remedy);
        }
    }
}

/// The hosts with keys. Others need no table.
pub(super) fn read(root: &mut Object<'_>, report: &mut Report) -> Vec<Host> {
    let mut all: Vec<Host> = Vec::new();
    for (number, mut object) in (1..).zip(root.objects("hosts", report)) {
        if let Some(host) = host(&mut object, number, report) {
            if all.iter().any(|other| other.nqn == host.nqn) {
                report.lost(&host.location, "appears twice", "the first one is used");
            } else {
                all.push(host);
            }
        }
        object.finish(report);
    }
    all
}

fn host(object: &mut Object<'_>, number: usize, report: &mut Report) -> Option<Host> {
    let location = object.own_location().to_owned();
    let nqn = object.text("nqn", report).unwrap_or_default();
    let mut attributes = Attributes {
        grouped: object.object("dhchap", report),
        host: object,
    };
    let key = attributes.key("key", format!("host-{number}.key"), report);
    let file = format!("host-{number}-controller.key");
    let controller_key = attributes.key("ctrl_key", file, report);
    let hash = attributes.choice("hash", &HASHES, report);
    let dh_group = attributes.choice("dhgroup", &GROUPS, report);
    attributes.grouped.finish(report);
    let Some(key) = key else {
        if let Some(key) = controller_key {
            let what = "has no effect without a key of the host, as in nvmet";
            report.note(&key.location, what, "");
        }
        return None;
    };
    if let Err(error) = Nqn::new(&nqn) {
        let what = format!("{} is not an NQN: {error}", quoted(&nqn));
        report.lost(&format!("{location}.nqn"), &what, "correct it in the file");
        return None;
    }
    Some(Host {
        location,
        nqn,
        key,
        controller_key,
        hash,
        dh_group,
    })
}

/// The attributes of a host for authentication. nvmetcli saves them in an object, and other tools
/// under the names of the kernel, such as `dhchap_key`.
struct Attributes<'a, 'b> {
    grouped: Object<'a>,
    host: &'b mut Object<'a>,
}

impl Attributes<'_, '_> {
    /// A text that is not empty, with its place.
    fn text(&mut self, name: &str, report: &mut Report) -> Option<(String, Zeroizing<String>)> {
        let of_kernel = format!("dhchap_{name}");
        let both = [(&mut self.grouped, name), (&mut *self.host, &of_kernel)];
        let mut texts = both.into_iter().filter_map(|(object, name)| {
            let text = object.secret(name, report)?;
            (!text.trim().is_empty()).then(|| (object.location(name), text))
        });
        // Reads both, so that neither remains as an unknown key.
        let first = texts.next();
        texts.for_each(drop);
        first
    }

    fn key(&mut self, name: &str, file: String, report: &mut Report) -> Option<SavedKey> {
        let (location, text) = self.text(name, report)?;
        Some(SavedKey {
            location,
            file,
            key: Key::parse(&text).map_err(|error| error.to_string()),
        })
    }

    /// One of `known`, if it is not the first.
    fn choice(
        &mut self,
        name: &str,
        known: &[(&str, &'static str)],
        report: &mut Report,
    ) -> Option<&'static str> {
        let (location, text) = self.text(name, report)?;
        let found = known.iter().position(|(saved, _)| *saved == text.trim());
        if found.is_none() {
            let what = format!("{} is unknown", quoted(&text));
            let remedy = "the target uses what the host supports; see hash and dh_groups";
            report.lost(&location, &what, remedy);
        }
        let found = found.filter(|at| *at > 0)?;
        known.get(found).map(|(_, ours)| *ours)
    }
}
