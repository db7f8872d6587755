//! Licences and sources of dependencies, as `deny.toml` allows them.

use serde_json::Value as Json;
use toml::Table;

use crate::{Problem, spdx};

/// The policy of `deny.toml`.
#[derive(Debug)]
pub struct Policy {
    /// SPDX names of permitted licences.
    pub licences: Vec<String>,
    /// Crates without a licence in their manifest, with the licence of their files.
    pub clarified: Vec<(String, String)>,
    /// Addresses of permitted registries.
    pub registries: Vec<String>,
    /// Names of banned crates.
    pub banned: Vec<String>,
}

impl Policy {
    /// Reads the parts of `deny.toml` that [`check`] needs.
    #[must_use]
    pub fn parse(deny: &Table) -> Self {
        let list = |table: &str, key: &str| {
            let list = deny.get(table).and_then(|table| table.get(key)?.as_array());
            list.cloned().unwrap_or_default()
        };
        let names = |table: &str, key: &str| -> Vec<String> {
            list(table, key)
                .iter()
                .filter_map(|name| Some(name.as_str()?.to_owned()))
                .collect()
        };
        let banned = list("bans", "deny");
        let banned = banned
            .iter()
            .filter_map(|ban| Some(ban.get("crate")?.as_str()?.to_owned()));
        let clarified = list("licenses", "clarify");
        let clarified = clarified.iter().filter_map(|one| {
            let text = |key: &str| Some(one.get(key)?.as_str()?.to_owned());
            Some((text("crate")?, text("expression")?))
        });
        Self {
            licences: names("licenses", "allow"),
            clarified: clarified.collect(),
            registries: names("sources", "allow-registry"),
            banned: banned.collect(),
        }
    }
}

/// Checks the output of `cargo metadata --format-version 1`.
#[must_use]
pub fn check(metadata: &Json, policy: &Policy) -> Vec<Problem> {
    let Some(packages) = metadata.get("packages").and_then(Json::as_array) else {
        return vec!["cargo metadata names no packages".to_owned()];
    };
    packages
        .iter()
        .flat_map(|package| check_package(package, policy))
        .collect()
}

fn check_package(package: &Json, policy: &Policy) -> Vec<Problem> {
    let text = |key: &str| package.get(key).and_then(Json::as_str).unwrap_or_default();
    let name = text("name");
    let mut problems = Vec::new();
    let allowed: Vec<&str> = policy.licences.iter().map(String::as_str).collect();
    let mut clarified = policy.clarified.iter();
    let licence = match (text("license"), clarified.find(|(one, _)| one == name)) {
        ("", Some((_, expression))) => expression,
        (licence, _) => licence,
    };
    if !spdx::is_met(licence, &allowed) {
        problems.push(format!(
            "{name}: licence `{licence}` is not allowed by deny.toml"
        ));
    }
    let source = text("source");
    let known = source
        .strip_prefix("registry+")
        .is_some_and(|address| policy.registries.iter().any(|registry| registry == address));
    // Packages of the repository itself have no source.
    if !source.is_empty() && !known {
        problems.push(format!(
            "{name}: source `{source}` is not allowed by deny.toml"
        ));
    }
    if policy.banned.iter().any(|banned| banned == name) {
        problems.push(format!("{name}: deny.toml bans it"));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(packages: &Json) -> Vec<Problem> {
        let deny = "[licenses]\nallow = [\"MIT\"]\n\
             [[licenses.clarify]]\ncrate = \"file\"\nexpression = \"MIT\"\n\
             [bans]\ndeny = [{ crate = \"evil\" }]\n\
             [sources]\nallow-registry = [\"https://good\"]\n";
        let policy = Policy::parse(&deny.parse().unwrap());
        check(&serde_json::json!({ "packages": packages }), &policy)
    }

    #[test]
    fn good_packages_pass() {
        let found = problems(&serde_json::json!([
            { "name": "ours", "license": "MIT", "source": null },
            { "name": "a", "license": "GPL-2.0 OR MIT", "source": "registry+https://good" },
            { "name": "file", "license": null, "source": null },
        ]));
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn licence_source_and_name_are_each_refused() {
        for (package, words) in [
            (
                serde_json::json!({ "name": "a", "license": "GPL-2.0" }),
                "licence `GPL-2.0`",
            ),
            (
                serde_json::json!({ "name": "a", "license": null }),
                "licence ``",
            ),
            (
                serde_json::json!({ "name": "file", "license": "GPL-2.0" }),
                "licence `GPL-2.0`",
            ),
            (
                serde_json::json!({ "name": "evil", "license": "MIT" }),
                "bans it",
            ),
            (
                serde_json::json!({ "name": "a", "license": "MIT", "source": "git+https://good" }),
                "source `git+",
            ),
            (
                serde_json::json!({ "name": "a", "license": "MIT", "source": "registry+https://x" }),
                "source `registry+",
            ),
        ] {
            let found = problems(&serde_json::json!([package]));
            assert!(found.len() == 1 && found[0].contains(words), "{found:?}");
        }
    }

    #[test]
    fn missing_packages_are_a_problem() {
        let policy = Policy::parse(&Table::new());
        assert_eq!(check(&serde_json::json!({}), &policy).len(), 1);
    }
}
