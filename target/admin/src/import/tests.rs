//! The import of saved configurations, and remarks about items that are not imported.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod hosts;
mod identity;
mod limits;
mod nvmetcli;

use std::path::Path;

use proptest::prelude::*;
use serde_json::json;

use super::report::Weight;
use super::store_probe::Kind;
use super::*;

/// Two subsystems, three namespaces, two ports, ANA groups.
const SAVED: &str = include_str!("nvmet.json");

fn small_blocks(_: &Path) -> Kind {
    Kind::File {
        block: 1024,
        len: 1 << 20,
    }
}

fn nowhere(_: &Path) -> Kind {
    Kind::Unknown
}

fn import(saved: &Value, probe: &dyn Fn(&Path) -> Kind) -> (String, Report) {
    let mut report = Report::default();
    let converted = convert(saved, Probe(probe), &mut report).unwrap();
    (text::of(&converted, Path::new("/keys")), report)
}

/// The configuration from the content of a file.
fn of_bytes(
    name: &str,
    bytes: &[u8],
    probe: &dyn Fn(&Path) -> Kind,
) -> Result<(String, Report), ImportError> {
    let keys = KeyFolder::service();
    let converted = converted(Path::new(name), bytes, Probe(probe), keys)?;
    Ok((converted.text, converted.report))
}

/// The file of this folder with another value at `pointer`.
fn saved_with(pointer: &str, value: Value) -> Value {
    let mut saved: Value = serde_json::from_str(SAVED).unwrap();
    *saved.pointer_mut(pointer).unwrap() = value;
    saved
}

