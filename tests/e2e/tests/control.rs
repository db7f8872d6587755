//! Changes over the control socket under I/O of hosts.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nvmeof_e2e::{
    HOST, NQN, Run, ask, assert_io_continues, blocks, ctl, eventually, managed, nsids, pattern,
    same_bytes, start_io, target_command,
};
use serde_json::Value;

const MIB: usize = 1 << 20;

#[test]
fn busy_host_sees_namespaces_added_resized_and_removed() {
    let setup = managed().file(16 * MIB);
    let file = setup.config();
    let written = fs::read(&file).unwrap();
    let mut target = setup.start();
    let mut bench = start_io(&target);
    let image = setup.path("second.img");
    fs::write(&image, pattern(5, 4 * MIB)).unwrap();
    let added = ask(&setup, &format!("namespace add {}", image.display()));
    assert_eq!(added["edits"][0]["nsid"], 2, "{added}");
    assert_eq!(
        (&added["saved"], nsids(&target)),
        (&Value::Bool(true), vec![1, 2])
    );
    same_bytes(&target.read(2, 0, None), &pattern(5, 4 * MIB));
    let size = || blocks(&target, 2);
    ctl(&setup, "namespace resize 2 8M").ok();
    assert_eq!(size(), 8 << 11);
    ctl(&setup, "namespace resize 2 4M").fails(2, &["shrink"]);
    ctl(&setup, "namespace resize 2 4M --shrink").ok();
    assert_eq!(size(), 4 << 11);
    assert_io_continues(&target, &mut bench);
    let output = ctl(&setup, "namespace remove 2").ok();
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("namespace 2 is removed"),
        "{output}"
    );
    assert_eq!(nsids(&target), [1]);
    assert_io_continues(&target, &mut bench);
    target.assert_healthy();
    bench.kill();
    target.stop();
    assert_eq!(
        fs::read(file).unwrap(),
        written,
        "the file is the administrator's"
    );
    assert!(!setup.path("control.sock").exists());
}

#[test]
fn host_is_denied_and_disconnected() {
    let friend = "nqn.2026-11.org.example:friend";
    let setup = managed().file(4 * MIB);
    let mut target = setup.start();
    let bench = start_io(&target);
    let status = ask(&setup, "status");
    let mine = status["controllers"].as_array().unwrap().iter();
    assert!(
        mine.filter(|one| one["host"] == HOST).count() > 0,
        "{status}"
    );
    let lost = ask(&setup, &format!("disconnect {HOST}"));
    assert!(
        !lost["disconnected"].as_array().unwrap().is_empty(),
        "{lost}"
    );
    assert_eq!(bench.end().status, Some(1));
    // It may reconnect, until it is denied.
    let bench = start_io(&target);
    let denied = ask(&setup, &format!("host allow --only {friend}"));
    assert_eq!(denied["disconnected"][0]["host"], HOST, "{denied}");
    assert_eq!(bench.end().status, Some(1));
    target.nvmeof("id-ctrl").fails(1, &["not allowed"]);
    ctl(&setup, &format!("host deny {friend}")).ok();
    ctl(&setup, &format!("host allow {HOST}")).ok();
    let bench = start_io(&target);
    let drained = ctl(&setup, "drain").ok();
    assert!(
        String::from_utf8_lossy(&drained.stdout).contains("drained"),
        "{drained}"
    );
    assert_eq!(bench.end().status, Some(1));
    target.nvmeof("id-ctrl").fails(1, &[]);
    ctl(&setup, "namespace add ram:1M").fails(1, &["ctl resume"]);
    // A refused change truncates nothing.
    let size = || fs::metadata(setup.image_path(1)).unwrap().len();
    let before = size();
    ctl(&setup, "namespace resize 1 4K --shrink").fails(1, &["ctl resume"]);
    assert_eq!(size(), before);
    ctl(&setup, "resume").ok();
    assert_eq!(nsids(&target), [1]);
    target.assert_healthy();
    target.stop();
}

#[test]
fn namespace_is_disabled_and_ana_group_becomes_inaccessible() {
    let setup = managed().file(MIB).file(MIB);
    let target = setup.start();
    ctl(&setup, "namespace disable 2").ok();
    let states = ask(&setup, "status")["subsystems"][0]["namespaces"].take();
    let state = |nsid: u32| {
        let all = states.as_array().unwrap().iter();
        let mut its = all.filter(|one| one["nsid"] == nsid);
        its.next().unwrap()["state"].clone()
    };
    assert_eq!((state(1), state(2)), ("ready".into(), "disabled".into()));
    assert_eq!(nsids(&target), [1]);
    ctl(&setup, "namespace enable 2").ok();
    same_bytes(&target.read(2, 0, None), &pattern(2, MIB));
    let changed = ask(&setup, "ana set 1 inaccessible --port 1");
    assert_eq!(changed["changes"].as_array().unwrap().len(), 1, "{changed}");
    target.on(1, "read").args("--data -").fails(1, &[]);
    ctl(&setup, "ana set 1 upside-down").fails(2, &["state"]);
    ctl(&setup, "ana set 1 optimized").ok();
    same_bytes(&target.read(1, 0, None), &pattern(1, MIB));
    target.stop();
}

