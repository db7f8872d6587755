//! Read-only commands: discovery, identify, logs, in both output formats.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use nvmeof_e2e::{NQN, Run, Setup, Target};

const MIB: usize = 1 << 20;

/// A target with a namespace of each kind.
struct Stage {
    setup: Setup,
    target: Target,
}

fn stage() -> Stage {
    let setup = Setup::new()
        .file(4 * MIB)
        .file_with(
            MIB,
            "block_size = 4096\nuuid = \"7d4d4c1f-0f1c-4a57-8a39-5f44a0b4f3a1\"",
        )
        .namespace("ram:2M", "readonly = true");
    let target = setup.start();
    Stage { setup, target }
}

/// Text output fits a terminal.
fn for_people(run: Run) -> String {
    let ended = run.ok();
    assert!(ended.stderr.is_empty(), "{ended}");
    let text = ended.text();
    assert!(!text.is_empty() && text.ends_with('\n'), "{text:?}");
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "more than 80 columns: {line}");
    }
    text
}

#[test]
fn discover() {
    let Stage { target, .. } = stage();
    let text = for_people(target.fabrics("discover"));
    let port = target.address().port().to_string();
    for word in [NQN, "rdma", "127.0.0.1", &port] {
        assert!(text.contains(word), "{word} is missing: {text}");
    }
    let json = target.fabrics("discover").json();
    let records = json["records"].as_array().unwrap();
    assert_eq!(records.len(), 1, "{json}");
    assert_eq!(records[0]["subnqn"], NQN);
    assert_eq!(records[0]["traddr"], "127.0.0.1");
    assert_eq!(records[0]["trsvcid"], port.as_str());
}

#[test]
fn discover_lists_discovery_subsystem_and_referrals() {
    let head = "[discovery]\nnqn = \"nqn.2026-11.org.example:finder\"\n\
                [[referral]]\ntraddr = \"192.0.2.7\"\nport_id = 9";
    let target = Setup::new().head(head).file(MIB).start();
    let json = target.fabrics("discover").json();
    let listed: Vec<_> = json["records"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            [
                &one["subtype"],
                &one["subnqn"],
                &one["traddr"],
                &one["trsvcid"],
            ]
        })
        .map(|all| all.map(|one| one.as_str().unwrap().to_owned()))
        .collect();
    let port = target.address().port().to_string();
    let expected = [
        [
            "current discovery subsystem",
            "nqn.2026-11.org.example:finder",
            "127.0.0.1",
            &port,
        ],
        ["nvme subsystem", NQN, "127.0.0.1", &port],
        [
            "discovery subsystem referral",
            "nqn.2014-08.org.nvmexpress.discovery",
            "192.0.2.7",
            "4420",
        ],
    ];
    assert_eq!(listed, expected);
    assert_eq!(json["records"][2]["portid"], 9);
}

#[test]
fn discover_lists_subsystems_that_allow_the_host() {
    let friend = "nqn.2026-11.org.example:friend";
    let setup = Setup::new()
        .access(&format!("allowed_hosts = [\"{friend}\"]"))
        .file(MIB);
    let target = setup.start();
    let count = |json: serde_json::Value| json["records"].as_array().unwrap().len();
    assert_eq!(count(target.fabrics("discover").json()), 0);
    let address = target.address();
    let line = format!(
        "discover -t rdma -a {} -s {} -q {friend}",
        address.ip(),
        address.port()
    );
    assert_eq!(count(Run::nvmeof(&line).json()), 1);
}

#[test]
fn controllers_and_namespaces() {
    let Stage { target, .. } = stage();
    let text = for_people(target.nvmeof("id-ctrl"));
    assert!(text.contains(NQN), "{text}");
    let json = target.nvmeof("id-ctrl").json();
    assert_eq!(json["subnqn"], NQN, "{json}");
    for key in ["sn", "mn", "fr", "cntlid", "mdts", "nn", "oncs", "sgls"] {
        assert!(!json[key].is_null(), "{key} is missing: {json}");
    }

    for_people(target.nvmeof("list-ns"));
    let json = target.nvmeof("list-ns").json();
    let list = json["nsid_list"].as_array().unwrap();
    let nsids: Vec<_> = list
        .iter()
        .map(|entry| entry["nsid"].as_u64().unwrap())
        .collect();
    assert_eq!(nsids, [1, 2, 3]);

    for (nsid, blocks, block_size) in [(1, 8192, 512), (2, 256, 4096), (3, 4096, 512)] {
        for_people(target.on(nsid, "id-ns"));
        let json = target.on(nsid, "id-ns").json();
        assert_eq!(json["nsze"], blocks, "{json}");
        assert_eq!(json["block_size"], block_size, "{json}");
    }
    let json = target.on(2, "id-ns").json();
    assert_eq!(
        json["uuid"], "7d4d4c1f-0f1c-4a57-8a39-5f44a0b4f3a1",
        "{json}"
    );
    target.on(9, "id-ns").fails(1, &["amespace"]);
}

#[test]
fn logs() {
    let Stage { target, .. } = stage();
    let _ = target.read(1, 0, Some(2048));
    for_people(target.nvmeof("smart-log"));
    let json = target.nvmeof("smart-log").json();
    assert!(json["host_read_commands"].as_u64().unwrap() > 0, "{json}");
    assert!(json["data_units_read"].as_u64().unwrap() > 0, "{json}");

    // The log belongs to the controller, and each run connects to a new one.
    for_people(target.nvmeof("error-log"));
    let json = target.nvmeof("error-log").json();
    // As in nvme-cli, JSON contains unused entries too.
    let errors = json["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 64, "{json}");
    assert!(errors.iter().all(|one| one["error_count"] == 0), "{json}");

    for (id, len) in [(0, 1024), (1, 64), (2, 512), (3, 512), (4, 4096), (5, 4096)] {
        let line = format!("--log-id {id} --log-len {len}");
        for_people(target.nvmeof("get-log").args(&line));
        let json = target.nvmeof("get-log").args(&line).json();
        assert_eq!(json["data"].as_str().unwrap().len(), len * 2, "{json}");
        let raw = target
            .nvmeof("get-log")
            .args(&line)
            .args("--raw-binary")
            .ok();
        assert_eq!(raw.stdout.len(), len);
    }
    target
        .nvmeof("get-log")
        .args("--log-id 0xc0 --log-len 64")
        .fails(1, &["Log Page"]);
}

#[test]
fn identifiers_are_the_same_after_a_restart() {
    let identifiers = |target: &Target| {
        let controller = target.nvmeof("id-ctrl").json();
        let namespaces = [1, 2, 3].map(|nsid| {
            let json = target.on(nsid, "id-ns").json();
            [json["uuid"].to_string(), json["nguid"].to_string()]
        });
        (controller["sn"].to_string(), namespaces)
    };
    let Stage { setup, target } = stage();
    let first = identifiers(&target);
    target.stop();
    let second = setup.start();
    assert_eq!(identifiers(&second), first);
    let (_, namespaces) = first;
    assert_ne!(namespaces[0], namespaces[2]);
    for [uuid, nguid] in namespaces {
        assert!(uuid.len() == 38 && nguid.len() == 34 && !nguid.contains("00000000000000"));
    }
}

#[test]
fn help_fits_a_terminal() {
    for_people(Run::nvmeof("--help"));
    for_people(Run::nvmeof("--version"));
    let commands = "discover id-ctrl id-ns list-ns smart-log error-log get-log read write \
                    flush write-zeroes dsm compare bench";
    for command in commands.split_whitespace() {
        for_people(Run::nvmeof(command).arg("--help"));
    }
}
