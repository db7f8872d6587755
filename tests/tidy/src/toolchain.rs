//! The minimum version of Rust: one number, in the manifest of the workspace.
//!
//! Cargo refuses to build with an older toolchain, and clippy reports newer items of the standard
//! library, both by `rust-version`. Documents repeat the number.

use crate::Problem;

/// Words before the number, one of which must contain "Rust".
const NEAR: usize = 3;

/// Checks each `1.N or later` of a document that is about Rust.
#[must_use]
pub fn check(file: &str, text: &str, version: &str) -> Vec<Problem> {
    let other = mentions(text).filter(|found| *found != version);
    let problems = other.map(|found| {
        format!("{file}: names Rust {found}; rust-version in Cargo.toml is {version}")
    });
    problems.collect()
}

/// Whether a document names a minimum version.
#[must_use]
pub fn is_named(text: &str) -> bool {
    mentions(text).next().is_some()
}

fn mentions(text: &str) -> impl Iterator<Item = &str> {
    let words: Vec<_> = text.split_whitespace().collect();
    let found = words.windows(NEAR + 3).filter_map(|window| {
        let (before, [number, or, later]) = window.split_last_chunk()?;
        let number = number.trim_start_matches('(');
        let minor = number.strip_prefix("1.")?;
        let is_number = minor.chars().all(|c| c.is_ascii_digit());
        let is_minimum = *or == "or" && later.starts_with("later");
        let is_rust = before.iter().any(|word| word.contains("Rust"));
        (is_number && is_minimum && is_rust).then_some(number)
    });
    found.collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_version_passes() {
        let text =
            "It needs a Rust toolchain (1.95\nor later), or libfabric of version 1.22 or later.";
        assert_eq!(check("x.md", text, "1.95"), [""; 0]);
        assert!(is_named(text));
        assert!(!is_named("the Rust toolchain of Debian 12 or later, 1.95"));
    }

    #[test]
    fn other_version_is_reported() {
        let found = check(
            "x.md",
            "It needs at least Rust 1.9 or later, a Rust toolchain (1.96 or later)",
            "1.95",
        );
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("names Rust 1.9;"), "{found:?}");
    }
}
