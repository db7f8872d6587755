//! Texts of library crates must not name command-line options: a library names causes and
//! settings, a program adds the names of its options and commands.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::Problem;

/// Texts with options of other programs, which a library may name.
const OF_OTHERS: &[&str] = &["docker: --security-opt"];

/// Commands of `nvmeof`, which nvme-cli has too.
const COMMANDS: &[&str] = &[
    "error-log",
    "id-ctrl",
    "id-ns",
    "list-ns",
    "nvmeof discover",
    "nvmeof read",
    "nvmeof write",
    "smart-log",
];

/// Checks the texts of one source file, except those of tests.
#[must_use]
pub fn check(file: &str, source: &str) -> Vec<Problem> {
    let tokens: TokenStream = match source.parse() {
        Ok(tokens) => tokens,
        Err(error) => return vec![format!("{file}: not Rust: {error}")],
    };
    let mut problems = Vec::new();
    walk(tokens, &mut |text| {
        if let Some(option) = option_in(text) {
            problems.push(format!(
                "{file}: a library must not name command-line options, {text:?} has {option:?}; \
                 name the setting, and let remedy.rs of initiator/cli or target/admin add it"
            ));
        }
    });
    problems
}

/// The first option or command in `text`.
fn option_in(text: &str) -> Option<&str> {
    if OF_OTHERS.iter().any(|other| text.contains(other)) {
        return None;
    }
    // A whole command of another program is between backticks: `ulimit -n`.
    let parts = text.split('`').enumerate();
    let ours = parts
        .filter(|(at, part)| at % 2 == 0 || part.starts_with('-') || part.starts_with("nvmeof "));
    let words = ours
        .flat_map(|(_, part)| part.split(|c: char| c.is_whitespace() || "()\"',;:".contains(c)));
    let mut options = words.filter(|word| is_option(word));
    options
        .next()
        .or_else(|| COMMANDS.iter().copied().find(|name| text.contains(name)))
}

/// `--name`, or `-n`.
fn is_option(word: &str) -> bool {
    let letter = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphabetic());
    match word.strip_prefix("--") {
        Some(name) => letter(name.chars().next()),
        None => word.len() == 2 && word.starts_with('-') && letter(word.chars().nth(1)),
    }
}

/// Calls `each` with every text outside of tests and of attributes but `#[error]`.
fn walk(tokens: TokenStream, each: &mut impl FnMut(&str)) {
    let (mut attribute, mut test) = (false, false);
    for token in tokens {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => attribute = true,
            // Of a crate or a module: `#![...]`.
            TokenTree::Punct(punct) if punct.as_char() == '!' => {}
            TokenTree::Group(group) if attribute && group.delimiter() == Delimiter::Bracket => {
                attribute = false;
                let text = group.stream().to_string();
                test |= text.replace(' ', "") == "cfg(test)";
                if text.starts_with("error") {
                    walk(group.stream(), each);
                }
            }
            TokenTree::Group(group) => {
                attribute = false;
                if test && group.delimiter() == Delimiter::Brace {
                    test = false;
                } else {
                    walk(group.stream(), each);
                }
            }
            TokenTree::Literal(literal) => {
                if let Ok(text) = syn::parse_str::<syn::LitStr>(&literal.to_string()) {
                    each(&text.value());
                }
            }
            TokenTree::Punct(_) | TokenTree::Ident(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_commands_are_found_in_texts_alone() {
        let source = r##"
            //! A page about --options.
            /// Says `--this`.
            #[error("choose another size (--queue-size)")]
            struct Error;
            fn remedy() -> &'static str { "check address (-a) and port" }
            fn more() { say("see list-ns"); say("a - b, x-ray, 1--2, -1"); }
            fn other() { say("docker: --security-opt seccomp=FILE; raise `ulimit -n` then"); }
            #[cfg(test)]
            mod tests { fn t() { say("--in-a-test"); } }
            fn last() -> String { format!("give {n} (-s)") }
        "##;
        let problems = check("a.rs", source);
        let found = ["--queue-size", "-a", "list-ns", "-s"];
        assert_eq!(problems.len(), found.len(), "{problems:#?}");
        for (problem, option) in problems.iter().zip(found) {
            assert!(problem.contains(&format!("{option:?}")), "{problem}");
        }
    }
}
