//! Documents that are generated from the code, or name parts of it.
//!
//! `NVMEOF_UPDATE_DOCS=1 cargo test -p nvmeof-tidy --test documents` writes the generated
//! ones; `cargo xtask docs` does the same.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use nvmeof_tidy::{
    features, instructions, logging, mentions, messages, options, phrases, reference, tree,
};

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The source files below the folders, without those of tests.
fn sources(folder: &str) -> Vec<PathBuf> {
    let files = tree::files(&tree::root()).unwrap();
    let ours = |file: &&PathBuf| file.starts_with(folder) && tree::is(file, "rs");
    files.iter().filter(ours).cloned().collect()
}

/// Compares a document with the generated text, or updates it if requested.
fn must_be(document: &str, made: &str) {
    let path = tree::root().join(document);
    if std::env::var_os("NVMEOF_UPDATE_DOCS").is_some() {
        fs::write(&path, made).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    let differ = there.lines().zip(made.lines()).position(|(a, b)| a != b);
    assert!(
        there == made,
        "{document} is not up to date (line {}): run `cargo xtask docs` and review the diff",
        differ.map_or(there.lines().count().min(made.lines().count()), |at| at) + 1
    );
}

/// The tables of the configuration.
fn tables() -> Vec<reference::Table> {
    let root = tree::root();
    let sources = sources("target/config/src");
    let sources: Vec<_> = sources.iter().map(|file| read(&root.join(file))).collect();
    reference::tables(&sources).unwrap_or_else(|problems| panic!("{}", problems.join("\n")))
}

#[test]
fn configuration_reference_is_generated_from_code() {
    let tables = tables();
    assert!(tables.len() > 5, "{tables:?}");
    must_be(
        "docs/configuration-reference.md",
        &reference::markdown(&tables),
    );
}

#[test]
fn instructions_in_performance_md_match_the_baseline() {
    let root = tree::root();
    let recorded = read(&root.join("tests/guards/instructions.txt"));
    let document = read(&root.join("docs/performance.md"));
    let made = instructions::refreshed(&document, &recorded).unwrap();
    must_be("docs/performance.md", &made);
}

#[test]
fn every_feature_names_existing_tests() {
    let root = tree::root();
    let all = tree::files(&root).unwrap();
    let rust = all.iter().filter(|file| tree::is(file, "rs"));
    let tests: BTreeSet<String> = rust
        .flat_map(|file| features::tests_of(&read(&root.join(file))))
        .collect();
    let scenarios: BTreeSet<String> = all
        .iter()
        .filter(|file| file.starts_with("tests/lab/scenarios"))
        .filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned()))
        .collect();
    let document = read(&root.join("docs/features.md"));
    let problems = features::check(&document, &tests, &scenarios);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Folders with texts that users may see.
const PROGRAMS: &[&str] = &["common", "target", "initiator"];
/// Library crates, which must not name options of a program.
const LIBRARIES: &[&str] = &[
    "common",
    "initiator/client",
    "initiator/core",
    "target/api",
    "target/control",
];

