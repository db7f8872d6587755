//! The commands that documents name within their sentences and tables, as code
//! between backticks: those of our programs are parsed by the program itself,
//! and each of our options is one of theirs.
//!
//! Nothing is done: `--help` behind the words has the program say what they
//! mean, which it does only after it took every word before. What is left out
//! is not missed then, which is as well: a sentence names a command by its verb.

use std::collections::BTreeSet;
use std::process::Command;

use nvmeof_e2e::{Run, binary};
use nvmeof_tidy::{messages, tree};

use crate::{all_documents, read, root};

pub(crate) const OURS: [&str; 2] = ["nvmeof", "nvmeof-target"];

/// Placeholders and their values.
const PLACEHOLDERS: &[(&str, &str)] = &[
    ("ADDR:PORT", "127.0.0.1:4420"),
    ("ADDRESS", "127.0.0.1:4420"),
    ("FILE", "target.toml"),
    ("GROUP", "1"),
    ("KEY=VALUE", "ana_group=1"),
    ("N", "1"),
    ("NAME,NAME", "iwarp,shm"),
    ("NQN", "nqn.2026-11.org.example:disk"),
    ("NSID", "1"),
    ("NUMBER", "1"),
    ("PATH", "/srv/disk.img"),
    ("SIZE", "1G"),
    ("STATE", "optimized"),
    ("…", "1"),
];

/// Documents for developers: only commands of the programs are checked in these, since options
/// are those of `cargo xtask` there.
const FOR_DEVELOPERS: [&str; 3] = [
    "docs/development.md",
    "docs/interop.md",
    "docs/performance.md",
];

/// Options of cargo and its `xtask`, and of docker.
const FOREIGN_OPTIONS: [&str; 11] = [
    // Of rbd and rados.
    "--allow-shrink",
    "--pool",
    // Of nvme-cli.
    "--blocks",
    "--fast-io-fail-tmo",
    "-F",
    "-J",
    "-p",
    "--fio-source",
    "--no-default-features",
    "--security-opt",
    "--write-interop",
];

/// Programs of other projects in documents for administrators.
pub(crate) const FOREIGN_PROGRAMS: &[&str] = &[
    "apt-get",
    "cargo",
    "cat",
    "ceph",
    "chmod",
    "chown",
    "cp",
    "echo",
    "ethtool",
    "free",
    "fuser",
    "getent",
    "groupadd",
    "ibv_devinfo",
    "id",
    "ip",
    "journalctl",
    "kill",
    "lsblk",
    "lscpu",
    "modprobe",
    "nvme",
    "nvmetcli",
    "rbd",
    "rdma",
    "ss",
    "runuser",
    "sudo",
    "sysctl",
    "systemctl",
    "systemd-analyze",
    "taskset",
    "truncate",
    "ulimit",
    "uname",
    "unset",
    "usermod",
    "uuidgen",
];

/// First words of spans that are not commands: messages, scenarios of the lab, packages.
const NO_COMMANDS: &[&str] = &[
    "another",
    "applied",
    "authentication",
    "command",
    "connection",
    "control",
    "controller",
    "current",
    "every",
    "expected",
    "has",
    "hash",
    "incorrect",
    "internal",
    "is",
    "lab",
    "libibverbs1",
    "malformed",
    "no",
    "not",
    "permission",
    "please",
    "qid",
    "the",
    "there",
    "unexpected",
];

/// A verb of a program, or the program itself.
struct Verb {
    /// The program and the words down to the verb.
    words: Vec<String>,
    /// Verbs below it.
    below: Vec<String>,
    options: BTreeSet<String>,
}

/// Both programs with all their verbs.
fn verbs() -> Vec<Verb> {
    let mut verbs = Vec::new();
    let mut to_ask = OURS.map(words).to_vec();
    while let Some(words) = to_ask.pop() {
        let help = parsed(&words).unwrap_or_else(|why| panic!("{words:?}: {why}"));
        let below = below(&help);
        for verb in &below {
            to_ask.push([words.clone(), vec![verb.clone()]].concat());
        }
        let options = options(&help);
        verbs.push(Verb {
            words,
            below,
            options,
        });
    }
    verbs
}

/// The verbs that a help lists, besides `help`.
fn below(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    // The lines of a description are indented further.
    let verbs = listed.filter_map(|line| line.strip_prefix("  "));
    let verbs = verbs.filter(|line| !line.starts_with(' '));
    let verbs = verbs.filter_map(|line| line.split_whitespace().next());
    verbs
        .filter(|verb| *verb != "help")
        .map(str::to_owned)
        .collect()
}

