//! Links from one document of the repository to another.

use std::path::{Component, Path, PathBuf};

use crate::Problem;

/// Checks the relative links of a Markdown document. `exists` takes a path relative to the
/// root of the repository, like `path`.
#[must_use]
pub fn check(path: &Path, text: &str, exists: impl Fn(&Path) -> bool) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (number, link) in links(text) {
        let Some(file) = file_of(&link) else { continue };
        let folder = path.parent().unwrap_or(Path::new(""));
        let there = normal(&folder.join(file)).is_some_and(|target| exists(&target));
        if !there {
            problems.push(format!(
                "{}:{number}: `{file}` does not exist",
                path.display()
            ));
        }
    }
    problems
}

/// The targets of `[text](target)` with their line numbers, outside of code.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        // Every second piece is between backquotes.
        let prose: String = line.split('`').step_by(2).collect();
        for piece in prose.split("](").skip(1) {
            found.push((
                number,
                piece
                    .split([')', ' '])
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            ));
        }
    }
    found
}

/// The file of a link; `None` for a link out of the repository or within its page.
fn file_of(link: &str) -> Option<&str> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    link.split('#').next().filter(|file| !file.is_empty())
}

/// The path without `.` and `..`; `None` if it leaves the repository.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                if !normal.pop() {
                    return None;
                }
            }
            Component::Normal(name) => normal.push(name),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(normal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> Vec<Problem> {
        let there = ["README.md", "docs/a.md", "docs"];
        check(Path::new(path), text, |path| {
            there.iter().any(|known| path == Path::new(known))
        })
    }

    #[test]
    fn good_links_pass() {
        let text =
            "[a](docs/a.md) and [b](docs/a.md#there \"title\"), [c](https://x.org/y), [d](#e)";
        assert_eq!(problems("README.md", text), [""; 0]);
        assert_eq!(
            problems("docs/a.md", "[up](../README.md) [self](./a.md) [f](.)"),
            [""; 0]
        );
    }

    #[test]
    fn dead_links_are_reported_with_their_line() {
        let found = problems("README.md", "x\n[a](docs/a.md) [b](docs/b.md)\n");
        assert_eq!(found, ["README.md:2: `docs/b.md` does not exist"]);
        assert_eq!(problems("docs/a.md", "[a](docs/a.md)").len(), 1);
    }

    #[test]
    fn links_out_of_the_repository_are_refused() {
        assert_eq!(problems("docs/a.md", "[a](../../README.md)").len(), 1);
        assert_eq!(problems("README.md", "[a](/README.md)").len(), 1);
    }

    #[test]
    fn code_is_not_read() {
        assert_eq!(problems("README.md", "```text\n[a](b)\n```\n"), [""; 0]);
        assert_eq!(
            problems("README.md", "write `[a](b)` or [`a`](docs/a.md)"),
            [""; 0]
        );
        assert_eq!(problems("README.md", "[`a`](b)").len(), 1);
    }
}
