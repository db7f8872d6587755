//! Data that encode their offset.

use std::fs;
use std::path::Path;

/// `len` bytes, each 8 of which encode their offset and `seed`.
#[must_use]
pub fn pattern(seed: u32, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    for at in 0_u32.. {
        if bytes.len() >= len {
            break;
        }
        bytes.extend(at.to_le_bytes());
        bytes.extend(seed.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Makes a file of `len` patterned bytes.
pub fn image(path: &Path, seed: u32, len: usize) {
    fs::write(path, pattern(seed, len)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// Like `assert_eq!`, without printing megabytes.
#[track_caller]
pub fn same_bytes(left: &[u8], right: &[u8]) {
    let differ = left
        .iter()
        .zip(right)
        .position(|(left, right)| left != right);
    assert_eq!(differ, None, "the bytes differ at this offset");
    assert_eq!(left.len(), right.len(), "the lengths differ");
}
