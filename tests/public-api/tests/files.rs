//! The file `api.txt` of each listed crate equals its public items.
//!
//! `NVMEOF_UPDATE_DOCS=1 cargo test -p nvmeof-public-api` writes the files; `cargo xtask docs`
//! does the same.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;

use nvmeof_public_api::{LISTED, external_crates, listing, root};

#[test]
fn public_items_equal_the_listed_ones() {
    let mut changes = Vec::new();
    for listed in LISTED {
        let file = format!("{}/api.txt", listed.folder);
        let path = root().join(&file);
        let made = listing(listed).unwrap_or_else(|error| panic!("{error}"));
        assert!(made.lines().count() > 100, "{}: {made}", listed.package);
        if std::env::var_os("NVMEOF_UPDATE_DOCS").is_some() {
            fs::write(&path, &made).unwrap();
        }
        let there = fs::read_to_string(&path).unwrap_or_default();
        if there != made {
            changes.push(format!("{file}:\n{}", difference(&there, &made)));
        }
    }
    assert!(
        changes.is_empty(),
        "the public API has changed; docs/api-stability.md has the rules. Run `cargo xtask docs` \
         and review the diff of\n{}",
        changes.join("\n")
    );
}

/// The lines that only one of both texts has.
fn difference(old: &str, new: &str) -> String {
    let old: BTreeSet<_> = old.lines().collect();
    let new: BTreeSet<_> = new.lines().collect();
    let removed = old.difference(&new).map(|line| format!("    - {line}"));
    let added = new.difference(&old).map(|line| format!("    + {line}"));
    removed.chain(added).collect::<Vec<_>>().join("\n")
}

/// A new version of such a crate breaks programs that use the item.
#[test]
fn public_items_name_known_external_crates() {
    for listed in LISTED {
        let list = fs::read_to_string(root().join(listed.folder).join("api.txt")).unwrap();
        let known: BTreeSet<_> = listed.externals.iter().copied().collect();
        assert_eq!(
            external_crates(&list),
            known,
            "{}: see \"Crates\" in docs/api-stability.md",
            listed.package
        );
    }
}
