//! The programs in the guest, built as users get them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::Trouble;

/// Programs in the guest: package, kind and name of a target of cargo. The tests are those that
/// need RDMA devices.
const WANTED: &[(&str, &str, &str)] = &[
    ("nvmeof-target", "bin", "nvmeof-target"),
    ("nvmeof-cli", "bin", "nvmeof"),
    ("nvmeof-rdma-verbs", "test", "conformance"),
];

/// The package whose examples are in the guest as well.
const EXAMPLES: &str = "nvmeof-lab";

/// Builds everything with cargo, with that profile, and returns the programs for the
/// guest; `folder` is for copies with other names.
pub(crate) fn build(root: &Path, profile: &str, folder: &Path) -> Result<Vec<PathBuf>, Trouble> {
    let commands = if profile == "dev" {
        // With the features that the other steps of `cargo xtask test` build with, so
        // that most of it is there.
        let build = "build --workspace --locked";
        vec![
            format!("{build} --all-targets"),
            format!("{build} --test conformance"),
        ]
    } else {
        let build = format!("build --profile {profile} --locked");
        vec![
            format!("{build} -p nvmeof-lab --examples"),
            format!("{build} -p nvmeof-rdma-verbs --test conformance"),
            build,
        ]
    };
    let mut programs = Vec::new();
    for arguments in commands {
        for executable in executables(root, &arguments)? {
            if !executable.is_wanted() {
                continue;
            }
            let Executable { name, mut path, .. } = executable;
            if path.file_name().is_none_or(|file| *file != *name) {
                // Cargo's own name for a test changes with each compiler.
                let renamed = folder.join(name);
                fs::copy(&path, &renamed).map_err(|error| Trouble::file("copy", &path, &error))?;
                path = renamed;
            }
            programs.push(path);
        }
    }
    Ok(programs)
}

/// An executable of cargo: package, kind and name of its target, and its file.
#[derive(Debug, PartialEq, Eq)]
struct Executable {
    package: String,
    kind: String,
    name: String,
    path: PathBuf,
}

impl Executable {
    /// That of a line of cargo's messages, if it is one. Unit tests of a program are none
    /// of the program.
    fn in_message(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        let text = |pointer| message.pointer(pointer)?.as_str().map(str::to_owned);
        let kind = text("/target/kind/0")?;
        if kind != "test" && message.pointer("/profile/test")?.as_bool()? {
            return None;
        }
        // `path+file:///clone/initiator/cli#nvmeof-cli@0.1.0`
        let package = text("/package_id")?;
        let (_, package) = package.rsplit_once('#')?;
        Some(Self {
            package: package.split('@').next()?.to_owned(),
            kind,
            name: text("/target/name")?,
            path: text("/executable")?.into(),
        })
    }

    /// Whether it is one for the guest, by its name.
    fn is_wanted(&self) -> bool {
        let own = (&*self.package, &*self.kind, &*self.name);
        (own.0, own.1) == (EXAMPLES, "example") || WANTED.contains(&own)
    }
}

/// The folder with two Debian packages of each program, of one version and of the
/// next, made by xtask of `programs`.
pub(crate) fn packages(
    root: &Path,
    folder: &Path,
    programs: &[PathBuf],
) -> Result<PathBuf, Trouble> {
    let (from, packages) = (folder.join("for-packages"), folder.join("packages"));
    fs::create_dir_all(&from).map_err(|error| Trouble::file("create", &from, &error))?;
    for name in ["nvmeof", "nvmeof-target"] {
        let has_name = |program: &&PathBuf| program.file_name().is_some_and(|it| it == name);
        let program = programs.iter().find(has_name);
        let program =
            program.ok_or_else(|| Trouble::SetUp(format!("the program {name} is missing")))?;
        fs::copy(program, from.join(name))
            .map_err(|error| Trouble::file("copy", program, &error))?;
    }
    for revision in ["1", "2"] {
        let status = cargo(root)
            .args(["xtask", "deb", "--revision", revision])
            .arg("--programs")
            .arg(&from)
            .arg("--output")
            .arg(folder.join("deb"))
            // Our own output may have to be JSON.
            .stdout(std::io::stderr())
            .status()
            .map_err(|error| no_cargo(&error))?;
        if !status.success() {
            return Err(Trouble::SetUp(format!(
                "`cargo xtask deb`: {status}, see above; other scenarios can be named"
            )));
        }
    }
    fs::create_dir_all(&packages).map_err(|error| Trouble::file("create", &packages, &error))?;
    let made = folder.join("deb");
    for entry in fs::read_dir(&made).map_err(|error| Trouble::file("read", &made, &error))? {
        let path = entry
            .map_err(|error| Trouble::file("read", &made, &error))?
            .path();
        if let (Some("deb"), Some(name)) = (
            path.extension().and_then(|it| it.to_str()),
            path.file_name(),
        ) {
            fs::rename(&path, packages.join(name))
                .map_err(|error| Trouble::file("move", &path, &error))?;
        }
    }
    Ok(packages)
}

