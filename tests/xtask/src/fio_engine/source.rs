//! fio's headers, and fio itself, of exactly the installed version: from the source package
//! of the distribution, or from a folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{self, Failure, Outcome};

/// The installed fio.
#[derive(Debug)]
pub(super) struct Installed {
    /// Its version string: `fio-3.33`.
    pub(super) version: String,
}

/// Written last: the folder beside it is complete.
const DONE: &str = ".configured";
/// Redirects to the nearest mirror.
const MIRROR: &str = "http://deb.debian.org";
/// Keys that verify the archive's signature; package debian-archive-keyring.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

impl Installed {
    /// Runs the first fio in the search path.
    pub(super) fn find() -> Outcome<Self> {
        let version = run::output(run::command("fio").arg("--version"))?;
        let version = version.trim().to_owned();
        Ok(Self { version })
    }
}

/// A folder with the configured headers of `fio`, kept for later runs.
pub(super) fn headers(fio: &Installed, given: Option<&Path>) -> Outcome<PathBuf> {
    let place = run::build_dir().join("fio-engine");
    if let Some(folder) = given {
        // Where the person is, not where commands run.
        let folder =
            std::path::absolute(folder).map_err(|error| Failure::file("find", folder, &error))?;
        if !folder.is_dir() {
            let folder = folder.display();
            return Err(Failure::Usage(format!("{folder}: not a folder")));
        }
        let copy = place.join("given");
        empty(&copy)?;
        run::run(
            run::command("cp")
                .args(["-a", "--"])
                .arg(folder.join("."))
                .arg(&copy),
        )?;
        return configured(copy, fio);
    }
    let package = Package::of_fio()?;
    let folder = place.join(format!("{}_{}", package.name, package.version));
    if folder.join(DONE).is_file() {
        return Ok(folder.join("source"));
    }
    empty(&folder)?;
    run::heading("fio's headers, from its source package");
    package.fetch(&folder)?;
    let source = configured(folder.join("source"), fio)?;
    let done = folder.join(DONE);
    fs::write(&done, "").map_err(|error| Failure::file("write", &done, &error))?;
    Ok(source)
}

/// Runs fio's configure script, which generates a header.
fn configured(source: PathBuf, fio: &Installed) -> Outcome<PathBuf> {
    if !source.join("ioengines.h").is_file() {
        return Err(Failure::Usage(format!(
            "{}: not a source tree of fio: ioengines.h is missing",
            source.display()
        )));
    }
    check_version(&source, fio)?;
    makes(&source, &mut Command::new("./configure"), "config-host.h")?;
    Ok(source)
}

/// fio, built in its configured tree, kept for later runs.
pub(super) fn fio(source: &Path) -> Outcome<PathBuf> {
    let mut make = Command::new("make");
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    make.args(["-s", &format!("-j{jobs}")]);
    // By default, fio is built for the CPU of the build machine.
    make.arg("CONFIG_BUILD_NATIVE=");
    // Engines that need libraries which this machine may have, and the guest of the lab does not.
    let optional = ["LIBAIO", "RDMA", "RADOS", "RBD", "HTTP", "GFAPI", "LIBNFS"];
    make.args(optional.map(|engine| format!("CONFIG_{engine}=")));
    make.arg("fio");
    makes(source, &mut make, "fio")
}

/// Runs a step of fio's build in its tree, with its output in a file there; returns the
/// path of the result.
fn makes(source: &Path, step: &mut Command, what: &str) -> Outcome<PathBuf> {
    let log = source.join(format!("{what}.log"));
    let out = fs::File::create(&log).map_err(|error| Failure::file("write", &log, &error))?;
    let again = out.try_clone();
    let again = again.map_err(|error| Failure::file("write", &log, &error))?;
    run::announce(step);
    let status = step.current_dir(source).stdout(out).stderr(again).status();
    let status = status.map_err(|error| run::cannot_start(step, &error))?;
    let made = source.join(what);
    if status.success() && made.is_file() {
        return Ok(made);
    }
    Err(Failure::Failed(format!(
        "{} of fio: {status}; see {}",
        step.get_program().display(),
        log.display()
    )))
}

