//! The messages that a person may see, taken from the sources, and
//! `docs/troubleshooting.md`, which has each of them.
//!
//! A message is the text of an `#[error("...")]`, of an `error!` or of a `warn!`; and,
//! in files whose errors are written where they arise, every text that is a sentence.
//! What is put in when the program runs is `…` here and there.

mod no_trouble;

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::Problem;
use no_trouble::NO_TROUBLE;

/// Spaces that make a text a sentence.
const SENTENCE: usize = 3;

/// Macros whose texts go to the log as they are, to be read there.
const LOGGING: &[&str] = &["trace", "debug", "info"];
/// Macros and functions whose texts only a bug of ours shows, or that are a remedy.
const NO_MESSAGE: &[&str] = &[
    "assert",
    "assert_eq",
    "debug_assert",
    "debug_assert_eq",
    "expect",
    "panic",
    "remedy",
    "unreachable",
    "with_remedy",
];
/// What a person sees only in the sources, or after a bug of ours.
const INTERNAL: &[&str] = &[
    "assert",
    "assert_eq",
    "debug_assert",
    "debug_assert_eq",
    "doc",
    "expect",
    "include_str",
    "panic",
    "reason",
    "unreachable",
];
/// Keys of attributes whose texts are no messages: comments, and what `--help` says.
const TOLD_OTHERWISE: &[&str] = &[
    "after_help",
    "description",
    "doc",
    "help",
    "override_usage",
    "reason",
];

/// The messages of `#[error("...")]`, `error!` and `warn!` in a source file.
///
/// # Errors
/// A file that is no Rust.
pub fn declared(source: &str) -> Result<BTreeSet<String>, Problem> {
    let mut found = BTreeSet::new();
    let tokens = parse(source)?;
    walk(tokens, &mut |path, literal| {
        if ["error", "warn"].contains(&path) {
            found.extend(template(literal).filter(|text| says_something(text)));
        }
    });
    Ok(found)
}

/// Every sentence of a source file whose errors are written where they arise.
///
/// # Errors
/// A file that is no Rust.
pub fn sentences(source: &str) -> Result<BTreeSet<String>, Problem> {
    let mut found = BTreeSet::new();
    let tokens = parse(source)?;
    walk(tokens, &mut |path, literal| {
        if [TOLD_OTHERWISE, LOGGING, NO_MESSAGE]
            .concat()
            .contains(&path)
        {
            return;
        }
        let is_message = |text: &String| {
            text.matches(' ').count() >= SENTENCE
                && says_something(text)
                && !NO_TROUBLE.contains(&text.as_str())
        };
        found.extend(template(literal).filter(is_message));
    });
    Ok(found)
}

/// Every text of a source file that may reach a person, remedies as well; without
/// docstrings.
///
/// # Errors
/// A file that is no Rust.
pub fn texts(source: &str) -> Result<BTreeSet<String>, Problem> {
    let mut found = BTreeSet::new();
    let tokens = parse(source)?;
    within(tokens, "", Remedies::In, &mut |path, literal| {
        if !INTERNAL.contains(&path) {
            found.extend(template(literal).filter(|text| says_something(text)));
        }
    });
    Ok(found)
}

/// Checks that the rows of `document` are those messages and no others.
#[must_use]
pub fn check(document: &str, messages: &BTreeSet<String>) -> Vec<Problem> {
    let mut rows = BTreeSet::new();
    let mut problems = Vec::new();
    for (number, line) in document.lines().enumerate() {
        let Some(row) = line
            .strip_prefix("| ")
            .and_then(|row| row.strip_suffix(" |"))
        else {
            continue;
        };
        let at = format!("docs/troubleshooting.md:{}", number + 1);
        let Some((message, remedy)) = row.split_once(" | ") else {
            problems.push(format!("{at}: a row has a message and a remedy"));
            continue;
        };
        if message == "message" || message.starts_with("---") {
            continue;
        }
        if remedy.trim().is_empty() {
            problems.push(format!("{at}: say what to do"));
        }
        let message = message.replace("\\|", "|");
        if !messages.contains(&message) {
            problems.push(format!(
                "{at}: nothing says {message:?} any more; remove the row"
            ));
        }
        rows.insert(message);
    }
    for message in messages.difference(&rows) {
        problems.push(format!(
            "docs/troubleshooting.md: add a row with a remedy for {message:?}"
        ));
    }
    problems
}

fn parse(source: &str) -> Result<TokenStream, Problem> {
    source
        .parse()
        .map_err(|error| format!("a source of messages is no Rust: {error}"))
}

/// Calls `each` with every literal, and with what it stands in: the name before
/// the parentheses or after the `#[`, or nothing. Modules of tests are left out, and
/// functions that say what to do: no remedy needs another.
fn walk(tokens: TokenStream, each: &mut impl FnMut(&str, &str)) {
    within(tokens, "", Remedies::LeftOut, each);
}

/// Functions that say what to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Remedies {
    In,
    LeftOut,
}

