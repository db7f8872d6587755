//! Configuration keys and documents that messages and documents mention must exist.

use std::collections::{BTreeMap, BTreeSet};

use crate::reference::Table;

/// The keys of the configuration by the name of their table, such as `limits` and
/// `subsystem.namespace`.
#[derive(Debug)]
pub struct Keys(BTreeMap<String, BTreeSet<String>>);

impl Keys {
    /// The keys of the reference.
    #[must_use]
    pub fn of(tables: &[Table]) -> Self {
        let mut keys = BTreeMap::new();
        for table in tables {
            let name = table.header.trim_matches(['[', ']']);
            let of_table = table.keys.iter().map(|key| key.name.clone());
            keys.entry(name.to_owned())
                .or_insert_with(BTreeSet::new)
                .extend(of_table);
            // A table is a key of its parent table.
            if let Some((parent, own)) = name.rsplit_once('.') {
                let parent = keys.entry(parent.to_owned()).or_insert_with(BTreeSet::new);
                parent.insert(own.to_owned());
            }
        }
        Self(keys)
    }

    /// Whether `word` names a table and a key that the table does not have.
    fn lack(&self, word: &str) -> bool {
        word.rsplit_once('.')
            .and_then(|(table, key)| Some((self.0.get(table)?, key)))
            .is_some_and(|(keys, key)| {
                is_name(key) && !keys.contains(key) && !ENDINGS.contains(&key)
            })
    }
}

/// File extensions: a file may have the name of a table.
const ENDINGS: &[&str] = &["json", "key", "md", "sock", "toml"];

fn is_name(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

/// The words `TABLE.KEY` in `text` whose table exists and whose key does not.
#[must_use]
pub fn unknown_keys(text: &str, keys: &Keys) -> Vec<String> {
    words(text)
        .filter(|word| keys.lack(word))
        .map(str::to_owned)
        .collect()
}

/// The documents in `text` that do not exist.
#[must_use]
pub fn unknown_documents(text: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    words(text)
        .filter(|word| word.strip_suffix(".md").is_some_and(|it| !it.is_empty()))
        .filter(|word| !exists(word))
        .map(str::to_owned)
        .collect()
}

/// The parts of a text that may be names of keys or files. A call, such as `limits.depth()`, is
/// none.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || "._-/…%:(".contains(c)))
        .map(|word| {
            word.trim_start_matches('(')
                .trim_end_matches(['.', ':', '…'])
        })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::reference;

    fn keys() -> Keys {
        let code = "
            struct RawConfig { limits: RawLimits, port: Vec<RawPort> }
            /// Sizes.
            struct RawLimits { /** Entries. */ depth: u16 }
            /// Places.
            struct RawPort { /** Where. */ at: u16, group: Vec<RawGroup> }
            /// Groups.
            struct RawGroup { /** Which. */ id: u16 }
        ";
        Keys::of(&reference::tables(&[code.to_owned()]).unwrap())
    }

    #[test]
    fn unknown_keys_are_reported() {
        let text = "raise limits.depht; or `port.group.is`, `[port.groups]`: limits.width.";
        let found = unknown_keys(text, &keys());
        assert_eq!(
            found,
            [
                "limits.depht",
                "port.group.is",
                "port.groups",
                "limits.width"
            ]
        );
    }

    #[test]
    fn names_that_are_no_keys_are_ignored() {
        let text = "limits.depth = 4, limits.…, port.group, port.group.id, kernel.osrelease, \
                    /run/limits.sock, limits.sock, port.key, port.connect(at), the limits.";
        assert!(unknown_keys(text, &keys()).is_empty());
    }

    #[test]
    fn unknown_documents_are_reported() {
        let exists = |name: &str| name == "docs/good.md";
        let found = unknown_documents("(docs/good.md), see docs/bad.md. *.md", exists);
        assert_eq!(found, ["docs/bad.md"]);
    }
}
