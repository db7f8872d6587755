//! The configurations and the commands that the documents show.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

#[path = "documents/metrics.rs"]
mod metrics;
#[path = "documents/others.rs"]
mod others;
#[path = "documents/running.rs"]
mod running;
#[path = "documents/spans.rs"]
mod spans;

use std::path::{Path, PathBuf};
use std::process::Command;

use nvmeof_e2e::{Run, Setup, binary, free_port, image, target_command};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(document: &str) -> String {
    std::fs::read_to_string(root().join(document)).unwrap()
}

/// The blocks of a document that are TOML, or all of a file that is.
fn toml_blocks(document: &str) -> Vec<String> {
    let text = read(document);
    if document.ends_with(".toml") {
        return vec![text];
    }
    blocks(&text, "toml")
}

/// The blocks of a kind.
fn blocks(text: &str, kind: &str) -> Vec<String> {
    let fence = format!("```{kind}\n");
    let after_fences = text.split(&fence).skip(1);
    after_fences
        .map(|rest| rest.split("```").next().unwrap().to_owned())
        .collect()
}

const NULL_DISK: &str = "\n[[subsystem]]\nnqn = \"nqn.2026-11.org.example:disk\"\n\
                         allow_any_host = true\n\
                         [[subsystem.namespace]]\nnsid = 1\npath = \"null:1M\"\n";

const LOCAL_PORT: &str = "\n[[port]]\ntraddr = \"127.0.0.1\"\n";

/// Documents that would say little without a configuration.
const SHOW_CONFIGURATIONS: [&str; 7] = [
    "README.md",
    "docs/configuration.md",
    "docs/configuration-reference.md",
    "docs/monitoring.md",
    "docs/quick-start.md",
    "docs/security.md",
    "target/daemon/manual/nvmeof-target.toml.5.md",
];

/// Each document is looked at, and what the package installs.
#[test]
fn every_configuration_shown_is_good() {
    let mut shown = all_documents();
    shown.push("systemd/debian/target.toml".into());
    for document in shown {
        let blocks = toml_blocks(&document);
        let must = SHOW_CONFIGURATIONS.contains(&document.as_str());
        assert!(!must || !blocks.is_empty(), "{document} shows none");
        for block in blocks {
            let setup = Setup::new();
            let disk = setup.path("disk.img");
            image(&disk, 1, 1 << 20);
            // Only where things are differs from machine to machine.
            let mut text = block;
            for shown in ["/tmp/disk.img", "/srv/disk.img", "/var/lib/nvmeof/disk.img"] {
                text = text.replace(shown, &disk.display().to_string());
            }
            // What shows ports alone has nothing to serve, and what shows one
            // table alone has no port either. All others have to be whole.
            let shows = |table: &str| text.lines().any(|line| line.starts_with(table));
            if !shows("[[subsystem]]") {
                let port = if shows("[[port]]") { "" } else { LOCAL_PORT };
                text = format!("{text}{port}{NULL_DISK}");
            }
            let sockets = setup.path("");
            text = text.replace("/run/nvmeof/", &sockets.display().to_string());
            text = text.replace("/run/nvmeof\"", &format!("{}\"", sockets.display()));
            let file = setup.path("shown.toml");
            std::fs::write(&file, text.replace("4420", "0")).unwrap();
            let mut check = target_command();
            check.arg("check-config").arg(&file);
            Run::new(check).ok();
        }
    }
}

/// The documents for administrators.
const WITH_COMMANDS: &[&str] = &[
    "docs/quick-start.md",
    "docs/security.md",
    "initiator/cli/manual/nvmeof.1.md",
    "target/daemon/manual/nvmeof-target.8.md",
];

/// The commands of a document after `prompt`.
fn commands(document: &str, prompt: &str) -> Vec<String> {
    let blocks = blocks(&read(document), "console");
    let lines = blocks.iter().flat_map(|block| block.lines());
    let commands = lines.filter_map(|line| line.strip_prefix(prompt));
    commands.map(str::to_owned).collect()
}

