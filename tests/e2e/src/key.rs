//! Keys for in-band authentication, and files with them.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A key of bytes 00h to 1Fh.
pub const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
/// A key of bytes 00h to 2Fh.
pub const OTHER_KEY: &str =
    "DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:";

/// Writes a file with [`KEY`], as the target accepts it.
pub fn key_file(path: &Path) {
    key_file_with(path, KEY);
}

/// Replaces a file by one with these contents and a newline that only its owner can access.
pub fn key_file_with(path: &Path, contents: &str) {
    let new = path.with_extension("new");
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&new);
    writeln!(file.unwrap(), "{contents}").unwrap();
    fs::rename(&new, path).unwrap();
}
