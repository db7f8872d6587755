//! The disk images of the demo, created from the files of the project.

use std::fs::{self, File};
use std::io::{BufReader, Read as _};
use std::path::Path;
use std::time::Duration;

use crate::run::{self, Failure, Outcome};

/// Bytes of a MiB, for rates.
pub(super) const MIB: f64 = 1_048_576.0;
const IMAGE_BYTES: u64 = 64 * 1_048_576;
const IMAGE_MIB: f64 = 64.0;
const CHUNK: usize = 1 << 16;

/// Files and folders for the image.
const SOURCES: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "docs",
    "common",
    "target",
    "initiator",
];

/// Creates `disk`, an ext4 image with files of the project, and `second`, an empty image of
/// the same size. Returns the number of files.
pub(super) fn make(tree: &Path, disk: &Path, second: &Path) -> Outcome<usize> {
    let mut files = 0;
    for source in SOURCES {
        let from = run::root().join(source);
        if from.exists() {
            files += copy(&from, &tree.join(source))
                .map_err(|error| Failure::file("copy", &from, &error))?;
        }
    }
    run::run(
        run::command("mke2fs")
            .args(["-q", "-t", "ext4", "-d"])
            .arg(tree)
            .arg(disk)
            .arg("64M"),
    )?;
    File::create(second)
        .and_then(|file| file.set_len(IMAGE_BYTES))
        .map_err(|error| Failure::file("create", second, &error))?;
    Ok(files)
}

fn copy(from: &Path, to: &Path) -> std::io::Result<usize> {
    if !from.is_dir() {
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        return fs::copy(from, to).map(|_| 1);
    }
    fs::create_dir_all(to)?;
    let mut files = 0;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        files += copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(files)
}

/// Compares two files byte by byte; returns the start of their common SHA-256.
pub(super) fn must_be_equal(left: &Path, right: &Path) -> Outcome<String> {
    let equal = equal(left, right).map_err(|error| Failure::file("compare", right, &error))?;
    let sums = run::output(run::command("sha256sum").args([left, right]))?;
    print!("{sums}");
    if !equal {
        return Err(Failure::Failed(format!(
            "{} and {} differ",
            left.display(),
            right.display()
        )));
    }
    Ok(sums.chars().take(12).collect())
}

fn equal(left: &Path, right: &Path) -> std::io::Result<bool> {
    let (left, right) = (File::open(left)?, File::open(right)?);
    let length = left.metadata()?.len();
    if length != right.metadata()?.len() {
        return Ok(false);
    }
    let (mut left, mut right) = (BufReader::new(left), BufReader::new(right));
    let (mut ours, mut theirs) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut rest = length;
    while rest > 0 {
        let size = usize::try_from(rest).unwrap_or(CHUNK).min(CHUNK);
        ours.truncate(size);
        theirs.truncate(size);
        left.read_exact(&mut ours)?;
        right.read_exact(&mut theirs)?;
        if ours != theirs {
            return Ok(false);
        }
        rest -= u64::try_from(size).unwrap_or(rest);
    }
    Ok(true)
}

/// Throughput of a whole image, including the connection.
pub(super) fn rate(took: Duration) -> String {
    format!("{:.0} MiB/s", IMAGE_MIB / took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::{Folder, Stage};

    #[test]
    fn changed_byte_and_longer_file_are_detected() {
        let stage = Stage::new(&std::env::temp_dir(), "demo", Folder::Remove).unwrap();
        let (left, right) = (stage.path("left"), stage.path("right"));
        let mut bytes = vec![7; CHUNK + 10];
        fs::write(&left, &bytes).unwrap();
        fs::write(&right, &bytes).unwrap();
        assert_eq!(must_be_equal(&left, &right).unwrap().len(), 12);

        bytes[CHUNK + 9] = 8;
        fs::write(&right, &bytes).unwrap();
        assert!(must_be_equal(&left, &right).is_err());

        bytes[CHUNK + 9] = 7;
        bytes.push(0);
        fs::write(&right, &bytes).unwrap();
        assert!(must_be_equal(&left, &right).is_err());
    }

    #[test]
    fn trees_are_copied_whole() {
        let stage = Stage::new(&std::env::temp_dir(), "demo", Folder::Remove).unwrap();
        let (from, to) = (stage.path("from"), stage.path("to"));
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::write(from.join("one"), "1").unwrap();
        fs::write(from.join("a/b/two"), "2").unwrap();
        assert_eq!(copy(&from, &to).unwrap(), 2);
        assert_eq!(fs::read_to_string(to.join("a/b/two")).unwrap(), "2");
    }
}
