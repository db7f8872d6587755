//! Lines of the log about peers: each says whom it is about.

use proc_macro2::{TokenStream, TokenTree};

use crate::Problem;

/// Lines that people read.
const LEVELS: &[&str] = &["error", "warn", "info"];
/// Fields that say whom or what a line is about.
const ABOUT: &[&str] = &[
    "peer", "device", "addr", "address", "disk", "path", "process",
];

/// Lines of the log in a source file that say of nobody whom they are about, by their
/// texts: `tracing::warn!("...")` without a field such as `peer`.
///
/// # Errors
/// A file that is no Rust.
pub fn about_nobody(source: &str) -> Result<Vec<String>, Problem> {
    let tokens: TokenStream = source
        .parse()
        .map_err(|error| format!("a source of log lines is no Rust: {error}"))?;
    let mut found = Vec::new();
    walk(tokens, &mut found);
    Ok(found)
}

fn walk(tokens: TokenStream, found: &mut Vec<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else {
            continue;
        };
        let before = tokens.get(at.saturating_sub(5)..at).unwrap_or_default();
        let before: String = before.iter().map(ToString::to_string).collect();
        let level = before.strip_prefix("tracing::");
        let level = level.and_then(|level| level.strip_suffix('!'));
        if level.is_some_and(|level| LEVELS.contains(&level)) {
            found.extend(lacks(group.stream()));
        }
        walk(group.stream(), found);
    }
}

/// The text of a line, unless a field before it says whom it is about.
fn lacks(line: TokenStream) -> Option<String> {
    for token in line {
        match token {
            TokenTree::Ident(ident) if ABOUT.contains(&ident.to_string().as_str()) => return None,
            TokenTree::Literal(text) => return Some(text.to_string()),
            _ => {}
        }
    }
    Some(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_whom_it_is_about() {
        let source = r#"
            fn f() {
                tracing::warn!("it is gone");
                if x { tracing::info!(qp = ?id, "it came: {why}"); }
                tracing::error!(%peer, left_out, "it failed");
                tracing::warn!(peer = %conn.peer, "it failed");
                tracing::warn!(device = adapter.name, "port is down");
                tracing::debug!("who reads this has the code");
                of_peer!(warn, self, "all of them");
            }
        "#;
        let found = about_nobody(source).unwrap();
        assert_eq!(found, ["\"it is gone\"", "\"it came: {why}\""]);
        assert!(about_nobody("fn f( {").is_err());
    }
}