/// Checks the version: structures differ between versions.
fn check_version(source: &Path, fio: &Installed) -> Outcome {
    // A release has its version in this script; FIO-VERSION-FILE takes precedence.
    let words = ["FIO-VERSION-FILE", "FIO-VERSION-GEN"]
        .into_iter()
        .find_map(|name| fs::read_to_string(source.join(name)).ok())
        .and_then(|text| version_in(&text));
    match words {
        Some(found) if found == fio.version => Ok(()),
        found => Err(Failure::Usage(format!(
            "the source tree is {}, the installed fio is {}; get the sources of that version",
            found.as_deref().unwrap_or("no known version"),
            fio.version
        ))),
    }
}

/// `DEF_VER=fio-3.33` or `FIO_VERSION = fio-3.33`.
fn version_in(text: &str) -> Option<String> {
    let mut lines = text.lines();
    lines.find_map(|line| {
        let (name, value) = line.split_once('=')?;
        let known = ["DEF_VER", "FIO_VERSION"].contains(&name.trim());
        known.then(|| value.trim().to_owned())
    })
}

/// The source package of the installed fio.
#[derive(Debug)]
struct Package {
    name: String,
    version: String,
    /// Of the distribution's release.
    codename: String,
}

/// The remedy if there is no source package.
const REMEDY: &str = "Get the sources of the installed fio (`fio --version`), \
     and run\n\n    cargo xtask fio-engine --fio-source DIR";

impl Package {
    fn of_fio() -> Outcome<Self> {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let codename = debian(&release).ok_or_else(|| {
            Failure::Usage(format!(
                "this is not Debian, so there is no source package with fio's headers. {REMEDY}"
            ))
        })?;
        let path = run::find("fio").unwrap_or_default();
        let format = "${source:Package} ${source:Version}";
        let mut query = run::command("dpkg-query");
        let words = run::output(query.args(["-W", "-f", format, "fio"])).unwrap_or_default();
        let mut words = words.split_whitespace().map(str::to_owned);
        match (
            words.next(),
            words.next(),
            path == Path::new("/usr/bin/fio"),
        ) {
            (Some(name), Some(version), true) => Ok(Self {
                name,
                version,
                codename,
            }),
            _ => Err(Failure::Usage(format!(
                "{} is not from Debian's package. {REMEDY}",
                path.display()
            ))),
        }
    }

    /// Downloads the package, checks it against the archive's signature and
    /// unpacks it to `source` in `folder`. The system's apt is not changed: the
    /// list of sources and all state are in `folder`.
    fn fetch(&self, folder: &Path) -> Outcome {
        if !Path::new(KEYRING).is_file() {
            return Err(Failure::Usage(format!(
                "{KEYRING} is missing, which verifies source packages: \
                 apt-get install debian-archive-keyring"
            )));
        }
        let list = folder.join("sources.list");
        let make = |path: &Path| {
            let made = fs::create_dir_all(path);
            made.map_err(|error| Failure::file("make", path, &error))
        };
        make(&folder.join("lists/partial"))?;
        make(&folder.join("cache/archives/partial"))?;
        let name = &self.codename;
        let text: String = [
            ("debian", name.clone()),
            ("debian-security", format!("{name}-security")),
        ]
        .map(|(archive, suite)| {
            format!("deb-src [signed-by={KEYRING}] {MIRROR}/{archive} {suite} main\n")
        })
        .concat();
        fs::write(&list, text).map_err(|error| Failure::file("write", &list, &error))?;
        let version = format!("{}={}", self.name, self.version);
        for words in [&["update"][..], &["source", "--download-only", &version]] {
            if let Err(failure) = run::run(apt_get(folder).args(words)) {
                let text = failure.text();
                return Err(Failure::Failed(format!(
                    "{text}\n\nThe source package of fio {} could not be fetched from \
                     {MIRROR}. {REMEDY}",
                    self.version
                )));
            }
        }
        // The file's name has no epoch.
        let (_, plain) = self.version.split_once(':').unwrap_or(("", &self.version));
        let description = format!("{}_{plain}.dsc", self.name);
        let mut unpack = run::command("dpkg-source");
        // apt checked it, and by hashes that the archive signed.
        unpack.args(["--no-check", "-x", &description, "source"]);
        run::run(unpack.current_dir(folder))?;
        // 20 MB that are not needed again.
        empty(&folder.join("lists"))
    }
}

