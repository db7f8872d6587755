//! The programs that go into the guest, built the way a user gets them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Trouble;

/// Test executables for the guest, because they need RDMA devices: package,
/// its folder, the test, and its name in the guest.
const TESTS: &[(&str, &str, &str, &str)] = &[(
    "nvmeof-rdma-verbs",
    "common/rdma-verbs",
    "conformance",
    "conformance",
)];

/// Builds everything with cargo, with that profile; `folder` is for what gets another name.
pub(crate) fn build(root: &Path, profile: &str, folder: &Path) -> Result<Vec<PathBuf>, Trouble> {
    let build = format!("build --profile {profile} --locked");
    let mut programs = executables(root, &build)?;
    let ours = format!("{build} -p nvmeof-lab --examples");
    programs.extend(executables(root, &ours)?);
    for (package, place, test, name) in TESTS {
        // A tree without that provider has nothing to test.
        if !root.join(place).is_dir() {
            continue;
        }
        let arguments =
            format!("test --no-run --profile {profile} --locked -p {package} --test {test}");
        for from in executables(root, &arguments)? {
            // Cargo's own name for it changes with each compiler.
            let program = folder.join(name);
            fs::copy(&from, &program).map_err(|error| Trouble::file("copy", &from, &error))?;
            programs.push(program);
        }
    }
    Ok(programs)
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

/// The same, made before.
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
fn executables(root: &Path, arguments: &str) -> Result<Vec<PathBuf>, Trouble> {
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
    Ok(in_messages(&String::from_utf8_lossy(&output.stdout)))
}

fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).stdin(Stdio::null());
    cargo
}

fn no_cargo(error: &std::io::Error) -> Trouble {
    Trouble::SetUp(format!("cannot start cargo: {error}"))
}

/// The executables in cargo's messages, one JSON object a line.
fn in_messages(messages: &str) -> Vec<PathBuf> {
    let values = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let paths = values.filter_map(|message| Some(message.get("executable")?.as_str()?.into()));
    paths.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_found_among_messages() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\nnoise\n\
             {\"reason\":\"compiler-artifact\",\"executable\":\"/b/nvmeof\"}\n\
             {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(in_messages(messages), [PathBuf::from("/b/nvmeof")]);
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