/// The options that a help lists: `-o, --output-format <FORMAT>`.
fn options(help: &str) -> BTreeSet<String> {
    let lines = help.lines().map(str::trim_start);
    let options = lines.flat_map(|line| {
        line.split([' ', ','])
            .filter(|word| !word.is_empty())
            .take_while(|word| word.starts_with('-'))
    });
    options.map(str::to_owned).collect()
}

/// The response of the program to the words: its help, or an error.
fn parsed(words: &[String]) -> Result<String, String> {
    let mut command = Command::new(binary(&words[0]));
    command.args(&words[1..]);
    // `help` prints help itself.
    if words.last().is_some_and(|last| last != "help") {
        command.arg("--help");
    }
    let ended = Run::new(command).end();
    match ended.status {
        Some(0) => Ok(ended.text()),
        _ => Err(ended.stderr),
    }
}

/// The words of a command, with values for placeholders and all optional parts.
fn words(span: &str) -> Vec<String> {
    let span = span.replace(['[', ']'], "");
    let words = span.split_whitespace();
    let words = words.map(|word| word.strip_suffix("...").unwrap_or(word));
    let words = words.filter(|word| !word.is_empty());
    let value = |word| PLACEHOLDERS.iter().find(|(name, _)| *name == word);
    words
        .map(|word| value(word).map_or(word, |(_, value)| value).to_owned())
        .collect()
}

/// The spans between single backticks of a document, with the head of the table whose first
/// column contains them.
pub(crate) fn spans(document: &str) -> Vec<(Option<String>, String)> {
    let (mut spans, mut head, mut before) = (Vec::new(), None, String::new());
    for part in parts(&read(document)) {
        let cells = part.strip_prefix("| ");
        let first = cells.map_or("", |cells| cells.split(" | ").next().unwrap());
        if cells.is_none() {
            head = None;
        } else if part.starts_with("| ---") {
            head = code(&before, document).into_iter().next();
        }
        let of_first = code(first, document).len();
        for (number, span) in code(&part, document).into_iter().enumerate() {
            let head = head.clone().filter(|_| number < of_first);
            spans.push((head, span));
        }
        before = part;
    }
    spans
}

