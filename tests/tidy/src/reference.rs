//! The configuration reference, generated from the structures that serde reads.
//!
//! A table of the file is a `struct Raw...` with named fields; a key is a field. Its docstring
//! describes the key. A last paragraph ``Default: `VALUE` `` has its default. No other code has
//! all keys, so the reference is always up to date.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use syn::{Attribute, Expr, Fields, Item, ItemStruct, Lit, Meta, Type};

use crate::Problem;

/// The structure of the whole file.
const WHOLE: &str = "RawConfig";

/// A table of the configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    /// Its header in the file, such as `[limits]` or `[[subsystem.namespace]]`.
    pub header: String,
    /// Description.
    pub about: String,
    /// Its keys, in the order of the code.
    pub keys: Vec<Key>,
}

/// A key of a table.
#[derive(Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: String,
    /// Type of its value.
    pub kind: &'static str,
    /// Whether it must be set.
    pub required: bool,
    /// Its default, as TOML.
    pub default: Option<String>,
    /// Description.
    pub about: String,
}

/// The tables that `sources` read, in the order of the code.
///
/// # Errors
/// Sources that cannot be parsed, and keys and tables without a docstring.
pub fn tables(sources: &[String]) -> Result<Vec<Table>, Vec<Problem>> {
    let mut structs = BTreeMap::new();
    let mut problems = Vec::new();
    for source in sources {
        match syn::parse_file(source) {
            Ok(file) => structs.extend(file.items.into_iter().filter_map(|item| match item {
                Item::Struct(item) if matches!(item.fields, Fields::Named(_)) => {
                    Some((item.ident.to_string(), item))
                }
                _ => None,
            })),
            Err(error) => problems.push(format!("a source of the configuration: {error}")),
        }
    }
    let mut found = Vec::new();
    match structs.get(WHOLE) {
        Some(whole) => walk(whole, "", &structs, &mut found, &mut problems),
        None => problems.push(format!("there is no struct {WHOLE}")),
    }
    if problems.is_empty() {
        Ok(found)
    } else {
        Err(problems)
    }
}

fn walk(
    table: &ItemStruct,
    path: &str,
    structs: &BTreeMap<String, ItemStruct>,
    found: &mut Vec<Table>,
    problems: &mut Vec<Problem>,
) {
    let (mut keys, mut below) = (Vec::new(), Vec::new());
    for field in &table.fields {
        let name = name(field);
        let inner = Inner::of(&field.ty);
        let place = match path {
            "" => name.clone(),
            path => format!("{path}.{name}"),
        };
        if let Some(table) = structs.get(&inner.name) {
            below.push((table, place, inner.list));
            continue;
        }
        let (about, default) = split(&doc(&field.attrs));
        if about.is_empty() {
            problems.push(format!(
                "configuration: the key {place} has no docstring; describe it and its values"
            ));
        }
        keys.push(Key {
            name,
            kind: inner.kind(),
            required: !inner.optional && !has_default(&field.attrs),
            default,
            about,
        });
    }
    if !path.is_empty() || !keys.is_empty() {
        let about = doc(&table.attrs);
        if about.is_empty() {
            problems.push(format!("configuration: the table {path} has no docstring"));
        }
        found.push(Table {
            header: path.to_owned(),
            about,
            keys,
        });
    }
    for (table, place, list) in below {
        let at = found.len();
        walk(table, &place, structs, found, problems);
        if let Some(table) = found.get_mut(at) {
            table.header = if list {
                format!("[[{place}]]")
            } else {
                format!("[{place}]")
            };
        }
    }
}

/// The type of a value without `Option`, `Vec`, `Spanned` and `Box`.
struct Inner {
    name: String,
    optional: bool,
    list: bool,
}

impl Inner {
    fn of(ty: &Type) -> Self {
        let Type::Path(path) = ty else {
            return Self::named("");
        };
        let Some(last) = path.path.segments.last() else {
            return Self::named("");
        };
        let inner = match &last.arguments {
            syn::PathArguments::AngleBracketed(arguments) => {
                arguments.args.iter().find_map(|argument| match argument {
                    syn::GenericArgument::Type(ty) => Some(Self::of(ty)),
                    _ => None,
                })
            }
            _ => None,
        };
        let name = last.ident.to_string();
        match (name.as_str(), inner) {
            ("Option", Some(inner)) => Self {
                optional: true,
                ..inner
            },
            ("Vec", Some(inner)) => Self {
                list: true,
                ..inner
            },
            ("Spanned" | "Box", Some(inner)) => inner,
            _ => Self::named(&name),
        }
    }

    fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            optional: false,
            list: false,
        }
    }

    /// The type for the reference.
    fn kind(&self) -> &'static str {
        match (self.name.as_str(), self.list) {
            ("bool", false) => "true or false",
            ("u8" | "u16" | "u32" | "u64" | "usize" | "i64", false) => "number",
            ("Size" | "Size32", false) => "size",
            ("RawCores" | "RawProvider" | "RawNames", false) => "text or list",
            ("RawUntil", false) => "date",
            (_, true) => "list",
            (_, false) => "text",
        }
    }
}

