//! Keys of hosts that change while hosts are connected: `ctl`, its warnings, metrics.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs;
use std::process::Command;

use nvmeof_e2e::{
    HOST, KEY, NQN, OTHER_KEY, Run, Running, Setup, Target, ask, ctl, eventually, key_file_with,
    managed, over_socket, sample,
};
use serde_json::{Value, json};

/// A target with a namespace, and the files of two keys.
fn scene() -> (Setup, Target, [String; 2]) {
    let setup = managed().file(4 << 20);
    let files = ["a.key", "b.key"].map(|name| setup.path(name));
    for (file, key) in files.iter().zip([KEY, OTHER_KEY]) {
        key_file_with(file, key);
    }
    let target = setup.start();
    (setup, target, files.map(|file| file.display().to_string()))
}

/// A connection of the host with the key of that file.
fn connect(target: &Target, key: &str) -> Run {
    target
        .nvmeof("smart-log")
        .args(&format!("--dhchap-secret @{key}"))
}

/// Starts a host with the key of that file that reads and writes until it is stopped.
fn start_io(target: &Target, key: &str) -> Running {
    let bench = target.on(1, "bench").args(&format!(
        "--rw randrw --bs 4k --iodepth 16 --runtime 3600 --dhchap-secret @{key}"
    ));
    bench.start()
}

/// The keys with which the controllers of the subsystem authenticated.
fn keys(setup: &Setup) -> Vec<Value> {
    let status = ask(setup, "status");
    let controllers = status["controllers"].as_array().unwrap().iter();
    let its = controllers.filter(|one| one["subsystem"] == NQN);
    its.map(|one| one["authentication"]["key"].clone())
        .collect()
}

/// Waits until exactly one controller is connected, which used that key.
#[track_caller]
fn wait_for_key(setup: &Setup, key: &Value) {
    let found = eventually(|| (keys(setup) == [key.clone()]).then_some(()));
    assert!(found.is_some(), "{:?} instead of {key}", keys(setup));
}

/// The number of authentications of the host with that outcome.
fn count(setup: &Setup, outcome: &str) -> u64 {
    let status = ask(setup, "status");
    let counts = status["host_keys"][0]["authentications"]
        .as_array()
        .unwrap();
    let its = counts.iter().find(|one| one["outcome"] == outcome);
    its.unwrap()["count"].as_u64().unwrap()
}

/// Waits until the host `bench` does more I/O, according to the metrics.
#[track_caller]
fn assert_continues(setup: &Setup, bench: &mut Running) {
    let writes = || {
        let (_, text) = over_socket(setup, "/metrics");
        let (name, label) = (
            "nvmeof_target_subsystem_commands_total",
            "operation=\"write\"",
        );
        let is_it = |line: &str| line.starts_with(name) && line.contains(label);
        // Before the first write there is no sample.
        match text.lines().any(is_it) {
            true => sample(&text, name, &[label]),
            false => 0.0,
        }
    };
    let first = writes();
    let more = eventually(|| (writes() > first + 100.0).then_some(()));
    assert!(more.is_some() && bench.runs(), "no I/O is done");
}

#[test]
fn key_is_rotated_under_io_without_losing_the_host() {
    let (setup, target, [a, b]) = scene();
    // Without a key, the host needs none.
    target.nvmeof("smart-log").ok();
    ctl(&setup, &format!("host set-key {HOST} --key-file {a}")).ok();
    assert_ne!(target.nvmeof("smart-log").end().status, Some(0));
    connect(&target, &a).ok();
    let mut bench = start_io(&target, &a);
    wait_for_key(&setup, &json!("current"));

    ctl(&setup, &format!("host rotate-key {HOST} --key-file {b}")).ok();
    wait_for_key(&setup, &json!("old"));
    assert_continues(&setup, &mut bench);
    connect(&target, &a).ok();
    connect(&target, &b).ok();
    wait_for_key(&setup, &json!("old"));
    let text = ctl(&setup, "status").ok().text();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("authenticated: old key, SHA-256, ffdhe2048"),
        "{text}"
    );
    assert!(
        words.contains(&format!("keys of host {HOST}: key, old key")),
        "{text}"
    );

    let set = format!("host set-key {HOST} --key-file {b}");
    let words = ["uses a key that it replaces", "controller ", NQN, "--force"];
    ctl(&setup, &set).fails(1, &words);
    ctl(&setup, &format!("{set} --plan")).fails(1, &words);
    let remove = format!("host remove-old-key {HOST}");
    let words = ["still uses its old key", "controller ", NQN, "--force"];
    ctl(&setup, &remove).fails(1, &words);
    ctl(&setup, &format!("{remove} --plan")).fails(1, &words);
    assert_continues(&setup, &mut bench);
    let forced = ask(&setup, &format!("{remove} --force"));
    assert_eq!(
        forced["disconnected"].as_array().unwrap().len(),
        1,
        "{forced}"
    );
    assert_eq!(forced["warnings"], json!([]), "{forced}");
    let _ = bench.end();
    assert_eq!(count(&setup, "wrong_key"), 0);
    assert_ne!(connect(&target, &a).end().status, Some(0));
    assert_eq!(count(&setup, "wrong_key"), 1);
    let (_, text) = over_socket(&setup, "/metrics");
    let outcome = ["outcome=\"wrong_key\""];
    let all = "nvmeof_target_authentications_total";
    assert!(sample(&text, all, &outcome) >= 1.0, "{text}");
    let of_host = "nvmeof_target_host_authentications_total";
    assert!(sample(&text, of_host, &outcome) >= 1.0, "{text}");

    let mut bench = start_io(&target, &b);
    wait_for_key(&setup, &json!("current"));
    let removed = ask(&setup, &format!("host remove-key {HOST}"));
    let warnings = removed["warnings"].as_array().unwrap();
    let is_open = |one: &Value| {
        one.as_str()
            .unwrap()
            .contains("every peer that uses its NQN")
    };
    assert!(warnings.len() == 1 && is_open(&warnings[0]), "{removed}");
    assert_continues(&setup, &mut bench);
    wait_for_key(&setup, &json!("removed"));
    bench.kill();
    target.nvmeof("smart-log").ok();
    let state = fs::read_to_string(setup.path("state.json")).unwrap();
    for key in [KEY, OTHER_KEY] {
        let secret = &key[10..40];
        assert!(!state.contains(secret) && !target.log().contains(secret));
    }
    target.stop();
}

