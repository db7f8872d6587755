//! The checks of this crate, applied to the repository.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nvmeof_tidy::publishing::Member;
use nvmeof_tidy::{
    Problem, crates, cycles, functions, licences, links, names, publishing, sources, toolchain,
    tree,
};
use toml::{Table, Value};

fn must_be_clean(problems: &[Problem]) {
    assert!(
        problems.is_empty(),
        "{} problems:\n{}",
        problems.len(),
        problems.join("\n")
    );
}

fn files() -> Vec<PathBuf> {
    tree::files(&tree::root()).unwrap()
}

fn read(path: &Path) -> String {
    let whole = tree::root().join(path);
    fs::read_to_string(&whole).unwrap_or_else(|error| panic!("{}: {error}", whole.display()))
}

fn table(path: &str) -> Table {
    read(Path::new(path))
        .parse()
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The folders of the workspace's members.
fn members() -> Vec<String> {
    let manifest = table("Cargo.toml");
    let members = manifest["workspace"]["members"].as_array().unwrap();
    members
        .iter()
        .map(|member| member.as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn source_files() {
    let files = files();
    let sources: Vec<_> = files.iter().filter(|file| tree::is(file, "rs")).collect();
    assert!(
        sources.len() >= members().len(),
        "only {} source files found",
        sources.len()
    );
    let problems: Vec<_> = sources
        .iter()
        .flat_map(|file| sources::check(file, &read(file)))
        .collect();
    must_be_clean(&problems);
}

/// What ships: neither tests nor the tools around them.
#[test]
fn functions_fit_a_screen() {
    let mut problems = Vec::new();
    for file in files() {
        let mut names = file.components().map(|one| one.as_os_str());
        let is_test = file.starts_with("tests")
            || names.any(|name| {
                ["tests", "examples", "tests.rs", "testing.rs"].contains(&&*name.to_string_lossy())
            });
        if tree::is(&file, "rs") && !is_test {
            let shown = file.display().to_string();
            problems.extend(functions::check(&shown, &read(&file)).unwrap_or_else(|it| vec![it]));
        }
    }
    must_be_clean(&problems);
}

#[test]
fn file_names() {
    must_be_clean(
        &files()
            .iter()
            .flat_map(|file| names::check(file))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn dependencies_between_crates() {
    let mut problems = Vec::new();
    for member in members() {
        problems.extend(crates::check(
            &member,
            &table(&format!("{member}/Cargo.toml")),
        ));
    }
    must_be_clean(&problems);
}

/// The members of the workspace with their manifests.
fn manifests() -> Vec<Member> {
    let members = members().into_iter();
    let members = members.map(|folder| Member {
        manifest: table(&format!("{folder}/Cargo.toml")),
        folder,
    });
    members.collect()
}

#[test]
fn published_crates_are_complete() {
    let members = manifests();
    let mut problems = publishing::check(&table("Cargo.toml"), &members);
    let root = tree::root();
    let exists = |path: &Path| root.join(path).exists();
    for Member { folder, .. } in members.iter().filter(|member| member.is_published()) {
        let readme = read(&Path::new(folder).join("README.md"));
        problems.extend(publishing::check_readme(folder, &readme, exists));
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let own = Path::new(folder).join(licence);
            if fs::read_to_string(root.join(&own)).ok() != Some(read(Path::new(licence))) {
                let shown = own.display();
                problems.push(format!("{shown}: must be a link to ../../{licence}"));
            }
        }
    }
    must_be_clean(&problems);
}

#[test]
fn readme_of_the_initiator_lists_its_examples() {
    let readme = read(Path::new("initiator/client/README.md"));
    let files = files();
    let examples = files
        .iter()
        .filter(|file| file.starts_with("initiator/client/examples"));
    let names: Vec<_> = examples
        .filter_map(|file| file.file_stem()?.to_str())
        .collect();
    assert!(names.len() > 3, "{names:?}");
    for name in names {
        let row = format!("| `{name}` |");
        assert!(
            readme.contains(&row),
            "initiator/client/README.md lacks {name}"
        );
    }
}

#[test]
fn minimum_version_of_rust_is_the_same_everywhere() {
    let manifest = table("Cargo.toml");
    let version = manifest["workspace"]["package"]["rust-version"]
        .as_str()
        .unwrap();
    let of_fuzz = table("tests/fuzz/Cargo.toml");
    assert_eq!(of_fuzz["package"]["rust-version"].as_str(), Some(version));
    // Clippy reads rust-version unless this file has a version.
    assert_eq!(table("clippy.toml").get("msrv"), None);
    let mut problems = Vec::new();
    for file in files().iter().filter(|file| tree::is(file, "md")) {
        problems.extend(toolchain::check(
            &file.display().to_string(),
            &read(file),
            version,
        ));
    }
    must_be_clean(&problems);
    for file in [
        "README.md",
        "CONTRIBUTING.md",
        "docs/api-stability.md",
        "initiator/client/README.md",
    ] {
        assert!(toolchain::is_named(&read(Path::new(file))), "{file}");
    }
}

/// In what ships.
#[test]
fn modules_import_in_one_direction() {
    let files = files();
    let mut problems = Vec::new();
    let ships = |member: &String| !member.starts_with("tests/");
    for member in members().into_iter().filter(ships) {
        let src = Path::new(&member).join("src");
        let sources = files.iter().filter(|file| tree::is(file, "rs"));
        let sources = sources.filter_map(|file| {
            let inside = file.strip_prefix(&src).ok()?;
            Some((inside.to_string_lossy().into_owned(), read(file)))
        });
        let sources: Vec<_> = sources.collect();
        problems.extend(cycles::check(&member, &sources).unwrap_or_else(|it| vec![it]));
    }
    must_be_clean(&problems);
}

#[test]
fn every_crate_is_a_member() {
    let members = members();
    for manifest in files().iter().filter(|file| file.ends_with("Cargo.toml")) {
        let folder = manifest.parent().unwrap().to_str().unwrap();
        let known = members.iter().any(|member| member == folder);
        assert!(
            known || ["", "tests/fuzz"].contains(&folder),
            "{folder} is not in the workspace"
        );
    }
}

#[test]
fn links_between_documents() {
    let root = tree::root();
    let files = files();
    let documents: Vec<_> = files.iter().filter(|file| tree::is(file, "md")).collect();
    assert!(
        documents
            .iter()
            .any(|file| file.ends_with("docs/development.md"))
    );
    let exists = |path: &Path| root.join(path).exists();
    let problems: Vec<_> = documents
        .iter()
        .flat_map(|file| links::check(file, &read(file), exists))
        .collect();
    must_be_clean(&problems);
}

#[test]
fn every_crate_has_a_readme() {
    let root = tree::root();
    let manifests = tree::files(&root).unwrap();
    let manifests = manifests.iter().filter(|file| file.ends_with("Cargo.toml"));
    let folders: Vec<_> = manifests.filter_map(|file| file.parent()).collect();
    assert!(folders.len() > 30, "{folders:?}");
    let without: Vec<_> = folders
        .iter()
        .filter(|folder| !root.join(folder).join("README.md").is_file())
        .collect();
    assert!(without.is_empty(), "no README.md in {without:?}");
}

#[test]
fn licences_and_sources() {
    let policy = licences::Policy::parse(&table("deny.toml"));
    assert!(!policy.licences.is_empty() && !policy.banned.is_empty());
    assert!(!policy.registries.is_empty());
    let mut problems = Vec::new();
    for manifest in ["Cargo.toml", "tests/fuzz/Cargo.toml"] {
        let path = tree::root().join(manifest);
        if path.is_file() {
            let metadata = serde_json::from_slice(&metadata(&path)).unwrap();
            problems.extend(licences::check(&metadata, &policy));
        }
    }
    must_be_clean(&problems);
}

/// What cargo knows about the packages that this machine needs to build.
fn metadata(manifest: &Path) -> Vec<u8> {
    let version = Command::new("rustc").arg("-vV").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .unwrap();
    let output = Command::new(std::env::var_os("CARGO").unwrap())
        .args([
            "metadata",
            "--locked",
            "--format-version",
            "1",
            "--filter-platform",
            host,
        ])
        .arg("--manifest-path")
        .arg(manifest)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", manifest.display());
    output.stdout
}

#[test]
fn policy_has_no_unread_shape() {
    // A list that moved would silently allow everything or nothing.
    let deny = table("deny.toml");
    assert!(matches!(deny["bans"]["deny"], Value::Array(_)));
    assert!(matches!(deny["licenses"]["allow"], Value::Array(_)));
}