#[test]
fn acknowledged_changes_survive_a_kill() {
    let setup = managed().file(MIB);
    let mut known = 1;
    for round in 0..6_u64 {
        let mut target = setup.start();
        assert!(nsids(&target).len() >= known, "round {round}");
        known = nsids(&target).len();
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let changes = scope.spawn(|| {
                while ctl(&setup, "namespace add null:1M").end().status == Some(0) {
                    made.fetch_add(1, Ordering::Relaxed);
                }
            });
            let one = eventually(|| (made.load(Ordering::Relaxed) > 0).then_some(()));
            assert!(one.is_some(), "nothing is changed at all");
            std::thread::sleep(Duration::from_millis(37 * round));
            target.kill();
            changes.join().unwrap();
            known += made.load(Ordering::Relaxed);
        });
    }
    let target = setup.start();
    assert!(nsids(&target).len() >= known);
    // The last change may have been applied without a response.
    assert!(nsids(&target).len() <= known + 6);
    target.stop();
    fs::write(setup.path("state.json"), "{").unwrap();
    let mut serve = target_command();
    serve
        .args(["serve", "--config"])
        .arg(setup.path("target.toml"));
    Run::new(serve).fails(2, &["state.json", "damaged", "move it away"]);
}

#[test]
fn busy_host_reads_no_truncated_block() {
    let setup = managed().file(16 * MIB);
    let mut target = setup.start();
    for _ in 0..3 {
        let bench = start_io(&target);
        ctl(&setup, "namespace resize 1 4M --shrink").ok();
        assert_eq!(fs::metadata(setup.image_path(1)).unwrap().len(), 4 << 20);
        // It reads blocks beyond the new end, and gets the error for that.
        let ended = bench.end();
        assert_eq!(ended.status, Some(1), "{ended}");
        assert!(ended.stderr.contains("LBA Out of Range"), "{ended}");
        ctl(&setup, "namespace resize 1 16M").ok();
        assert_eq!(blocks(&target, 1), 16 << 11);
    }
    target.assert_healthy();
    target.stop();
}

#[test]
fn refused_command_reports_cause_and_remedy() {
    let setup = managed().file(MIB).namespace("ram:1M", "");
    let target = setup.start();
    let missing = setup.path("missing").display().to_string();
    for (line, status, words) in [
        (
            &*format!("plan {missing}"),
            1,
            &["missing", "cannot be read"][..],
        ),
        (
            &format!("apply {missing}"),
            1,
            &["missing", "cannot be read"],
        ),
        (
            &format!("namespace add {missing}"),
            2,
            &["path: ", "no such file"],
        ),
        (
            "namespace add ram:1M --nsid 1",
            2,
            &["a namespace 1 already"],
        ),
        ("namespace remove 7", 2, &["no namespace 7"]),
        ("namespace resize 7", 2, &["no namespace 7"]),
        (
            "namespace resize 2 2M",
            2,
            &["memory", "memory cannot be resized"],
        ),
        ("namespace resize 1 1000", 2, &["multiple of 4096"]),
        ("namespace resize 1 much", 2, &["SIZE: "]),
        ("namespace enable 7", 2, &["no namespace 7"]),
        ("namespace disable 7", 2, &["no namespace 7"]),
        (
            "host allow nqn.2026-11.org.example:a",
            2,
            &["every host", "--only"],
        ),
        (
            "host deny nqn.2026-11.org.example:a",
            2,
            &["every host", "--only"],
        ),
        ("port add 127.0.0.1", 2, &["traddr"]),
        ("port remove 9", 2, &["no port 9"]),
        (&format!("subsystem add {NQN}"), 2, &["already"]),
        (
            "subsystem remove nqn.2026-11.org.example:no",
            2,
            &["no subsystem"],
        ),
        ("ana set 1 best", 2, &["state", "best"]),
        ("ana set 1 optimized --port 9", 2, &["no port 9"]),
        ("referral add nowhere", 2, &["traddr"]),
        (
            "referral remove 10.0.0.9:4420",
            2,
            &["none at 10.0.0.9:4420"],
        ),
        ("disconnect no\u{7}name", 2, &["host: ", "no\\u{7}name"]),
        ("forget 1", 2, &["change 1 does not exist", "ctl changes"]),
    ] {
        ctl(&setup, line).fails(status, words);
        assert_eq!(nsids(&target), [1, 2], "{line}");
    }
    let nobody = ctl(&setup, "disconnect nqn.2026-11.org.example:nobody").ok();
    assert!(String::from_utf8_lossy(&nobody.stdout).contains("was not connected"));
    // Disabled, effective and refused objects.
    ctl(&setup, "namespace disable 1").ok();
    ctl(&setup, "namespace resize 1 2M").fails(1, &["disabled", "enable it first"]);
    ctl(&setup, "forget 1").fails(2, &["namespace disable 1", "is not deferred"]);
    let listed = ctl(&setup, "changes").ok();
    assert_eq!(
        String::from_utf8_lossy(&listed.stdout)
            .lines()
            .next()
            .unwrap(),
        format!("1 namespace disable 1 of {NQN}")
    );
    ctl(&setup, "drain").ok();
    ctl(&setup, "drain").ok();
    for line in ["reload", "namespace enable 1", "namespace resize 1"] {
        ctl(&setup, line).fails(1, &["is drained", "ctl resume"]);
    }
    ctl(&setup, "resume").ok();
    let other = setup.path("other.toml");
    let text = setup
        .text()
        .replace("[control]", "[limits]\nio_queues = 3\n[control]");
    fs::write(&other, text).unwrap();
    for verb in ["plan", "apply"] {
        let output = ctl(&setup, &format!("{verb} {}", other.display())).ok();
        let output = String::from_utf8_lossy(&output.stdout).replace("\n  ", " ");
        assert!(
            output.contains("warning: limits.io_queues is ignored"),
            "{output}"
        );
    }
    target.stop();
}

