//! Features and ANA states of the target, and the short options of nvme-cli.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use nvmeof_e2e::{Setup, Target, managed};
use serde_json::{Value, json};

const MIB: usize = 1 << 20;

/// The text of a command that succeeds, without messages.
#[track_caller]
fn text(target: &Target, command: &str) -> String {
    let ended = target.nvmeof(command).ok();
    assert!(ended.stderr.is_empty(), "{ended}");
    ended.text()
}

#[test]
fn all_features_of_target_are_listed() {
    let target = managed().file(MIB).start();
    let all = target.nvmeof("get-feature").json();
    let listed: Vec<&str> = all
        .as_object()
        .unwrap()
        .keys()
        .filter_map(|key| key.strip_prefix("feature: "))
        .collect();
    // Error Recovery and Write Protection are features of namespaces.
    let of_controller = [
        "0x01", "0x02", "0x04", "0x06", "0x07", "0x0a", "0x0b", "0x0e", "0x0f", "0x16", "0x19",
        "0x81",
    ];
    assert_eq!(listed, of_controller);
    let all = target.on(1, "get-feature").json();
    for fid in ["0x05", "0x84"] {
        assert!(all[format!("feature: {fid}")].is_array(), "{fid}: {all}");
    }
    let lines = text(&target, "get-feature");
    assert!(
        lines.starts_with("get-feature:0x01 (Arbitration), Current value:"),
        "{lines}"
    );
    // HOSTID of this host, also with -b.
    let raw = target.nvmeof("get-feature -f 0x81 -b").ok().stdout;
    assert_eq!(raw.len(), 16);
    let fields = text(&target, "get-feature -f 0x81 -H");
    let hex: String = raw.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(fields.ends_with(&format!(" (HOSTID): {hex}\n")), "{fields}");
}

#[test]
fn current_default_and_supported_values_are_read() {
    let target = Setup::new().file(MIB).start();
    // The current time-out is that of Connect, the default is 2 minutes.
    for (options, line) in [
        (
            "-k 7",
            "get-feature:0x0f (Keep Alive Timer), Current value:0x00001b58\n",
        ),
        (
            "--sel default",
            "get-feature:0x0f (Keep Alive Timer), Default value:0x0001d4c0\n",
        ),
        (
            "--sel 2",
            "get-feature:0x0f (Keep Alive Timer), Saved value:0x0001d4c0\n",
        ),
        (
            "--sel 3",
            "get-feature:0x0f (Keep Alive Timer), Supported capabilities value:0x00000004\n  \
             Feature is changeable\n",
        ),
    ] {
        let got = text(&target, &format!("get-feature -f 15 {options}"));
        assert_eq!(got, line, "{options}");
    }
    let json = target.nvmeof("get-feature -f 0xf --sel supported").json();
    let expected = json!({
        "feature: 0x0f": [{
            "name": "Keep Alive Timer",
            "Supported capabilities": "0x00000004",
        }],
        "Feature: 0x0f: select": ["changeable"],
    });
    assert_eq!(json, expected);
    let json = target.nvmeof("get-feature -f 14").json();
    let stamp = &json["Feature: 0x0e"][0];
    assert_eq!(stamp["timestamp origin"], "counts from the last reset");
    assert!(stamp["timestamp"].is_u64(), "{json}");
}

#[test]
fn features_are_set_with_values_and_data() {
    let setup = Setup::new().file(MIB);
    let target = setup.start();
    assert_eq!(
        text(&target, "set-feature -f 6 -V 0 -c 0x10"),
        "set-feature:0x06 (Volatile Write Cache), value:00000000, cdw12:0x00000010, save:0\n"
    );
    let json = target.nvmeof("set-feature -f 0xf -V 60000").json();
    let line = "set-feature:0x0f (Keep Alive Timer), value:0x0000ea60, cdw12:00000000, save:0";
    assert_eq!(json, json!({ "result": line }));
    // Milliseconds, or data from a file or standard input.
    let stamp = text(&target, "set-feature -f 0xe -V 0x19a000000000");
    assert!(
        stamp.ends_with("\n000000: 00 00 00 00 a0 19 00 00                         \"........\"\n"),
        "{stamp}"
    );
    let mut behavior = [0; 512];
    behavior[0] = 1;
    let file = setup.path("behavior");
    std::fs::write(&file, behavior).unwrap();
    let run = target.nvmeof("set-feature -f 0x16");
    run.arg("-d").arg(&file).ok();
    let run = target.nvmeof("set-feature -f 0x16 -l 512 -d -");
    run.stdin(&behavior).ok();
    // The target reads the data: 2 is no value of ACRE.
    behavior[0] = 2;
    let run = target.nvmeof("set-feature -f 0x16 -d -");
    run.stdin(&behavior).fails(
        1,
        &["feature 0x16 (Host Behavior Support): Set Features failed"],
    );
}

