//! Texts for users in the sources: messages, remedies, help. Formatted values are `…` here.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::Problem;

/// Macros and attributes whose texts users see only after a bug, or never.
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

/// All texts of a source file for users, including remedies, without docstrings.
///
/// # Errors
/// A file that is no Rust.
pub fn texts(source: &str) -> Result<BTreeSet<String>, Problem> {
    let mut found = BTreeSet::new();
    let tokens = parse(source)?;
    within(tokens, "", &mut |path, literal| {
        if !INTERNAL.contains(&path) {
            found.extend(template(literal).filter(|text| says_something(text)));
        }
    });
    Ok(found)
}

fn parse(source: &str) -> Result<TokenStream, Problem> {
    source
        .parse()
        .map_err(|error| format!("a source of messages is no Rust: {error}"))
}

/// Calls `each` with every literal and its context: the name before the parentheses or after
/// the `#[`, or nothing. Test modules are omitted.
fn within(tokens: TokenStream, around: &str, each: &mut impl FnMut(&str, &str)) {
    let (mut name, mut left_out) = (String::new(), false);
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => {
                name = ident.to_string();
            }
            TokenTree::Literal(literal) => {
                // The arguments of a name do not belong to the outer context.
                let place = if name.is_empty() { around } else { &name };
                each(place, &literal.to_string());
            }
            TokenTree::Punct(punct) => {
                // The path of a macro or an attribute continues; other tokens separate.
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
                    Delimiter::Parenthesis if !name.is_empty() => name.clone(),
                    // Alternatives for a part of a message.
                    Delimiter::Brace => String::new(),
                    _ => around.to_owned(),
                };
                within(group.stream(), &around, each);
                name.clear();
            }
        }
    }
}

/// The text of a literal with `…` for formatted values; `None` if it is no text.
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

/// Whether it has words besides formatted values.
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
            log_peer!(warn, self, "it is gone: {why}");
            log_peer!(info, self, "it is back as it was");
            list.get(0).expect("a list is never empty here");
        }
        #[command(after_help = "how to use it well")]
        fn unasked_remedy() -> &'static str { "do this and that then" }
        #[cfg(test)]
        mod tests { fn t() { wrong("this is only a test"); } }
    "#;

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
}
