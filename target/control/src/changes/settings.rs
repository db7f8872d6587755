//! Settings: tables that configure how the target runs, not what it serves. An applied document
//! does not decide them. They always come from the configuration file, and a change there takes
//! effect at the next start.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use toml_edit::{Document, DocumentMut, Item, TableLike};

use nvmeof_target_config::{Config, SETTINGS};
use nvmeof_target_manage::Fixed;

/// The document `text` with the settings of the configuration file `file`; `None` if it has the
/// same ones, or neither has any. Settings of the document become comments, so that its lines
/// keep their numbers.
///
/// # Errors
/// If one of them is not TOML.
pub(super) fn merged(text: &str, file: (&Path, &str)) -> Result<Option<String>, String> {
    let (ours, theirs) = (tables(text)?, tables(file.1)?);
    if SETTINGS
        .iter()
        .all(|key| ours.get(*key) == theirs.get(*key))
    {
        return Ok(None);
    }
    let mut settings = DocumentMut::new();
    for (key, item) in editable(file.1)?.iter() {
        if SETTINGS.contains(&key) {
            settings.insert(key, headed(item));
        }
    }
    let (live, settings) = (without_settings(text)?, settings.to_string());
    let (live, name) = (live.trim_end(), file.0.display());
    Ok(Some(format!(
        "{live}\n\n# The settings of {name}:\n{settings}"
    )))
}

/// The text with each line of its settings turned into a comment.
fn without_settings(text: &str) -> Result<String, String> {
    let document = Document::parse(text).map_err(|error| error.to_string())?;
    let mut spans = Vec::new();
    for key in SETTINGS {
        if let Some((name, item)) = document.as_table().get_key_value(key) {
            spans.extend(name.span());
            spans_of(item, &mut spans);
        }
    }
    let line = |at: usize| {
        text.get(..at)
            .map_or(0, |before| before.matches('\n').count())
    };
    let spans = spans.into_iter().filter(|span| !span.is_empty());
    let theirs: BTreeSet<usize> = spans
        .flat_map(|span| line(span.start)..=line(span.end - 1))
        .collect();
    let lines = text.split_inclusive('\n').enumerate();
    let lines = lines.map(|(number, line)| {
        let has_content = !line.trim().is_empty() && !line.starts_with('#');
        let mark = if has_content && theirs.contains(&number) {
            "# "
        } else {
            ""
        };
        [mark, line].concat()
    });
    Ok(lines.collect())
}

/// The spans of an item and its content.
fn spans_of(item: &Item, spans: &mut Vec<Range<usize>>) {
    let table = item.as_table_like();
    // Other keys may stand between the parts of a dotted table.
    if !table.is_some_and(TableLike::is_dotted) {
        spans.extend(item.span());
    }
    if let Some(table) = table {
        spans_in(table, spans);
    }
    for table in item.as_array_of_tables().into_iter().flatten() {
        spans.extend(table.span());
        spans_in(table, spans);
    }
}

fn spans_in(table: &dyn TableLike, spans: &mut Vec<Range<usize>>) {
    for (name, item) in table.iter() {
        spans.extend(table.key(name).and_then(|key| key.span()));
        spans_of(item, spans);
    }
}

/// A warning for each setting of the document `config`, whose text is `text`, that differs from the
/// configuration file.
///
/// # Errors
/// If the text is not TOML.
pub(super) fn ignored(config: &Config, text: &str, file: &Config) -> Result<Vec<String>, String> {
    let tables = tables(text)?;
    let differing = Fixed::of(file).differing(config).into_iter();
    // A default of the document is not a setting that is ignored.
    let set = differing.filter(|(table, key)| {
        let table = tables.get(*table).and_then(toml::Value::as_table);
        table.is_some_and(|table| table.contains_key(*key))
    });
    let name = file.path().unwrap_or(Path::new("")).display();
    let warnings = set.map(|(table, key)| {
        format!("{table}.{key} is ignored: settings come from {name}; change it there and restart")
    });
    Ok(warnings.collect())
}

fn tables(text: &str) -> Result<toml::Table, String> {
    text.parse()
        .map_err(|error: toml::de::Error| error.to_string())
}

fn editable(text: &str) -> Result<DocumentMut, String> {
    text.parse()
        .map_err(|error: toml_edit::TomlError| error.to_string())
}

/// The table with a header of its own.
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
    fn document_lines_keep_their_numbers() {
        let text = "# first\nlimits.io_queues = 3\nreactor = { count = 1 }\n[[port]]\n\
            traddr = \"a\"\n\n[control]\n# theirs\nsocket = \"\"\"\n#\n\n  x\"\"\" # y\n\n\
            [limits]\n[ha]\ngateway = \"a\"\n[[ha.group]]\nid = 1\n[[port]]\ntraddr = \"b\"\n";
        let bare = text.replace("limits.io_queues = 3\n", "\n");
        for text in [text.replace("[limits]", "[shm]"), bare] {
            let merged = merged(&text, (Path::new("f"), "limits.io_queues = 5\n"));
            let merged = merged.unwrap().unwrap();
            let _: toml::Table = merged.parse().unwrap();
            for (was, is) in text.lines().zip(merged.lines()) {
                let kept = was.starts_with("traddr") || was.starts_with("[[port");
                let expected = if kept {
                    was.to_owned()
                } else {
                    format!("# {was}")
                };
                let bare = was.is_empty() || was.starts_with('#');
                assert_eq!(is, if bare { was } else { &expected });
            }
            assert!(merged.ends_with("\n\n# The settings of f:\n[limits]\nio_queues = 5\n"));
        }
    }

    #[test]
    fn arrays_of_settings_come_from_the_file() {
        let group = |id| format!("[ha]\ngateway = \"a\"\n[[ha.group]]\nid = {id}\n");
        let two = format!(
            "{}[[ha.group]]\nid = 3\n[[port]]\ntraddr = \"c\"\n",
            group(2)
        );
        let both = both(&format!("{}[[port]]\ntraddr = \"b\"\n", group(1)), &two).unwrap();
        let expected = "ha = { gateway = \"a\", group = [{ id = 2 }, { id = 3 }] }\n\
            port = [{ traddr = \"b\" }]\n";
        assert_eq!(both, expected.parse().unwrap());
    }

    #[test]
    fn keys_between_settings_are_kept() {
        let text = "limits.io_queues = 3\ndiscovery.nqn = \"d\"\nlimits.queue_depth = 64\n\
            [[port]]\ntraddr = \"a\"\n";
        let both = both(text, "").unwrap();
        assert_eq!(both["discovery"]["nqn"].as_str(), Some("d"));
        assert!(!both.contains_key("limits"));
    }

    #[test]
    fn settings_come_from_the_file_and_other_keys_from_the_document() {
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
