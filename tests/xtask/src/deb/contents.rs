//! What is in the packages.

use std::path::Path;

use crate::run::{self, Outcome};

use super::tree::Tree;

/// One package.
pub(super) struct Package {
    pub(super) name: &'static str,
    /// The program, which has the same name.
    section: u8,
    /// Files of the repository and where they go.
    files: &'static [(&'static str, &'static str)],
    /// Of those, what belongs to the administrator.
    pub(super) conffiles: &'static [&'static str],
    pub(super) scripts: &'static [&'static str],
}

/// Both of them.
pub(super) const PACKAGES: &[Package] = &[
    Package {
        name: "nvmeof-target",
        section: 8,
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
                "systemd/folder.conf",
                "usr/share/doc/nvmeof-target/examples/folder.conf",
            ),
        ],
        conffiles: &["/etc/nvmeof/target.toml"],
        scripts: &["postinst", "prerm", "postrm"],
    },
    Package {
        name: "nvmeof",
        section: 1,
        files: &[],
        conffiles: &[],
        scripts: &[],
    },
];

/// Documents for the administrator, which come with the target as far as they
/// are there.
const DOCUMENTS: &[&str] = &[
    "quick-start.md",
    "configuration.md",
    "configuration-reference.md",
    "features.md",
    "managing.md",
    "memory.md",
    "monitoring.md",
    "security.md",
    "troubleshooting.md",
];

/// Where each shell looks for completions of packages.
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
    tree.compress_all(&pages)?;
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
    if name == "nvmeof-target" {
        for document in DOCUMENTS {
            let path = run::root().join("docs").join(document);
            if path.is_file() {
                tree.file(&path, &format!("{documents}/{document}"))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_goes_in_is_there() {
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
        }
    }
}