/// What a user types, one line after the other in one shell, in a folder of its
/// own. What makes the packages is a test of the lab.
#[test]
fn the_commands_of_users_work() {
    for document in WITH_COMMANDS {
        let commands = commands(document, "$ ");
        let setup = Setup::new();
        let saved = root().join("target/admin/src/import/nvmet.json");
        std::fs::copy(saved, setup.path("nvmet.json")).unwrap();
        let port = free_port();
        let mut script = String::from("set -em\n");
        for command in commands.iter().filter(|line| !line.starts_with("cargo ")) {
            let command = command.replace("4420", &port.to_string());
            let command = command.replace(
                "nvmeof-target serve",
                &format!("nvmeof-target serve --listen 127.0.0.1:{port} --provider iwarp"),
            );
            script.push_str(&command);
            script.push('\n');
            if command.ends_with('&') {
                script.push_str(&ready(port));
            }
        }
        let mut shell = shell(&script);
        shell.current_dir(setup.path(""));
        Run::new(shell).ok();
    }
}

/// fio keeps what it verified in a file of the folder that it is started in, unless
/// told otherwise: nobody expects that of an example.
#[test]
fn what_is_shown_of_fio_leaves_no_file_behind() {
    let mut shown = 0;
    for document in all_documents() {
        let text = read(&document).replace("\\\n", " ");
        let commands = blocks(&text, "console");
        let lines = commands.iter().flat_map(|block| block.lines());
        for line in lines.filter(|line| line.starts_with("$ fio ") && line.contains("--verify=")) {
            assert!(line.contains("--verify_state_save=0"), "{document}: {line}");
            shown += 1;
        }
    }
    assert!(shown > 0, "no document shows how fio verifies");
}

/// What makes the table of figures is the command without options.
#[test]
fn the_command_that_makes_the_table_is_shown() {
    let shown = commands("README.md", "$ ");
    let whole = shown.iter().any(|line| {
        let line = line.split('#').next().unwrap_or_default();
        line.trim_end() == "cargo xtask bench"
    });
    assert!(whole, "{shown:?}");
}

/// A shell that finds our programs, and runs `script`.
fn shell(script: &str) -> Command {
    let folder = binary("nvmeof").parent().unwrap().canonicalize().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    shell.env("PATH", path).args(["-c", script]);
    shell
}

/// Waits until the target answers: a person reads meanwhile.
fn ready(port: u16) -> String {
    format!(
        "for try in $(seq 600); do nvmeof discover -t rdma -a 127.0.0.1 -s {port} \
         >/dev/null 2>&1 && break; sleep 0.1; done\n"
    )
}

/// What root types changes a machine: the lab does it, in a scenario that
/// follows each document that has such lines.
#[test]
fn the_commands_of_root_are_run_in_the_lab() {
    let scenario = read("tests/lab/scenarios/documents.sh");
    for document in documents() {
        let of_root = commands(&document, "# ").len();
        let indented = indented(&document).into_iter();
        let elsewhere = |command: &String| FOR_A_TARGET.iter().any(|it| command.starts_with(it));
        let of_services = indented.filter(|command| !elsewhere(command)).count();
        let followed = format!("\nfollow {document}");
        assert_eq!(
            of_root + of_services > 0,
            scenario.contains(&followed),
            "{document} has {of_root} and {of_services} commands for root"
        );
    }
}

/// The parts of manual pages that are written by hand.
const MANUAL: [&str; 3] = [
    "initiator/cli/manual/nvmeof.1.md",
    "target/daemon/manual/nvmeof-target.8.md",
    "target/daemon/manual/nvmeof-target.toml.5.md",
];

/// Every document.
fn all_documents() -> Vec<String> {
    let folder = std::fs::read_dir(root().join("docs")).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut documents: Vec<_> = names
        .filter(|name| name.ends_with(".md"))
        .map(|name| format!("docs/{name}"))
        .collect();
    documents.extend(["README.md", "systemd/README.md"].map(str::to_owned));
    documents.extend(MANUAL.map(str::to_owned));
    documents
}

