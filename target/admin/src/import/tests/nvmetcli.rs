//! Files that nvmetcli saved: one configuration of nvmet of Linux 6.12 in the guest of the
//! lab, saved by version 0.8 of 2023 and by that of July 2026.

use super::*;

const SAVED_BY: [&str; 2] = [
    include_str!("../nvmetcli/0.8.json"),
    include_str!("../nvmetcli/2026-07.json"),
];

#[test]
fn configuration_saved_by_nvmetcli_is_imported() {
    let expected = r#"
        limits = { queue_depth = 128 }

        [[port]]
        id = 2
        traddr = "10.10.1.1"
        trsvcid = 4421
        queue_depth = 64
        subsystems = ["nqn.2026-11.org.example:mail"]
        [[port.ana_group]]
        id = 2
        state = "inaccessible"

        [[port]]
        id = 1
        traddr = "10.10.1.1"
        trsvcid = 4420
        [[port.ana_group]]
        id = 2
        state = "non-optimized"

        [[referral]]
        traddr = "192.0.2.7"
        trsvcid = 8009
        port_id = 9

        [[subsystem]]
        nqn = "nqn.2026-11.org.example:build"
        serial = "2b215a0e067f3be03579"
        model = "Linux"
        firmware_revision = "lab-7"
        ieee_oui = "00-a0-b8"
        cntlid_min = 100
        cntlid_max = 199
        io_queues = 4
        allow_any_host = true
        [[subsystem.namespace]]
        nsid = 1
        path = "/work/now/build"
        block_size = 1024
        uuid = "f0ff5d7c-4bf8-4f78-9a72-6bc0b6f4538f"
        nguid = "00000000-0000-0000-0000-000000000000"
        ana_group = 1

        [[subsystem]]
        nqn = "nqn.2026-11.org.example:mail"
        serial = "0123456789abcdef0123"
        model = "Library"
        firmware_revision = "lab-7"
        ieee_oui = "00-a0-b8"
        allowed_hosts = [
            "nqn.2026-11.org.example:backup",
            "nqn.2014-08.org.nvmexpress:uuid:1ab00000-0000-4000-8000-000000000001",
        ]
        [[subsystem.namespace]]
        nsid = 2
        path = "/work/now/mail-2"
        block_size = 1024
        uuid = "afaa13fd-3b8e-4ce3-9420-9e889879564f"
        nguid = "ef90689c-6c46-d44c-89c1-4067801309a2"
        ana_group = 2
        [[subsystem.namespace]]
        nsid = 1
        path = "/work/now/mail-1"
        block_size = 1024
        uuid = "da4d6bce-d96d-478b-93e7-d9ba191e75cb"
        nguid = "ef90689c-6c46-d44c-89c1-4067801309a1"
        ana_group = 1
    "#;
    for saved in SAVED_BY {
        let saved = serde_json::from_str(saved).unwrap();
        let (text, report) = import(&saved, &small_blocks);
        assert_eq!(imported(&text), imported(expected), "{text}");
        // No losses, and no remarks about defaults.
        let locations: Vec<_> = report
            .remarks
            .iter()
            .map(|it| it.location.as_str())
            .collect();
        let expected = ["ports", "subsystems[1].attr.qid_max"];
        assert_eq!(locations, expected, "{}", remarks(&report));
        assert_eq!(report.losses(), 0, "{}", remarks(&report));
        Config::parse(Path::new("configuration"), text).unwrap();
    }
}

/// Default values of attributes of kernels after 6.12.
#[test]
fn attributes_of_newer_kernels_are_known() {
    let [_, saved] = SAVED_BY;
    let before: Value = serde_json::from_str(saved).unwrap();
    let mut saved = before.clone();
    for port in saved["ports"].as_array_mut().unwrap() {
        port["param"]["mdts"] = json!("-1");
    }
    for subsystem in saved["subsystems"].as_array_mut().unwrap() {
        subsystem["attr"]["vendor_id"] = json!("0x0");
        subsystem["attr"]["subsys_vendor_id"] = json!("0x0");
        for namespace in subsystem["namespaces"].as_array_mut().unwrap() {
            namespace["resv"]["enable"] = json!("0");
        }
    }
    let about = |saved: &Value| {
        let (text, report) = import(saved, &small_blocks);
        (text, remarks(&report))
    };
    assert_eq!(about(&saved), about(&before));
    saved["subsystems"][0]["attr"]["vendor_id"] = json!("0x1af4");
    let (text, remarks) = about(&saved);
    assert_eq!(text, about(&before).0);
    let lost = "not imported: subsystems[0].attr.vendor_id: \"0x1af4\" is not reported to hosts";
    assert!(remarks.contains(lost), "{remarks}");
}

/// As in public files: NQNs without the standard form, and a link-local address.
#[test]
fn nonstandard_nqns_and_link_local_addresses_are_imported() {
    let saved = json!({
        "hosts": [{ "nqn": "hostnqn" }],
        "ports": [{
            "addr": {
                "adrfam": "ipv6",
                "traddr": "fe80::1%eth0",
                "treq": "not specified",
                "trsvcid": "4420",
                "trtype": "rdma",
            },
            "portid": 1,
            "referrals": [],
            "subsystems": ["testnqn", "nqn.nvme-subsystem-1-UUID"],
        }],
        "subsystems": [
            {
                "allowed_hosts": ["hostnqn", "a\u{202e}b"],
                "attr": { "allow_any_host": "0" },
                "namespaces": [],
                "nqn": "testnqn",
            },
            {
                "allowed_hosts": [],
                "attr": { "allow_any_host": "1" },
                "namespaces": [],
                "nqn": "nqn.nvme-subsystem-1-UUID",
            },
        ],
    });
    let bytes = saved.to_string();
    let (text, report) = of_bytes("a", bytes.as_bytes(), &nowhere).unwrap();
    assert_eq!(report.losses(), 0, "{}", remarks(&report));
    assert!(report.is_good, "{}", remarks(&report));
    let notes = remarks(&report);
    assert!(
        notes.contains("a\\u202Eb, hostnqn, nqn.nvme-subsystem-1-UUID, testnqn"),
        "{notes}"
    );
    assert!(!text.contains('\u{202e}'), "{text}");
    let table = imported(&text);
    let subsystem = &table["subsystem"][0];
    assert_eq!(subsystem["nqn"].as_str(), Some("testnqn"));
    assert_eq!(subsystem["allowed_hosts"][1].as_str(), Some("a\u{202e}b"));
    assert_eq!(table["port"][0]["traddr"].as_str(), Some("fe80::1%eth0"));
}
