//! Lines of the log about peers: each says whom it is about.

use proc_macro2::{TokenStream, TokenTree};

use crate::Problem;

/// Lines that people read.
const LEVELS: &[&str] = &["error", "warn", "info"];
/// Fields that say whom or what a line is about.
const ABOUT: &[&str] = &[
    "peer", "device", "addr", "address", "disk", "path", "process",
];

/// Each of them.
const ALL_LEVELS: &[&str] = &["error", "warn", "info", "debug", "trace"];

/// Lines of the log in a source file that say of nobody whom they are about, by their
/// texts: `tracing::warn!("...")` without a field such as `peer`.
///
/// # Errors
/// A file that is no Rust.
pub fn about_nobody(source: &str) -> Result<Vec<String>, Problem> {
    found(source, LEVELS, false, |line| {
        (!names(line, ABOUT)).then(|| text(line))
    })
}

/// Lines that name a peer and nothing of what its owner knows, by their texts:
/// `tracing::warn!(peer, "...")` in the place of a macro that knows the rest.
///
/// # Errors
/// A file that is no Rust.
pub fn about_a_peer_alone(source: &str) -> Result<Vec<String>, Problem> {
    found(source, ALL_LEVELS, false, |line| {
        (names(line, &["peer"]) && !names(line, &["host"])).then(|| text(line))
    })
}

/// Lines about peers that are not limited, by their texts: those without the count of
/// what was left out. A peer may provoke any number of them.
///
/// # Errors
/// A file that is no Rust.
pub fn without_limit(source: &str) -> Result<Vec<String>, Problem> {
    found(source, LEVELS, true, |line| {
        (!names(line, &["left_out"])).then(|| text(line))
    })
}

fn found(
    source: &str,
    levels: &[&str],
    with_macros: bool,
    wrong: impl Fn(&TokenStream) -> Option<String>,
) -> Result<Vec<String>, Problem> {
    let tokens: TokenStream = source
        .parse()
        .map_err(|error| format!("a source of log lines is no Rust: {error}"))?;
    let mut lines = Vec::new();
    walk(tokens, levels, with_macros, &mut lines);
    Ok(lines.iter().filter_map(wrong).collect())
}

/// Collects what is between the parentheses of each line, also of those `with_macros` that
/// know the peer, which have the level there.
fn walk(tokens: TokenStream, levels: &[&str], with_macros: bool, found: &mut Vec<TokenStream>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else {
            continue;
        };
        let before = tokens.get(at.saturating_sub(5)..at).unwrap_or_default();
        let before: String = before.iter().map(ToString::to_string).collect();
        let level = before.strip_prefix("tracing::");
        let level = level.and_then(|level| level.strip_suffix('!'));
        let level = level.map(str::to_owned).or_else(|| {
            let first = group.stream().into_iter().next();
            first
                .filter(|_| with_macros && before.ends_with("of_peer!"))
                .map(|it| it.to_string())
        });
        if level.is_some_and(|level| levels.contains(&&*level)) {
            found.push(group.stream());
        }
        walk(group.stream(), levels, with_macros, found);
    }
}

/// Whether a field before the text is one of these.
fn names(line: &TokenStream, fields: &[&str]) -> bool {
    let before = line.clone().into_iter();
    let before = before.take_while(|token| !matches!(token, TokenTree::Literal(_)));
    before.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => fields.contains(&ident.to_string().as_str()),
        _ => false,
    })
}

/// What a line says, as it is written.
fn text(line: &TokenStream) -> String {
    let mut tokens = line.clone().into_iter();
    let literal = tokens.find(|token| matches!(token, TokenTree::Literal(_)));
    let text = literal.map_or_else(String::new, |text| text.to_string());
    // A text may go on in the next line.
    let lines = text.split("\\\n");
    lines.map(str::trim_start).collect()
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

    #[test]
    fn line_about_a_peer_is_limited() {
        let source = r#"
            fn f() {
                tracing::warn!(%peer, "it failed");
                tracing::warn!(%peer, left_out, "it failed again");
                of_peer!(warn, self, "it is gone");
                of_peer!(info, self, disk = op.disk, left_out, "it came");
                of_peer!(debug, self, "who reads this has the code");
                limited!(info, self, log, now, "it came: {why}");
            }
        "#;
        let found = without_limit(source).unwrap();
        assert_eq!(found, ["\"it failed\"", "\"it is gone\""]);
    }

    #[test]
    fn a_line_about_a_peer_says_whose_it_is() {
        let source = r#"
            fn f() {
                tracing::warn!("it is gone");
                tracing::debug!(peer = %conn.peer, "it failed");
                tracing::warn!(%peer, %host, queue = 0, "it left");
                of_conn!(warn, peer, &conn.whose, "it failed");
            }
        "#;
        assert_eq!(about_a_peer_alone(source).unwrap(), ["\"it failed\""]);
    }
}
