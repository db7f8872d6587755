//! Requirements of the machine: system packages and toolchain components.

use std::path::Path;
use std::process::Command;

use crate::run::{self, Failure, Outcome};

/// A requirement of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// A toolchain component, detected by its cargo subcommand.
    Component {
        name: &'static str,
        subcommand: &'static str,
    },
    /// A Debian package, detected by a program.
    Package {
        name: &'static str,
        program: &'static str,
    },
    /// A Debian package, detected by a file.
    Library {
        name: &'static str,
        file: &'static str,
    },
}

/// `cargo fmt`.
pub(crate) const RUSTFMT: Tool = Tool::Component {
    name: "rustfmt",
    subcommand: "fmt",
};
/// `cargo clippy`.
pub(crate) const CLIPPY: Tool = Tool::Component {
    name: "clippy",
    subcommand: "clippy",
};
/// libFuzzer is C++ and is compiled from source.
pub(crate) const CXX: Tool = Tool::Package {
    name: "g++",
    program: "c++",
};
/// Makes and checks the disk images.
pub(crate) const E2FS: Tool = Tool::Package {
    name: "e2fsprogs",
    program: "mke2fs",
};
/// Tests use it to observe the system calls of a Flush.
pub(crate) const STRACE: Tool = Tool::Package {
    name: "strace",
    program: "strace",
};
/// A file system in user space, which tests suspend.
pub(crate) const BINDFS: Tool = Tool::Package {
    name: "bindfs",
    program: "bindfs",
};
/// The local yardstick of benchmarks.
pub(crate) const FIO: Tool = Tool::Package {
    name: "fio",
    program: "fio",
};
/// Profiles benchmarks.
pub(crate) const PERF: Tool = Tool::Package {
    name: "linux-perf",
    program: "perf",
};
/// Unpacks fio's source package, for its headers.
pub(crate) const DPKG_DEV: Tool = Tool::Package {
    name: "dpkg-dev",
    program: "dpkg-source",
};
/// Strips the programs of packages.
pub(crate) const BINUTILS: Tool = Tool::Package {
    name: "binutils",
    program: "strip",
};
/// Formats the results of fio jobs as a table.
pub(crate) const JQ: Tool = Tool::Package {
    name: "jq",
    program: "jq",
};
/// Checks the files of the service.
pub(crate) const SYSTEMD: Tool = Tool::Package {
    name: "systemd",
    program: "systemd-analyze",
};
/// Counts instructions.
pub(crate) const VALGRIND: Tool = Tool::Package {
    name: "valgrind",
    program: "valgrind",
};
/// Emulates the machine in which the lab boots a stock kernel.
pub(crate) const QEMU: Tool = Tool::Package {
    name: "qemu-system-x86",
    program: "qemu-system-x86_64",
};
/// Builds the Debian image of that machine.
pub(crate) const MMDEBSTRAP: Tool = Tool::Package {
    name: "mmdebstrap",
    program: "mmdebstrap",
};

/// Libraries for RDMA devices; libclang reads their headers when the workspace is built.
pub(crate) const RDMA: &[Tool] = &[
    Tool::Package {
        name: "pkg-config",
        program: "pkg-config",
    },
    Tool::Library {
        name: "libibverbs-dev",
        file: "/usr/include/infiniband/verbs.h",
    },
    Tool::Library {
        name: "librdmacm-dev",
        file: "/usr/include/rdma/rdma_cma.h",
    },
    Tool::Package {
        name: "clang",
        program: "clang",
    },
    // Bindings of later versions do not build.
    Tool::Library {
        name: "libclang1-14",
        file: "/usr/lib/llvm-14/lib/libclang.so.1",
    },
];

/// Everything that any command or document of the project uses.
pub(crate) const ALL: &[&[Tool]] = &[
    &[
        RUSTFMT, CLIPPY, CXX, E2FS, STRACE, BINDFS, FIO, PERF, DPKG_DEV, BINUTILS, JQ, SYSTEMD,
        VALGRIND, QEMU, MMDEBSTRAP,
    ],
    RDMA,
];