/// Every document that administrators read, besides README.md.
fn documents() -> Vec<String> {
    let others = [
        "README.md",
        "docs/development.md",
        "docs/performance.md",
        "docs/interop.md",
    ];
    let mut documents = all_documents();
    documents.retain(|name| !others.contains(&name.as_str()));
    documents
}

/// Lines that show a command by being indented.
fn indented(document: &str) -> Vec<String> {
    let text = read(document);
    let lines = text.lines().filter_map(|line| line.strip_prefix("    "));
    let lines = lines.map(|line| line.strip_prefix("$ ").unwrap_or(line));
    let programs = |line: &&str| {
        let first = line.split(' ').next().unwrap_or_default();
        PROGRAMS.contains(&first) || first.starts_with("systemd-")
    };
    lines.filter(programs).map(str::to_owned).collect()
}

/// What an indented line that is a command begins with.
const PROGRAMS: [&str; 7] = [
    "nvmeof",
    "nvmeof-target",
    "nvme",
    "curl",
    "install",
    "journalctl",
    "systemctl",
];

/// Those of them that ask or change a target that runs.
const FOR_A_TARGET: [&str; 3] = ["nvmeof-target ctl ", "nvmeof-target top", "curl "];

/// The commands shown in documents about a target that runs do what they say
/// there, one after the other.
#[test]
fn the_commands_for_a_target_that_runs_work() {
    for document in documents() {
        let commands = indented(&document).into_iter();
        let commands: Vec<_> = commands
            .filter(|command| FOR_A_TARGET.iter().any(|it| command.starts_with(it)))
            .collect();
        if !commands.is_empty() {
            types_to_a_target(&document, &commands);
        }
    }
}

/// Stands in for the program that comes with Prometheus where that is not
/// installed: looks whether it would be given metrics.
const PROMTOOL: &str = "command -v promtool >/dev/null || \
                        promtool() { grep nvmeof_target_info; }\n";

/// Types commands of a document to a target that runs, in one shell. What takes
/// a terminal has one, and is ended there with `q`.
fn types_to_a_target(document: &str, commands: &[String]) {
    let setup = Setup::new().file(1 << 20).access(ONE_HOST);
    let (socket, second) = (setup.path("control.sock"), setup.path("second.img"));
    image(&second, 2, 1 << 20);
    let metrics = format!("127.0.0.1:{}", free_port());
    let head = format!(
        "[control]\nsocket = '{}'\nstate = '{}'\n[metrics]\nlisten = '{metrics}'\n",
        socket.display(),
        setup.path("state.json").display()
    );
    let setup = setup.head(&head);
    let target = setup.start();
    let mut script = format!("set -e -o pipefail\n{PROMTOOL}");
    for command in commands {
        let command = command
            .replace("/srv/second.img", &second.display().to_string())
            .replace("/run/nvmeof/control.sock", &socket.display().to_string())
            .replace("127.0.0.1:9400", &metrics)
            .replace("curl ", "curl --fail ");
        let (command, _remark) = command.split_once("  ").unwrap_or((&command, ""));
        let line = if command.starts_with("nvmeof-target top") && !command.contains("--once") {
            format!("(sleep 2; printf q) | script -qec '{command}' /dev/null")
        } else {
            command.to_owned()
        };
        script.push_str(&line);
        script.push('\n');
    }
    let mut shell = shell(&script);
    shell.env("NVMEOF_CONTROL", &socket);
    let ended = Run::new(shell).ok();
    assert!(!ended.stdout.is_empty(), "{document}: {script}");
    target.stop();
}

/// Commands that let another host in find that not everybody is let in.
const ONE_HOST: &str = "allowed_hosts = [\"nqn.2026-11.org.example:host\"]";
