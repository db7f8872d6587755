//! The commands that documents name within their sentences and tables, besides those of
//! `ctl`: each that can be done here is done, ours to a target of its own. What is left
//! is in a table, with the reason.

use std::collections::BTreeSet;
use std::process::Command;

use nvmeof_e2e::{Ended, NQN, Run, Setup, Target, free_port, image, managed, target_command};

use super::running::typed;
use super::spans::{FOREIGN_PROGRAMS, OURS, spans};
use super::{all_documents, read, root, shell};

/// Commands that are not run, by their first words, and why.
const LEFT: &[(&str, &str)] = &[
    ("apt-get ", INSTALLS),
    (
        "cargo ",
        "takes minutes; `.ci/run` builds, and what it names is there",
    ),
    (
        "chmod 600",
        "needs a file, which the sentence does not name",
    ),
    ("chown nvmeof keys/", CHANGES),
    ("chown nvmeof:", CHANGES),
    ("echo advise > /sys/", CHANGES),
    ("ethtool ", DEVICE),
    ("ibv_devinfo ", DEVICE),
    ("ceph ", CLUSTER),
    ("journalctl -o verbose", SERVICE),
    ("journalctl -u ", SERVICE),
    ("nvme ", "needs Linux as the host; the lab does it"),
    ("nvmetcli ", "needs Linux as the target"),
    ("rbd ", CLUSTER),
    ("rdma link", DEVICE),
    ("runuser -u nvmeof ", SERVICE),
    ("sudo -u nvmeof ", SERVICE),
    ("sysctl -w ", CHANGES),
    ("systemctl ", SERVICE),
    ("systemd-analyze ", SERVICE),
    (
        "ulimit -l unlimited",
        "raises a limit, which not everybody may",
    ),
    ("ulimit -n 65536", "raises a limit, which not everybody may"),
];
/// A key for in-band authentication, of bytes 00h to 1Fh.
const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const CHANGES: &str = "changes the machine of who runs the tests, as root";
const CLUSTER: &str = "needs a Ceph cluster; `cargo xtask test ceph` has one";
const DEVICE: &str = "needs an RDMA device";
const INSTALLS: &str = "installs packages, as root; `cargo xtask setup` does it";
const SERVICE: &str = "needs the target as a service of systemd, its user and journal";

/// Commands of other projects, with values for placeholders, if there are any. `PID` is the
/// process id of a target that has `disk1.img` open.
const FOREIGN: &[(&str, &str)] = &[
    ("fuser …", "fuser disk1.img"),
    ("ip route get ADDRESS", "ip route get 127.0.0.1"),
    ("kill -HUP PID", "kill -HUP PID"),
    ("lsblk …", "lsblk"),
    ("taskset -p", "taskset -p PID"),
    ("ulimit -l", ""),
    ("ulimit -n", ""),
    ("uname -r", ""),
];

/// Additional arguments of a verb that a sentence names alone.
const MORE: &[(&str, &str)] = &[
    ("nvmeof bench", "--rw randread --runtime 0.1"),
    ("nvmeof compare", "--start-block 0 --data same.img"),
    (
        "nvmeof compare-write",
        "--start-block 0 --compare block.img --data block.img",
    ),
    ("nvmeof dsm", "--start-block 0 --block-count 8"),
    ("nvmeof flush", ""),
    ("nvmeof id-ns", ""),
    ("nvmeof read", "--start-block 0 --block-count 8 --data -"),
    // Requires a registration.
    ("nvmeof resv-acquire", "--help"),
    ("nvmeof resv-register", "--rrega 0 --nrkey 1"),
    ("nvmeof write", "--start-block 0 --data same.img"),
    ("nvmeof write-zeroes", "--start-block 0 --block-count 8"),
    ("nvmeof-target check-config", "target.toml"),
    ("nvmeof-target import", "nvmet.json"),
    ("nvmeof-target serve", "--namespace null:1M"),
    ("nvmeof-target top", "--once --interval 0.1"),
];

/// A command of a program with arguments, except those of `ctl`.
fn typed_elsewhere(head: Option<&str>, span: &str) -> Option<String> {
    let (program, rest) = span.split_once(' ')?;
    let known = OURS.contains(&program) || FOREIGN_PROGRAMS.contains(&program);
    let is_command = known && !rest.starts_with("= ") && rest != "ctl";
    (is_command && typed(head, span).is_none()).then(|| span.to_owned())
}

