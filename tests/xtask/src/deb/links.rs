//! Links of documents and manual pages in a package.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::run::{Failure, Outcome};

use super::contents::PACKAGES;
use super::tree::Tree;

/// Where the files of the repository are in the folder of documents of a package.
pub(super) type Places<'a> = [(&'a str, &'a str)];

/// The text of the document `from` for its place in a package: links lead to where files
/// are there, and a link to a file that is not there becomes the name of that file.
pub(super) fn moved(text: &str, from: &str, to: &str, places: &Places<'_>) -> String {
    replaced(text, |words, link| {
        let (file, fragment) = cut(link)?;
        let target = beside(Path::new(from), file);
        let place = places.iter().find(|(path, _)| Path::new(path) == target);
        Some(match place {
            Some((_, place)) => format!("[{words}]({}{fragment})", relative(to, place)),
            None => format!("{words} ({} in the source tree)", target.display()),
        })
    })
}

/// The links of a document that lead to files, each with its target as seen from the
/// folder in which `document` is named.
pub(super) fn targets(text: &str, document: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    replaced(text, |_, link| {
        found.extend(cut(link).map(|(file, _)| beside(document, file)));
        None
    });
    found
}

/// The text with each link that `other` has something else for replaced by that. Code is
/// left alone.
fn replaced(text: &str, mut other: impl FnMut(&str, &str) -> Option<String>) -> String {
    let blocks = text.split(FENCE).enumerate();
    let blocks = blocks.map(|(number, block)| match number % 2 {
        0 => in_prose(block, &mut other),
        _ => block.to_owned(),
    });
    blocks.collect::<Vec<_>>().join(FENCE)
}

/// What a block of code begins and ends with.
const FENCE: &str = "```";

