//! The contents of the packages.

use std::fs;
use std::path::{Path, PathBuf};

use crate::run::{self, Failure, Outcome};

use super::links::{self, Places};
use super::tree::Tree;

/// One package.
pub(super) struct Package {
    /// The name of its program as well.
    pub(super) name: &'static str,
    /// Files of the repository, and their paths in the package.
    files: &'static [(&'static str, &'static str)],
    /// Files of these that the administrator edits.
    pub(super) conffiles: &'static [&'static str],
    pub(super) scripts: &'static [&'static str],
    documents: &'static Places<'static>,
}

/// Both packages.
pub(super) const PACKAGES: &[Package] = &[
    Package {
        name: "nvmeof-target",
        files: &[
            (
                "systemd/nvmeof-target.service",
                "usr/lib/systemd/system/nvmeof-target.service",
            ),
            ("systemd/nvmeof.sysusers", "usr/lib/sysusers.d/nvmeof.conf"),
            ("systemd/nvmeof.tmpfiles", "usr/lib/tmpfiles.d/nvmeof.conf"),
            ("systemd/debian/target.toml", "etc/nvmeof/target.toml"),
            (
                "systemd/block-device.conf",
                "usr/share/doc/nvmeof-target/examples/block-device.conf",
            ),
            (
                "systemd/credentials.conf",
                "usr/share/doc/nvmeof-target/examples/credentials.conf",
            ),
            (
                "systemd/folder.conf",
                "usr/share/doc/nvmeof-target/examples/folder.conf",
            ),
        ],
        conffiles: &["/etc/nvmeof/target.toml"],
        scripts: &["postinst", "prerm", "postrm"],
        documents: DOCUMENTS,
    },
    Package {
        name: "nvmeof",
        files: &[],
        conffiles: &[],
        scripts: &[],
        documents: &[],
    },
];

/// Documents for administrators in the package of the target, and their paths in its folder
/// of documents.
const DOCUMENTS: &Places<'_> = &[
    ("docs/quick-start.md", "quick-start.md"),
    ("docs/ceph.md", "ceph.md"),
    ("docs/high-availability.md", "high-availability.md"),
    ("docs/command-line.md", "command-line.md"),
    ("docs/configuration.md", "configuration.md"),
    (
        "docs/configuration-reference.md",
        "configuration-reference.md",
    ),
    ("docs/features.md", "features.md"),
    ("docs/interop.md", "interop.md"),
    ("docs/managing.md", "managing.md"),
    ("docs/openapi.json", "openapi.json"),
    ("docs/memory.md", "memory.md"),
    ("docs/monitoring.md", "monitoring.md"),
    ("docs/nvme-cli.md", "nvme-cli.md"),
    ("docs/performance.md", "performance.md"),
    ("docs/performance/cost.svg", "performance/cost.svg"),
    ("docs/performance/iops.svg", "performance/iops.svg"),
    ("docs/performance/latency.svg", "performance/latency.svg"),
    (
        "docs/performance/latency-write.svg",
        "performance/latency-write.svg",
    ),
    ("docs/performance/shm-iops.svg", "performance/shm-iops.svg"),
    (
        "docs/performance/shm-latency.svg",
        "performance/shm-latency.svg",
    ),
    (
        "docs/performance/shm-latency-write.svg",
        "performance/shm-latency-write.svg",
    ),
    (
        "docs/performance/throughput.svg",
        "performance/throughput.svg",
    ),
    (
        "docs/performance/throughput-depth.svg",
        "performance/throughput-depth.svg",
    ),
    (
        "docs/design/fairness-and-quotas.md",
        "design/fairness-and-quotas.md",
    ),
    ("docs/design/reservations.md", "design/reservations.md"),
    ("docs/glossary.md", "glossary.md"),
    ("docs/security.md", "security.md"),
    ("docs/troubleshooting.md", "troubleshooting.md"),
    ("SECURITY.md", "SECURITY.md"),
    ("systemd/README.md", "service.md"),
];

/// Folders of completions of each shell.
const COMPLETIONS: &[(&str, &str, &str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/", "", ""),
    ("zsh", "usr/share/zsh/vendor-completions/", "_", ""),
    ("fish", "usr/share/fish/vendor_completions.d/", "", ".fish"),
];

/// Puts everything into `tree`, with the programs of the folder `programs`.
pub(super) fn lay_out(package: &Package, programs: &Path, tree: &Tree) -> Outcome {
    let name = package.name;
    let program = programs.join(name);
    let installed = tree.program(&program, &format!("usr/bin/{name}"))?;
    let strip = ["--remove-section=.comment", "--remove-section=.note"];
    run::run(run::command("strip").args(strip).arg(&installed))?;
    let pages = tree.folder("usr/share/man")?;
    run::run(run::command(&program).arg("man").arg(&pages))?;
    for (shell, folder, before, after) in COMPLETIONS {
        let text = run::output(run::command(&program).args(["completions", shell]))?;
        tree.text(&text, &format!("{folder}{before}{name}{after}"))?;
    }
    for (from, to) in package.files {
        tree.file(&run::root().join(from), to)?;
    }
    let documents = format!("usr/share/doc/{name}");
    let copyright = run::root().join("systemd/debian/copyright");
    tree.file(&copyright, &format!("{documents}/copyright"))?;
    for (from, to) in package.documents {
        document(
            tree,
            from,
            to,
            &format!("{documents}/{to}"),
            package.documents,
        )?;
    }
    Ok(())
}

/// Adds a document to the tree, with its links adapted.
fn document(tree: &Tree, from: &str, to: &str, path: &str, places: &Places<'_>) -> Outcome {
    let source = run::root().join(from);
    if !from.ends_with(".md") {
        tree.file(&source, path)?;
        return Ok(());
    }
    let text = fs::read_to_string(&source);
    let text = text.map_err(|error| Failure::file("read", &source, &error))?;
    tree.text(&links::moved(&text, from, to, places), path)?;
    Ok(())
}

/// Adds the changelog of the project to the tree.
pub(super) fn changelog(package: &Package, tree: &Tree) -> Outcome<PathBuf> {
    let path = format!("usr/share/doc/{}/changelog", package.name);
    document(tree, "CHANGELOG.md", "changelog", &path, package.documents)?;
    Ok(tree.root().join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Links to documents for developers only.
    const FOR_DEVELOPERS: [&str; 1] = ["docs/development.md"];

    #[test]
    fn all_listed_contents_exist() {
        let root = run::root();
        for package in PACKAGES {
            for (from, _) in package.files {
                assert!(root.join(from).is_file(), "{from}");
            }
            for conffile in package.conffiles {
                let is_in = |to: &str| conffile.trim_start_matches('/') == to;
                assert!(package.files.iter().any(|(_, to)| is_in(to)), "{conffile}");
            }
            let own = root.join("systemd/debian").join(package.name);
            for text in package.scripts.iter().chain(&["control"]) {
                assert!(own.join(text).is_file(), "{}: {text}", package.name);
            }
            for (from, _) in package.documents {
                assert!(root.join(from).is_file(), "{from}");
                let text = fs::read_to_string(root.join(from)).unwrap();
                for target in links::targets(&text, Path::new(from)) {
                    let goes_in = |(from, _): &(&str, &str)| Path::new(from) == target;
                    let known = package.documents.iter().any(goes_in);
                    assert!(
                        known || FOR_DEVELOPERS.iter().any(|it| Path::new(it) == target),
                        "{from} links to {}: ship that as well",
                        target.display()
                    );
                }
            }
        }
    }
}
