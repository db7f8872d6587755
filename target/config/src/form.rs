//! From text to tables: finds every unknown key and every value of a wrong type.
//!
//! serde stops at the first error. Each entry that it refuses is overwritten with spaces,
//! which moves no line, and the rest is read again.

use std::ops::Range;
use std::path::Path;

use toml_edit::{Document, Item, Table, TableLike};

use super::error::ConfigError;
use super::locations::{self, Found};
use super::raw::RawConfig;

/// Most errors that are reported at once.
const MOST_ERRORS: usize = 20;

/// Arrays of tables.
const ARRAYS: [&str; 7] = [
    "ha.group",
    "host",
    "port",
    "port.ana_group",
    "referral",
    "subsystem",
    "subsystem.namespace",
];

/// Reads the content of a file.
///
/// # Errors
/// [`ConfigError`] of the first error, with the others attached.
pub(crate) fn read(path: &Path, text: &str) -> Result<RawConfig, ConfigError> {
    let mut left = text.to_owned();
    let mut errors = Vec::new();
    // Keys that are now missing only because they were overwritten.
    let mut overwritten = Vec::new();
    while errors.len() < MOST_ERRORS {
        let fault = match wrong_kind(&left) {
            Some(fault) => fault,
            None => match toml::from_str(&left) {
                Ok(raw) if errors.is_empty() => return Ok(raw),
                Ok(_) => break,
                Err(error) => Fault::of(&left, &error),
            },
        };
        if !fault.is_missing_one_of(&overwritten) {
            errors.push(ConfigError::at(path, text, fault.at, &fault.what));
        }
        let Some(entry) = fault.entry else { break };
        overwritten.extend(fault.key);
        overwrite(&mut left, entry);
    }
    Err(ConfigError::joined(errors).unwrap_or_else(|| {
        // An error was found before the loop could end.
        ConfigError::plain(path, "cannot be read as a configuration".to_owned())
    }))
}

/// One error in the text.
struct Fault {
    /// Byte offset in the text.
    at: Option<usize>,
    what: String,
    /// The key, after the names of its tables.
    key: Option<String>,
    /// The part to overwrite before the rest can be read; `None`: the text is not TOML.
    entry: Option<Range<usize>>,
}

impl Fault {
    fn of(text: &str, error: &toml::de::Error) -> Self {
        let at = error.span().map(|span| span.start);
        let found = at.and_then(|at| locations::at(text, at));
        let message = error.message();
        let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
        let entry = at.and_then(|at| entry(text, at));
        let (key, what) = match (&found, names.as_slice()) {
            (_, [name, known @ ..]) if message.starts_with("unknown field") => (
                None,
                unknown(name, known, at.is_some_and(|at| is_header(text, at))),
            ),
            (found, [name, ..]) if message.starts_with("missing field") => {
                let table = match found {
                    Some(Found::Table(table) | Found::Key(table)) => format!("{table}."),
                    None => String::new(),
                };
                (
                    Some(format!("{table}{name}")),
                    format!("{name}: missing; it is required"),
                )
            }
            (_, _) if message.starts_with("duplicate key") => {
                let name = error.span().and_then(|span| text.get(span));
                let name = name.unwrap_or("a key").trim();
                (
                    None,
                    format!("{name}: set twice in the same table; remove one"),
                )
            }
            (Some(Found::Key(path)), _) => {
                let name = path.rsplit('.').next().unwrap_or(path);
                (
                    Some(path.clone()),
                    format!("{name}: {}", in_toml_terms(message)),
                )
            }
            _ => (None, in_toml_terms(message)),
        };
        Self {
            at,
            what,
            key,
            entry,
        }
    }

    fn is_missing_one_of(&self, overwritten: &[String]) -> bool {
        let key = self.key.as_ref();
        self.what.contains("missing; it is required")
            && key.is_some_and(|key| overwritten.contains(key))
    }
}