fn in_prose(text: &str, other: &mut impl FnMut(&str, &str) -> Option<String>) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("](") {
        let link = after.split_once(')').zip(before.rsplit_once('['));
        let Some(((link, after), (before, words))) = link else {
            break;
        };
        out.push_str(before);
        let same = || format!("[{words}]({link})");
        out.push_str(&other(words, link).unwrap_or_else(same));
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The file that a link names and the place in it; `None` where it leads elsewhere.
fn cut(link: &str) -> Option<(&str, &str)> {
    let at = link.find('#').unwrap_or(link.len());
    let (file, fragment) = link.split_at(at);
    let is_file = !file.is_empty() && !link.contains("://") && !link.starts_with("mailto:");
    is_file.then_some((file, fragment))
}

/// The path of `file` as named in `document`.
fn beside(document: &Path, file: &str) -> PathBuf {
    let mut path = document.parent().unwrap_or(Path::new("")).to_path_buf();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

/// The path of `to` as seen from the document `from`.
fn relative(from: &str, to: &str) -> String {
    let up = "../".repeat(from.matches('/').count());
    format!("{up}{to}")
}

/// The pages `NAME(SECTION)` that a manual page refers to.
pub(super) fn pages(page: &str) -> Vec<String> {
    let plain = page
        .replace("\\fB", "")
        .replace("\\fR", "")
        .replace("\\-", "-");
    let part = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let mut found = Vec::new();
    for (at, _) in plain.match_indices('(') {
        let (before, after) = plain.split_at(at);
        let section = after.get(1..3).and_then(|it| it.strip_suffix(')'));
        let Some(section) = section.filter(|it| it.chars().all(|c| c.is_ascii_digit())) else {
            continue;
        };
        let start = before.rfind(|c: char| !part(c)).map_or(0, |at| at + 1);
        let name = before.get(start..).unwrap_or_default();
        if !name.is_empty() {
            found.push(format!("{name}.{section}"));
        }
    }
    found
}

/// Fails when a document of the tree has a link to a file that is not in the tree, or a
/// manual page refers to one of ours that is not. Call it before pages are compressed.
pub(super) fn check(tree: &Tree, package: &str) -> Outcome {
    let mut problems = Vec::new();
    for path in tree.files()? {
        let name = path.to_string_lossy().into_owned();
        let is_page = name.contains("/share/man/");
        if !is_page && !name.ends_with(".md") {
            continue;
        }
        let text =
            fs::read_to_string(&path).map_err(|error| Failure::file("read", &path, &error))?;
        let missing: Vec<_> = match is_page {
            true => missing_pages(tree, package, &text),
            false => targets(&text, &path)
                .into_iter()
                .filter(|it| !it.exists())
                .collect(),
        };
        problems.extend(
            missing
                .iter()
                .map(|it| format!("{name}: linked file {} does not exist", it.display())),
        );
    }
    match problems.as_slice() {
        [] => Ok(()),
        _ => Err(Failure::Failed(problems.join("\n"))),
    }
}

/// The pages of the package's program that `page` refers to and that are not in the tree.
fn missing_pages(tree: &Tree, owner: &str, page: &str) -> Vec<PathBuf> {
    let of_package = |page: &str| {
        let names = PACKAGES.iter().map(|package| package.name);
        let name = names
            .filter(|name| page.starts_with(name))
            .max_by_key(|name| name.len());
        name == Some(owner)
    };
    let found = pages(page).into_iter().filter(|name| of_package(name));
    let paths = found.map(|name| {
        let section = name.rsplit('.').next().unwrap_or_default();
        let place = format!("usr/share/man/man{section}/{name}");
        tree.root().join(place)
    });
    paths.filter(|path| !path.is_file()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run;

    const PLACES: &Places<'_> = &[
        ("docs/a.md", "a.md"),
        ("docs/design/b.md", "design/b.md"),
        ("systemd/README.md", "service.md"),
    ];

    #[test]
    fn links_lead_to_where_files_are_in_the_package() {
        let text = "See [a](../a.md#x), [the\nservice](../../systemd/README.md), [c](../c.md), \
                    [d](https://d.org/), [e](#e) and `f`.\n```\n[a](../c.md)\n```\n";
        let expected = "See [a](../a.md#x), [the\nservice](../service.md), c \
                        (docs/c.md in the source tree), [d](https://d.org/), [e](#e) and `f`.\n\
                        ```\n[a](../c.md)\n```\n";
        let moved = moved(text, "docs/design/b.md", "design/b.md", PLACES);
        assert_eq!(moved, expected);
        let found = targets(&moved, Path::new("/doc/design/b.md"));
        assert_eq!(found, ["/doc/a.md", "/doc/service.md"].map(PathBuf::from));
    }

    #[test]
    fn pages_are_found_with_their_section() {
        let page = "nvmeof\\-target\\-ctl(8)\n\\fBnvmeof\\-target.toml\\fR(5), f(x) (1) nvme(1)";
        assert_eq!(
            pages(page),
            ["nvmeof-target-ctl.8", "nvmeof-target.toml.5", "nvme.1"]
        );
    }

    #[test]
    fn missing_files_are_named() {
        let root = run::build_dir().join(format!("links-{}", std::process::id()));
        let tree = Tree::new(root.clone()).unwrap();
        let page = "usr/share/man/man1/nvmeof.1";
        tree.text("nvmeof-read(1), nvmeof-target(8), nvme(1)", page)
            .unwrap();
        tree.text("[a](b.md) [c](sub/d.md)", "doc/a.md").unwrap();
        tree.text("[a](../a.md)", "doc/sub/d.md").unwrap();
        let Err(Failure::Failed(output)) = check(&tree, "nvmeof") else {
            panic!("a link that leads nowhere is found");
        };
        assert_eq!(output.lines().count(), 2, "{output}");
        for missing in ["doc/b.md", "man1/nvmeof-read.1"] {
            assert!(output.contains(missing), "{output}");
        }
        tree.text("", "doc/b.md").unwrap();
        tree.text("", "usr/share/man/man1/nvmeof-read.1").unwrap();
        assert!(check(&tree, "nvmeof").is_ok());
        fs::remove_dir_all(root).unwrap();
    }
}