fn within(
    tokens: TokenStream,
    around: &str,
    remedies: Remedies,
    each: &mut impl FnMut(&str, &str),
) {
    let (mut name, mut left_out) = (String::new(), false);
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => {
                let before = std::mem::replace(&mut name, ident.to_string());
                let is_remedy = before == "fn" && name.ends_with("remedy");
                left_out |= is_remedy && remedies == Remedies::LeftOut;
            }
            TokenTree::Literal(literal) => {
                // What a name is given is not of what stands around both.
                let place = if name.is_empty() { around } else { &name };
                each(place, &literal.to_string());
            }
            TokenTree::Punct(punct) => {
                // The path of a macro or of an attribute goes on; all else is
                // between two things.
                if !['!', ':', '=', '#'].contains(&punct.as_char()) {
                    name.clear();
                }
            }
            TokenTree::Group(group) => {
                let text = group.stream().to_string();
                let attribute = group.delimiter() == Delimiter::Bracket;
                if attribute && text.replace(' ', "") == "cfg(test)" {
                    left_out = true;
                    continue;
                }
                if group.delimiter() == Delimiter::Brace && left_out {
                    left_out = false;
                    continue;
                }
                let around = match group.delimiter() {
                    Delimiter::Parenthesis if !name.is_empty() => {
                        level_of(&group.stream()).unwrap_or_else(|| name.clone())
                    }
                    // What is chosen among for a place in a message.
                    Delimiter::Brace => String::new(),
                    _ => around.to_owned(),
                };
                within(group.stream(), &around, remedies, each);
                name.clear();
            }
        }
    }
}

/// The level that a macro of ours is told first, as in `of_peer!(warn, self, "...")`.
fn level_of(arguments: &TokenStream) -> Option<String> {
    let mut tokens = arguments.clone().into_iter();
    match (tokens.next(), tokens.next()) {
        (Some(TokenTree::Ident(level)), Some(TokenTree::Punct(comma))) => {
            let is_level = ["error", "warn", "info", "debug", "trace"]
                .iter()
                .any(|one| level == one);
            (is_level && comma.as_char() == ',').then(|| level.to_string())
        }
        _ => None,
    }
}

/// The text of a literal with `…` for what is put in; `None` when it is no text.
fn template(literal: &str) -> Option<String> {
    let text = syn::parse_str::<syn::LitStr>(literal).ok()?.value();
    let (mut out, mut depth) = (String::new(), 0_u32);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '{' | '}' if chars.peek() == Some(&c) => {
                chars.next();
                out.push(c);
            }
            '{' => depth += 1,
            '}' if depth > 0 => {
                depth -= 1;
                out.push('…');
            }
            c if depth == 0 => out.push(c),
            _ => {}
        }
    }
    Some(out.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Whether there are words of its own in it.
fn says_something(template: &str) -> bool {
    template.chars().any(char::is_alphabetic)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const CODE: &str = r#"
        /// A comment of some more words.
        #[derive(Debug)]
        enum Error {
            #[error("{path}: is not there; make {it:?}", path = .0.display())]
            Missing(PathBuf),
            #[error("{0}")]
            Other(String),
            #[error(
                "in two \
                 lines"
            )]
            Lines,
        }
        #[allow(dead_code, reason = "one two three four")]
        fn f() {
            tracing::info!("all is well as it should");
            wrong("key: must be 1 to 2");
            wrong(&format!("must be {low} to {high}, {{really}}"));
            tracing::warn!(device = "x", "it is slow: {why}");
            of_peer!(warn, self, "it is gone: {why}");
            of_peer!(info, self, "it is back as it was");
            list.get(0).expect("a list is never empty here");
        }
        #[command(after_help = "how to use it well")]
        fn unasked_remedy() -> &'static str { "do this and that then" }
        #[cfg(test)]
        mod tests { fn t() { wrong("this is only a test"); } }
    "#;

    fn set(texts: &[&str]) -> BTreeSet<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn messages_are_found_where_they_are() {
        let expected = set(&[
            "…: is not there; make …",
            "in two lines",
            "it is slow: …",
            "it is gone: …",
        ]);
        assert_eq!(declared(CODE).unwrap(), expected);
        let sentences = sentences(CODE).unwrap();
        assert!(sentences.contains("key: must be 1 to 2"), "{sentences:?}");
        assert!(
            sentences.contains("must be … to …, {really}"),
            "{sentences:?}"
        );
        assert_eq!(sentences.len(), 5, "{sentences:?}");
    }

    #[test]
    fn texts_have_remedies_and_help_besides() {
        let texts = texts(CODE).unwrap();
        for text in [
            "do this and that then",
            "how to use it well",
            "it is slow: …",
        ] {
            assert!(texts.contains(text), "{text}: {texts:?}");
        }
        for text in ["a list is never empty here", "this is only a test"] {
            assert!(!texts.contains(text), "{text}: {texts:?}");
        }
    }

    #[test]
    fn rows_and_messages_must_agree() {
        let messages = set(&["a | b", "c"]);
        let head = "| message | what to do |\n| --- | --- |\n";
        let good = format!("{head}| a \\| b | x |\n| c | y |\n");
        // The escaped bar is not the end of a cell.
        assert_eq!(check(&good, &messages), [] as [&str; 0]);
        let missing = check(&format!("{head}| c | y |\n"), &messages);
        assert!(missing.join("\n").contains("add a row"), "{missing:?}");
        let stale = check(&format!("{good}| d | z |\n"), &messages);
        assert!(stale.join("\n").contains("any more"), "{stale:?}");
        let empty = check(&good.replace("| y |", "|  |"), &messages);
        assert!(empty.join("\n").contains("say what to do"), "{empty:?}");
    }
}