/// The message for an unknown key or table, with the most similar known one.
fn unknown(name: &str, known: &[&str], is_table: bool) -> String {
    let item = if is_table { "table" } else { "key" };
    let alike = |other: &&&str| strsim::damerau_levenshtein(name, other) <= 1 + name.len() / 4;
    let nearest = known
        .iter()
        .filter(alike)
        .min_by_key(|other| strsim::damerau_levenshtein(name, other));
    match nearest {
        Some(nearest) => format!("{name}: unknown {item}; did you mean {nearest}?"),
        None => format!("{name}: unknown {item}; known here: {}", known.join(", ")),
    }
}

/// The message of serde with types of TOML instead of types of Rust.
fn in_toml_terms(message: &str) -> String {
    let integers = [
        ("u8", "0-255"),
        ("u16", "0-65535"),
        ("u32", "0-4294967295"),
        ("u64", "0 or more"),
        ("usize", "0 or more"),
    ];
    let Some((given, expected)) = message.split_once(", expected ") else {
        return message.to_owned();
    };
    let integer = integers.iter().find(|(name, _)| *name == expected.trim());
    let expected = match integer {
        Some((_, range)) => format!("an integer ({range})"),
        None => expected.trim().to_owned(),
    };
    let value = given.split_once(": ").map_or(given, |(_, value)| value);
    format!("{}: must be {expected}", value.replace('`', ""))
}

/// An array of tables that is written as a table, or the reverse.
fn wrong_kind(text: &str) -> Option<Fault> {
    let document = Document::parse(text).ok()?;
    kind_in(text, document.as_table(), "")
}