/// The code name of the release, if this is Debian: `bookworm`.
fn debian(os_release: &str) -> Option<String> {
    let value = |name: &str| {
        let mut lines = os_release.lines();
        lines.find_map(|line| {
            let (found, value) = line.split_once('=')?;
            (found == name).then(|| value.trim_matches('"').to_owned())
        })
    };
    value("ID").filter(|id| id == "debian")?;
    value("VERSION_CODENAME").filter(|name| !name.is_empty())
}

/// apt-get with everything of its own in `folder`.
fn apt_get(folder: &Path) -> Command {
    let mut command = run::command("apt-get");
    let path = |name: &str| folder.join(name).display().to_string();
    for option in [
        format!("Dir::Etc::sourcelist={}", path("sources.list")),
        "Dir::Etc::sourceparts=/dev/null".to_owned(),
        format!("Dir::State::lists={}", path("lists")),
        format!("Dir::Cache={}", path("cache")),
        // Another user may not write to our folder.
        "APT::Sandbox::User=root".to_owned(),
        "Acquire::Languages=none".to_owned(),
        // A half-fetched list is a failure.
        "APT::Update::Error-Mode=any".to_owned(),
    ] {
        command.args(["-o", &option]);
    }
    command.arg("-q").current_dir(folder);
    command
}

/// An empty folder.
fn empty(folder: &Path) -> Outcome {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| Failure::file("remove", folder, &error))?;
    }
    fs::create_dir_all(folder).map_err(|error| Failure::file("make", folder, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_debian_has_debian_s_source_packages() {
        let text = "NAME=\"Debian\"\nVERSION_CODENAME=bookworm\nID=debian\n";
        assert_eq!(debian(text).as_deref(), Some("bookworm"));
        assert_eq!(debian("ID=ubuntu\nVERSION_CODENAME=noble\n"), None);
        assert_eq!(debian("ID=debian\n"), None);
        assert_eq!(debian(""), None);
    }

    #[test]
    fn version_of_source_tree_is_read() {
        let script = "#!/bin/sh\n\nGVF=FIO-VERSION-FILE\nDEF_VER=fio-3.33\n\nLF='\n'\n";
        assert_eq!(version_in(script).as_deref(), Some("fio-3.33"));
        assert_eq!(
            version_in("FIO_VERSION = fio-3.39\n").as_deref(),
            Some("fio-3.39")
        );
        assert_eq!(version_in("nothing\n"), None);
    }

    #[test]
    fn sources_of_another_version_are_refused() {
        let folder = std::env::temp_dir().join(format!("fio-source-{}", std::process::id()));
        empty(&folder).unwrap();
        let installed = Installed {
            version: "fio-3.33".to_owned(),
        };
        let refused = |words: &str| {
            let failure = configured(folder.clone(), &installed).unwrap_err();
            assert!(failure.to_string().contains(words), "{failure}");
        };
        refused("ioengines.h is missing");
        fs::write(folder.join("ioengines.h"), "").unwrap();
        refused("no known version");
        fs::write(folder.join("FIO-VERSION-GEN"), "DEF_VER=fio-3.32\n").unwrap();
        refused("fio-3.32, the installed fio is fio-3.33");
        fs::write(folder.join("FIO-VERSION-GEN"), "DEF_VER=fio-3.33\n").unwrap();
        fs::write(folder.join("configure"), "#!/bin/sh\nexit 7\n").unwrap();
        run::run(
            run::command("chmod")
                .arg("+x")
                .arg(folder.join("configure")),
        )
        .unwrap();
        refused("config-host.h.log");
        fs::remove_dir_all(folder).unwrap();
    }
}
