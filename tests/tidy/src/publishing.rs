//! Crates that can be published: metadata, dependencies and versions.
//!
//! A crate that a program needs to embed the initiator sets `publish = true`. All of them are
//! released together, with one version.

use std::collections::BTreeSet;
use std::path::Path;

use toml::{Table, Value};

use crate::{Problem, crates, links};

/// The crate that programs embed. All other published crates are its dependencies.
pub const EMBEDDED: &str = "nvmeof-initiator";

/// The categories of crates.io that fit. The registry ignores unknown ones.
const CATEGORIES: &[&str] = &[
    "asynchronous",
    "concurrency",
    "embedded",
    "encoding",
    "hardware-support",
    "memory-management",
    "network-programming",
    "no-std",
    "os::unix-apis",
];

/// Limits of crates.io.
const MAX_KEYWORDS: usize = 5;
const MAX_KEYWORD: usize = 20;

/// A member of the workspace.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its folder, relative to the root.
    pub folder: String,
    /// Its manifest.
    pub manifest: Table,
}

impl Member {
    fn package(&self, key: &str) -> Option<&Value> {
        self.manifest.get("package")?.get(key)
    }

    /// The name of its package.
    #[must_use]
    pub fn name(&self) -> &str {
        let name = self.package("name").and_then(Value::as_str);
        name.unwrap_or_default()
    }

    /// Whether it can be published.
    #[must_use]
    pub fn is_published(&self) -> bool {
        self.package("publish") == Some(&Value::Boolean(true))
    }

    fn inherits(&self, key: &str) -> bool {
        let inherited = self.package(key).and_then(|value| value.get("workspace"));
        inherited == Some(&Value::Boolean(true))
    }
}

/// Checks all members; `workspace` is the manifest of the root.
#[must_use]
pub fn check(workspace: &Table, members: &[Member]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for member in members {
        let folder = &member.folder;
        for key in ["version", "edition", "license", "rust-version"] {
            if !member.inherits(key) {
                problems.push(format!(
                    "{folder}: Cargo.toml lacks `{key}.workspace = true`"
                ));
            }
        }
        match member.is_published() {
            true => problems.extend(metadata(member)),
            false if member.inherits("publish") => {}
            false => problems.push(format!(
                "{folder}: Cargo.toml must have `publish = true` or `publish.workspace = true`"
            )),
        }
    }
    problems.extend(documented_features(members));
    problems.extend(closure(members));
    problems.extend(versions(workspace, members));
    problems
}

/// What the registry shows, what a package contains, and where docs.rs can build it.
fn metadata(member: &Member) -> Vec<Problem> {
    let folder = &member.folder;
    let mut problems = Vec::new();
    let texts = |key| {
        let list = member.package(key).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str)
    };
    let description = member.package("description").and_then(Value::as_str);
    if description.is_none_or(str::is_empty) {
        problems.push(format!("{folder}: Cargo.toml lacks `description`"));
    }
    let keywords: Vec<_> = texts("keywords").collect();
    if keywords.is_empty() || keywords.len() > MAX_KEYWORDS {
        problems.push(format!(
            "{folder}: `keywords` has {} words; 1 to {MAX_KEYWORDS} are permitted",
            keywords.len()
        ));
    }
    let is_keyword = |word: &str| {
        let all = word
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-+".contains(c));
        all && word.starts_with(|c: char| c.is_ascii_alphanumeric()) && word.len() <= MAX_KEYWORD
    };
    for word in keywords.iter().filter(|word| !is_keyword(word)) {
        problems.push(format!(
            "{folder}: keyword `{word}`: use at most {MAX_KEYWORD} letters, digits, `-`, `_`, `+`"
        ));
    }
    if texts("categories").count() == 0 {
        problems.push(format!("{folder}: Cargo.toml lacks `categories`"));
    }
    for category in texts("categories").filter(|category| !CATEGORIES.contains(category)) {
        problems.push(format!(
            "{folder}: category `{category}` is not in tests/tidy/src/publishing.rs; crates.io \
             ignores unknown categories"
        ));
    }
    // Without it the package has tests, which use crates that are not published.
    if !member.inherits("include") && texts("include").count() == 0 {
        problems.push(format!("{folder}: Cargo.toml lacks `include`"));
    }
    let docs = member
        .package("metadata")
        .and_then(|it| it.get("docs")?.get("rs")?.get("targets"));
    if docs.is_none() {
        problems.push(format!(
            "{folder}: Cargo.toml lacks `targets` in [package.metadata.docs.rs]; only Linux builds"
        ));
    }
    problems
}

/// The features of the embedded crate that docs.rs may be unable to build.
const NOT_ON_DOCS_RS: &[&str] = &["verbs"];