fn kind_in(text: &str, table: &Table, names: &str) -> Option<Fault> {
    for (name, item) in table.iter() {
        let path = format!("{names}{name}");
        let is_array = ARRAYS.contains(&path.as_str());
        let wrong = match item {
            Item::Table(table) if is_array => Some((
                table,
                format!("{name}: must be written as [[{path}]] (an array of tables)"),
            )),
            Item::ArrayOfTables(tables) if !is_array => {
                let table = tables.iter().next()?;
                let what = format!("{name}: must be written as [{path}] (a single table)");
                Some((table, what))
            }
            _ => None,
        };
        // A table without a header of its own is implied by another one.
        if let Some((table, what)) = wrong
            && let Some(span) = table.span()
            && is_header(text, span.start)
        {
            return Some(Fault {
                at: Some(span.start),
                what,
                key: None,
                entry: section(text, span.start),
            });
        }
        let below = format!("{path}.");
        let found = match item {
            Item::Table(table) => kind_in(text, table, &below),
            Item::ArrayOfTables(tables) => tables.iter().find_map(|one| kind_in(text, one, &below)),
            _ => None,
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Whether that byte is in the header of a table.
fn is_header(text: &str, at: usize) -> bool {
    let line = line_of(text, at);
    text.get(line)
        .is_some_and(|line| line.trim_start().starts_with('['))
}

/// The line of that byte, without the newline.
fn line_of(text: &str, at: usize) -> Range<usize> {
    let start = text.get(..at).and_then(|before| before.rfind('\n'));
    let start = start.map_or(0, |end| end + 1);
    let end = text.get(start..).and_then(|rest| rest.find('\n'));
    start..end.map_or(text.len(), |len| start + len)
}

/// The range to overwrite for the value at that byte: its key and value, or its whole table.
fn entry(text: &str, at: usize) -> Option<Range<usize>> {
    if is_header(text, at) {
        return section(text, at);
    }
    let document = Document::parse(text).ok()?;
    outermost(document.as_table(), at).or_else(|| section(text, at))
}

/// The outermost key and value that contain that byte.
fn outermost(table: &dyn TableLike, at: usize) -> Option<Range<usize>> {
    table.iter().find_map(|(name, item)| match item {
        Item::Table(table) => outermost(table, at),
        Item::ArrayOfTables(tables) => tables.iter().find_map(|one| outermost(one, at)),
        _ => {
            let key = table.key(name)?.span()?;
            let whole = key.start..item.span()?.end;
            whole.contains(&at).then_some(whole)
        }
    })
}

/// The table whose header or key is at that byte, with its subtables: up to the header of the
/// next other table.
fn section(text: &str, at: usize) -> Option<Range<usize>> {
    let before = text.get(..line_of(text, at).end)?;
    let headers = |text: &str, from: usize| {
        let mut start = from;
        let mut found = Vec::new();
        for line in text.split_inclusive('\n') {
            if line.trim_start().starts_with('[') {
                let name = line.trim().trim_matches(|c| c == '[' || c == ']');
                found.push((start, name.to_owned()));
            }
            start += line.len();
        }
        found
    };
    let (start, name) = headers(before, 0).pop()?;
    let below = format!("{name}.");
    let after = line_of(text, start).end;
    let next = headers(text.get(after..)?, after);
    let next = next
        .into_iter()
        .find(|(_, other)| !other.starts_with(&below));
    Some(start..next.map_or(text.len(), |(at, _)| at))
}

fn overwrite(text: &mut String, range: Range<usize>) {
    let spaces: String = text
        .get(range.clone())
        .unwrap_or_default()
        .bytes()
        .map(|byte| if byte == b'\n' { '\n' } else { ' ' })
        .collect();
    text.replace_range(range, &spaces);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn errors(text: &str) -> Vec<String> {
        let error = read(Path::new("t"), text).unwrap_err();
        error.to_string().lines().map(str::to_owned).collect()
    }

    #[test]
    fn every_wrong_key_and_value_is_reported_in_order_of_lines() {
        let text = "\
[limits]
io_queue = 4
queue_depth = \"x\"
[[port]]
traddr = \"127.0.0.1\"
trsvcid = 70000
[reactr]
count = 2
[[subsystem]]
nqn = 7
[[subsystem.namespace]]
path = \"ram:1M\"
readonly = 1
";
        let expected = [
            "t:2: io_queue: unknown key; did you mean io_queues?",
            "t:3: queue_depth: string \"x\": must be an integer (0-65535)",
            "t:6: trsvcid: integer 70000: must be an integer (0-65535)",
            "t:7: reactr: unknown table; did you mean reactor?",
            "t:10: nqn: integer 7: must be a string",
            "t:11: nsid: missing; it is required",
            "t:13: readonly: integer 1: must be a boolean",
        ];
        assert_eq!(errors(text), expected);
    }

    #[test]
    fn table_instead_of_array_of_tables_is_reported() {
        let text = "[port]\ntraddr = \"127.0.0.1\"\n[[limits]]\nio_queues = 1\n";
        let expected = [
            "t:1: port: must be written as [[port]] (an array of tables)",
            "t:3: limits: must be written as [limits] (a single table)",
        ];
        assert_eq!(errors(text), expected);
        let text = "[[subsystem]]\nnqn = \"a\"\n[subsystem.namespace]\nnsid = 1\n";
        let expected =
            "t:3: namespace: must be written as [[subsystem.namespace]] (an array of tables)";
        assert_eq!(errors(text), [expected]);
    }

    #[test]
    fn duplicate_key_is_reported() {
        let text = "[[port]]\ntraddr = \"127.0.0.1\"\ntraddr = \"127.0.0.2\"\n";
        assert_eq!(
            errors(text),
            ["t:3: traddr: set twice in the same table; remove one"]
        );
    }

    #[test]
    fn unknown_key_without_similar_key_is_reported_with_all_keys() {
        let [error] = errors("[metrics]\nxyz = 1\n").try_into().unwrap();
        assert!(
            error.starts_with("t:2: xyz: unknown key; known here: listen"),
            "{error}"
        );
    }

    #[test]
    fn invalid_toml_is_one_error() {
        let [error] = errors("[metrics]\nlisten = \n").try_into().unwrap();
        assert!(error.starts_with("t:2: "), "{error}");
    }

    #[test]
    fn errors_inside_of_inline_tables_and_lists_end() {
        let text = "[[port]]\ntraddr = { a = 1 }\nprovider = [1, 2]\n";
        assert_eq!(errors(text).len(), 2);
        // More than the limit.
        let many = "[metrics]\n".to_owned()
            + &(0..99).fold(String::new(), |all, n| all + &format!("k{n} = 1\n"));
        assert_eq!(errors(&many).len(), MOST_ERRORS);
    }
}