/// Makes sure that the tools are there; installs what is missing.
pub(crate) fn ensure(tools: &[&[Tool]]) -> Outcome {
    let mut components = Vec::new();
    let mut packages = Vec::new();
    for tool in tools.iter().copied().flatten() {
        match *tool {
            Tool::Component { name, subcommand } if !has_subcommand(subcommand) => {
                components.push(name);
            }
            Tool::Package { name, program } if run::find(program).is_none() => packages.push(name),
            Tool::Library { name, file } if !Path::new(file).exists() => packages.push(name),
            _ => {}
        }
    }
    install_packages(&packages)?;
    install_components(&components)
}

fn has_subcommand(subcommand: &str) -> bool {
    run::succeeds(run::cargo(subcommand).arg("--version"))
}

fn install_components(names: &[&str]) -> Outcome {
    if names.is_empty() {
        return Ok(());
    }
    run::heading("setup: toolchain components");
    if run::find("rustup").is_none() {
        return Err(Failure::Usage(format!(
            "the Rust toolchain lacks {}, and rustup is not installed; \
             install it from the source of the toolchain",
            names.join(" and ")
        )));
    }
    run::run(
        run::command("rustup")
            .args(["component", "add"])
            .args(names),
    )
}

fn install_packages(names: &[&str]) -> Outcome {
    if names.is_empty() {
        return Ok(());
    }
    run::heading("setup: system packages");
    let Some(prefix) = privilege() else {
        return Err(Failure::Usage(by_hand(names)));
    };
    // A fresh machine has no package lists.
    run::run(apt_get(prefix).arg("update"))?;
    run::run(
        apt_get(prefix)
            .args(["install", "-y", "--no-install-recommends"])
            .args(names),
    )
}

/// The command for the user when this program may not install packages.
fn by_hand(names: &[&str]) -> String {
    let names = names.join(" ");
    if run::find("apt-get").is_none() {
        return format!(
            "this machine has no apt-get; install the equivalents of these Debian packages: {names}"
        );
    }
    format!(
        "system packages are missing, and installing them requires root. Run:\n\n    \
         sudo apt-get update && sudo apt-get install -y --no-install-recommends {names}\n\n\
         and then repeat the command."
    )
}

/// How this user may run apt-get: directly, with `sudo -n`, or (`None`) not at all.
fn privilege() -> Option<&'static [&'static str]> {
    run::find("apt-get")?;
    let user = run::output(run::command("id").arg("-u")).unwrap_or_default();
    if user.trim() == "0" {
        return Some(&[]);
    }
    let sudo = run::succeeds(run::command("sudo").args(["-n", "true"]));
    sudo.then_some(&["sudo", "-n"])
}

fn apt_get(prefix: &[&str]) -> Command {
    // `env` sets the variable after sudo, which resets the environment.
    let mut words = prefix
        .iter()
        .chain(&["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    let mut command = run::command(words.next().copied().unwrap_or("env"));
    command.args(words);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn present_tools_are_not_installed() {
        assert!(
            ensure(&[&[
                Tool::Package {
                    name: "no-such-package",
                    program: "sh"
                },
                Tool::Library {
                    name: "no-such-library",
                    file: "/etc/passwd"
                }
            ]])
            .is_ok()
        );
    }

    #[test]
    fn missing_subcommand_is_detected() {
        assert!(!has_subcommand("no-such-subcommand"));
    }

    #[test]
    fn apt_get_is_called_with_and_without_sudo() {
        let plain = apt_get(&[]);
        assert!(plain.get_program().to_string_lossy().ends_with("env"));
        let sudo = apt_get(&["sudo", "-n"]);
        assert!(sudo.get_program().to_string_lossy().ends_with("sudo"));
        let words: Vec<_> = sudo.get_args().map(|word| word.to_string_lossy()).collect();
        assert_eq!(
            words,
            ["-n", "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
        );
    }

    #[test]
    fn line_to_run_by_hand_names_the_packages() {
        assert!(by_hand(&["g++", "fio"]).contains("g++ fio"));
    }
}