fn name(field: &syn::Field) -> String {
    let renamed = serde(&field.attrs).find_map(|words| {
        let (_, value) = words.split_once("rename = \"")?;
        Some(value.split('"').next()?.to_owned())
    });
    let own = || field.ident.as_ref().map(ToString::to_string);
    let name = renamed.or_else(own).unwrap_or_default();
    name.trim_start_matches("r#").to_owned()
}

fn has_default(attributes: &[Attribute]) -> bool {
    serde(attributes).any(|words| words.starts_with("default"))
}

/// The tokens of each `#[serde(...)]`.
fn serde(attributes: &[Attribute]) -> impl Iterator<Item = String> {
    attributes.iter().filter_map(|attribute| {
        let Meta::List(list) = &attribute.meta else {
            return None;
        };
        list.path.is_ident("serde").then(|| list.tokens.to_string())
    })
}

/// The docstring.
fn doc(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| {
        let Meta::NameValue(pair) = &attribute.meta else {
            return None;
        };
        let Expr::Lit(literal) = &pair.value else {
            return None;
        };
        match &literal.lit {
            Lit::Str(text) if pair.path.is_ident("doc") => Some(text.value().trim().to_owned()),
            _ => None,
        }
    });
    lines.collect::<Vec<_>>().join("\n").trim().to_owned()
}

/// The description and the default.
fn split(doc: &str) -> (String, Option<String>) {
    let (about, default) = match doc.split_once("Default: `") {
        Some((about, default)) => (about, default.split('`').next().map(str::to_owned)),
        None => (doc, None),
    };
    let words: Vec<&str> = about.split_whitespace().collect();
    (words.join(" "), default)
}

/// The document.
#[must_use]
pub fn markdown(tables: &[Table]) -> String {
    let mut out = String::from(
        "# Configuration reference\n\n\
         Every key of the configuration file, generated from the code that reads it.\n\
         [configuration.md](configuration.md) explains how to use them.\n\n\
         A size is a number of bytes or text such as `\"64M\"`; K, M, G and T are powers of\n\
         1024. The description of an optional key without a default states what applies if it\n\
         is left out.\n",
    );
    for table in tables {
        let _ = write!(
            out,
            "\n## `{}`\n\n{}\n\n",
            table.header,
            one_line(&table.about)
        );
        out.push_str("| key | value | default | meaning |\n| --- | --- | --- | --- |\n");
        for key in &table.keys {
            let default = match &key.default {
                Some(default) => format!("`{default}`"),
                None if key.required => "required".to_owned(),
                None => String::new(),
            };
            let _ = writeln!(
                out,
                "| `{}` | {} | {default} | {} |",
                key.name,
                key.kind,
                key.about.replace('|', "\\|")
            );
        }
    }
    out.push_str(
        "\n## All defaults\n\nThis file has the same effect as its `[[port]]` table alone.\n",
    );
    let _ = write!(out, "\n```toml\n{}```\n", defaults(tables));
    out
}

/// The tables that are not arrays and need no key, with every default that is a value.
fn defaults(tables: &[Table]) -> String {
    let mut out = String::new();
    let is_optional = |table: &&Table| {
        !table.header.starts_with("[[") && !table.keys.iter().any(|key| key.required)
    };
    for table in tables.iter().filter(is_optional) {
        let _ = writeln!(out, "{}", table.header);
        for key in &table.keys {
            if let Some(default) = &key.default {
                let _ = writeln!(out, "{} = {default}", key.name);
            }
        }
        out.push('\n');
    }
    out.push_str("[[port]]\ntraddr = \"127.0.0.1\"\n");
    out
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const CODE: &str = r#"
        struct RawConfig {
            limits: Spanned<RawLimits>,
            ha: Option<Spanned<RawHa>>,
            port: Vec<Spanned<RawPort>>,
        }
        /// Sizes.
        struct RawLimits {
            /// Entries,
            /// 2 to 1024.
            ///
            /// Default: `256`
            #[serde(rename = "depth")]
            queue_depth: Option<u16>,
        }
        /// Names.
        struct RawHa {
            /// Who.
            name: String,
            /// Time.
            ///
            /// Default: `3`
            time: Option<u32>,
        }
        /// Places.
        struct RawPort {
            /// Where.
            traddr: Spanned<String>,
            /// Whether.
            #[serde(default)]
            on: bool,
            group: Vec<RawGroup>,
        }
        /// Groups.
        struct RawGroup { /** Which. */ id: u32 }
    "#;

    #[test]
    fn reference_has_tables_and_keys_of_the_code() {
        let tables = tables(&[CODE.to_owned()]).unwrap();
        let headers: Vec<_> = tables.iter().map(|table| table.header.as_str()).collect();
        assert_eq!(headers, ["[limits]", "[ha]", "[[port]]", "[[port.group]]"]);
        let text = markdown(&tables);
        for line in [
            "| `depth` | number | `256` | Entries, 2 to 1024. |",
            "| `traddr` | text | required | Where. |",
            "| `on` | true or false |  | Whether. |",
            "| `id` | number | required | Which. |",
            // A table with a required key has no default of its own.
            "[limits]\ndepth = 256\n\n[[port]]\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn key_or_table_without_docstring_is_reported() {
        let code = CODE.replace("/// Whether.", "").replace("/// Groups.", "");
        let problems = tables(&[code]).unwrap_err().join("\n");
        assert!(problems.contains("the key port.on"), "{problems}");
        assert!(problems.contains("the table port.group"), "{problems}");
    }
}