#[test]
fn refused_features_have_remedies() {
    let target = managed().file(MIB).start();
    for (command, words) in [
        (
            "set-feature -f 6 -V 1 --save",
            ["feature 0x06 (Volatile Write Cache)", "leave --save out"],
        ),
        (
            "set-feature -f 6 -V 1 --namespace-id 1",
            ["Feature Not Namespace Specific", "leave --namespace-id out"],
        ),
        (
            "set-feature -f 0x84 -V 1",
            ["Invalid Namespace or Format", "give --namespace-id N"],
        ),
        (
            "set-feature -f 0x84 -V 1 --namespace-id 9",
            ["Invalid Field in Command", "nvmeof list-ns"],
        ),
        (
            "set-feature -f 0x84 -V 3 --namespace-id 1",
            ["feature 0x84", "may not support this feature or value"],
        ),
        (
            "set-feature -f 0xc0 -V 1",
            ["feature 0xc0 (unknown)", "may not support this feature"],
        ),
        (
            "get-feature -f 0x81 -c 0",
            [
                "feature 0x81 (Host Identifier)",
                "may not support this feature or value",
            ],
        ),
        (
            "get-feature -f 0x84",
            ["Invalid Namespace or Format", "give --namespace-id N"],
        ),
        ("get-feature -f 0xc0", ["0xc0", "shows the features"]),
        // SEL in the error log.
        (
            "get-feature -f 0xe -l 4",
            ["feature 0x0e (Timestamp)", "failed"],
        ),
    ] {
        target.nvmeof(command).fails(1, &words);
    }
    let identifier = target
        .nvmeof("set-feature -f 0x81 -V 1 -d -")
        .stdin(&[1; 16]);
    identifier.fails(1, &["Command Sequence Error", "after Connect"]);
    let list = target.on(9, "get-feature");
    list.fails(1, &["the subsystem has no namespace 9", "nvmeof list-ns"]);
}

#[test]
fn write_protection_of_namespace_is_set_and_read() {
    let target = managed().file(MIB).file(MIB).start();
    let state = |nsid: u32| {
        let json = target.on(nsid, "get-feature -f 0x84").json();
        let state = &json["Feature: 0x84"][0]["Namespace Write Protect"];
        state.as_str().unwrap().to_owned()
    };
    assert_eq!(state(1), "No Write Protect");
    target.on(1, "set-feature -f 0x84 -V 1").ok();
    // Of another controller: the state is one of the namespace.
    assert_eq!(state(1), "Write Protect");
    assert_eq!(state(2), "No Write Protect");
    let write = target.on(1, "write").args("--data -").stdin(&[0; 512]);
    write.fails(1, &["Namespace is Write Protected"]);
    let run = target.nvmeof("set-feature -f 0x84 -V 0 --namespace-id 0xffffffff");
    run.ok();
    assert_eq!(state(1), "No Write Protect");
    target.write(1, 0, &[0; 512]);
    let json = target.on(1, "get-feature -f 0x84 --sel 3").json();
    let expected = json!(["per-namespace", "changeable"]);
    assert_eq!(json["Feature: 0x84: select"], expected);
}

/// A target with ANA group 2 in `state`.
fn with_states(state: &str) -> Setup {
    let group = format!("\"iwarp\"\n[[port.ana_group]]\nid = 2\nstate = \"{state}\"");
    Setup::new()
        .provider(&group)
        .file(MIB)
        .file_with(MIB, "ana_group = 2")
        .file_with(MIB, "ana_group = 2")
        .file(MIB)
}

#[test]
fn ana_log_has_states_of_all_groups() {
    for state in [
        "optimized",
        "non-optimized",
        "inaccessible",
        "persistent-loss",
        "change",
    ] {
        let target = with_states(state).start();
        let log = target.nvmeof("ana-log").json();
        let key = "Asymmetric Namespace Access Log for NVMe device";
        assert_eq!(log[key], target.address().to_string(), "{log}");
        assert_eq!(log["ngrps"], 2, "{log}");
        let groups = log["ANA DESC LIST "].as_array().unwrap();
        let shown = |group: &Value| {
            let nsids = group["NSIDS"].as_array().unwrap();
            let nsids: Vec<u64> = nsids
                .iter()
                .map(|one| one["nsid"].as_u64().unwrap())
                .collect();
            assert_eq!(group["nnsids"], nsids.len(), "{group}");
            let state = group["state"].as_str().unwrap().to_owned();
            (group["grpid"].as_u64().unwrap(), state, nsids)
        };
        assert_eq!(shown(&groups[0]), (1, "optimized".to_owned(), vec![1, 4]));
        assert_eq!(shown(&groups[1]), (2, state.to_owned(), vec![2, 3]));
    }
}

