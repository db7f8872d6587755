//! Permitted dependencies between the crates of the project.
//!
//! A new crate, or a new dependency between two crates, must be added to the table here.
//! Crates below `tests/` may use all crates.

use toml::{Table, Value};

use crate::Problem;

/// The permitted dependencies of one crate.
#[derive(Debug)]
struct Rule {
    name: &'static str,
    /// The crates of the project that it may depend on.
    ours: &'static [&'static str],
    /// Whether it may use the operating system directly.
    system: bool,
}

const RULES: &[Rule] = &[
    Rule {
        name: "nvmeof-manual",
        ours: &[],
        system: false,
    },
    Rule {
        name: "nvmeof-logging",
        ours: &[],
        system: false,
    },
    Rule {
        name: "nvmeof-wire",
        ours: &[],
        system: false,
    },
    Rule {
        name: "nvmeof-memory",
        ours: &[],
        system: true,
    },
    Rule {
        name: "nvmeof-uring",
        ours: &["nvmeof-memory"],
        system: true,
    },
    Rule {
        name: "nvmeof-polling",
        ours: &[],
        system: true,
    },
    Rule {
        name: "nvmeof-socket-file",
        ours: &[],
        system: true,
    },
    Rule {
        name: "nvmeof-rdma",
        ours: &["nvmeof-memory"],
        system: false,
    },
    Rule {
        name: "nvmeof-dhchap",
        ours: &["nvmeof-memory", "nvmeof-wire"],
        system: false,
    },
    Rule {
        name: "nvmeof-atomic-file",
        ours: &["nvmeof-rdma"],
        system: true,
    },
    Rule {
        name: "nvmeof-rdma-layers",
        ours: &["nvmeof-memory", "nvmeof-rdma"],
        system: false,
    },
    Rule {
        name: "nvmeof-rdma-soft",
        ours: &["nvmeof-memory", "nvmeof-rdma"],
        system: false,
    },
    Rule {
        name: "nvmeof-rdma-iwarp",
        ours: &[
            "nvmeof-memory",
            "nvmeof-rdma",
            "nvmeof-rdma-soft",
            "nvmeof-socket-file",
            "nvmeof-uring",
        ],
        system: true,
    },
    Rule {
        name: "nvmeof-rdma-verbs",
        ours: &["nvmeof-memory", "nvmeof-rdma"],
        system: true,
    },
    Rule {
        name: "nvmeof-rdma-shm",
        ours: &[
            "nvmeof-memory",
            "nvmeof-rdma",
            "nvmeof-rdma-soft",
            "nvmeof-socket-file",
        ],
        system: true,
    },
    Rule {
        name: "nvmeof-rdma-sim",
        ours: &[
            "nvmeof-memory",
            "nvmeof-rdma",
            "nvmeof-rdma-layers",
            "nvmeof-rdma-soft",
        ],
        system: false,
    },
    Rule {
        name: "nvmeof-target-core",
        ours: &["nvmeof-dhchap", "nvmeof-target-reservations", "nvmeof-wire"],
        system: false,
    },
    Rule {
        name: "nvmeof-target-reservations",
        ours: &["nvmeof-wire"],
        system: false,
    },
    Rule {
        name: "nvmeof-target-ha",
        ours: &[],
        system: false,
    },
    Rule {
        name: "nvmeof-initiator-core",
        ours: &["nvmeof-dhchap", "nvmeof-wire"],
        system: false,
    },
    Rule {
        name: "nvmeof-backend-spec",
        ours: &[],
        system: false,
    },
    Rule {
        name: "nvmeof-target-address",
        ours: &["nvmeof-rdma", "nvmeof-target-core"],
        system: true,
    },
    Rule {
        name: "nvmeof-ceph",
        ours: &["nvmeof-backend-spec", "nvmeof-memory"],
        system: true,
    },
    Rule {
        name: "nvmeof-backend",
        ours: &[
            "nvmeof-backend-spec",
            "nvmeof-ceph",
            "nvmeof-memory",
            "nvmeof-uring",
            "nvmeof-wire",
        ],
        system: true,
    },
    Rule {
        name: "nvmeof-backend-layers",
        ours: &["nvmeof-backend", "nvmeof-uring"],
        system: true,
    },
    Rule {
        name: "nvmeof-target-engine",
        ours: &[
            "nvmeof-backend",
            "nvmeof-dhchap",
            "nvmeof-memory",
            "nvmeof-polling",
            "nvmeof-rdma",
            "nvmeof-target-address",
            "nvmeof-target-core",
            "nvmeof-wire",
        ],
        system: true,
    },
    Rule {
        name: "nvmeof-target-api",
        ours: &["nvmeof-dhchap", "nvmeof-rdma", "nvmeof-target-core"],
        system: true,
    },
    Rule {
        name: "nvmeof-target-config",
        ours: &[
            "nvmeof-backend-spec",
            "nvmeof-dhchap",
            "nvmeof-polling",
            "nvmeof-rdma",
            "nvmeof-target-address",
            "nvmeof-target-core",
            "nvmeof-wire",
        ],
        system: true,
    },
    Rule {
        name: "nvmeof-target-admin",
        ours: &[
            "nvmeof-atomic-file",
            "nvmeof-backend-spec",
            "nvmeof-dhchap",
            "nvmeof-rdma",
            "nvmeof-target-address",
            "nvmeof-target-api",
            "nvmeof-target-config",
            "nvmeof-target-core",
            "nvmeof-wire",
        ],
        system: true,
    },
    Rule {
        name: "nvmeof-target-manage",
        ours: &[
            "nvmeof-atomic-file",
            "nvmeof-backend",
            "nvmeof-backend-spec",
            "nvmeof-memory",
            "nvmeof-rdma",
            "nvmeof-rdma-iwarp",
            "nvmeof-rdma-shm",
            "nvmeof-rdma-verbs",
            "nvmeof-target-address",
            "nvmeof-target-config",
            "nvmeof-target-core",
            "nvmeof-target-engine",
            "nvmeof-target-ha",
            "nvmeof-target-reservations",
            "nvmeof-uring",
            "nvmeof-wire",
        ],
        system: true,
    },
    Rule {
        name: "nvmeof-target-control",
        ours: &[
            "nvmeof-atomic-file",
            "nvmeof-rdma",
            "nvmeof-rdma-shm",
            "nvmeof-socket-file",
            "nvmeof-target-address",
            "nvmeof-target-api",
            "nvmeof-target-config",
            "nvmeof-target-core",
            "nvmeof-target-engine",
            "nvmeof-target-manage",
            "nvmeof-target-reservations",
            "nvmeof-wire",
        ],
        system: true,
    },
    Rule {
        name: "nvmeof-target",
        ours: &[
            "nvmeof-logging",
            "nvmeof-manual",
            "nvmeof-wire",
            "nvmeof-rdma",
            "nvmeof-target-address",
            "nvmeof-target-admin",
            "nvmeof-target-config",
            "nvmeof-target-control",
            "nvmeof-target-core",
            "nvmeof-target-engine",
            "nvmeof-target-manage",
        ],
        system: true,
    },
    Rule {
        name: "nvmeof-initiator",
        ours: &[
            "nvmeof-wire",
            "nvmeof-memory",
            "nvmeof-polling",
            "nvmeof-rdma",
            "nvmeof-rdma-soft",
            "nvmeof-rdma-iwarp",
            "nvmeof-rdma-shm",
            "nvmeof-rdma-verbs",
            "nvmeof-initiator-core",
        ],
        system: true,
    },
    Rule {
        name: "nvmeof-cli",
        ours: &[
            "nvmeof-logging",
            "nvmeof-manual",
            "nvmeof-wire",
            "nvmeof-memory",
            "nvmeof-polling",
            "nvmeof-rdma",
            "nvmeof-initiator-core",
            "nvmeof-initiator",
        ],
        system: true,
    },
    Rule {
        name: "nvmeof-fio",
        ours: &[
            "nvmeof-logging",
            "nvmeof-memory",
            "nvmeof-polling",
            "nvmeof-rdma",
            "nvmeof-initiator-core",
            "nvmeof-initiator",
        ],
        system: true,
    },
];

