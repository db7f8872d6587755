//! What a document that was applied does not decide: tables that say how the
//! target runs, not what it serves. They are always those of the administrator's
//! file, so that what he writes there counts after the next start.

use std::path::Path;

use toml_edit::{DocumentMut, Item};

use crate::config::Config;
use crate::manage::Fixed;

/// The tables.
const SETTINGS: [&str; 7] = [
    "limits", "reactor", "storage", "shm", "unix", "control", "metrics",
];

/// The document `text` with the settings of the administrator's `file`; `None`
/// when it has them, or neither has any.
///
/// # Errors
/// When one of them is no TOML.
pub(super) fn merged(text: &str, file: (&Path, &str)) -> Result<Option<String>, String> {
    let (ours, theirs) = (tables(text)?, tables(file.1)?);
    if SETTINGS
        .iter()
        .all(|key| ours.get(*key) == theirs.get(*key))
    {
        return Ok(None);
    }
    let mut live = editable(text)?;
    for key in SETTINGS {
        live.remove(key);
    }
    let mut settings = DocumentMut::new();
    for (key, item) in editable(file.1)?.iter() {
        if SETTINGS.contains(&key) {
            settings.insert(key, headed(item));
        }
    }
    let live = live.to_string();
    let (live, settings) = (live.trim_end(), settings.to_string());
    let name = file.0.display();
    Ok(Some(format!(
        "{live}\n\n# The settings of {name}:\n{settings}"
    )))
}

/// What the document `config`, whose text is `text`, says otherwise about
/// settings than the administrator's file.
///
/// # Errors
/// When the text is no TOML.
pub(super) fn left_out(config: &Config, text: &str, file: &Config) -> Result<Vec<String>, String> {
    let tables = tables(text)?;
    let differing = Fixed::of(file).differing(config).into_iter();
    // What it says nothing of is not left out.
    let said = differing.filter(|(table, key)| {
        let table = tables.get(*table).and_then(toml::Value::as_table);
        table.is_some_and(|table| table.contains_key(*key))
    });
    let name = file.path().unwrap_or(Path::new("")).display();
    let remark = said.map(|(table, key)| {
        format!(
            "{table}.{key} stays as {name} has it: a document decides what is served, no settings"
        )
    });
    Ok(remark.collect())
}

fn tables(text: &str) -> Result<toml::Table, String> {
    text.parse()
        .map_err(|error: toml::de::Error| error.to_string())
}

fn editable(text: &str) -> Result<DocumentMut, String> {
    text.parse()
        .map_err(|error: toml_edit::TomlError| error.to_string())
}

/// The table with a head of its own, wherever it comes from.
fn headed(item: &Item) -> Item {
    let Ok(mut table) = item.clone().into_table() else {
        return item.clone();
    };
    table.set_dotted(false);
    table.set_implicit(false);
    table.decor_mut().clear();
    Item::Table(table)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn both(text: &str, file: &str) -> Option<toml::Table> {
        let merged = merged(text, (Path::new("target.toml"), file)).unwrap();
        merged.map(|text| {
            text.parse()
                .unwrap_or_else(|error| panic!("{error}\n{text}"))
        })
    }

    #[test]
    fn settings_come_from_the_file_and_the_rest_from_the_document() {
        let live = "discovery.nqn = \"d\"\n[limits]\nio_queues = 3\n[[port]]\ntraddr = \"a\"\n\
            [[port.ana_group]]\nid = 1\n";
        let expected = "discovery.nqn = \"d\"\nlimits.io_queues = 5\nreactor.drain_s = 1\n\
            control.state = \"\"\n[[port]]\ntraddr = \"a\"\nana_group = [{ id = 1 }]\n";
        let expected: toml::Table = expected.parse().unwrap();
        for file in [
            "[reactor]\ndrain_s = 1\n[[port]]\ntraddr = \"b\"\n[limits]\nio_queues = 5\n[control]\n\
             state = \"\"\n",
            "limits.io_queues = 5\nreactor = { drain_s = 1 }\ncontrol.state = \"\"\n\
             port = [{ traddr = \"b\" }]\n",
        ] {
            assert_eq!(both(live, file), Some(expected.clone()), "{file}");
        }
        assert_eq!(both(live, "[limits]\nio_queues = 3\n"), None);
        let none = both(live, "").unwrap();
        assert!(!none.contains_key("limits"));
    }
}
