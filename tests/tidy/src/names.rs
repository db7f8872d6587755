//! Generic names of files and folders, which are refused.

use std::path::Path;

use crate::Problem;

/// Words that fit any contents.
const EMPTY_WORDS: &[&str] = &[
    "util",
    "utils",
    "utility",
    "utilities",
    "manager",
    "managers",
    "helper",
    "helpers",
];

/// Checks the words of a path relative to the root of the repository.
#[must_use]
pub fn check(path: &Path) -> Vec<Problem> {
    let text = path.to_string_lossy().to_lowercase();
    let found = text
        .split(['/', '-', '_', '.'])
        .find(|word| EMPTY_WORDS.contains(word));
    found
        .map(|word| {
            format!(
                "{}: `{word}` is too generic; name the purpose",
                path.display()
            )
        })
        .into_iter()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generic_words_are_refused_as_whole_words() {
        for bad in [
            "a/util.rs",
            "a/Helpers/mod.rs",
            "common/io-util/Cargo.toml",
            "a/key_manager.rs",
        ] {
            assert_eq!(check(Path::new(bad)).len(), 1, "{bad}");
        }
        assert!(check(Path::new("docs/utilisation.md")).is_empty());
    }
}
