//! Positions of keys in the text of a configuration, and the key at a position.

use std::ops::Range;

use toml_edit::{Document, Item, TableLike, Value};

/// What is at a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// This key or its value: the names of its tables and of the key, separated by dots.
    Key(String),
    /// The header of the table of that name.
    Table(String),
}

/// What is at byte `at` of `text`. `None` if that is neither a key nor a header, or the text is
/// not TOML.
pub(crate) fn at(text: &str, at: usize) -> Option<Found> {
    let document = Document::parse(text).ok()?;
    let mut search = Search {
        at,
        table: None,
        key: None,
    };
    search.tables(document.as_table(), "");
    let key = search.key.map(Found::Key);
    key.or_else(|| search.table.map(Found::Table))
}

/// Position in `text` of `key` in the table `[table]`, or of the table if the key is not set.
pub(crate) fn of(text: &str, table: &str, key: &str) -> Option<usize> {
    let document = Document::parse(text).ok()?;
    let its = document.as_table().get(table)?;
    let given = its.as_table_like()?.get_key_value(key);
    let span = given.and_then(|(key, _)| key.span());
    span.or_else(|| its.span()).map(|span| span.start)
}

struct Search {
    at: usize,
    table: Option<String>,
    key: Option<String>,
}

impl Search {
    fn tables(&mut self, table: &dyn TableLike, names: &str) {
        for (name, item) in table.iter() {
            let path = match names {
                "" => name.to_owned(),
                names => format!("{names}.{name}"),
            };
            let key = table.key(name).and_then(|key| key.span());
            self.item(key, item, &path);
        }
    }

    fn item(&mut self, key: Option<Range<usize>>, item: &Item, path: &str) {
        match item {
            Item::Table(table) => self.header(table.span(), table, path),
            Item::ArrayOfTables(tables) => {
                for table in tables {
                    self.header(table.span(), table, path);
                }
            }
            Item::Value(Value::InlineTable(table)) => {
                self.leaf(key, item.span(), path);
                self.tables(table, path);
            }
            _ => self.leaf(key, item.span(), path),
        }
    }

    fn header(&mut self, span: Option<Range<usize>>, table: &dyn TableLike, path: &str) {
        if span.is_some_and(|span| span.contains(&self.at)) {
            self.table = Some(path.to_owned());
        }
        self.tables(table, path);
    }

    /// A later match is nested deeper and replaces an earlier one.
    fn leaf(&mut self, key: Option<Range<usize>>, value: Option<Range<usize>>, path: &str) {
        let (Some(key), Some(value)) = (key, value) else {
            return;
        };
        if (key.start..value.end).contains(&self.at) {
            self.key = Some(path.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
name = 'é'
[limits]
  queue_depth = 5 # reactor = 1
[[port]]
traddr = \"a\"
[[port]]
provider = [
  \"iwarp\",
  \"shm\",
]
[[subsystem]]
nqn = \"x\"
access = { hosts = [1], any = true }
[[subsystem.namespace]]
nsid = 1
";

    fn found(what: &str) -> Option<Found> {
        at(TEXT, TEXT.find(what).unwrap())
    }

    #[test]
    fn key_at_position_is_found() {
        for (what, key) in [
            ("name", "name"),
            ("'é'", "name"),
            ("queue_depth", "limits.queue_depth"),
            ("5 #", "limits.queue_depth"),
            ("\"a\"", "port.traddr"),
            ("\"shm\"", "port.provider"),
            ("nqn", "subsystem.nqn"),
            ("hosts", "subsystem.access.hosts"),
            ("true", "subsystem.access.any"),
            ("nsid", "subsystem.namespace.nsid"),
        ] {
            assert_eq!(found(what), Some(Found::Key(key.to_owned())), "{what}");
        }
        let table = |name: &str| Some(Found::Table(name.to_owned()));
        assert_eq!(found("[limits]"), table("limits"));
        assert_eq!(found("[[port]]"), table("port"));
        assert_eq!(found("[[subsystem]]"), table("subsystem"));
        assert_eq!(
            found("[[subsystem.namespace]]"),
            table("subsystem.namespace")
        );
        assert_eq!(found("# reactor"), None);
        assert_eq!(at(TEXT, TEXT.len() + 1), None);
        assert_eq!(at("a = ", 0), None);
    }

    #[test]
    fn position_of_unset_key_is_that_of_its_table() {
        let location = |what: &str| TEXT.find(what);
        assert_eq!(of(TEXT, "limits", "queue_depth"), location("queue_depth"));
        assert_eq!(of(TEXT, "limits", "other"), location("[limits]"));
        assert_eq!(of(TEXT, "reactor", "cores"), None);
    }
}