/// Each once, from all documents.
fn all() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for document in all_documents() {
        let found = spans(&document).into_iter();
        all.extend(found.filter_map(|(head, span)| typed_elsewhere(head.as_deref(), &span)));
    }
    all
}

fn is_ours(command: &str) -> bool {
    OURS.iter()
        .any(|name| command.split(' ').next() == Some(name))
}

/// A target, and files beside its configuration that commands name.
struct Stage {
    setup: Setup,
    target: Target,
    /// The options that select it.
    at: String,
}

impl Stage {
    fn new(command: &str) -> Self {
        let on_unix = command.contains("unix:");
        let mut setup = managed().provider("\"auto\"").file(1 << 20);
        if on_unix {
            let socket = setup.path("nvmeof.sock");
            setup = setup.socket(&socket);
        }
        image(&setup.path("same.img"), 1, 1 << 20);
        image(&setup.path("block.img"), 1, 4096);
        let saved = root().join("target/admin/src/import/nvmet.json");
        std::fs::copy(saved, setup.path("nvmet.json")).unwrap();
        let target = setup.start();
        let at = if on_unix {
            String::new()
        } else {
            let address = target.address();
            let folder = setup.shm_folder();
            let (ip, port, folder) = (address.ip(), address.port(), folder.display());
            format!(" -a {ip} -s {port} --shm-folder {folder}")
        };
        Self { setup, target, at }
    }

    /// The command line for a command of the project.
    fn ours(&self, command: &str) -> String {
        let socket = self.setup.path("nvmeof.sock").display().to_string();
        let command = command
            .replace(['[', ']'], "")
            .replace("...", "")
            .replace("unix:/path", &format!("unix:{socket}"))
            .replace("unix:/run/nvmeof/nvmeof.sock", &format!("unix:{socket}"))
            .replace("ADDR:PORT", &format!("127.0.0.1:{}", free_port()))
            .replace("NAME,NAME", "iwarp,shm")
            .replacen("PATH", "same.img", 1)
            .replacen("PATH", "block.img", 1);
        let words = command.split_whitespace().map(|word| match word {
            "FILE" => "target.toml",
            "N" => "1",
            "NQN" => NQN,
            other => other,
        });
        let mut words: Vec<_> = words.collect();
        // Options of every verb.
        if words[0] == "nvmeof" && words[1].starts_with('-') {
            words.insert(1, "id-ctrl");
        }
        let mut line = words.join(" ");
        let verb = words[..2].join(" ");
        if let Some((_, more)) = MORE.iter().find(|(of, _)| *of == verb) {
            // Missing arguments of the verb are added.
            let missing = words.len() == 2 || words[0] == "nvmeof";
            line = if missing {
                format!("{line} {more}")
            } else {
                line
            };
            if words[0] == "nvmeof" && !line.contains("--namespace-id") {
                line += " --namespace-id 1";
            }
        }
        match words[1] {
            "help" | "gen-dhchap-key" => line,
            "check-dhchap-key" => format!("{line} --key {KEY}"),
            "discover" | "connect-all" => line + &self.at,
            _ if words[0] == "nvmeof" => format!("{line}{} -n {NQN}", self.at),
            _ => line,
        }
    }

    /// Runs a line in the folder of the files.
    fn types(&self, line: &str) -> Ended {
        let mut shell = shell(line);
        shell.current_dir(self.setup.path(""));
        shell.env("NVMEOF_CONTROL", self.setup.path("control.sock"));
        Run::new(shell).end()
    }
}

/// Runs a command of the project; returns the error, if any.
fn done(command: &str) -> Result<(), String> {
    let stage = Stage::new(command);
    // The user of the service need not exist here.
    let line = stage.ours(command).replace(
        "install -m 600 -o nvmeof /dev/stdin /etc/nvmeof/keys/",
        "install -m 600 /dev/stdin ",
    );
    if line.starts_with("nvmeof-target serve") {
        served(&line);
        return Ok(());
    }
    let ended = stage.types(&line);
    stage.target.stop();
    good(command, &ended)
}

fn good(command: &str, ended: &Ended) -> Result<(), String> {
    let well = ended.status == Some(0);
    well.then_some(())
        .ok_or_else(|| format!("`{command}`: {ended}"))
}