/// docs.rs shows the items of all other features of the embedded crate.
fn documented_features(members: &[Member]) -> Vec<Problem> {
    let Some(member) = members.iter().find(|member| member.name() == EMBEDDED) else {
        return vec![format!("no member of the workspace is {EMBEDDED}")];
    };
    let features = member.manifest.get("features").and_then(Value::as_table);
    let features = features
        .into_iter()
        .flatten()
        .map(|(name, _)| name.as_str());
    let expected: BTreeSet<_> = features
        .filter(|name| *name != "default" && !NOT_ON_DOCS_RS.contains(name))
        .collect();
    let docs = member
        .package("metadata")
        .and_then(|it| it.get("docs")?.get("rs")?.get("features"));
    let documented = docs.and_then(Value::as_array).into_iter().flatten();
    let documented: BTreeSet<_> = documented.filter_map(Value::as_str).collect();
    if documented == expected {
        return Vec::new();
    }
    vec![format!(
        "{}: `features` in [package.metadata.docs.rs] must be {expected:?}",
        member.folder
    )]
}

/// Published are the embedded crate and all crates that it links, and no other crate.
fn closure(members: &[Member]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let (mut linked, mut next) = (
        BTreeSet::from([EMBEDDED.to_owned()]),
        vec![EMBEDDED.to_owned()],
    );
    while let Some(name) = next.pop() {
        let Some(member) = members.iter().find(|member| member.name() == name) else {
            continue;
        };
        if !member.is_published() {
            problems.push(format!(
                "{}: a published crate links {name}; set `publish = true`",
                member.folder
            ));
        }
        let dependencies = crates::dependencies(&member.manifest, crates::LINKED);
        let ours = |name: &String| members.iter().any(|member| member.name() == name);
        let new = dependencies.into_iter().filter(ours);
        next.extend(new.filter(|name| linked.insert(name.clone())));
    }
    let unused = members
        .iter()
        .filter(|member| member.is_published() && !linked.contains(member.name()));
    problems.extend(unused.map(|member| {
        format!(
            "{}: {EMBEDDED} does not link this crate; set `publish.workspace = true`",
            member.folder
        )
    }));
    problems
}

/// The entries of `[workspace.dependencies]` for the crates of the workspace. Cargo omits a
/// dev-dependency without a version from a published crate.
fn versions(workspace: &Table, members: &[Member]) -> Vec<Problem> {
    let own = |keys: &[&str]| {
        let whole = workspace.get("workspace");
        keys.iter().fold(whole, |value, key| value?.get(*key))
    };
    let Some(version) = own(&["package", "version"]).and_then(Value::as_str) else {
        return vec!["Cargo.toml: lacks `version` in [workspace.package]".to_owned()];
    };
    let expected = format!("={version}");
    let mut problems = Vec::new();
    for member in members {
        let name = member.name();
        let Some(entry) = own(&["dependencies", name]) else {
            if member.is_published() {
                problems.push(format!("Cargo.toml: [workspace.dependencies] lacks {name}"));
            }
            continue;
        };
        let found = entry.get("version").and_then(Value::as_str);
        match (member.is_published(), found) {
            (true, Some(found)) if found == expected => {}
            (true, _) => problems.push(format!(
                "Cargo.toml: {name} in [workspace.dependencies] must have version = \"{expected}\""
            )),
            (false, Some(_)) => problems.push(format!(
                "Cargo.toml: {name} in [workspace.dependencies] is not published; remove its \
                 version"
            )),
            (false, None) => {}
        }
    }
    problems
}

