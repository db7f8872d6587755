//! The documents that are made of the code, or name parts of it.
//!
//! `NVMEOF_UPDATE_DOCS=1 cargo test -p nvmeof-tidy --test documents` writes those
//! that are made; `cargo xtask docs` is the same.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use nvmeof_tidy::{features, instructions, logging, mentions, messages, options, reference, tree};

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The source files below the folders, without those of tests.
fn sources(folder: &str) -> Vec<PathBuf> {
    let files = tree::files(&tree::root()).unwrap();
    let ours = |file: &&PathBuf| file.starts_with(folder) && tree::is(file, "rs");
    files.iter().filter(ours).cloned().collect()
}

/// A document has to be what was made; or becomes it, if that is wanted.
fn must_be(document: &str, made: &str) {
    let path = tree::root().join(document);
    if std::env::var_os("NVMEOF_UPDATE_DOCS").is_some() {
        fs::write(&path, made).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    let differ = there.lines().zip(made.lines()).position(|(a, b)| a != b);
    assert!(
        there == made,
        "{document} is not up to date (line {}): run `cargo xtask docs` and look at what changed",
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
fn the_configuration_reference_is_made_of_the_code() {
    let tables = tables();
    assert!(tables.len() > 5, "{tables:?}");
    must_be(
        "docs/configuration-reference.md",
        &reference::markdown(&tables),
    );
}

#[test]
fn the_instructions_in_the_document_are_those_recorded() {
    let root = tree::root();
    let recorded = read(&root.join("tests/guards/instructions.txt"));
    let document = read(&root.join("docs/performance.md"));
    let made = instructions::refreshed(&document, &recorded).unwrap();
    must_be("docs/performance.md", &made);
}

#[test]
fn every_feature_names_tests_that_are_there() {
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

/// Folders whose `#[error]`, `error!` and `warn!` a person may see.
const DECLARED: &[&str] = &["common", "target", "initiator"];
/// Files and folders whose errors are written where they arise.
const WRITTEN: &[&str] = &[
    "common/rdma-shm/src",
    "common/rdma-soft/src",
    "common/rdma-iwarp/src",
    "common/rdma-verbs/src",
    "common/uring/src",
    "initiator/cli/src",
    "initiator/client/src",
    "initiator/core/src",
    "common/atomic-file/src",
    "target/backend/src",
    "target/backend-spec/src",
    "target/api/src",
    "target/config/src",
    "target/core/src",
    "target/admin/src/ctl",
    "target/admin/src/import",
    "target/control/src/changes",
    "target/control/src/http",
    "target/control/src/socket",
    "target/daemon/src/serve.rs",
    "target/daemon/src/service.rs",
    "target/admin/src/top/mod.rs",
    "target/control/src/watch/exporter.rs",
    "target/engine/src/queue/receives.rs",
    "target/engine/src/queue/room.rs",
    "target/engine/src/reactor",
    "target/manage/src",
];

#[test]
fn every_message_has_a_remedy() {
    let root = tree::root();
    let in_program = |file: &&PathBuf| {
        let text = file.to_string_lossy();
        text.contains("/src/")
            && !["tests", "rdma-sim", "fuzzing"]
                .iter()
                .any(|one| text.contains(one))
    };
    let mut all = BTreeSet::new();
    for folder in DECLARED {
        for file in sources(folder).iter().filter(in_program) {
            all.extend(messages::declared(&read(&root.join(file))).unwrap());
        }
    }
    for folder in WRITTEN {
        for file in sources(folder).iter().filter(in_program) {
            all.extend(messages::sentences(&read(&root.join(file))).unwrap());
        }
    }
    assert!(all.len() > 150, "only {} messages are found", all.len());
    let document = read(&root.join("docs/troubleshooting.md"));
    let problems = messages::check(&document, &all);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Crates that programs are made of, none of which knows a program's command line.
const LIBRARIES: &[&str] = &["common", "initiator/client", "initiator/core"];

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

/// What administrators read, besides messages.
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

#[test]
fn messages_and_documents_mention_keys_and_documents_that_exist() {
    let root = tree::root();
    let keys = mentions::Keys::of(&tables());
    let mut texts = Vec::new();
    for file in DECLARED.iter().flat_map(|folder| sources(folder)) {
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
                .map(|key| format!("{shown}: there is no key {key}")),
        );
        // Links have a check of their own.
        if !tree::is(file, "md") {
            let unknown = mentions::unknown_documents(text, exists);
            problems.extend(
                unknown
                    .iter()
                    .map(|name| format!("{shown}: there is no {name}")),
            );
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Where whatever is logged is about a peer.
const OF_PEERS: &[&str] = &[
    "common/rdma-iwarp/src",
    "common/rdma-shm/src",
    "common/rdma-soft/src",
    "common/rdma-verbs/src",
    "target/engine/src/queue",
    "target/engine/src/reactor",
];
/// Texts there that are about this process or the machine.
const OF_NO_PEER: &[&str] = &[
    "a memory window stays for good: {error}",
    "a shared receive queue keeps its buffers: {error}",
    "a shared receive was taken by no queue pair",
    "an RDMA connection identifier stays for good: {error}",
    "an event of the connection manager is lost: {error}",
    "an eventfd does not ring",
    "cannot accept connections; raise the limit of open files (`ulimit -n`)",
    "epoll does not take a listener",
    "epoll failed",
    "memory stays registered for good: {error}",
    "no thread for a call that may wait: {error}",
    "the last flush of a disk that is not served any more: {error}",
    "the last flush: {error}",
    "{left} disks could not be flushed in time",
];

/// Texts there about peers of whom nothing else is known yet, and about connections
/// that nobody was let in on, which name the queue that was asked for.
const OF_STRANGERS: &[&str] = &[
    "a connection was refused: {what}",
    "a socket option was refused",
    "connection accepted",
    "connection rejected: no place for it",
    "connection rejected: {refusal}",
    "connection rejected: {why}",
    "epoll does not take a connection",
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
    assert!(gone.is_empty(), "nobody says {gone:?} any more");
}

#[test]
fn every_line_about_a_peer_says_which() {
    let nobodys = lines_about_peers(logging::about_nobody);
    are(&nobodys, OF_NO_PEER, "say which peer (peer = ...)");
}

#[test]
fn every_line_about_a_peer_says_whose_it_is() {
    let alone = lines_about_peers(logging::about_a_peer_alone);
    are(
        &alone,
        OF_STRANGERS,
        "name host, subsystem and queue (of_conn!)",
    );
}

/// Texts there about peers that no peer provokes at will, besides those of [`OF_NO_PEER`],
/// and why.
const NOT_AT_WILL: &[(&str, &str)] = &[
    (
        "a Flush is answered with an error: the disk failed to make stable what was written \
         before, and this host wrote to it",
        "once for each failure of a disk",
    ),
    (
        "a process on this machine still uses memory of ours, though its connection is over: \
         nobody gets that memory back before; is it stopped, or its disk? `kill -CONT \
         {process}` has it go on, its end gives the memory back",
        "once for a connection of a permitted process, after seconds",
    ),
    ("a queue pair cannot be stopped: {error}", DEVICE),
    ("a shared receive is refused: {error}", DEVICE),
    ("memory cannot be exposed: {error}", DEVICE),
    (
        "memory for an RDMA Read cannot be registered: {error}",
        DEVICE,
    ),
    ("no memory window: {error}", DEVICE),
    (
        "no shared receive queue, each queue pair gets receives of its own: {error}",
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
    ("epoll does not change what it tells", KERNEL),
    ("epoll does not take a connection", KERNEL),
];
const DEVICE: &str = "a device fails or changes its state";
const KERNEL: &str = "the kernel has no memory";

#[test]
fn every_line_that_a_peer_provokes_is_limited() {
    let unlimited = lines_about_peers(logging::without_limit);
    let known = NOT_AT_WILL.iter().map(|(text, _)| *text);
    let known: Vec<_> = known.chain(OF_NO_PEER.iter().copied()).collect();
    are(
        &unlimited,
        &known,
        "limit them (PeerLog, RateLimiter), with the field left_out",
    );
}
