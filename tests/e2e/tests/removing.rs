//! Removing objects in use: the response names the hosts that lost a controller, and the cause.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs;

use nvmeof_e2e::{HOST, NQN, Setup, Target, ask, ctl, managed, nsids, start_io};
use serde_json::json;

/// A target with two ports, and a document that allows no host.
fn scene() -> (Setup, Target) {
    let setup = managed().file(4 << 20);
    let text = setup.text();
    let nobody = text.replace("allow_any_host = true", "allowed_hosts = []");
    assert_ne!(nobody, text);
    fs::write(setup.path("nobody.toml"), nobody).unwrap();
    let target = setup.start();
    let second = setup.path("second.sock");
    ctl(&setup, &format!("port add unix:{}", second.display())).ok();
    (setup, target)
}

#[test]
fn removal_in_use_names_disconnected_hosts() {
    for (line, why) in [
        (
            &*format!("subsystem remove {NQN}"),
            "the subsystem was removed",
        ),
        ("port remove 1", "the port was removed"),
        ("host deny any", "the host is no longer allowed to connect"),
        (
            "apply nobody.toml",
            "the host is no longer allowed to connect",
        ),
        (
            &format!("disconnect {HOST}"),
            "an administrator disconnected the host",
        ),
    ] {
        let (setup, target) = scene();
        let nobody = setup.path("nobody.toml").display().to_string();
        let line = line.replace("nobody.toml", &nobody);
        let bench = start_io(&target);
        let response = ask(&setup, &line);
        let lost = response["disconnected"].as_array().unwrap();
        let mine = lost.iter().find(|one| one["host"] == HOST);
        let mine = mine.unwrap_or_else(|| panic!("{line}: {response}"));
        assert_eq!(
            (&mine["subsystem"], &mine["why"]),
            (&json!(NQN), &json!(why))
        );
        assert_eq!(bench.end().status, Some(1), "{line}");
        target.stop();
        // The same as text, which fits a terminal.
        let (setup, target) = scene();
        let line = line.replace(&nobody, &setup.path("nobody.toml").display().to_string());
        let bench = start_io(&target);
        let output = ctl(&setup, &line).ok().text();
        let output = output.split_whitespace().collect::<Vec<_>>().join(" ");
        let entry = format!("of {NQN}, host {HOST}: {why}");
        assert!(
            output.contains("disconnected: controller ") && output.contains(&entry),
            "{output}"
        );
        assert_eq!(bench.end().status, Some(1), "{line}");
        target.stop();
    }
}

/// Removing a namespace leaves hosts connected: they get an event.
#[test]
fn removal_of_a_namespace_disconnects_no_host() {
    let setup = managed().file(4 << 20).file(1 << 20);
    let mut target = setup.start();
    let mut bench = start_io(&target);
    for line in ["namespace disable 2", "namespace remove 2"] {
        let response = ask(&setup, line);
        assert_eq!(response["disconnected"], json!([]), "{response}");
        nvmeof_e2e::assert_io_continues(&target, &mut bench);
    }
    assert_eq!(nsids(&target), [1]);
    bench.kill();
    target.assert_healthy();
    target.stop();
}
