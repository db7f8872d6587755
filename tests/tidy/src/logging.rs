//! Log lines about peers: each names the peer.

use proc_macro2::{TokenStream, TokenTree};

use crate::Problem;

/// Levels for operators.
const LEVELS: &[&str] = &["error", "warn", "info"];
/// Fields that name the subject of a line.
const ABOUT: &[&str] = &[
    "peer", "device", "addr", "address", "disk", "path", "process",
];

/// All levels.
const ALL_LEVELS: &[&str] = &["error", "warn", "info", "debug", "trace"];

/// Log lines of a source file without a subject, by their texts: `tracing::warn!("...")`
/// without a field such as `peer`.
///
/// # Errors
/// A file that is no Rust.
pub fn without_subject(source: &str) -> Result<Vec<String>, Problem> {
    found(source, LEVELS, false, |line| {
        (!names(line, ABOUT)).then(|| text(line))
    })
}

/// Log lines with a peer, but without host and queue, by their texts:
/// `tracing::warn!(peer, "...")` instead of a macro that adds them.
///
/// # Errors
/// A file that is no Rust.
pub fn about_a_peer_alone(source: &str) -> Result<Vec<String>, Problem> {
    found(source, ALL_LEVELS, false, |line| {
        (names(line, &["peer"]) && !names(line, &["host"])).then(|| text(line))
    })
}

/// Log lines about peers without a rate limit, by their texts: those without the count of
/// omitted lines. A peer may provoke any number of them.
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

/// Collects the arguments of each log line; `with_macros`, also of macros that add the peer
/// and take the level as an argument.
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
                .filter(|_| with_macros && before.ends_with("log_peer!"))
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

/// The text of a line, as written in the source.
fn text(line: &TokenStream) -> String {
    let mut tokens = line.clone().into_iter();
    let literal = tokens.find(|token| matches!(token, TokenTree::Literal(_)));
    let text = literal.map_or_else(String::new, |text| text.to_string());
    // A text may continue on the next line.
    let lines = text.split("\\\n");
    lines.map(str::trim_start).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_without_subject_are_reported() {
        let source = r#"
            fn f() {
                tracing::warn!("it is gone");
                if x { tracing::info!(qp = ?id, "it came: {why}"); }
                tracing::error!(%peer, left_out, "it failed");
                tracing::warn!(peer = %conn.peer, "it failed");
                tracing::warn!(device = adapter.name, "port is down");
                tracing::debug!("only for developers");
                log_peer!(warn, self, "all of them");
            }
        "#;
        let found = without_subject(source).unwrap();
        assert_eq!(found, ["\"it is gone\"", "\"it came: {why}\""]);
        assert!(without_subject("fn f( {").is_err());
    }

    #[test]
    fn lines_without_limit_are_reported() {
        let source = r#"
            fn f() {
                tracing::warn!(%peer, "it failed");
                tracing::warn!(%peer, left_out, "it failed again");
                log_peer!(warn, self, "it is gone");
                log_peer!(info, self, disk = op.disk, left_out, "it came");
                log_peer!(debug, self, "only for developers");
                limited!(info, self, log, now, "it came: {why}");
            }
        "#;
        let found = without_limit(source).unwrap();
        assert_eq!(found, ["\"it failed\"", "\"it is gone\""]);
    }

    #[test]
    fn lines_with_a_peer_only_are_reported() {
        let source = r#"
            fn f() {
                tracing::warn!("it is gone");
                tracing::debug!(peer = %conn.peer, "it failed");
                tracing::warn!(%peer, %host, queue = 0, "it left");
                log_conn!(warn, peer, &conn.whose, "it failed");
            }
        "#;
        assert_eq!(about_a_peer_alone(source).unwrap(), ["\"it failed\""]);
    }
}