/// Starts a second target with a line, in a folder of its own, until it is ready, and stops it
/// as a service manager does.
fn served(line: &str) {
    let setup = Setup::new().file(1 << 20);
    for (seed, name) in [(1, "same.img"), (2, "block.img")] {
        image(&setup.path(name), seed, 1 << 20);
    }
    let _written = setup.config();
    let mut serve = target_command();
    serve.args(line.split(' ').skip(1));
    if !line.contains("--config") && !line.contains("--listen") {
        serve
            .arg("--listen")
            .arg(format!("127.0.0.1:{}", free_port()));
    }
    serve.current_dir(setup.path(""));
    // The folder of its sockets of shared memory, except as root.
    serve.env("XDG_RUNTIME_DIR", setup.path(""));
    setup.start_as(&mut serve).stop();
}

/// Each documented command is run or has a reason, and the tables contain no others.
#[test]
fn skipped_commands_have_a_reason() {
    let all = all();
    let left = |command: &str| LEFT.iter().find(|(begin, _)| command.starts_with(begin));
    let done = |command: &str| FOREIGN.iter().find(|(typed, _)| *typed == command);
    for command in all.iter().filter(|command| !is_ours(command)) {
        let both = (done(command).is_some(), left(command).is_some());
        assert!(
            both.0 || both.1,
            "`{command}`: say what is typed, or why it is not"
        );
    }
    for (command, _) in FOREIGN {
        assert!(all.contains(*command), "no document has `{command}`");
    }
    for (begin, why) in LEFT {
        let has = all
            .iter()
            .any(|it| it.starts_with(begin) && done(it).is_none());
        assert!(
            has,
            "no document has what begins with `{begin}`, which {why}"
        );
    }
}

/// Scenarios of the lab run the documented commands of `nvme` with a Linux host; docs/interop.md
/// lists them.
#[test]
fn lab_runs_documented_linux_commands() {
    let proved = read("docs/interop.md");
    for command in all() {
        let words: Vec<_> = command.split(' ').collect();
        let done = words[0] != "nvme" || proved.contains(&format!("`nvme {}`", words[1]));
        assert!(done, "no scenario does `{command}`");
    }
}

/// `cargo xtask` has the documented commands, and its test the documented steps.
#[test]
fn documented_cargo_commands_exist() {
    let output_of = |words: &str| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(words.split(' ')).current_dir(root());
        Run::new(cargo).ok().text()
    };
    let (help, steps) = (output_of("xtask help"), output_of("xtask test --list"));
    let begins = |text: &str, word: &str| {
        let mut lines = text.lines().map(str::trim_start);
        lines.any(|line| line.split(' ').next() == Some(word))
    };
    for command in all() {
        match *command.split(' ').collect::<Vec<_>>() {
            ["cargo", "xtask", "test", step] if step != "--all" => {
                assert!(begins(&steps, step), "`{command}`");
            }
            ["cargo", "xtask", verb, ..] => assert!(begins(&help, verb), "`{command}`"),
            ["cargo", "test", "-p", name] => {
                let folder = name.strip_prefix("nvmeof-").unwrap();
                let manifest = read(&format!("common/{folder}/Cargo.toml"));
                assert!(
                    manifest.contains(&format!("name = \"{name}\"")),
                    "`{command}`"
                );
            }
            ["cargo", "xtask"] | ["cargo", "build", "--release"] | ["cargo", "publish", ..] => {}
            ["cargo", ..] => panic!("`{command}`"),
            _ => {}
        }
    }
    assert!(!begins(&help, "everything") && !begins(&steps, "everything"));
}

#[test]
fn other_project_commands_in_sentences_work() {
    let all = all();
    let ours: Vec<_> = all.iter().filter(|command| is_ours(command)).collect();
    assert!(ours.len() > 20, "{ours:?}");
    let done = ours.into_iter().map(|command| done(command));
    let wrong: Vec<_> = done.filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn foreign_commands_in_sentences_work() {
    let stage = Stage::new("");
    let mut wrong = Vec::new();
    for (command, typed) in FOREIGN {
        let line = if typed.is_empty() { command } else { typed };
        let line = line.replace("PID", &stage.target.pid().to_string());
        let program = line.split(' ').next().unwrap();
        // Not each machine has all of them.
        if stage.types(&format!("type {program}")).status != Some(0) {
            eprintln!("{program} is not installed here");
            continue;
        }
        wrong.extend(good(command, &stage.types(&line)).err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    stage.target.stop();
}

/// A failing command is detected.
#[test]
fn failing_commands_are_detected() {
    for command in [
        "nvmeof read --start-block 5000",
        "nvmeof erase",
        "nvmeof -a unix:/nowhere",
        "nvmeof-target check-config nothing.toml",
        "nvmeof-target top --socket nothing.sock",
        "nvmeof-target import target.toml",
    ] {
        assert!(done(command).is_err(), "`{command}`");
    }
}