/// The folder with fio's engine and a fio for it, both made by xtask: the fio of
/// the guest is not of the version whose headers this machine has.
pub(crate) fn fio_engine(root: &Path, profile: &str, folder: &Path) -> Result<PathBuf, Trouble> {
    let bundle = folder.join("fio-engine");
    let status = cargo(root)
        .args(["xtask", "fio-engine", "--profile", profile, "--bundle"])
        .arg(&bundle)
        // Our own output may have to be JSON.
        .stdout(std::io::stderr())
        .status()
        .map_err(|error| no_cargo(&error))?;
    if status.success() {
        return Ok(bundle);
    }
    Err(Trouble::SetUp(format!(
        "`cargo xtask fio-engine`: {status}, see above; other scenarios can be named"
    )))
}

/// The same, built before.
pub(crate) fn fio_engine_of_folder(folder: &Path) -> Result<PathBuf, Trouble> {
    let bundle = folder.join("fio-engine");
    if bundle.is_dir() {
        return Ok(bundle);
    }
    Err(Trouble::SetUp(format!(
        "{bundle} is missing: `cargo xtask fio-engine --bundle {bundle}` makes it",
        bundle = bundle.display()
    )))
}

/// All programs of a folder.
pub(crate) fn of_folder(folder: &Path) -> Result<Vec<PathBuf>, Trouble> {
    use std::os::unix::fs::PermissionsExt as _;
    let unreadable = |error| Trouble::file("read", folder, &error);
    let mut programs = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let about = fs::metadata(&path).map_err(|error| Trouble::file("read", &path, &error))?;
        if about.is_file() && about.permissions().mode() & 0o111 != 0 {
            programs.push(path);
        }
    }
    Ok(programs)
}

/// Runs cargo, whose progress stays visible, and returns what it built.
fn executables(root: &Path, arguments: &str) -> Result<Vec<Executable>, Trouble> {
    let output = cargo(root)
        .args(arguments.split(' '))
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| no_cargo(&error))?;
    if !output.status.success() {
        let status = output.status;
        return Err(Trouble::Failed(format!("`cargo {arguments}`: {status}")));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    Ok(messages
        .lines()
        .filter_map(Executable::in_message)
        .collect())
}

fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).stdin(Stdio::null());
    cargo
}

fn no_cargo(error: &std::io::Error) -> Trouble {
    Trouble::SetUp(format!("cannot start cargo: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_for_the_guest_are_found_among_messages() {
        let message = |package, kind, name, is_test, executable| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///c/p#{package}@0.1.0",
                "target":{{"kind":["{kind}"],"name":"{name}"}},
                "profile":{{"test":{is_test}}},"executable":{executable}}}"#
            )
        };
        let guest = |line: String| {
            let executable = Executable::in_message(&line.replace('\n', ""))?;
            let is_wanted = executable.is_wanted();
            is_wanted.then_some((executable.name, executable.path))
        };
        let path = r#""/b/x""#;
        for (package, kind, name, is_test) in [
            ("nvmeof-cli", "bin", "nvmeof", false),
            ("nvmeof-rdma-verbs", "test", "conformance", true),
            ("nvmeof-lab", "example", "pinger", false),
        ] {
            let found = guest(message(package, kind, name, is_test, path));
            assert_eq!(found, Some((name.to_owned(), "/b/x".into())));
        }
        for (package, kind, name, is_test, executable) in [
            // The program's own unit tests, another package's test, a library, a tool.
            ("nvmeof-cli", "bin", "nvmeof", true, path),
            ("nvmeof-rdma-shm", "test", "conformance", true, path),
            ("nvmeof-wire", "lib", "nvmeof-wire", false, "null"),
            ("nvmeof-bench", "bin", "nvmeof-bench", false, path),
        ] {
            let found = guest(message(package, kind, name, is_test, executable));
            assert_eq!(found, None, "{package} {kind}");
        }
        assert_eq!(
            guest(r#"{"reason":"build-finished","success":true}"#.into()),
            None
        );
        assert_eq!(guest("noise".into()), None);
    }

    #[test]
    fn only_programs_are_taken_from_a_folder() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        for (name, mode) in [("nvmeof", 0o755), ("nvmeof.d", 0o644)] {
            let path = folder.path().join(name);
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::create_dir(folder.path().join("deps")).unwrap();
        let programs = of_folder(folder.path()).unwrap();
        assert_eq!(programs, [folder.path().join("nvmeof")]);
        let missing = fio_engine_of_folder(folder.path()).unwrap_err().to_string();
        assert!(missing.contains("--bundle"), "{missing}");
        fs::create_dir(folder.path().join("fio-engine")).unwrap();
        fio_engine_of_folder(folder.path()).unwrap();
    }
}
