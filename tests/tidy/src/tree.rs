//! The files of the repository, without build output.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Folders without sources, as paths from the root.
const SKIPPED: &[&str] = &[
    "build",
    "tests/fuzz/build",
    "tests/fuzz/corpus",
    "tests/fuzz/artifacts",
    ".git",
];

/// The root folder of the repository.
#[must_use]
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// All files below `root` as sorted paths relative to it.
///
/// # Errors
/// A folder that cannot be read.
pub fn files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            // `.git` is a file where the repository has several work trees.
            if SKIPPED.iter().any(|skipped| path == Path::new(skipped)) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Whether the name of the file ends in `.extension`.
#[must_use]
pub fn is(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_has_sources_without_build_output() {
        let files = files(&root()).unwrap();
        assert!(files.contains(&PathBuf::from("tests/tidy/src/tree.rs")));
        // `target` is a folder of sources in this repository.
        assert!(files.contains(&PathBuf::from("target/core/Cargo.toml")));
        assert!(
            !files
                .iter()
                .any(|file| file.starts_with("build") || file.starts_with(".git"))
        );
    }
}
