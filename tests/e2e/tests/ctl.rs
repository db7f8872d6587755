//! Each verb of `nvmeof-target ctl`: its output as text and JSON, and its errors.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::collections::BTreeSet;
use std::fs;

use nvmeof_e2e::{
    HOST, KEY, NQN, OTHER_KEY, Setup, Target, ask, ctl, key_file_with, managed, nsids,
};
use serde_json::Value;

/// The commands of the table in docs/managing.md, without their arguments.
fn documented() -> BTreeSet<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/managing.md");
    let document = fs::read_to_string(path).unwrap();
    let (_, table) = document.split_once("| `nvmeof-target ctl` | |").unwrap();
    let rows = table
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'));
    let mut found = BTreeSet::new();
    for row in rows.filter(|row| row.starts_with("| `")) {
        let cell = row.trim_start_matches("| ").split(" | ").next().unwrap();
        let mut noun = "";
        for command in cell
            .split('`')
            .filter(|part| part.starts_with(char::is_lowercase))
        {
            let words: Vec<_> = command.split(' ').filter(|word| is_verb(word)).collect();
            // `namespace enable NSID`, `disable NSID`: the first word is of both.
            match words[..] {
                [first, second] => {
                    noun = first;
                    found.insert(format!("{first} {second}"));
                }
                [only] if noun.is_empty() => {
                    found.insert(only.to_owned());
                }
                [only] => {
                    found.insert(format!("{noun} {only}"));
                }
                _ => panic!("{row}"),
            }
        }
    }
    found
}

/// Whether it is not an argument, which is in upper case there.
fn is_verb(word: &str) -> bool {
    word.starts_with(char::is_lowercase)
}

/// Text output has at most 80 columns, except for longer names, which are not cut.
#[track_caller]
fn is_for_people(text: &str) {
    for line in text.lines() {
        let one_word = !line.trim_start().contains(' ');
        assert!(line.chars().count() <= 80 || one_word, "{line}");
    }
    assert!(!text.trim().is_empty(), "nothing was printed");
}

/// Runs both lines, the second with JSON output; returns both outputs.
#[track_caller]
fn both(setup: &Setup, people: &str, programs: &str) -> (String, Value) {
    let text = ctl(setup, people).ok().text();
    match people {
        // A document is printed unchanged.
        "show" => {}
        // The last column contains names, which are not cut.
        list if list.ends_with(" list") => {
            let without = |line: &str| {
                line.rsplit_once(' ')
                    .map_or("", |(rest, _)| rest)
                    .to_owned()
            };
            is_for_people(&text.lines().map(without).collect::<Vec<_>>().join("\n"));
        }
        _ => is_for_people(&text),
    }
    let json = ask(setup, programs);
    assert_eq!(json.is_array(), people.ends_with(" list"), "{json}");
    assert!(json.is_object() || json.is_array(), "{json}");
    (text, json)
}

/// Two deferred changes: the configuration file contains the same namespaces now.
fn defer_two(setup: &Setup) {
    for nsid in [21, 22] {
        ctl(setup, &format!("namespace add null:1M --nsid {nsid}")).ok();
    }
    let mut text = setup.text();
    for nsid in [21, 22] {
        text += &format!("[[subsystem.namespace]]\nnsid = {nsid}\npath = 'ram:1M'\n");
    }
    fs::write(setup.path("target.toml"), text).unwrap();
    ctl(setup, "reload").ok();
}

