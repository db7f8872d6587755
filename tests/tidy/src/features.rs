//! `docs/features.md`: each feature names a section of a specification and existing tests
//! that prove it.

use std::collections::BTreeSet;

use crate::Problem;

/// Prefix of lab scenarios in the document; other tests are functions.
const SCENARIO: &str = "lab ";

/// Names of the tests in a source file: functions with `#[test]`, and functions in macros
/// that generate tests.
#[must_use]
pub fn tests_of(source: &str) -> BTreeSet<String> {
    let (mut names, mut marked, mut in_macro) = (BTreeSet::new(), false, false);
    for line in source.lines() {
        let bare = line.trim();
        if bare.starts_with("proptest! {") {
            in_macro = true;
        } else if line.starts_with('}') {
            in_macro = false;
        }
        if bare.starts_with("#[test]") || bare.starts_with("#[tokio::test") {
            marked = true;
        } else if let Some((_, rest)) = bare.split_once("fn ") {
            if marked || in_macro {
                let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let end = rest.find(|c| !word(c)).unwrap_or(rest.len());
                names.insert(rest.get(..end).unwrap_or_default().to_owned());
            }
            marked = false;
        }
    }
    names
}

/// Checks the rows of `document` against the names of tests and of scenarios.
#[must_use]
pub fn check(
    document: &str,
    tests: &BTreeSet<String>,
    scenarios: &BTreeSet<String>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut rows = 0;
    for (number, line) in document.lines().enumerate() {
        let Some(row) = line
            .strip_prefix("| ")
            .and_then(|row| row.strip_suffix(" |"))
        else {
            continue;
        };
        let cells: Vec<&str> = row.split(" | ").map(str::trim).collect();
        let at = format!("docs/features.md:{}", number + 1);
        let [feature, section, proofs] = cells.as_slice() else {
            problems.push(format!(
                "{at}: a row must have a feature, a section and tests"
            ));
            continue;
        };
        if feature.starts_with("---") || *feature == "feature" {
            continue;
        }
        rows += 1;
        if section.is_empty() {
            problems.push(format!("{at}: {feature}: name the section, or `own`"));
        }
        let named: Vec<&str> = proofs.split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            problems.push(format!("{at}: {feature}: no test proves it"));
        }
        for name in named {
            let there = match name.strip_prefix(SCENARIO) {
                Some(scenario) => scenarios.contains(scenario),
                None => tests.contains(name),
            };
            if !there {
                problems.push(format!("{at}: {feature}: test {name} does not exist"));
            }
        }
    }
    if rows == 0 {
        problems.push("docs/features.md: has no rows".to_owned());
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_distinguished_from_other_functions() {
        let source = "#[test]\nfn one() {}\nfn not_one() {}\n#[test]\n#[ignore]\nfn two<T>() {}\n\
                      #[tokio::test(start_paused = true)]\nasync fn four() {}\n\
                      proptest! {\n    fn three(x in 0..9) {}\n}\nfn none() {}\n";
        let names: Vec<_> = tests_of(source).into_iter().collect();
        assert_eq!(names, ["four", "one", "three", "two"]);
    }

    #[test]
    fn rows_without_tests_are_reported() {
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let (tests, scenarios) = (set(&["one"]), set(&["smoke"]));
        let head = "| feature | section | tests |\n| --- | --- | --- |\n";
        let good = format!("{head}| Flush | NVM 3.2.2 | `one`, `lab smoke` |\n");
        assert_eq!(check(&good, &tests, &scenarios), [] as [&str; 0]);
        for (row, words) in [
            ("| Flush | NVM 3.2.2 | `two` |", "test two does not exist"),
            (
                "| Flush | NVM 3.2.2 | `lab one` |",
                "test lab one does not exist",
            ),
            ("| Flush | NVM 3.2.2 | much |", "no test proves it"),
            ("| Flush |  | `one` |", "name the section"),
            ("| Flush | `one` |", "a row must have"),
        ] {
            let problems = check(&format!("{head}{row}\n"), &tests, &scenarios);
            assert!(
                problems.iter().any(|problem| problem.contains(words)),
                "{row}: {problems:?}"
            );
        }
        assert_eq!(check(head, &tests, &scenarios).len(), 1);
    }
}