/// Crates for the operating system and runtimes. Protocol logic does no I/O.
const SYSTEM_CRATES: &[&str] = &[
    "tokio",
    "nix",
    "libc",
    "io-uring",
    "socket2",
    "mio",
    "rustix",
    "rdma-sys",
    "libloading",
];

/// The tables of dependencies that a crate links or builds with.
pub(crate) const LINKED: &[&str] = &["dependencies", "build-dependencies"];

/// Checks the manifest of one crate; `folder` is relative to the root.
#[must_use]
pub fn check(folder: &str, manifest: &Table) -> Vec<Problem> {
    let mut problems = Vec::new();
    let lints = manifest
        .get("lints")
        .and_then(|lints| lints.get("workspace"));
    if lints != Some(&Value::Boolean(true)) {
        problems.push(format!(
            "{folder}: Cargo.toml lacks `lints.workspace = true`"
        ));
    }
    if folder.starts_with("tests/") {
        return problems;
    }
    let name = manifest
        .get("package")
        .and_then(|package| package.get("name")?.as_str());
    let Some(rule) = RULES.iter().find(|rule| Some(rule.name) == name) else {
        problems.push(format!(
            "{folder}: tests/tidy/src/crates.rs has no rule for this crate"
        ));
        return problems;
    };
    for dependency in dependencies(manifest, LINKED) {
        let ours = dependency.starts_with("nvmeof-");
        if ours && !rule.ours.contains(&dependency.as_str()) {
            problems.push(format!("{folder}: must not depend on {dependency}"));
        }
        if !rule.system && SYSTEM_CRATES.contains(&dependency.as_str()) {
            problems.push(format!(
                "{folder}: does no I/O, must not depend on {dependency}"
            ));
        }
    }
    for dependency in dependencies(manifest, &["dev-dependencies"]) {
        let other = side(&dependency);
        if let (Some(own), Some(other)) = (side(rule.name), other)
            && own != other
        {
            let both = "a test of both sides belongs in tests/";
            problems.push(format!("{folder}: must not depend on {dependency}; {both}"));
        }
    }
    problems
}

