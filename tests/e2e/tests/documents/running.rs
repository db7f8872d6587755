//! The commands that documents name within their sentences and tables, done: each that
//! asks or changes a target, to a target of its own, with a value for each placeholder.
//!
//! A sentence may name a command by its verb alone. One that goes on behind the verb is
//! a command to be typed, of which nothing may be missing.

use std::collections::BTreeSet;

use nvmeof_e2e::{
    Ended, OTHER_KEY, Setup, ctl, free_port, image, key_file, key_file_with, managed,
};

use super::all_documents;
use super::spans::spans;

/// The allowed host, and another subsystem.
const NQN: &str = "nqn.2026-11.org.example:disk";

/// Preparation of a verb.
const BEFORE: &[(&str, &str)] = &[
    ("subsystem remove", "subsystem add NQN"),
    ("subsystem set", "subsystem add NQN"),
    ("port remove", "port add ADDRESS"),
    ("port set", "port add ADDRESS"),
    ("referral remove", "referral add ADDRESS"),
    ("forget", "namespace add null:1M --nsid 21"),
    ("host remove-key", "host set-key HOST --key-file FIRST"),
    ("host rotate-key", "host set-key HOST --key-file FIRST"),
    ("host remove-old-key", "host set-key HOST --key-file FIRST"),
    (
        "host remove-old-key",
        "host rotate-key HOST --key-file PATH",
    ),
];

/// The objects of the verbs of `ctl`.
const NOUNS: [&str; 7] = [
    "ha",
    "namespace",
    "host",
    "port",
    "subsystem",
    "ana",
    "referral",
];

/// The arguments of a command of `ctl`; `None` if the span is not one.
pub(crate) fn typed(head: Option<&str>, span: &str) -> Option<String> {
    let words: Vec<_> = span.split(' ').collect();
    let by_noun = words.len() > 1 && NOUNS.contains(&words[0]) && words[1] != "=";
    if head == Some("nvmeof-target ctl") || by_noun {
        return Some(span.to_owned());
    }
    let rest = span.strip_prefix("nvmeof-target ").unwrap_or(span);
    rest.strip_prefix("ctl ").map(str::to_owned)
}

/// The verb, and whether arguments follow.
fn verb(command: &str) -> (String, bool) {
    let words: Vec<_> = command.split(' ').collect();
    let of_verb = if NOUNS.contains(&words[0]) { 2 } else { 1 };
    let verb = words.iter().take(of_verb).copied().collect::<Vec<_>>();
    (verb.join(" "), words.len() > of_verb)
}

/// The words with a value for each placeholder.
fn filled(setup: &Setup, port: u16, verb: &str, command: &str) -> String {
    let command = command.replace(['[', ']'], "").replace("...", "");
    let words = command.split_whitespace().map(|word| match word {
        "ADDRESS" => format!("127.0.0.1:{port}"),
        "FILE" if verb == "save" => setup.path("saved.toml").display().to_string(),
        "FILE" => setup.path("target.toml").display().to_string(),
        "GROUP" | "NSID" | "NUMBER" => "1".to_owned(),
        "HOST" | "NQN" => NQN.to_owned(),
        "KEY=VALUE" => setting(verb).to_owned(),
        "FIRST" => setup.path("first.key").display().to_string(),
        "PATH" if command.contains("-key ") => setup.path("second.key").display().to_string(),
        "PATH" => setup.path("second.img").display().to_string(),
        "DATE" => "2999-12-31".to_owned(),
        "SIZE" => "1G".to_owned(),
        "STATE" => "non-optimized".to_owned(),
        // `--subsystem … …`: of a namespace.
        "…" => "…".to_owned(),
        other => other.to_owned(),
    });
    let words: Vec<_> = words.collect();
    words
        .join(" ")
        .replace("… …", "nqn.2026-11.org.example:e2e 1")
}

fn setting(verb: &str) -> &'static str {
    match verb {
        "subsystem set" => "model=other",
        "port set" => "queue_depth=64",
        _ => "ana_group=2",
    }
}

/// Runs it for a prepared target.
fn done(command: &str) -> Ended {
    let setup = managed()
        .access(&format!("allowed_hosts = ['{NQN}']"))
        .file(1 << 20);
    image(&setup.path("second.img"), 2, 1 << 20);
    key_file(&setup.path("first.key"));
    key_file_with(&setup.path("second.key"), OTHER_KEY);
    let (target, port) = (setup.start(), free_port());
    let (verb, _) = verb(command);
    for (of, before) in BEFORE.iter().filter(|(of, _)| *of == verb) {
        ctl(&setup, &filled(&setup, port, &verb, before)).ok();
        if *of == "forget" {
            // The file contains it as well now, so that the change is deferred.
            let more = "[[subsystem.namespace]]\nnsid = 21\npath = 'ram:1M'\n";
            std::fs::write(setup.path("target.toml"), setup.text() + more).unwrap();
            ctl(&setup, "reload").ok();
        }
    }
    let ended = ctl(&setup, &filled(&setup, port, &verb, command)).end();
    target.stop();
    ended
}

#[test]
fn commands_in_sentences_work() {
    let mut commands = BTreeSet::new();
    for document in all_documents() {
        let all = spans(&document).into_iter();
        commands.extend(all.filter_map(|(head, span)| typed(head.as_deref(), &span)));
    }
    assert!(commands.len() > 40, "{commands:?}");
    let mut wrong = Vec::new();
    for command in commands {
        let ended = done(&command);
        let named = ended
            .stderr
            .contains("required arguments were not provided")
            || ended.stderr.contains("requires a subcommand");
        let by_name = named && !verb(&command).1;
        // It was understood; the step `ceph` has gateways that execute it.
        let needs_gateways = command.starts_with("ha")
            && ended.stderr.contains("high availability is not configured");
        if ended.status != Some(0) && !by_name && !needs_gateways {
            wrong.push(format!("`{command}`: {}", ended.stderr));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A command with missing arguments is detected.
#[test]
fn missing_arguments_are_detected() {
    assert_eq!(verb("namespace set 1"), ("namespace set".into(), true));
    assert_eq!(verb("port add"), ("port add".into(), false));
    let ended = done("namespace set NSID");
    assert!(ended.stderr.contains("required arguments"), "{ended}");
    assert_eq!(done("namespace remove 9").status, Some(2));
}