#[test]
fn library_texts_name_no_command_line_option() {
    let root = tree::root();
    let files = LIBRARIES.iter().flat_map(|folder| sources(folder));
    let files = files.filter(|file| {
        let text = file.to_string_lossy();
        text.contains("/src/") && !text.contains("tests")
    });
    let problems: Vec<_> = files
        .flat_map(|file| options::check(&file.to_string_lossy(), &read(&root.join(&file))))
        .collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Documents for administrators.
fn documents() -> Vec<PathBuf> {
    let files = tree::files(&tree::root()).unwrap();
    let shipped = |file: &&PathBuf| {
        let parts = ["docs", "systemd", "README.md", "ARCHITECTURE.md"];
        parts.iter().any(|part| file.starts_with(part))
    };
    let text = |file: &&PathBuf| {
        ["md", "toml", "service", "conf"]
            .iter()
            .any(|it| tree::is(file, it))
    };
    files.iter().filter(shipped).filter(text).cloned().collect()
}

/// All texts for users with their files: texts of programs, documents.
fn public_texts() -> Vec<(PathBuf, String)> {
    let root = tree::root();
    let mut texts = Vec::new();
    for file in PROGRAMS.iter().flat_map(|folder| sources(folder)) {
        let name = file.to_string_lossy();
        if name.contains("/src/") && !name.contains("tests") {
            let found = messages::texts(&read(&root.join(&file))).unwrap();
            texts.extend(found.into_iter().map(|text| (file.clone(), text)));
        }
    }
    assert!(texts.len() > 1000, "only {} texts are found", texts.len());
    texts.extend(documents().into_iter().map(|file| {
        let text = read(&root.join(&file));
        (file, text)
    }));
    texts
}

#[test]
fn messages_and_documents_use_terms_of_the_field() {
    let problems: Vec<_> = public_texts()
        .iter()
        .flat_map(|(file, text)| phrases::check(&file.to_string_lossy(), text))
        .collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn messages_and_documents_mention_keys_and_documents_that_exist() {
    let root = tree::root();
    let keys = mentions::Keys::of(&tables());
    let texts = public_texts();
    let all = documents();
    let exists = |name: &str| match name.strip_prefix("/usr/share/doc/nvmeof-target/") {
        Some(shipped) => root.join("docs").join(shipped).is_file(),
        None => all.iter().any(|file| file.ends_with(name)),
    };
    let mut problems = Vec::new();
    for (file, text) in &texts {
        let shown = file.display();
        let unknown = mentions::unknown_keys(text, &keys);
        problems.extend(
            unknown
                .iter()
                .map(|key| format!("{shown}: key {key} does not exist")),
        );
        // Links have a check of their own.
        if !tree::is(file, "md") {
            let unknown = mentions::unknown_documents(text, exists);
            problems.extend(
                unknown
                    .iter()
                    .map(|name| format!("{shown}: {name} does not exist")),
            );
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Folders whose log lines are about peers.
const OF_PEERS: &[&str] = &[
    "common/rdma-iwarp/src",
    "common/rdma-shm/src",
    "common/rdma-soft/src",
    "common/rdma-verbs/src",
    "target/engine/src/queue",
    "target/engine/src/reactor",
];
/// Texts there about this process or the machine.
const OF_NO_PEER: &[&str] = &[
    "cannot free a memory window, it is leaked: {error}",
    "cannot drain a shared receive queue, its buffers are leaked: {error}",
    "shared receive completed for an unknown queue pair",
    "cannot destroy an RDMA connection identifier, it is leaked: {error}",
    "cannot read a connection manager event: {error}",
    "cannot signal an eventfd",
    "cannot accept connections; raise the limit of open files (`ulimit -n`)",
    "cannot add a listener to epoll",
    "epoll failed",
    "cannot deregister memory, it is leaked: {error}",
    "cannot start a thread for a blocking call: {error}",
    "final flush of a removed backing store failed: {error}",
    "final flush failed: {error}",
    "{left} backing stores could not be flushed in time",
];

/// Texts there about peers that are not identified yet, and about refused connections,
/// which name the requested queue.
const OF_STRANGERS: &[&str] = &[
    "connection refused: {what}",
    "a socket option was refused",
    "connection accepted",
    "connection rejected: no free connection slot",
    "connection rejected: {refusal}",
    "connection rejected: {why}",
    "cannot add a connection to epoll",
    "not connected to a controller: {what}",
    "the kernel keeps its socket buffer size",
    "{what}",
];

/// The texts of lines about peers that `of` finds in the sources.
fn lines_about_peers(of: fn(&str) -> Result<Vec<String>, String>) -> BTreeSet<String> {
    let root = tree::root();
    let files = OF_PEERS.iter().flat_map(|folder| sources(folder));
    let files = files.filter(|file| !file.to_string_lossy().contains("tests"));
    let lines = files.flat_map(|file| of(&read(&root.join(file))).unwrap());
    lines.collect()
}

/// Fails unless `lines` are the `known` ones.
fn are(lines: &BTreeSet<String>, known: &[&str], what_to_do: &str) {
    let known: BTreeSet<String> = known.iter().map(|text| format!("{text:?}")).collect();
    let new: Vec<_> = lines.difference(&known).cloned().collect();
    assert!(new.is_empty(), "{what_to_do}:\n{}", new.join("\n"));
    let gone: Vec<_> = known.difference(lines).collect();
    assert!(
        gone.is_empty(),
        "no log line has these texts any more: {gone:?}"
    );
}

#[test]
fn every_log_line_has_a_subject() {
    let without_subject = lines_about_peers(logging::without_subject);
    are(&without_subject, OF_NO_PEER, "name the peer (peer = ...)");
}

#[test]
fn every_log_line_about_a_peer_names_it() {
    let alone = lines_about_peers(logging::about_a_peer_alone);
    are(
        &alone,
        OF_STRANGERS,
        "name host, subsystem and queue (log_conn!)",
    );
}

/// Texts there about peers that a peer cannot provoke at will, besides those of
/// [`OF_NO_PEER`], with the reason.
const NOT_AT_WILL: &[(&str, &str)] = &[
    (
        "Flush failed: an earlier flush of the backing store failed and may have lost \
             writes of this host",
        "once for each failure of a backing store",
    ),
    (
        "memory of this process is still in use by process {process} after its connection \
         ended; it stays reserved until that process releases it or ends; check \
         whether it is stopped (`kill -CONT {process}` resumes it) or waits for I/O",
        "once for a connection of a permitted process, after seconds",
    ),
    ("a queue pair cannot be stopped: {error}", DEVICE),
    ("cannot post shared receives: {why}", DEVICE),
    ("memory cannot be exposed: {error}", DEVICE),
    (
        "memory for an RDMA Read cannot be registered: {error}",
        DEVICE,
    ),
    ("no memory window: {error}", DEVICE),
    (
        "cannot create a shared receive queue, each queue pair has its own receives: \
                     {error}",
        DEVICE,
    ),
    ("port is down", DEVICE),
    ("port is up", DEVICE),
    ("the RDMA device is back, listening again", DEVICE),
    ("the RDMA device is gone", DEVICE),
    (
        "the RDMA device of this listener is gone; trying every second until it is back",
        DEVICE,
    ),
    ("{reason}", DEVICE),
    ("cannot modify an epoll registration", KERNEL),
    ("cannot add a connection to epoll", KERNEL),
];
const DEVICE: &str = "a device fails or changes its state";
const KERNEL: &str = "the kernel has no memory";

#[test]
fn every_line_that_a_peer_provokes_is_rate_limited() {
    let unlimited = lines_about_peers(logging::without_limit);
    let known = NOT_AT_WILL.iter().map(|(text, _)| *text);
    let known: Vec<_> = known.chain(OF_NO_PEER.iter().copied()).collect();
    are(
        &unlimited,
        &known,
        "limit them (PeerLog, RateLimiter), with the field left_out",
    );
}