#[test]
fn every_verb_works_as_text_and_json() {
    let setup = managed().file(4 << 20);
    let target = setup.start();
    let path = |name: &str| setup.path(name).display().to_string();
    let other = setup.path("other.toml");
    let more = "[[subsystem.namespace]]\nnsid = 9\npath = 'ram:1M'\n";
    fs::write(&other, setup.text() + more).unwrap();
    let (plan, apply) = (
        format!("plan {}", other.display()),
        format!("apply {}", other.display()),
    );
    let (first, second) = (
        "nqn.2026-11.org.example:first",
        "nqn.2026-11.org.example:second",
    );
    let sockets = [path("a.sock"), path("b.sock")];
    let keys = [path("a.key"), path("b.key")];
    for (file, key) in keys.iter().zip([KEY, OTHER_KEY]) {
        key_file_with(file.as_ref(), key);
    }
    let in_place = |line: &str, name: &str| line.replace('@', name);
    let sub = |line: &str| (in_place(line, first), in_place(line, second));
    let pairs: Vec<(String, String)> = vec![
        twice("status"),
        twice("show"),
        twice("namespace list"),
        twice("host list"),
        twice("port list"),
        twice("subsystem list"),
        twice(&plan),
        twice(&apply),
        twice("reload"),
        two(
            "namespace add ram:1M --nsid 11",
            "namespace add ram:1M --nsid 12",
        ),
        two("namespace resize 1 8M", "namespace resize 1"),
        two("namespace disable 11", "namespace disable 12"),
        two("namespace enable 11", "namespace enable 12"),
        two(
            "namespace set 11 ana_group=2",
            "namespace set 12 path=ram:2M",
        ),
        two("namespace remove 11", "namespace remove 12"),
        two(
            &format!("host allow --only {HOST}"),
            &format!("host allow {first}"),
        ),
        two(&format!("host deny {HOST}"), &format!("host deny {first}")),
        twice("host allow any"),
        two(
            &format!("host set-key {first} --key-file {}", keys[0]),
            &format!("host set-key {second} --key-file {}", keys[0]),
        ),
        two(
            &format!("host rotate-key {first} --key-file {}", keys[1]),
            &format!(
                "host rotate-key {second} --key-file {} --old-until 2099-12-31",
                keys[1]
            ),
        ),
        sub("host remove-old-key @"),
        sub("host remove-key @"),
        two(
            &format!("port add unix:{}", sockets[0]),
            &format!("port add unix:{}", sockets[1]),
        ),
        two(
            &format!("port set unix:{} queue_depth=64", sockets[0]),
            "port set 3 queue_depth=64",
        ),
        two(&format!("port remove unix:{}", sockets[0]), "port remove 2"),
        sub("subsystem add @ --host any"),
        sub("subsystem set @ model=other serial="),
        sub("subsystem remove @"),
        two("ana set 1 non-optimized", "ana set 1 optimized --port 1"),
        two("referral add 10.0.0.9:4420", "referral add 10.0.0.10:8009"),
        two(
            "referral remove 10.0.0.9:4420",
            "referral remove 10.0.0.10:8009",
        ),
        twice(&format!("disconnect {HOST}")),
        twice("changes"),
        twice("reservations"),
        twice("drain"),
        twice("resume"),
        twice("save"),
        two(
            &format!("save {}", path("a.toml")),
            &format!("save {}", path("b.toml")),
        ),
    ];
    let mut done = BTreeSet::new();
    for (people, programs) in &pairs {
        both(&setup, people, programs);
        done.insert(verb(people));
    }
    // This target is no gateway.
    ctl(&setup, "ha").fails(2, &["high availability", "add [ha]"]);
    is_refused_for_programs(&setup, "ha", &["add [ha]"]);
    done.insert("ha".to_owned());
    defer_two(&setup);
    let (text, json) = both(&setup, "changes", "changes");
    let unwrapped = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for nsid in [21, 22] {
        let why = format!("deferred: nsid: there is a namespace {nsid} already");
        assert!(unwrapped.contains(&why), "{text}");
    }
    assert_eq!(json["deferred"].as_array().unwrap().len(), 2, "{json}");
    let numbers = numbers_of_deferred(&json);
    // The first is removed before the second is queried.
    let lines = numbers.map(|number| format!("forget {number}"));
    both(&setup, &lines[0], &lines[1]);
    done.insert("forget".to_owned());
    let (_, json) = both(&setup, "changes", "changes");
    assert_eq!(json["deferred"], Value::Array(Vec::new()), "{json}");
    assert_eq!(done, documented(), "the verbs of docs/managing.md");
    assert_eq!(nsids(&target), [1, 21, 22]);
    target.stop();
}

