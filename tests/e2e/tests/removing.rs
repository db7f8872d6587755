//! What is in use and removed: whoever does it is told who lost a controller by that, and
//! why.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs;

use nvmeof_e2e::{HOST, NQN, Setup, Target, ask, at_work, ctl, managed, nsids};
use serde_json::json;

/// A target by two ports, and a document in which nobody may connect.
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
fn who_removes_what_is_in_use_is_told_whom_that_disconnects() {
    for (line, why) in [
        (
            &*format!("subsystem remove {NQN}"),
            "the subsystem was removed",
        ),
        ("port remove 1", "the port was removed"),
        ("host deny any", "the host may not connect any more"),
        ("apply nobody.toml", "the host may not connect any more"),
        (&format!("disconnect {HOST}"), "the administrator wanted it"),
    ] {
        let (setup, target) = scene();
        let nobody = setup.path("nobody.toml").display().to_string();
        let line = line.replace("nobody.toml", &nobody);
        let bench = at_work(&target);
        let answer = ask(&setup, &line);
        let lost = answer["disconnected"].as_array().unwrap();
        let mine = lost.iter().find(|one| one["host"] == HOST);
        let mine = mine.unwrap_or_else(|| panic!("{line}: {answer}"));
        assert_eq!(
            (&mine["subsystem"], &mine["why"]),
            (&json!(NQN), &json!(why))
        );
        assert_eq!(bench.end().status, Some(1), "{line}");
        target.stop();
        // The same for people, whose lines are no longer than a terminal.
        let (setup, target) = scene();
        let line = line.replace(&nobody, &setup.path("nobody.toml").display().to_string());
        let bench = at_work(&target);
        let said = ctl(&setup, &line).ok().text();
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        let told = format!("of {NQN}, host {HOST}: {why}");
        assert!(
            said.contains("disconnected: controller ") && said.contains(&told),
            "{said}"
        );
        assert_eq!(bench.end().status, Some(1), "{line}");
        target.stop();
    }
}

/// A namespace that goes leaves its hosts connected: they hear of it.
#[test]
fn who_removes_a_namespace_disconnects_nobody() {
    let setup = managed().file(4 << 20).file(1 << 20);
    let mut target = setup.start();
    let mut bench = at_work(&target);
    for line in ["namespace disable 2", "namespace remove 2"] {
        let answer = ask(&setup, line);
        assert_eq!(answer["disconnected"], json!([]), "{answer}");
        nvmeof_e2e::goes_on(&target, &mut bench);
    }
    assert_eq!(nsids(&target), [1]);
    bench.kill();
    target.must_be_well();
    target.stop();
}