fn imported(text: &str) -> toml::Table {
    text.parse()
        .unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// All remarks, one on each line.
fn remarks(report: &Report) -> String {
    let lines = report.remarks.iter().map(ToString::to_string);
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn port_zero_gets_the_first_free_number() {
    let (text, report) = import(&saved_with("/ports/0/portid", json!(0)), &small_blocks);
    let ids: Vec<_> = imported(&text)["port"]
        .as_array()
        .unwrap()
        .iter()
        .map(|port| port["id"].as_integer().unwrap())
        .collect();
    assert_eq!(ids, [1, 2], "{text}");
    assert_eq!(report.losses(), 0, "{}", remarks(&report));
    assert!(
        remarks(&report)
            .contains("ports[0].portid: 0 is not a port ID of this target; the port becomes 1")
    );
    check(&text, &mut Report::default());
}

#[test]
fn file_with_a_part_of_a_block_is_disabled_and_reported() {
    let odd = |_: &Path| Kind::File {
        block: 4096,
        len: (10 << 20) + 2048,
    };
    let (text, report) = import(&serde_json::from_str(SAVED).unwrap(), &odd);
    let remarks = remarks(&report);
    assert!(
        remarks.contains("whole number of blocks of 4096 bytes"),
        "{remarks}"
    );
    assert!(remarks.contains("truncate -s %4096"), "{remarks}");
    let namespaces = imported(&text)["subsystem"][0]["namespace"].clone();
    let all = namespaces.as_array().unwrap();
    assert!(
        all.iter()
            .all(|one| one["enabled"].as_bool() == Some(false)),
        "{text}"
    );
}

#[test]
fn transport_in_capitals_and_address_in_brackets_are_imported() {
    let mut saved = saved_with("/ports/1/addr/traddr", json!("[::1]"));
    *saved.pointer_mut("/ports/1/addr/trtype").unwrap() = json!("RDMA");
    *saved.pointer_mut("/ports/1/addr/adrfam").unwrap() = json!("IPv6");
    let (text, report) = import(&saved, &small_blocks);
    assert_eq!(report.losses(), 0, "{}", remarks(&report));
    assert_eq!(imported(&text)["port"][1]["traddr"].as_str(), Some("::1"));
}

#[test]
fn host_name_instead_of_address_has_a_remedy() {
    let (_, report) = import(
        &saved_with("/ports/0/addr/traddr", json!("storage-1")),
        &nowhere,
    );
    let remarks = remarks(&report);
    assert!(remarks.contains("getent ahosts storage-1"), "{remarks}");
}

#[test]
fn configuration_of_spdk_is_recognized() {
    let saved = json!({"subsystems": [
        {"subsystem": "bdev", "config": [{"method": "bdev_malloc_create", "params": {}}]},
        {"subsystem": "nvmf", "config": [
            {"method": "nvmf_create_subsystem", "params": {"nqn": "nqn.2016-06.io.spdk:cnode1"}}]},
    ]});
    let bytes = serde_json::to_vec(&saved).unwrap();
    let error = of_bytes("spdk.json", &bytes, &nowhere).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("spdk.json: is a configuration of SPDK"),
        "{text}"
    );
    assert!(text.contains("nvmf_subsystem_add_listener"), "{text}");
}

#[test]
fn real_configuration_is_imported() {
    let saved = serde_json::from_str(SAVED).unwrap();
    let (text, report) = import(&saved, &small_blocks);
    assert_eq!(report.losses(), 0, "{}", remarks(&report));
    let expected = r#"
        limits = { queue_depth = 128, io_queues = 32, in_capsule = 8192, max_descriptors = 1 }

        [[port]]
        id = 1
        traddr = "127.0.0.1"
        trsvcid = 4420
        in_capsule = 4096
        [[port.ana_group]]
        id = 2
        state = "non-optimized"

        [[port]]
        id = 2
        traddr = "::1"
        trsvcid = 4421
        in_capsule = 8192
        [[port.ana_group]]
        id = 1
        state = "inaccessible"
        # Not on that port, which the kernel takes for inaccessible.
        [[port.ana_group]]
        id = 2
        state = "inaccessible"

        [[referral]]
        traddr = "192.0.2.7"
        trsvcid = 8009
        port_id = 3

        [[subsystem]]
        nqn = "nqn.2026-11.org.example:mail"
        serial = "4a1c2b3d4e5f60718293"
        model = "Linux"
        allowed_hosts = [
            "nqn.2014-08.org.nvmexpress:uuid:6e6f1ba2-7f7e-4d0b-9d3d-b7a1f5c0a001",
            "nqn.2014-08.org.nvmexpress:uuid:6e6f1ba2-7f7e-4d0b-9d3d-b7a1f5c0a002",
        ]
        [[subsystem.namespace]]
        nsid = 1
        path = "/srv/nvmet/mail-1.img"
        block_size = 1024
        uuid = "2d0fb70d-6a3c-4f5e-8a49-6c1fd6a0b101"
        nguid = "00000000-0000-0000-0000-000000000000"
        ana_group = 1
        [[subsystem.namespace]]
        nsid = 2
        path = "/srv/nvmet/mail-2.img"
        block_size = 1024
        uuid = "2d0fb70d-6a3c-4f5e-8a49-6c1fd6a0b102"
        nguid = "ef90689c-6c46-d44c-89c1-4067801309a8"
        ana_group = 2

        [[subsystem]]
        nqn = "nqn.2026-11.org.example:build"
        serial = "0123456789abcdef0123"
        model = "Linux"
        io_queues = 16
        allow_any_host = true
        [[subsystem.namespace]]
        nsid = 7
        path = "/srv/nvmet/build.img"
        block_size = 1024
        uuid = "2d0fb70d-6a3c-4f5e-8a49-6c1fd6a0b201"
        nguid = "00000000-0000-0000-0000-000000000000"
        ana_group = 1
        enabled = false
    "#;
    assert_eq!(imported(&text), imported(expected), "{text}");
}

#[test]
fn numbers_are_numbers_or_text() {
    let port = "/ports/0/addr/trsvcid";
    let (as_text, _) = import(&saved_with(port, json!("4420")), &small_blocks);
    let (as_number, _) = import(&saved_with(port, json!(4420)), &small_blocks);
    assert_eq!(as_text, as_number);
    let any = "/subsystems/0/attr/allow_any_host";
    for on in [json!("1"), json!(1), json!(true)] {
        let (text, _) = import(&saved_with(any, on), &small_blocks);
        assert_eq!(text.matches("allow_any_host = true").count(), 2);
    }
}

#[test]
fn unique_discovery_nqn_is_imported() {
    let (usual, _) = import(
        &saved_with("/discovery/nqn", json!(nvmeof_wire::nqn::DISCOVERY)),
        &small_blocks,
    );
    assert!(!usual.contains("[discovery]"), "{usual}");
    let own = "nqn.2026-11.org.example:finder";
    let (text, _) = import(&saved_with("/discovery/nqn", json!(own)), &small_blocks);
    assert!(
        text.contains(&format!("[discovery]\nnqn = \"{own}\"")),
        "{text}"
    );
}

#[test]
fn unsupported_settings_are_reported_with_line_and_remedy() {
    let dhchap =
        json!([{"nqn": "a", "dhchap": {"key": "DHHC-1:00:c2VjcmV0:", "hash": "hmac(md5)"}}]);
    let cases = [
        ("/ports/0/addr/trtype", json!("tcp"), "ports[0].addr.trtype"),
        ("/ports/0/addr/adrfam", json!("ib"), "ports[0].addr.adrfam"),
        (
            "/ports/0/addr/traddr",
            json!("fd00::1%eth0"),
            "ports[0].addr.traddr",
        ),
        ("/ports/0/addr/trsvcid", json!("x"), "ports[0].addr.trsvcid"),
        (
            "/ports/0/addr/treq",
            json!("required"),
            "ports[0].addr.treq",
        ),
        (
            "/ports/0/param/pi_enable",
            json!("1"),
            "ports[0].param.pi_enable",
        ),
        ("/ports/0/portid", json!("-1"), "ports[0].portid"),
        (
            "/ports/0/ana_groups/1/ana/state",
            json!("fine"),
            "ports[0].ana_groups[1].ana.state",
        ),
        (
            "/ports/0/referrals/0/addr/trtype",
            json!("fc"),
            "ports[0].referrals[0].addr.trtype",
        ),
        (
            "/ports/0/referrals/0/addr/traddr",
            json!("finder.example"),
            "ports[0].referrals[0].addr.traddr",
        ),
        (
            "/ports/0/referrals/0/addr/portid",
            json!("65536"),
            "ports[0].referrals[0].addr.portid",
        ),
        (
            "/ports/0/referrals/0/enable",
            json!("perhaps"),
            "ports[0].referrals[0].enable",
        ),
        (
            "/ports/0/subsystems/0",
            json!("nqn.2026-11.org.example:gone"),
            "ports[0].subsystems",
        ),
        ("/hosts", dhchap, "hosts[0].dhchap.hash"),
        (
            "/subsystems/0/nqn",
            json!("x".repeat(224)),
            "subsystems[0].nqn",
        ),
        (
            "/subsystems/0/attr/cntlid_min",
            json!("0"),
            "subsystems[0].attr.cntlid_min",
        ),
        (
            "/subsystems/0/attr/cntlid_max",
            json!("65520"),
            "subsystems[0].attr.cntlid_max",
        ),
        (
            "/subsystems/0/attr/pi_enable",
            json!("1"),
            "subsystems[0].attr.pi_enable",
        ),
        (
            "/subsystems/0/attr/model",
            json!("\u{e9}"),
            "subsystems[0].attr.model",
        ),
        (
            "/subsystems/0/attr/allow_any_host",
            json!("maybe"),
            "subsystems[0].attr.allow_any_host",
        ),
        (
            "/subsystems/0/allowed_hosts/0",
            json!(""),
            "subsystems[0].allowed_hosts",
        ),
        (
            "/subsystems/0/namespaces/0/nsid",
            json!(0),
            "subsystems[0].namespaces[0].nsid",
        ),
        (
            "/subsystems/0/namespaces/0/nsid",
            json!(2),
            "subsystems[0].namespaces[1]",
        ),
        (
            "/subsystems/0/namespaces/0/device/path",
            json!("(null)"),
            "subsystems[0].namespaces[0].device.path",
        ),
        (
            "/subsystems/0/namespaces/0/device/uuid",
            json!("1234"),
            "subsystems[0].namespaces[0].device.uuid",
        ),
        (
            "/subsystems/0/namespaces",
            json!("none"),
            "subsystems[0].namespaces",
        ),
        ("/subsystems/1", json!(7), "subsystems[1]"),
        ("/discovery/nqn", json!(""), "discovery.nqn"),
        (
            "/subsystems/0/passthru/0/device/path",
            json!("/dev/nvme0"),
            "subsystems[0].passthru[0]",
        ),
    ];
    for (pointer, value, location) in cases {
        let (text, report) = import(&saved_with(pointer, value), &small_blocks);
        let _ = imported(&text);
        let found = report
            .remarks
            .iter()
            .find(|remark| remark.location == location);
        let Some(found) = found else {
            panic!("{pointer}: nothing about {location}:\n{}", remarks(&report));
        };
        assert_eq!(found.weight, Weight::Lost, "{found}");
        assert!(
            !found.remedy.is_empty() || location.ends_with("hosts"),
            "{found}"
        );
        assert!(
            !remarks(&report).contains("c2VjcmV0"),
            "a secret is repeated"
        );
    }
}

/// Every namespace of this target can be reserved, if it has a state file.
#[test]
fn reservations_are_noted() {
    let pointer = "/subsystems/0/namespaces/0/resv/enable";
    let (_, report) = import(&saved_with(pointer, json!("1")), &small_blocks);
    let mut all = report.remarks.iter();
    let found = all.find(|one| one.location == "subsystems[0].namespaces[0].resv");
    let found = found.unwrap();
    assert_eq!(found.weight, Weight::Note);
    assert!(found.to_string().contains("control.state"), "{found}");
}

/// Every referral of the file is in the configuration or in a remark.
#[test]
fn referrals_are_imported_or_reported() {
    let referral = |traddr: &str, enable: u8| {
        let addr = json!({
            "adrfam": "ipv4", "portid": "0", "traddr": traddr, "treq": "not specified",
            "trsvcid": "8009", "trtype": "rdma",
        });
        json!({ "addr": addr, "enable": enable, "name": "finder" })
    };
    let all = json!([
        referral("192.0.2.7", 1),
        referral("192.0.2.8", 0),
        referral("192.0.2.9", 1),
        // The same twice is one.
        referral("192.0.2.7", 1),
    ]);
    let (text, report) = import(&saved_with("/ports/0/referrals", all), &small_blocks);
    assert_eq!(report.losses(), 0, "{}", remarks(&report));
    let table = imported(&text);
    let referrals = table["referral"].as_array().unwrap().iter();
    let addresses: Vec<_> = referrals
        .map(|one| one["traddr"].as_str().unwrap())
        .collect();
    assert_eq!(addresses, ["192.0.2.7", "192.0.2.9"]);
    let ids = table["referral"].as_array().unwrap().iter();
    assert!(
        ids.clone().all(|one| one.get("port_id").is_none()),
        "{text}"
    );
    let remarks = remarks(&report);
    assert!(
        remarks.contains("note: ports[0].referrals[1]: is not enabled; add a [[referral]]"),
        "{remarks}"
    );
    // There are two ports, and each reports all referrals.
    assert!(
        remarks.contains("every port reports each referral"),
        "{remarks}"
    );
    Config::parse(Path::new("configuration"), text).unwrap();
}

/// Targets that serve one subsystem together use different controller IDs.
#[test]
fn import_keeps_controller_identifier_ranges() {
    let mut saved: Value = serde_json::from_str(SAVED).unwrap();
    let attr = &mut saved["subsystems"][1]["attr"];
    (attr["cntlid_min"], attr["cntlid_max"]) = (json!("100"), json!(199));
    let (text, report) = import(&saved, &small_blocks);
    assert_eq!(report.losses(), 0, "{}", remarks(&report));
    let table = imported(&text);
    let of = |at: usize, key| {
        table["subsystem"][at]
            .get(key)
            .and_then(toml::Value::as_integer)
    };
    assert_eq!(
        [of(1, "cntlid_min"), of(1, "cntlid_max")],
        [Some(100), Some(199)]
    );
    assert_eq!([of(0, "cntlid_min"), of(0, "cntlid_max")], [None, None]);
    Config::parse(Path::new("configuration"), text).unwrap();
    // nvmet refuses this, but a file may have it.
    saved["subsystems"][1]["attr"]["cntlid_max"] = json!(99);
    let bytes = serde_json::to_vec(&saved).unwrap();
    let (_, report) = of_bytes("saved", &bytes, &small_blocks).unwrap();
    assert_eq!(report.losses(), 1, "{}", remarks(&report));
    assert!(
        remarks(&report).contains("exceeds cntlid_max"),
        "{}",
        remarks(&report)
    );
}

#[test]
fn subsystem_of_unsupported_port_is_not_exported_by_other_ports() {
    let mut saved: Value = serde_json::from_str(SAVED).unwrap();
    saved["ports"][0]["addr"]["trtype"] = json!("tcp");
    saved["ports"][1]["subsystems"] = json!(["nqn.2026-11.org.example:build"]);
    let (text, report) = import(&saved, &small_blocks);
    assert!(!text.contains("example:mail"), "{text}");
    let remarks = remarks(&report);
    assert!(remarks.contains("no imported port exports it"), "{remarks}");
}

#[test]
fn port_keeps_its_subsystems() {
    let mail = "nqn.2026-11.org.example:mail";
    let saved = saved_with("/ports/1/subsystems", json!([mail, "nqn.of:nobody"]));
    let (text, report) = import(&saved, &small_blocks);
    let ports: Vec<_> = text.split("[[port]]").collect();
    assert!(!ports[1].contains("subsystems = "), "{text}");
    assert!(
        ports[2].contains(&format!("subsystems = [\"{mail}\"]")),
        "{text}"
    );
    let remarks = remarks(&report);
    assert!(
        remarks.contains("ports[1].subsystems: there is no subsystem"),
        "{remarks}"
    );
}

#[test]
fn unknown_ana_state_becomes_inaccessible() {
    let saved = saved_with("/ports/0/ana_groups/0/ana/state", json!("fine"));
    let (text, _) = import(&saved, &small_blocks);
    let table = imported(&text);
    let group = &table["port"][0]["ana_group"][0];
    assert_eq!(group["id"].as_integer(), Some(1));
    assert_eq!(group["state"].as_str(), Some("inaccessible"));
}

#[test]
fn configuration_without_ana_has_no_ana_groups() {
    let mut saved: Value = serde_json::from_str(SAVED).unwrap();
    for port in ["/ports/0", "/ports/1"] {
        saved.pointer_mut(port).unwrap()["ana_groups"] = json!([]);
    }
    saved["subsystems"][0]["namespaces"][1]["ana_grpid"] = json!(0);
    let (text, _) = import(&saved, &small_blocks);
    assert!(!text.contains("ana_group"), "{text}");
}

#[test]
fn block_size_is_that_of_nvmet() {
    let saved = serde_json::from_str(SAVED).unwrap();
    let sizes = |probe: &dyn Fn(&Path) -> Kind| {
        let (text, report) = import(&saved, probe);
        let lines = text.lines().filter(|line| line.starts_with("block_size"));
        (
            lines.map(str::to_owned).collect::<Vec<_>>(),
            remarks(&report),
        )
    };
    assert_eq!(sizes(&|_| Kind::BlockDevice).0, [] as [&str; 0]);
    // Larger blocks of a file system are limited to 4096 bytes.
    let large = sizes(&|_| Kind::File {
        block: 65_536,
        len: 1 << 20,
    })
    .0;
    assert_eq!(large, ["block_size = 4096"; 3]);
    let (unknown, remarks) = sizes(&nowhere);
    assert_eq!(unknown, ["block_size = 4096"; 3]);
    assert!(remarks.contains("is not on this machine"), "{remarks}");
}

#[test]
fn unknown_keys_are_reported_without_values() {
    let mut saved: Value = serde_json::from_str(SAVED).unwrap();
    saved["ports"][0]["param"]["future"] = json!("c2VjcmV0");
    saved["surprise"] = json!([1, 2]);
    let (_, report) = import(&saved, &small_blocks);
    let remarks = remarks(&report);
    assert!(
        remarks.contains("ports[0].param.future: is an unknown key"),
        "{remarks}"
    );
    assert!(remarks.contains("surprise: is an unknown key"), "{remarks}");
    assert!(!remarks.contains("c2VjcmV0"), "{remarks}");
}

#[test]
fn file_of_another_format_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("saved.json");
    let import = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        let import = Import {
            file: file.clone(),
            output_format: Format::Normal,
            output: None,
        };
        import.import().unwrap_err().to_string()
    };
    let deep = "[".repeat(100_000);
    for (bytes, words) in [
        (b"{".as_slice(), "line 1"),
        (b"[]", "neither ports nor subsystems"),
        (b"{\"hosts\": []}", "neither ports nor subsystems"),
        (b"\xff\xfe", "is not the output of `nvmetcli save`"),
        (deep.as_bytes(), "recursion limit"),
    ] {
        let error = import(bytes);
        assert!(
            error.contains("saved.json") && error.contains(words),
            "{error}"
        );
    }
    let long = vec![b' '; usize::try_from(LONGEST_FILE).unwrap() + 1];
    let error = import(&long);
    assert!(error.contains("has more than"), "{error}");
}