/// The paragraphs and the rows of tables of a text, without its blocks of code.
fn parts(text: &str) -> Vec<String> {
    let (mut parts, mut in_block) = (vec![String::new()], false);
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        in_block ^= fence;
        if fence || in_block || line.is_empty() || line.starts_with('|') {
            parts.push(String::new());
        }
        if !fence && !in_block {
            let part = parts.last_mut().unwrap();
            part.push_str(line.trim_start());
            part.push(' ');
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// The spans between backticks.
fn code(part: &str, document: &str) -> Vec<String> {
    let pieces: Vec<_> = part.split('`').collect();
    assert!(
        pieces.len() % 2 == 1,
        "{document}: a backtick too many: {part}"
    );
    pieces
        .into_iter()
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// The error of one span of code in a document.
fn wrong(verbs: &[Verb], head: Option<&str>, span: &str) -> Option<String> {
    let words = words(span);
    let first = words.first()?.as_str();
    let ours = |name: &str| OURS.contains(&name);
    if ours(first) && words.get(1).is_some_and(|word| word.starts_with('-')) {
        let of_it = verbs.iter().filter(|verb| verb.words[0] == first);
        return wrong_option(of_it, &words[1..]);
    }
    if ours(first) {
        return parsed(&words).err();
    }
    if first.len() > 1 && first.starts_with('-') {
        let foreign = FOREIGN_OPTIONS.contains(&first);
        return wrong_option(verbs.iter(), &words).filter(|_| !foreign);
    }
    if let Some(head) = head.filter(|head| head.split(' ').next().is_some_and(ours)) {
        return parsed(&[self::words(head), words].concat()).err();
    }
    let plain = |letter: char| letter.is_ascii_lowercase() || "-_0123456789".contains(letter);
    let setting = span.starts_with('[') || words.get(1).is_some_and(|word| word == "=");
    let promql = span.contains("nvmeof_target_");
    if words.len() == 1 || setting || promql || !first.chars().all(plain) {
        return None;
    }
    let of_ctl = verbs.iter().find(|verb| verb.words[1..] == ["ctl"]);
    if first == "ctl" || of_ctl.is_some_and(|ctl| ctl.below.contains(&words[0])) {
        let ctl = ["nvmeof-target", "ctl"].map(str::to_owned);
        let rest = &words[usize::from(first == "ctl")..];
        return parsed(&[&ctl, rest].concat()).err();
    }
    let known = FOREIGN_PROGRAMS.contains(&first) || NO_COMMANDS.contains(&first);
    (!known).then(|| format!("{first} is neither a program of ours nor one of those listed"))
}

/// The error of an option that is named without its verb.
fn wrong_option<'a>(mut verbs: impl Iterator<Item = &'a Verb>, words: &[String]) -> Option<String> {
    let good = verbs.any(|verb| {
        let here = verb.options.contains(&words[0]);
        here && (words.len() == 1 || parsed(&[&verb.words, words].concat()).is_ok())
    });
    (!good).then(|| format!("no verb takes {words:?}"))
}

#[test]
fn commands_in_sentences_parse() {
    let verbs = verbs();
    let (mut found, mut of_ours) = (Vec::new(), 0);
    for document in all_documents() {
        let ours_alone = FOR_DEVELOPERS.contains(&document.as_str());
        for (head, span) in spans(&document) {
            let is_ours = OURS.iter().any(|name| span.split(' ').next() == Some(name));
            of_ours += usize::from(is_ours);
            if ours_alone && !is_ours {
                continue;
            }
            if let Some(why) = wrong(&verbs, head.as_deref(), &span) {
                found.push(format!("{document}: `{span}`: {why}"));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(of_ours > 0, "no document names a command");
}

/// The texts of programs, which are the sources of both, and the folder of each.
fn messages() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for file in tree::files(&root()).unwrap() {
        let name = file.to_string_lossy().into_owned();
        let ships = ["common/", "target/", "initiator/"]
            .iter()
            .any(|it| name.starts_with(it));
        let no_test = name.contains("/src/") && !name.contains("tests");
        if ships && no_test && tree::is(&file, "rs") {
            let texts = messages::texts(&read(&name)).unwrap();
            found.extend(texts.into_iter().map(|text| (name.clone(), text)));
        }
    }
    found
}

/// Options that a text names outside of backticks.
fn bare_options(text: &str) -> impl Iterator<Item = &str> {
    let prose = text.split('`').step_by(2);
    let words = prose.flat_map(|piece| piece.split(|c: char| !(c.is_alphanumeric() || c == '-')));
    words.filter(|word| {
        let name = word.strip_prefix("--");
        name.is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
    })
}

/// Messages, remedies and help name commands and options that exist.
#[test]
fn commands_in_messages_parse() {
    let verbs = verbs();
    let (mut found, mut commands) = (Vec::new(), 0);
    for (file, text) in messages() {
        let in_code = text
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|it| it.contains(' '));
        let spans = in_code.chain(bare_options(&text));
        for span in spans {
            commands += 1;
            if let Some(why) = wrong(&verbs, None, span) {
                found.push(format!("{file}: `{span}`: {why}"));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(commands > 100, "only {commands} commands are found");
}

#[test]
fn invalid_commands_are_detected() {
    let verbs = verbs();
    let good = [
        (None, "nvmeof-target ctl host allow NQN..."),
        (None, "ctl changes"),
        (None, "port add"),
        (None, "nvmeof help"),
        (None, "nvmeof --shm-copy"),
        (None, "--provider iwarp"),
        (None, "-Q"),
        (None, "nvme connect"),
        (None, "polling = \"efficiency\""),
        (Some("nvmeof-target ctl"), "status"),
    ];
    for (head, span) in good {
        assert_eq!(wrong(&verbs, head, span), None, "{span}");
    }
    let bad = [
        (None, "nvmeof-target ctl host permit NQN..."),
        (None, "nvmeof-target ctl drain --slowly"),
        (None, "nvmeof-target ctl namespace remove one"),
        (None, "nvmeof bench --interface none"),
        (None, "nvmeof erase"),
        (None, "nvmeof --socket"),
        (None, "ctl change"),
        (None, "port open"),
        (None, "--providers"),
        (None, "-o yaml"),
        (None, "-Z"),
        (None, "nvmf connect"),
        (Some("nvmeof-target ctl"), "state"),
    ];
    for (head, span) in bad {
        assert!(wrong(&verbs, head, span).is_some(), "{span}");
    }
}