fn twice(line: &str) -> (String, String) {
    two(line, line)
}

fn two(people: &str, programs: &str) -> (String, String) {
    (people.to_owned(), programs.to_owned())
}

/// The words of a line that are not arguments, as in the documentation.
fn verb(line: &str) -> String {
    let words: Vec<_> = line.split(' ').collect();
    let nouns = ["namespace", "host", "port", "subsystem", "ana", "referral"];
    let len = if nouns.contains(&words[0]) { 2 } else { 1 };
    words[..len].join(" ")
}

/// The numbers of the two deferred changes; that of the second one after the first is
/// removed.
fn numbers_of_deferred(document: &Value) -> [usize; 2] {
    let deferred = document["deferred"].as_array().unwrap();
    let edits = document["edits"].as_array().unwrap().iter();
    let is_deferred = |edit: &Value| deferred.iter().any(|one| one["edit"] == *edit);
    let numbers = (1..).zip(edits).filter(|(_, edit)| is_deferred(edit));
    let numbers: Vec<usize> = numbers.map(|(number, _)| number).collect();
    assert_eq!(numbers.len(), 2, "{document}");
    [numbers[0], numbers[1] - 1]
}

/// The error names the missing object and the command that lists the existing ones.
#[test]
fn unknown_object_is_reported_with_a_remedy() {
    let friend = "nqn.2026-11.org.example:friend";
    let access = format!("allowed_hosts = ['{HOST}']");
    let setup = managed().access(&access).file(1 << 20);
    let target = setup.start();
    let (status, show) = ("`ctl status` shows", "`ctl show` prints");
    let nqn = "nqn.2026-11.org.example:no";
    let strange = setup.path("strange.toml");
    fs::write(&strange, setup.text() + "colour = 'blue'\n").unwrap();
    for (line, words) in [
        ("namespace remove 7", ["no namespace 7", status]),
        ("namespace resize 7", ["no namespace 7", status]),
        ("namespace enable 7", ["no namespace 7", status]),
        ("namespace disable 7", ["no namespace 7", status]),
        (
            &*format!("namespace add ram:1M --subsystem {nqn}"),
            ["no subsystem", status],
        ),
        (
            &format!("namespace remove 1 --subsystem {nqn}"),
            ["no subsystem", status],
        ),
        (
            &format!("host allow {friend} --subsystem {nqn}"),
            ["no subsystem", status],
        ),
        (
            &format!("host deny {friend}"),
            ["is not allowed anyway", status],
        ),
        (&format!("subsystem remove {nqn}"), ["no subsystem", status]),
        (
            &format!("subsystem add {NQN}"),
            ["already", "remove it first"],
        ),
        ("namespace add ram:1M --nsid 1", ["already", "omit nsid"]),
        ("port remove 9", ["no port 9", show]),
        ("port set 9 queue_depth=64", ["no port 9", show]),
        ("namespace set 7 ana_group=2", ["no namespace 7", status]),
        (
            "namespace set 1 enabled=false",
            ["enabled: ", "`ctl namespace disable`"],
        ),
        ("namespace set 1 colour=red", ["colour", "known here"]),
        (
            &format!("subsystem set {nqn} model=m"),
            ["no subsystem", status],
        ),
        ("port remove 10.0.0.9:4420", ["none at 10.0.0.9:4420", show]),
        ("ana set 1 optimized --port 9", ["no port 9", show]),
        (
            "ana set 1 optimized --port 10.0.0.9:4420",
            ["none at 10.0.0.9:4420", show],
        ),
        (
            "referral remove 10.0.0.9:4420",
            ["none at 10.0.0.9:4420", show],
        ),
        ("forget 3", ["change 3 does not exist", "`ctl changes`"]),
        (
            &format!("plan {}", strange.display()),
            ["colour", "known here"],
        ),
        (
            &format!("apply {}", strange.display()),
            ["colour", "known here"],
        ),
    ] {
        let output = ctl(&setup, line).fails(2, &words);
        is_for_people(&output.stderr);
        is_refused_for_programs(&setup, line, &words);
        assert_eq!(status_of(&setup, &target), [1], "{line}");
    }
    let nobody = ctl(&setup, &format!("disconnect {friend}")).ok().text();
    assert!(
        nobody.contains("not connected") && nobody.contains(status),
        "{nobody}"
    );
    target.stop();
}