#[test]
fn existing_output_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (file, output) = (folder.path().join("saved.json"), folder.path().join("ours"));
    fs::write(&file, SAVED).unwrap();
    let import = Import {
        file,
        output_format: Format::Normal,
        output: Some(output.clone()),
    };
    let (converted, _) = import.import().unwrap();
    assert_eq!(fs::read_to_string(&output).unwrap(), converted.text);
    fs::write(&output, "mine").unwrap();
    let error = import.import().unwrap_err().to_string();
    assert!(error.contains("is not replaced"), "{error}");
    assert_eq!(fs::read_to_string(&output).unwrap(), "mine");
}

#[test]
fn invalid_configuration_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("saved.json");
    let same = json!("2d0fb70d-6a3c-4f5e-8a49-6c1fd6a0b101");
    let saved = saved_with("/subsystems/0/namespaces/1/device/uuid", same);
    fs::write(&file, saved.to_string()).unwrap();
    let import = Import {
        file,
        output_format: Format::Json,
        output: None,
    };
    let (Converted { report, .. }, _) = import.import().unwrap();
    let remarks = remarks(&report);
    assert!(
        remarks.contains("configuration: is not valid: "),
        "{remarks}"
    );
    assert!(!report.is_good, "the exit status is 1");
}

#[test]
fn many_remarks_are_counted() {
    let ports: Vec<Value> = (0..2000).map(|id| json!({"portid": id})).collect();
    let (_, report) = import(&json!({ "ports": ports }), &nowhere);
    assert_eq!(report.remarks.len(), 500);
    assert!(report.more >= 1500, "{}", report.more);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        "(rdma|tcp|ipv4|::1|1|0|4420|/srv/x|nqn.2026-11.org.example:mail)".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        let key = "(ports|subsystems|addr|traddr|attr|nqn|namespaces|nsid|device|path|x)";
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Pointers to all values of the file of this folder.
fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Array(elements) => {
            for (index, element) in elements.iter().enumerate() {
                pointers(element, &format!("{at}/{index}"), all);
            }
        }
        Value::Object(map) => {
            for (key, element) in map {
                pointers(element, &format!("{at}/{key}"), all);
            }
        }
        _ => {}
    }
}

#[test]
fn bytes_become_a_configuration_or_nothing() {
    let configuration = fuzzed(SAVED.as_bytes());
    assert!(configuration.is_some_and(|(text, _)| text.contains("[[subsystem]]")));
    assert_eq!(fuzzed(b"{}"), None);
}

proptest! {
    /// For any value at any place, the written configuration can be read.
    #[test]
    fn arbitrary_input_gives_a_configuration_or_an_error(
        which in any::<prop::sample::Index>(),
        value in any_json(),
    ) {
        let mut all = Vec::new();
        pointers(&serde_json::from_str(SAVED).unwrap(), "", &mut all);
        let pointer: &String = which.get(&all);
        let saved = saved_with(pointer, value);
        let mut report = Report::default();
        if let Some(converted) = convert(&saved, Probe(&small_blocks), &mut report) {
            let _ = imported(&text::of(&converted, Path::new("/keys")));
        }
    }
}