#[test]
fn set_key_reads_the_new_contents_of_the_same_file() {
    let (setup, target, [a, b]) = scene();
    let set = format!("host set-key {HOST} --key-file {a}");
    ctl(&setup, &set).ok();
    let mut bench = start_io(&target, &a);
    wait_for_key(&setup, &json!("current"));
    fs::write(&a, OTHER_KEY).unwrap();
    // It would lose the controller, as another file would.
    let words = ["uses a key that it replaces", "controller ", NQN, "--force"];
    ctl(&setup, &set).fails(1, &words);
    let rotate = format!("host rotate-key {HOST} --key-file {b}");
    let words = ["has another key than the one in effect", "restore the file"];
    ctl(&setup, &rotate).fails(1, &words);
    assert_continues(&setup, &mut bench);
    assert_ne!(connect(&target, &a).end().status, Some(0));
    let forced = ask(&setup, &format!("{set} --force"));
    let disconnected = forced["disconnected"].as_array().unwrap();
    assert_eq!(disconnected.len(), 1, "{forced}");
    bench.kill();
    connect(&target, &a).ok();
    target.stop();
}

#[test]
fn old_key_ends_at_its_date_and_its_controller_stays() {
    let (setup, mut target, [a, b]) = scene();
    ctl(&setup, &format!("host set-key {HOST} --key-file {a}")).ok();
    let mut bench = start_io(&target, &a);
    wait_for_key(&setup, &json!("current"));
    let soon = Command::new("date")
        .args(["-u", "-d", "+3 seconds", "+%FT%TZ"])
        .output()
        .unwrap();
    let soon = String::from_utf8(soon.stdout).unwrap();
    let rotate = format!(
        "host rotate-key {HOST} --key-file {b} --old-until {}",
        soon.trim()
    );
    ctl(&setup, &rotate).ok();
    target.wait_for_log(&format!("old key ended: host {HOST}"));
    assert_continues(&setup, &mut bench);
    wait_for_key(&setup, &json!("removed"));
    assert_ne!(connect(&target, &a).end().status, Some(0));
    connect(&target, &b).ok();
    let status = ask(&setup, "status");
    let warning = status["key_warnings"][0].as_str().unwrap();
    assert!(warning.contains("not accepted any more"), "{status}");
    assert_eq!(status["host_keys"][0]["old_key"], false, "{status}");
    bench.kill();
    target.stop();
}

#[test]
fn set_key_is_forced_while_a_controller_uses_the_key() {
    let (setup, target, [a, b]) = scene();
    ctl(&setup, &format!("host set-key {HOST} --key-file {a}")).ok();
    let bench = start_io(&target, &a);
    wait_for_key(&setup, &json!("current"));
    // Another property of the same key.
    ctl(
        &setup,
        &format!("host set-key {HOST} --key-file {a} --dh-groups ffdhe2048"),
    )
    .ok();
    let set = format!("host set-key {HOST} --key-file {b}");
    ctl(&setup, &set).fails(1, &["rotate-key", "controller ", NQN, "--force"]);
    wait_for_key(&setup, &json!("current"));
    let forced = ask(&setup, &format!("{set} --force"));
    let lost = forced["disconnected"].as_array().unwrap();
    assert_eq!(lost.len(), 1, "{forced}");
    let _ = bench.end();
    assert_ne!(connect(&target, &a).end().status, Some(0));
    connect(&target, &b).ok();
    target.stop();
}

#[test]
fn reload_applies_a_key_that_was_replaced_in_its_file() {
    let (setup, target, [a, b]) = scene();
    ctl(&setup, &format!("host set-key {HOST} --key-file {a}")).ok();
    let other = setup.path("other.key");
    key_file_with(&other, OTHER_KEY);
    assert_ne!(connect(&target, &b).end().status, Some(0));
    fs::rename(&other, &a).unwrap();
    let reloaded = ask(&setup, "reload");
    assert_eq!(
        reloaded["changes"].as_array().unwrap().len(),
        1,
        "{reloaded}"
    );
    connect(&target, &b).ok();
    target.stop();
}
