//! Phrases that messages and documents must not contain, with replacements.

use crate::Problem;

/// Phrases that are hard to understand, with the terms of the field. Lower case. Many of the
/// words are fine in other senses, so whole phrases are listed.
const PHRASES: &[(&str, &str)] = &[
    ("as chance has it", "at random"),
    ("brings its configuration along", "migrate, import"),
    ("commands in work", "commands in flight"),
    ("hangs: did nothing", "stalled"),
    ("hears of it", "is notified"),
    ("lets go of all hosts", "disconnects all hosts"),
    ("let go of its hosts", "disconnect its hosts"),
    ("makes no disk", "must be greater than 0"),
    ("managed at", "control socket listening on"),
    ("memory of ours", "memory of this process"),
    ("nobody listens", "nothing listens"),
    ("put aside", "deferred"),
    ("serves nobody", "accepts no hosts"),
    ("serve it no more", "disable"),
    ("there for nobody", "no host can access it"),
    ("told at once", "notified immediately"),
    ("wants root", "requires root"),
    ("what is known of it", "its configuration"),
    ("who asks waits", "requests wait"),
    ("whoever comes from", "to migrate from"),
    ("which the log says more about", "the log says why"),
];

/// Reports each phrase in `text`, which may be wrapped.
#[must_use]
pub fn check(file: &str, text: &str) -> Vec<Problem> {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let words = words.to_lowercase();
    let found = PHRASES.iter().filter(|(phrase, _)| words.contains(phrase));
    found
        .map(|(phrase, instead)| {
            format!("{file}: \"{phrase}\": write \"{instead}\", see docs/glossary.md")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_are_found_across_lines_and_in_capitals() {
        let found = check("x.md", "It is\nPut\n  aside.");
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("deferred"), "{found:?}");
        assert_eq!(check("x.md", "put it aside"), [""; 0]);
    }
}
