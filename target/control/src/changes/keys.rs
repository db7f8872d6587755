//! Setting keys of namespaces, subsystems and ports.

use toml_edit::{Item, Table, Value};

use super::document::{EditError, refusal};

/// Keys that cannot be set, each with the other way to change it.
pub(super) type Others = &'static [(&'static str, &'static str)];

const IDENTIFIER: &str = "identifies the object; remove it, then add another";
const HOST: &str = "is changed by `ctl host allow` and `ctl host deny`";

pub(super) const OF_NAMESPACES: Others = &[
    ("nsid", IDENTIFIER),
    (
        "enabled",
        "is changed by `ctl namespace enable` and `ctl namespace disable`",
    ),
];

pub(super) const OF_SUBSYSTEMS: Others = &[
    ("nqn", IDENTIFIER),
    ("allow_any_host", HOST),
    ("allowed_hosts", HOST),
    (
        "namespace",
        "is changed by `ctl namespace add`, `set` and `remove`",
    ),
];

pub(super) const OF_PORTS: Others = &[
    ("traddr", IDENTIFIER),
    ("trsvcid", IDENTIFIER),
    ("ana_group", "is changed by `ctl ana set`"),
];

/// Sets `key` of the table, or removes it if there is no value. The value is checked with the whole
/// document.
///
/// # Errors
/// [`EditError`] if `key` is one of `others`.
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

/// Parses a TOML value; anything else is a string.
fn parsed(value: &str) -> Value {
    value.parse().unwrap_or_else(|_| value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_toml_and_strings_need_no_quotes() {
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