/// The side a crate is on; the crates of `common/` are on none.
fn side(name: &str) -> Option<&'static str> {
    match name {
        "nvmeof-target" | "nvmeof-backend" | "nvmeof-ceph" => Some("target"),
        name if name.starts_with("nvmeof-target-") || name.starts_with("nvmeof-backend-") => {
            Some("target")
        }
        "nvmeof-initiator" | "nvmeof-initiator-core" | "nvmeof-cli" | "nvmeof-fio" => {
            Some("initiator")
        }
        _ => None,
    }
}

/// The packages that the tables of these names list, also those that only some
/// platforms have.
pub(crate) fn dependencies(manifest: &Table, tables: &[&str]) -> Vec<String> {
    let platforms = manifest
        .get("target")
        .and_then(Value::as_table)
        .into_iter()
        .flatten();
    let platforms = platforms.filter_map(|(_, platform)| platform.as_table());
    let mut found = Vec::new();
    for place in platforms.chain([manifest]) {
        for table in tables {
            let entries = place
                .get(*table)
                .and_then(Value::as_table)
                .into_iter()
                .flatten();
            found.extend(entries.map(|(key, value)| {
                let renamed = value.get("package").and_then(Value::as_str);
                renamed.unwrap_or(key).to_owned()
            }));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn problems(folder: &str, name: &str, rest: &str) -> Vec<Problem> {
        let text = format!("[package]\nname = \"{name}\"\n[lints]\nworkspace = true\n{rest}");
        check(folder, &text.parse().unwrap())
    }

    fn refused(name: &str, rest: &str, words: &str) {
        let found = problems("x", name, rest);
        assert!(
            found.len() == 1 && found[0].contains(words),
            "{name} {rest}: {found:?}"
        );
    }

    #[test]
    fn allowed_arrows_pass() {
        let rest = "[dependencies]\nnvmeof-wire.workspace = true\nbitflags = \"2\"\n";
        assert_eq!(problems("target/core", "nvmeof-target-core", rest), [""; 0]);
        let rest = "[dependencies]\nnix = \"1\"\n[dev-dependencies]\nnvmeof-rdma = \"1\"\n";
        assert_eq!(problems("target/daemon", "nvmeof-target", rest), [""; 0]);
        let rest = "[dependencies]\nnvmeof-target = \"1\"\nnvmeof-initiator = \"1\"\n";
        assert_eq!(problems("tests/e2e", "nvmeof-e2e", rest), [""; 0]);
    }

    #[test]
    fn forbidden_dependencies_are_found_in_any_notation() {
        let arrow = "must not depend on nvmeof-rdma";
        for rest in [
            "[dependencies]\nnvmeof-rdma.workspace = true\n",
            "[build-dependencies]\nnvmeof-rdma = \"1\"\n",
            "[dependencies]\nother = { package = \"nvmeof-rdma\", path = \"x\" }\n",
            "[target.'cfg(unix)'.dependencies]\nnvmeof-rdma = \"1\"\n",
            "[dependencies.nvmeof-rdma]\npath = \"x\"\n",
        ] {
            refused("nvmeof-target-core", rest, arrow);
        }
    }

    #[test]
    fn protocol_logic_does_no_io() {
        for name in [
            "nvmeof-wire",
            "nvmeof-rdma",
            "nvmeof-rdma-soft",
            "nvmeof-target-core",
            "nvmeof-initiator-core",
        ] {
            for system in ["tokio", "nix", "libc", "io-uring"] {
                refused(
                    name,
                    &format!("[dependencies]\n{system} = \"1\"\n"),
                    "does no I/O",
                );
            }
        }
    }

    #[test]
    fn target_and_initiator_do_not_depend_on_each_other() {
        for table in ["dependencies", "dev-dependencies"] {
            let rest = format!("[{table}]\nnvmeof-initiator = \"1\"\n");
            refused("nvmeof-target", &rest, "nvmeof-initiator");
            let rest = format!("[{table}]\nnvmeof-backend = \"1\"\n");
            refused("nvmeof-cli", &rest, "nvmeof-backend");
        }
    }

    #[test]
    fn crates_require_a_rule_and_the_lints() {
        refused("nvmeof-new", "", "no rule");
        let bare = "[package]\nname = \"nvmeof-wire\"\n".parse().unwrap();
        assert!(check("common/wire", &bare)[0].contains("lints"));
    }

    /// All crates of ours that the table lets `name` link, through others as well.
    fn linked(name: &'static str) -> BTreeSet<&'static str> {
        let (mut linked, mut next) = (BTreeSet::new(), vec![name]);
        while let Some(name) = next.pop() {
            let rule = RULES.iter().find(|rule| rule.name == name).unwrap();
            next.extend(rule.ours.iter().filter(|ours| linked.insert(**ours)));
        }
        linked
    }

    #[test]
    fn neither_side_of_the_target_reaches_the_other_through_others() {
        for (name, others) in [
            (
                "nvmeof-target-admin",
                &["nvmeof-target-engine", "nvmeof-backend", "nvmeof-uring"][..],
            ),
            (
                "nvmeof-target-engine",
                &["nvmeof-target-config", "nvmeof-target-api"],
            ),
        ] {
            let linked = linked(name);
            for other in others {
                assert!(!linked.contains(other), "{name} reaches {other}");
            }
        }
    }

    #[test]
    fn programs_link_no_wrappers_and_no_simulation() {
        for name in ["nvmeof-target", "nvmeof-cli", "nvmeof-fio"] {
            let linked = linked(name);
            for other in [
                "nvmeof-rdma-layers",
                "nvmeof-rdma-sim",
                "nvmeof-backend-layers",
            ] {
                assert!(!linked.contains(other), "{name} reaches {other}");
            }
        }
    }

    #[test]
    fn rules_name_crates_that_have_rules() {
        for rule in RULES {
            for ours in rule.ours {
                assert!(RULES.iter().any(|rule| rule.name == *ours), "{ours}");
            }
        }
    }
}
