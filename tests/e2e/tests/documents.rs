//! The configurations and commands in documents.
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

use nvmeof_e2e::{
    OTHER_KEY, Run, Setup, binary, free_port, image, key_file, key_file_with, target_command,
};

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

/// The folder of keys of the service.
const KEYS: &str = "/etc/nvmeof/keys/";

const LOCAL_PORT: &str = "\n[[port]]\ntraddr = \"127.0.0.1\"\n";

/// Documents that must contain a configuration.
const SHOW_CONFIGURATIONS: [&str; 7] = [
    "README.md",
    "docs/configuration.md",
    "docs/configuration-reference.md",
    "docs/monitoring.md",
    "docs/quick-start.md",
    "docs/security.md",
    "target/daemon/manual/nvmeof-target.toml.5.md",
];

/// Checks each document, and the files of the package.
#[test]
fn documented_configurations_are_valid() {
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
            // Only paths differ between machines.
            let mut text = block;
            for shown in ["/tmp/disk.img", "/srv/disk.img", "/var/lib/nvmeof/disk.img"] {
                text = text.replace(shown, &disk.display().to_string());
            }
            // An example of ports has no namespace, and an example of one table has no
            // port either. All others must be complete.
            let shows = |table: &str| text.lines().any(|line| line.starts_with(table));
            if !shows("[[subsystem]]") {
                let port = if shows("[[port]]") { "" } else { LOCAL_PORT };
                text = format!("{text}{port}{NULL_DISK}");
            }
            // Keys, which the target reads.
            for name in text.split('"').filter_map(|it| it.strip_prefix(KEYS)) {
                key_file(&setup.path(name));
            }
            let sockets = setup.path("");
            text = text.replace(KEYS, &sockets.display().to_string());
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

/// The commands of a user, one after the other in one shell, in a folder of its own. A
/// scenario of the lab tests the commands that build packages.
#[test]
fn documented_user_commands_work() {
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

/// By default fio writes its verification state to a file in the current folder, which is
/// unexpected for an example.
#[test]
fn documented_fio_commands_leave_no_files() {
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

/// The command without options writes the table of figures.
#[test]
fn command_that_writes_the_table_is_documented() {
    let shown = commands("README.md", "$ ");
    let whole = shown.iter().any(|line| {
        let line = line.split('#').next().unwrap_or_default();
        line.trim_end() == "cargo xtask bench"
    });
    assert!(whole, "{shown:?}");
}

/// A shell with the programs in its `PATH`, which runs `script`.
fn shell(script: &str) -> Command {
    let folder = binary("nvmeof").parent().unwrap().canonicalize().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    shell.env("PATH", path).args(["-c", script]);
    shell
}

/// Waits until the target responds.
fn ready(port: u16) -> String {
    format!(
        "for try in $(seq 600); do nvmeof discover -t rdma -a 127.0.0.1 -s {port} \
         >/dev/null 2>&1 && break; sleep 0.1; done\n"
    )
}

/// Commands as root change the machine: a scenario of the lab runs them, for each document
/// with such lines.
#[test]
fn documented_root_commands_are_run_in_the_lab() {
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

/// The first words of indented lines that are commands.
const PROGRAMS: [&str; 7] = [
    "nvmeof",
    "nvmeof-target",
    "nvme",
    "curl",
    "install",
    "journalctl",
    "systemctl",
];

/// Those that query or change a running target.
const FOR_A_TARGET: [&str; 3] = ["nvmeof-target ctl ", "nvmeof-target top", "curl "];

/// Documented commands for a running target work, one after the other.
#[test]
fn documented_commands_for_a_running_target_work() {
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

/// A stand-in for the program of Prometheus if that is not installed: checks that it would get
/// metrics.
const PROMTOOL: &str = "command -v promtool >/dev/null || \
                        promtool() { grep nvmeof_target_info; }\n";

/// Runs commands of a document for a running target, in one shell. Programs that require a
/// terminal get one, and are ended with `q`.
fn types_to_a_target(document: &str, commands: &[String]) {
    let setup = Setup::new().file(1 << 20).access(ONE_HOST);
    let (socket, second) = (setup.path("control.sock"), setup.path("second.img"));
    image(&second, 2, 1 << 20);
    let metrics = format!("127.0.0.1:{}", free_port());
    // The keys of the host before and after a change.
    let keys = setup.path("keys");
    std::fs::create_dir(&keys).unwrap();
    key_file(&keys.join("host.key"));
    key_file_with(&keys.join("host-2.key"), OTHER_KEY);
    let keys = keys.display().to_string();
    let head = format!(
        "[control]\nsocket = '{}'\nstate = '{}'\n[metrics]\nlisten = '{metrics}'\n\
         [[host]]\nnqn = 'nqn.2026-11.org.example:host'\nkey_file = '{keys}/host.key'\n",
        socket.display(),
        setup.path("state.json").display()
    );
    let setup = setup.head(&head);
    let target = setup.start();
    let mut script = format!("set -e -o pipefail\n{PROMTOOL}");
    for command in commands {
        let command = command
            .replace("/srv/second.img", &second.display().to_string())
            .replace("/etc/nvmeof/keys", &keys)
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

/// For commands that allow another host, access must be restricted.
const ONE_HOST: &str = "allowed_hosts = [\"nqn.2026-11.org.example:host\"]";
