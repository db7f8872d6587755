//! Keys that have other values by a change of their own.

use toml_edit::{Item, Table, Value};

use super::document::{EditError, refusal};

/// Keys that are changed in another way, and in which.
pub(super) type Others = &'static [(&'static str, &'static str)];

const KNOWN_BY: &str = "is what it is known by; remove it, then add another";
const HOST: &str = "is changed by `ctl host allow` and `ctl host deny`";

pub(super) const OF_NAMESPACES: Others = &[
    ("nsid", KNOWN_BY),
    (
        "enabled",
        "is changed by `ctl namespace enable` and `ctl namespace disable`",
    ),
];

pub(super) const OF_SUBSYSTEMS: Others = &[
    ("nqn", KNOWN_BY),
    ("allow_any_host", HOST),
    ("allowed_hosts", HOST),
    (
        "namespace",
        "is changed by `ctl namespace add`, `set` and `remove`",
    ),
];

pub(super) const OF_PORTS: Others = &[
    ("traddr", KNOWN_BY),
    ("trsvcid", KNOWN_BY),
    ("ana_group", "is changed by `ctl ana set`"),
];

/// Gives `key` of the table that value, or leaves it out. What the value may be is found
/// when the document is checked.
///
/// # Errors
/// [`EditError`] when it is one of `others`.
pub(super) fn set(
    table: &mut Table,
    others: Others,
    key: &str,
    value: Option<&str>,
) -> Result<(), EditError> {
    if let Some((key, how)) = others.iter().find(|(name, _)| *name == key) {
        return refusal(key, *how);
    }
    match value {
        Some(value) => table.insert(key, Item::Value(parsed(value))),
        None => table.remove(key),
    };
    Ok(())
}

/// The value as a file has it; what is none there is text.
fn parsed(value: &str) -> Value {
    value.parse().unwrap_or_else(|_| value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_file_and_text_needs_no_quotes() {
        for (given, written) in [
            ("2", "2"),
            ("true", "true"),
            ("\"2\"", "\"2\""),
            ("[\"a\", \"b\"]", "[\"a\", \"b\"]"),
            ("/srv/a b.img", "\"/srv/a b.img\""),
            ("1\nreadonly = true", "\"1\\nreadonly = true\""),
            ("", "\"\""),
        ] {
            let mut table = Table::new();
            set(&mut table, OF_NAMESPACES, "key", Some(given)).unwrap();
            let (text, expected) = (table.to_string(), format!("key = {written}"));
            let text: toml::Table = text.parse().unwrap();
            assert_eq!(text, expected.parse().unwrap(), "{given}");
        }
    }
}
