//! Rules for all Rust source files: the first line, the width, the place of unsafe code.

use std::path::Path;

use crate::Problem;

const MAX_COLUMNS: usize = 100;

/// The crates that may contain unsafe code, by folder.
pub const UNSAFE_CRATES: &[&str] = &[
    "common/memory",
    "common/uring",
    "common/rdma-verbs",
    "target/ceph",
    "tests/verbs-standin",
];

/// Other files that may, each the only one of its crate: the interface to a C program.
pub const UNSAFE_FILES: &[&str] = &["initiator/fio/src/ffi.rs"];

/// Code that handles structures of C libraries, which write some of their fields in other
/// threads, under locks of their own.
const C_STRUCTURES: &str = "common/rdma-verbs/src/sys";

/// Checks one file; `path` is relative to the root of the repository.
#[must_use]
pub fn check(path: &Path, text: &str) -> Vec<Problem> {
    let shown = path.display();
    let mut problems = Vec::new();
    if !text.starts_with("//! ") {
        problems.push(format!(
            "{shown}:1: the first line must state the purpose of the file (//! ...)"
        ));
    }
    for (number, line) in (1..).zip(text.lines()) {
        // A URL cannot be broken.
        if line.chars().count() > MAX_COLUMNS && !line.contains("://") {
            problems.push(format!("{shown}:{number}: more than {MAX_COLUMNS} columns"));
        }
    }
    if !may_be_unsafe(path) {
        problems.extend(unsafe_code(path, text));
    }
    if path.starts_with(C_STRUCTURES) {
        problems.extend(references(path, text));
    }
    problems
}

/// A reference requires that no other code writes any field of its target. Fields of a
/// structure of a C library are therefore read one by one through its pointer.
fn references(path: &Path, text: &str) -> Vec<Problem> {
    let signs = ["raw.as_ref()", "raw.as_mut()", "&*", "&mut *"];
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if signs.iter().any(|&sign| line.contains(sign)) {
            let shown = path.display();
            problems.push(format!(
                "{shown}:{number}: a reference to a structure of C; read the field through the \
                 pointer"
            ));
        }
    }
    problems
}

fn may_be_unsafe(path: &Path) -> bool {
    UNSAFE_CRATES.iter().any(|folder| path.starts_with(folder))
        || UNSAFE_FILES.iter().any(|file| path == Path::new(file))
}

/// Whether one file of the crate whose root this is may contain unsafe code.
fn has_unsafe_file(root: &Path) -> bool {
    let folder = root.parent();
    folder.is_some_and(|folder| {
        UNSAFE_FILES
            .iter()
            .any(|f| Path::new(f).starts_with(folder))
    })
}

/// The lints of the workspace forbid unsafe code. This check finds code that disables them,
/// and unsafe code in fuzz targets, which do not have these lints.
fn unsafe_code(path: &Path, text: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    // `forbid` cannot be lifted for one file.
    let level = if has_unsafe_file(path) {
        "deny"
    } else {
        "forbid"
    };
    let line = format!("#![{level}(unsafe_code)]");
    if is_crate_root(path) && !text.lines().any(|found| found == line) {
        problems.push(format!("{}: {line} is missing", path.display()));
    }
    let signs = ["{", "fn ", "impl ", "extern "].map(|next| ["unsafe", next].join(" "));
    let lint = "unsafe_code";
    let off = ["allow", "expect", "warn"].map(|level| format!("{level}({lint}"));
    for (number, line) in (1..).zip(text.lines()) {
        let comment = line.trim_start().starts_with("//");
        if !comment
            && signs
                .iter()
                .chain(&off)
                .any(|sign| line.contains(sign.as_str()))
        {
            let crates = [UNSAFE_CRATES, UNSAFE_FILES].concat().join(", ");
            let shown = path.display();
            problems.push(format!("{shown}:{number}: unsafe code belongs in {crates}"));
        }
    }
    problems
}

/// A crate root, except in tests and fuzz targets.
fn is_crate_root(path: &Path) -> bool {
    let root = path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
    // The macro of fuzz targets contains unsafe code.
    (root
        || path
            .parent()
            .is_some_and(|folder| folder.ends_with("src/bin")))
        && !path.starts_with("tests/fuzz")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "//! Owns nothing.\n#![forbid(unsafe_code)]\n";

    fn problems(path: &str, text: &str) -> Vec<Problem> {
        check(Path::new(path), text)
    }

    fn only(path: &str, text: &str, words: &str) {
        let found = problems(path, text);
        assert!(found.len() == 1 && found[0].contains(words), "{found:?}");
    }

    #[test]
    fn good_file_passes() {
        assert!(problems("a/src/lib.rs", GOOD).is_empty());
    }

    #[test]
    fn first_line_must_state_the_purpose() {
        only("a/src/x.rs", "use std::fmt;\n", "first line");
        only("a/src/x.rs", "", "first line");
    }

    #[test]
    fn long_line_is_refused() {
        only(
            "a/src/x.rs",
            &format!("//! X.\n{}", "é".repeat(MAX_COLUMNS + 1)),
            ":2: more than",
        );
        assert!(problems("a/src/x.rs", &format!("//! X.\n{}", "é".repeat(100))).is_empty());
        let address = format!("//! X.\n// https://{}", "e".repeat(MAX_COLUMNS));
        assert!(problems("a/src/x.rs", &address).is_empty());
    }

    #[test]
    fn crate_roots_forbid_unsafe_code() {
        for root in ["a/src/lib.rs", "a/src/main.rs", "a/src/bin/b.rs"] {
            only(root, "//! X.\n", "missing");
        }
        assert!(problems("common/uring/src/lib.rs", "//! X.\n").is_empty());
        assert!(problems("tests/fuzz/src/bin/b.rs", "//! X.\n").is_empty());
    }

    #[test]
    fn unsafe_code_outside_permitted_crates_is_reported() {
        let block = ["//! X.\nlet x = unsafe", "{ y() };\n"].join(" ");
        let allow = ["//! X.\n#![allow", "unsafe_code, reason = \"speed\")]\n"].join("(");
        for text in [&block, &allow] {
            only("a/tests/x.rs", text, ":2: unsafe code");
            only("tests/fuzz/x.rs", text, ":2: unsafe code");
            assert!(problems("common/memory/src/x.rs", text).is_empty());
            assert!(problems("initiator/fio/src/ffi.rs", text).is_empty());
            only("initiator/fio/src/job.rs", text, ":2: unsafe code");
        }
    }

    #[test]
    fn reference_to_c_structure_is_reported() {
        for code in ["self.raw.as_ref()", "&*id", "&mut *id"] {
            let text = format!("//! X.\nlet x = {code};\n");
            only("common/rdma-verbs/src/sys/x.rs", &text, ":2: a reference");
            assert!(problems("common/rdma-verbs/src/x.rs", &text).is_empty());
        }
        let field = "//! X.\nlet port = (*id).port;\nlet x = drawn.as_ref();\n";
        assert!(problems("common/rdma-verbs/src/sys/x.rs", field).is_empty());
    }

    #[test]
    fn crate_with_one_unsafe_file_denies_unsafe_code() {
        only("initiator/fio/src/lib.rs", GOOD, "deny(unsafe_code)");
        let denies = GOOD.replace("forbid", "deny");
        assert!(problems("initiator/fio/src/lib.rs", &denies).is_empty());
        only("a/src/lib.rs", &denies, "forbid(unsafe_code)");
    }
}