/// The error is JSON on standard output, and the same message.
#[track_caller]
fn is_refused_for_programs(setup: &Setup, line: &str, words: &[&str]) {
    let ended = ctl(setup, &format!("-o json {line}")).end();
    assert_eq!(ended.status, Some(2), "{ended}");
    let json: Value =
        serde_json::from_slice(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended}"));
    let message = json["error"]["message"].as_str().unwrap_or_default();
    for word in words {
        assert!(message.contains(word), "{word}: {ended}");
    }
}

/// The namespaces in the status of the target.
fn status_of(setup: &Setup, target: &Target) -> Vec<u64> {
    let json = ask(setup, "status");
    let all = json["subsystems"][0]["namespaces"].as_array();
    let all = all.unwrap_or_else(|| panic!("{json}: {}", target.log()));
    all.iter()
        .map(|one| one["nsid"].as_u64().unwrap())
        .collect()
}

/// A plan is printed, and nothing changes.
#[test]
fn each_change_can_be_planned() {
    let friend = "nqn.2026-11.org.example:friend";
    let setup = managed().file(1 << 20);
    let target = setup.start();
    let before = ask(&setup, "status");
    for (line, words) in [
        ("namespace add ram:1M --plan", "namespace 2 would be added"),
        ("namespace --plan remove 1", "namespace 1 would be removed"),
        ("namespace set 1 ana_group=3 --plan", "namespace 1"),
        (&format!("host allow --only {friend} --plan"), "would be"),
        (
            &format!("subsystem remove {NQN} --plan"),
            "would be removed",
        ),
        (&format!("subsystem add {friend} --plan"), friend),
        ("port add unix:/x --plan", "port unix:/x would be added"),
        ("referral add 10.0.0.9:4420 --plan", "10.0.0.9:4420"),
        ("ana set 1 inaccessible --plan", "inaccessible"),
    ] {
        let (text, json) = both(&setup, line, line);
        assert!(
            text.contains(words) && !text.contains("disconnected"),
            "{text}"
        );
        assert!(!json["changes"].as_array().unwrap().is_empty(), "{json}");
        assert_eq!(ask(&setup, "status"), before, "{line}");
    }
    // Plans of refused changes, and commands without a plan.
    ctl(&setup, "namespace remove 7 --plan").fails(2, &["no namespace 7"]);
    ctl(&setup, "namespace resize 1 2M --plan").fails(2, &["--plan"]);
    assert_eq!(fs::metadata(setup.image_path(1)).unwrap().len(), 1 << 20);
    target.stop();
}

/// The position is a separate field of the response.
#[test]
fn document_errors_have_positions_in_json() {
    let setup = managed().file(1 << 20);
    let target = setup.start();
    let other = setup.path("other.toml");
    let missing = setup.path("missing");
    let text = format!(
        "[limits]\nio_queues = 3\n{}[[subsystem.namespace]]\nnsid = 9\npath = '{}'\n",
        setup.text(),
        missing.display()
    );
    fs::write(&other, &text).unwrap();
    for verb in ["plan", "apply"] {
        let ended = ctl(&setup, &format!("-o json {verb} {}", other.display())).end();
        assert_eq!(ended.status, Some(2), "{ended}");
        let json: Value = serde_json::from_slice(&ended.stdout).unwrap();
        let error = &json["error"];
        assert_eq!(error["file"], *other.display().to_string(), "{error}");
        assert_eq!(error["line"], text.lines().count(), "{error}");
        assert_eq!(error["key"], "subsystem.namespace.path", "{error}");
        assert_eq!(status_of(&setup, &target), [1]);
    }
    target.stop();
}