/// Checks the README of a published crate: the registry shows it, where links to files outside
/// of the package are dead.
#[must_use]
pub fn check_readme(folder: &str, text: &str, exists: impl Fn(&Path) -> bool) -> Vec<Problem> {
    let inside = |path: &Path| path.starts_with(folder) && exists(path);
    let readme = Path::new(folder).join("README.md");
    let problems = links::check(&readme, text, inside);
    let explained = problems
        .into_iter()
        .map(|problem| format!("{problem} in the package of this crate"));
    explained.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INHERITED: &str = "version.workspace = true\nedition.workspace = true\n\
        license.workspace = true\nrust-version.workspace = true\n";
    const SHOWN: &str = "publish = true\ndescription = \"It is.\"\nkeywords = [\"nvme\"]\n\
        categories = [\"no-std\"]\ninclude.workspace = true\n\
        metadata.docs.rs.targets = [\"x\"]\n";

    fn member(name: &str, rest: &str) -> Member {
        let text = format!("[package]\nname = \"{name}\"\n{INHERITED}{rest}");
        Member {
            folder: format!("crates/{name}"),
            manifest: text.parse().unwrap(),
        }
    }

    fn workspace(dependencies: &str) -> Table {
        let text = format!(
            "[workspace.package]\nversion = \"1.2.3\"\n[workspace.dependencies]\n{dependencies}"
        );
        text.parse().unwrap()
    }

    const ENTRIES: &str = "nvmeof-initiator = { path = \"a\", version = \"=1.2.3\" }\n\
        nvmeof-wire = { path = \"b\", version = \"=1.2.3\" }\nnvmeof-tidy = { path = \"c\" }\n";

    /// The embedded crate, one that it links, and one that is not published.
    fn members() -> [Member; 3] {
        let links = "[dependencies]\nnvmeof-wire.workspace = true\nslab = \"1\"\n\
            [dev-dependencies]\nnvmeof-tidy.workspace = true\n";
        [
            member(EMBEDDED, &format!("{SHOWN}{links}")),
            member("nvmeof-wire", SHOWN),
            member("nvmeof-tidy", "publish.workspace = true\n"),
        ]
    }

    fn only(problems: &[Problem], words: &str) {
        assert!(
            problems.len() == 1 && problems[0].contains(words),
            "{words}: {problems:?}"
        );
    }

    #[test]
    fn complete_crates_pass() {
        assert_eq!(check(&workspace(ENTRIES), &members()), [""; 0]);
    }

    #[test]
    fn missing_metadata_is_reported() {
        for (line, words) in [
            ("description = \"It is.\"\n", "description"),
            ("keywords = [\"nvme\"]\n", "has 0 words"),
            ("categories = [\"no-std\"]\n", "categories"),
            ("include.workspace = true\n", "include"),
            ("metadata.docs.rs.targets = [\"x\"]\n", "docs.rs"),
        ] {
            let [first, _, last] = members();
            let bare = member("nvmeof-wire", &SHOWN.replace(line, ""));
            only(&check(&workspace(ENTRIES), &[first, bare, last]), words);
        }
    }

    #[test]
    fn unfit_metadata_is_reported() {
        for (old, new, words) in [
            (
                "\"nvme\"",
                "\"a\", \"b\", \"c\", \"d\", \"e\", \"f\"",
                "has 6 words",
            ),
            ("\"nvme\"", "\"nvme over fabrics\"", "keyword `nvme over"),
            ("\"nvme\"", "\"a-word-of-21-letters-\"", "keyword `a-word"),
            ("no-std", "storage", "category `storage`"),
        ] {
            let [first, _, last] = members();
            let unfit = member("nvmeof-wire", &SHOWN.replace(old, new));
            only(&check(&workspace(ENTRIES), &[first, unfit, last]), words);
        }
    }

    #[test]
    fn undocumented_feature_is_reported() {
        let [mut first, wire, last] = members();
        let features = "default = [\"shm\"]\nshm = []\nverbs = []\n"
            .parse()
            .unwrap();
        first
            .manifest
            .insert("features".to_owned(), Value::Table(features));
        only(
            &check(&workspace(ENTRIES), &[first, wire, last]),
            "{\"shm\"}",
        );
    }

    #[test]
    fn own_version_of_a_crate_is_reported() {
        let [first, wire, mut last] = members();
        let package = last.manifest["package"].as_table_mut().unwrap();
        package.insert("version".to_owned(), Value::from("1.2.3"));
        only(
            &check(&workspace(ENTRIES), &[first, wire, last]),
            "`version.workspace",
        );
    }

    #[test]
    fn published_are_the_linked_crates_only() {
        let unpublished = "publish.workspace = true\n";
        let entries = ENTRIES.replacen(
            "nvmeof-wire = { path = \"b\", version = \"=1.2.3\" }",
            "",
            1,
        );
        let [first, _, last] = members();
        let hidden = member("nvmeof-wire", unpublished);
        only(
            &check(&workspace(&entries), &[first, hidden, last]),
            "links nvmeof-wire",
        );
        let [first, wire, _] = members();
        let unused = member("nvmeof-tidy", SHOWN);
        let entries = ENTRIES.replace("\"c\"", "\"c\", version = \"=1.2.3\"");
        only(
            &check(&workspace(&entries), &[first, wire, unused]),
            "does not link",
        );
    }

    #[test]
    fn publish_must_be_decided() {
        let [first, wire, _] = members();
        let undecided = member("nvmeof-tidy", "");
        only(
            &check(&workspace(ENTRIES), &[first, wire, undecided]),
            "publish = true",
        );
    }

    #[test]
    fn versions_of_entries_are_checked() {
        let first = "version = \"=1.2.3\"";
        for (entries, words) in [
            (
                ENTRIES.replacen(first, "version = \"1.2.3\"", 1),
                "nvmeof-initiator in",
            ),
            (
                ENTRIES.replacen(&format!(", {first}"), "", 1),
                "nvmeof-initiator in",
            ),
            (
                ENTRIES.replace("\"c\"", "\"c\", version = \"=1.2.3\""),
                "remove its version",
            ),
            (
                ENTRIES.replacen("nvmeof-wire", "wire", 1),
                "lacks nvmeof-wire",
            ),
        ] {
            only(&check(&workspace(&entries), &members()), words);
        }
        only(&check(&Table::new(), &members()), "[workspace.package]");
    }

    #[test]
    fn readme_links_stay_in_the_package() {
        let text = "[a](examples) [b](https://x.org) [c](../b/README.md)";
        let problems = check_readme("a", text, |_| true);
        assert_eq!(
            problems,
            ["a/README.md:1: `../b/README.md` does not exist in the package of this crate"]
        );
    }
}
