//! The disk of a run: the files of the project in the guest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Trouble;

/// Its contents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contents<'a> {
    /// The folder of the project, of which it contains [`PARTS`].
    pub(crate) project: &'a Path,
    /// Programs, for `/lab/bin`.
    pub(crate) programs: &'a [PathBuf],
    /// The fio engine and its fio, for `/lab/fio-engine`.
    pub(crate) fio_engine: Option<&'a Path>,
    /// Debian packages of the project, for `/lab/packages`.
    pub(crate) packages: Option<&'a Path>,
    /// A script to run, for `/lab/script`.
    pub(crate) script: Option<&'a Path>,
}

/// Folders of the project, and their paths below `/lab`.
const PARTS: [(&str, &str); 6] = [
    ("tests/lab/guest", "guest"),
    ("tests/lab/scenarios", "scenarios"),
    ("fio-configs", "fio-configs"),
    ("docs", "project/docs"),
    ("systemd", "project/systemd"),
    ("target/admin/src/import/nvmetcli", "nvmetcli"),
];

/// Makes `disk.img` in `folder`; all guests of a run read the same one.
pub(crate) fn make(folder: &Path, contents: &Contents<'_>) -> Result<PathBuf, Trouble> {
    let tree = folder.join("disk");
    let mut bytes = 0;
    for (from, to) in PARTS {
        bytes += copy_all(&contents.project.join(from), &tree.join(to))?;
    }
    for program in contents.programs {
        bytes += copy_file(program, &tree.join("bin"))?;
    }
    if let Some(folder) = contents.fio_engine {
        bytes += copy_all(folder, &tree.join("fio-engine"))?;
    }
    if let Some(folder) = contents.packages {
        bytes += copy_all(folder, &tree.join("packages"))?;
    }
    if let Some(script) = contents.script {
        bytes += fs::copy(script, tree.join("script"))
            .map_err(|error| Trouble::file("read", script, &error))?;
    }
    let image = folder.join("disk.img");
    // Room for metadata of the file system.
    let mebibytes = bytes.div_ceil(1 << 20) * 5 / 4 + 8;
    let mut mke2fs = Command::new("mke2fs");
    mke2fs
        .args(["-q", "-t", "ext4", "-m", "0", "-O", "^has_journal", "-d"])
        .args([&tree, &image])
        .arg(format!("{mebibytes}M"))
        .stdin(Stdio::null());
    let output = mke2fs
        .output()
        .map_err(|error| Trouble::SetUp(format!("cannot start mke2fs: {error}")))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Trouble::SetUp(format!("mke2fs failed: {why}")));
    }
    fs::remove_dir_all(&tree).map_err(|error| Trouble::file("remove", &tree, &error))?;
    Ok(image)
}

/// Copies the files of a folder to another one; returns their size.
fn copy_all(from: &Path, folder: &Path) -> Result<u64, Trouble> {
    let mut bytes = 0;
    for entry in fs::read_dir(from).map_err(|error| Trouble::file("read", from, &error))? {
        let path = entry
            .map_err(|error| Trouble::file("read", from, &error))?
            .path();
        bytes += if path.is_dir() {
            copy_all(&path, &folder.join(path.file_name().unwrap_or_default()))?
        } else {
            copy_file(&path, folder)?
        };
    }
    Ok(bytes)
}

/// Copies a file to a folder; returns its size.
fn copy_file(file: &Path, folder: &Path) -> Result<u64, Trouble> {
    fs::create_dir_all(folder).map_err(|error| Trouble::file("create", folder, &error))?;
    let name = file.file_name().unwrap_or_default();
    fs::copy(file, folder.join(name)).map_err(|error| Trouble::file("copy", file, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_has_scripts_programs_and_the_script() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("try.sh");
        fs::write(&script, "true").unwrap();
        let programs = [PathBuf::from("/bin/true")];
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let engine = folder.path().join("engine");
        fs::create_dir(&engine).unwrap();
        fs::copy("/bin/true", engine.join("fio")).unwrap();
        let contents = Contents {
            project: &project,
            programs: &programs,
            fio_engine: Some(&engine),
            packages: Some(&engine),
            script: Some(&script),
        };
        let image = make(folder.path(), &contents).unwrap();
        for file in [
            "guest/lib.sh",
            "scenarios/smoke.sh",
            "bin/true",
            "fio-engine/fio",
            "packages/fio",
            "project/docs/quick-start.md",
            "project/systemd/nvmeof-target.service",
            "nvmetcli/2026-07.json",
            "script",
        ] {
            let stat = Command::new("debugfs")
                .args(["-R", &format!("stat {file}")])
                .arg(&image)
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&stat.stdout);
            assert!(text.contains("Type: regular"), "{file}: {text}");
        }
    }
}