#[test]
fn document_is_planned_and_applied_atomically() {
    let setup = managed().file(MIB);
    let target = setup.start();
    let other = setup.path("other.toml");
    let text = setup.text();
    let more = "\n[[subsystem.namespace]]\nnsid = 9\npath = 'ram:1M'\n";
    fs::write(&other, format!("{text}{more}")).unwrap();
    let line = |verb: &str| format!("{verb} {}", other.display());
    let planned = ctl(&setup, &line("plan")).ok();
    let planned = String::from_utf8_lossy(&planned.stdout).into_owned();
    assert!(planned.contains("namespace 9 would be added"), "{planned}");
    assert!(planned.lines().all(|line| line.len() <= 80), "{planned}");
    assert_eq!(nsids(&target), [1]);
    ctl(&setup, &line("apply")).ok();
    assert_eq!(nsids(&target), [1, 9]);
    fs::write(&other, format!("{text}{more}block_size = 513\n")).unwrap();
    let lines = (text + more).lines().count() + 1;
    let place = format!("other.toml:{lines}: ");
    for verb in ["plan", "apply"] {
        ctl(&setup, &line(verb)).fails(2, &[&place, "block_size"]);
    }
    let shown = ctl(&setup, "show").ok();
    assert!(String::from_utf8_lossy(&shown.stdout).contains("nsid = 9"));
    let saved = setup.path("saved.toml");
    ctl(&setup, &format!("save {}", saved.display())).ok();
    assert_eq!(fs::read(&saved).unwrap(), shown.stdout);
    ctl(&setup, &format!("save {}", saved.display())).fails(1, &["already"]);
    ctl(&setup, "reload").ok();
    assert_eq!(nsids(&target), [1]);
    ctl(&setup, "save").ok();
    target.stop();
}

#[test]
fn socket_is_for_the_group_and_rejects_bad_requests() {
    let setup = managed().file(MIB);
    let mut target = setup.start();
    let path = setup.path("control.sock");
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let says = |request: &str| {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    };
    let post = |path: &str, body: &str| {
        let len = body.len();
        says(&format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {len}\r\n\r\n{body}"
        ))
    };
    for (path, body, status) in [
        ("/v1/edits", "{\"edits\": [", "400"),
        ("/v1/edits", "{\"edits\": [{\"edit\": \"fly\"}]}", "400"),
        (
            "/v1/edits",
            "{\"edits\": [{\"edit\": \"namespace_remove\", \"nsid\": 7}]}",
            "422",
        ),
        (
            "/v1/edits",
            "{\"edits\": [{\"edit\": \"namespace_remove\", \"nsid\": -1}]}",
            "400",
        ),
        ("/v1/apply", "{\"name\": \"a\", \"text\": \"b\"}", "422"),
        ("/v1/disconnect", "{\"host\": \"no\\u0007name\"}", "422"),
        ("/v1/status", "", "405"),
        ("/v2/status", "", "404"),
    ] {
        let response = post(path, body);
        let good = response.starts_with(&format!("HTTP/1.1 {status} "));
        assert!(
            good && response.contains("{\"error\":{\"message\":"),
            "{path} {body}: {response}"
        );
    }
    let described = says("GET /openapi.json HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(described.contains("\"/v1/edits\""));
    // A silent client does not block others.
    let _silent: Vec<_> = (0..100)
        .map(|_| UnixStream::connect(&path).unwrap())
        .collect();
    assert_eq!(ask(&setup, "status")["subsystems"][0]["nqn"], NQN);
    ctl(&setup, "host deny nobody").fails(2, &["allow_any_host"]);
    target.assert_healthy();
    target.stop();
    ctl(&setup, "status").fails(1, &["does the target run?"]);
}