#[test]
fn ana_log_prints_text_and_groups_only() {
    let target = with_states("inaccessible").start();
    let log = text(&target, "ana-log");
    for lines in [
        "===== ANA group 1 =====\ngrpid  : 1\nnnsids : 2\n",
        "state  : optimized\nnsids  : 1, 4\n===== ANA group 2 =====\n",
        "state  : inaccessible\nnsids  : 2-3\n",
    ] {
        assert!(log.contains(lines), "{log}");
    }
    let log = text(&target, "ana-log -g");
    assert!(log.ends_with("state  : inaccessible\n"), "{log}");
    assert!(!log.contains("nsids  :"), "{log}");
    let log = target.nvmeof("ana-log --groups").json();
    assert_eq!(log["ANA DESC LIST "][0]["NSIDS"], json!([]), "{log}");
    // Error Recovery is not available in this state, other features are.
    let run = target.on(2, "get-feature -f 5");
    run.fails(1, &["feature 0x05 (Error Recovery)", "Asymmetric Access"]);
    target.on(1, "get-feature -f 5").ok();
}

/// `nvmeof` with the short options of `nvme`, and a comparison by counts from 1.
#[test]
fn short_options_count_as_in_nvme_cli() {
    let target = Setup::new().file(MIB).start();
    let before = target.read(1, 0, None);
    let at = |block: usize| block * 512;
    let read = |options: &str| target.on(1, "read").args(options).ok().stdout;
    assert_eq!(read("--start-block 8 -c 0 -d -"), before[at(8)..at(9)]);
    assert_eq!(
        read("--start-block 8 -c 3 -z 2048 -d -"),
        before[at(8)..at(12)]
    );
    assert_eq!(read("--start-block 8 -z 1KiB -d -"), before[at(8)..at(10)]);
    let write = target.on(1, "write");
    let write = write.args("--start-block 100 -c 1 -z 1024 -d - -f");
    write.stdin(&[9; 1024]).ok();
    let compare = target.on(1, "compare").args("--start-block 100 -c 1 -d -");
    compare.stdin(&[9; 1024]).ok();
    target.on(1, "verify").args("--start-block 2047 -c 0").ok();
    let beyond = target.on(1, "verify").args("--start-block 2047 -c 1");
    beyond.fails(1, &["beyond the end"]);
    let zeroes = target
        .on(1, "write-zeroes")
        .args("--start-block 100 -c 0 -d");
    zeroes.ok();
    let copy = target.on(1, "copy");
    copy.args("--start-block 8,101 -b 1,0 -d 200 -f").ok();
    let after = target.read(1, 0, None);
    assert_eq!(after[at(100)..at(101)], [0; 512]);
    assert_eq!(after[at(101)..at(102)], [9; 512]);
    assert_eq!(after[at(102)..at(103)], before[at(102)..at(103)]);
    assert_eq!(after[at(200)..at(202)], before[at(8)..at(10)]);
    assert_eq!(after[at(202)..at(203)], [9; 512]);
    assert_eq!(after[at(203)..at(204)], before[at(203)..at(204)]);
    target.on(1, "dsm").args("--start-block 0 -b 8 -d").ok();
    let log = target.nvmeof("get-log -i 2 -l 512 -b").ok().stdout;
    assert_eq!(log.len(), 512);
}

#[test]
fn ambiguous_options_are_refused() {
    let target = Setup::new().file(MIB).start();
    let before = target.read(1, 0, None);
    // These have -s PORT, which may be meant as the first block.
    for (command, words) in [
        ("write -z 512 -d -", ["--trsvcid", "--start-block"]),
        ("write -c 0 -d -", ["--trsvcid", "--start-block"]),
        ("read -c 0 -d -", ["--trsvcid", "--start-block"]),
        ("compare -z 512 -d -", ["--trsvcid", "--start-block"]),
        ("verify -c 0", ["--trsvcid", "--start-block"]),
        ("write -z 4k --start-block 0 -d -", ["4KiB", "1000"]),
        ("write -n 1 -d -", ["--namespace-id", "not an NQN"]),
        ("write-zeroes --start-block 0", ["--block-count", "--nlb"]),
    ] {
        let run = target.on(1, command).stdin(&[7; 512]);
        run.fails(2, &words);
    }
    let short = target.on(1, "write").args("--start-block 0 -z 500 -d -");
    short
        .stdin(&[7; 500])
        .fails(2, &["--data-size 500", "such as 512"]);
    assert!(target.read(1, 0, None) == before, "nothing was written");
}
