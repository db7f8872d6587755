//! Command lines and their requests.
#![allow(clippy::unwrap_used, reason = "tests")]

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    ctl: Ctl,
}

fn edits(line: &str) -> Value {
    let words = std::iter::once("x").chain(line.split(' '));
    let edits = match Program::try_parse_from(words).unwrap().ctl.what {
        What::Namespace(it) => it.what.edits(),
        What::Host(it) => it.what.edits(),
        What::Port(it) => it.what.edits(),
        What::Subsystem(it) => it.what.edits(),
        What::Ana(it) => it.what.edits(),
        What::Referral(it) => it.what.edits(),
        other => panic!("{other:?}"),
    };
    let json = json!(edits);
    // The target can parse the request.
    let back: Vec<Edit> = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(back, edits);
    json
}

#[test]
fn each_command_is_an_edit() {
    for (line, expected) in [
        (
            "namespace add ram:1M --nsid 3 --readonly --host a --host b",
            json!([{"edit": "namespace_add", "nsid": 3, "path": "ram:1M", "readonly": true,
                "hosts": ["a", "b"]}]),
        ),
        (
            "namespace remove 3",
            json!([{"edit": "namespace_remove", "nsid": 3}]),
        ),
        (
            "namespace disable 3 --subsystem s",
            json!([{"edit": "namespace_enable", "nsid": 3, "enabled": false, "subsystem": "s"}]),
        ),
        (
            "namespace set 3 path=/a=b.img hosts= --subsystem s",
            json!([{"edit": "namespace_set", "subsystem": "s", "nsid": 3, "key": "path",
                "value": "/a=b.img"},
                {"edit": "namespace_set", "subsystem": "s", "nsid": 3, "key": "hosts"}]),
        ),
        (
            "subsystem set nqn.x model=m --plan",
            json!([{"edit": "subsystem_set", "nqn": "nqn.x", "key": "model", "value": "m"}]),
        ),
        (
            "port set 2 queue_depth=64",
            json!([{"edit": "port_set", "address": "2", "key": "queue_depth", "value": "64"}]),
        ),
        (
            "host allow a b --only",
            json!([{"edit": "host_deny", "host": "any"}, {"edit": "host_allow", "host": "a"},
                {"edit": "host_allow", "host": "b"}]),
        ),
        ("host deny a", json!([{"edit": "host_deny", "host": "a"}])),
        (
            "host set-key a --key-file /k --controller-key-file credential:c --hash sha256,sha512 \
             --dh-groups ffdhe2048",
            json!([{"edit": "host_set_key", "host": "a", "key_file": "/k",
                "controller_key_file": "credential:c", "hash": ["sha256", "sha512"],
                "dh_groups": ["ffdhe2048"]}]),
        ),
        (
            "host set-key a --key-file /k --force",
            json!([{"edit": "host_set_key", "host": "a", "key_file": "/k", "force": true}]),
        ),
        (
            "host rotate-key a --key-file /new --old-until 2026-12-31",
            json!([{"edit": "host_rotate_key", "host": "a", "key_file": "/new",
                "old_key_until": "2026-12-31"}]),
        ),
        (
            "host remove-old-key a",
            json!([{"edit": "host_remove_old_key", "host": "a"}]),
        ),
        (
            "host remove-old-key a --force",
            json!([{"edit": "host_remove_old_key", "host": "a", "force": true}]),
        ),
        (
            "host remove-key a",
            json!([{"edit": "host_remove_key", "host": "a"}]),
        ),
        (
            "port add 10.0.0.1:4420 --provider iwarp,shm --id 2",
            json!([{"edit": "port_add", "address": "10.0.0.1:4420", "provider": ["iwarp", "shm"],
                "id": 2}]),
        ),
        (
            "port remove 2",
            json!([{"edit": "port_remove", "address": "2"}]),
        ),
        (
            "subsystem add nqn.x --host any",
            json!([{"edit": "subsystem_add", "nqn": "nqn.x", "hosts": ["any"]}]),
        ),
        (
            "subsystem add nqn.x --namespace path=ram:1M,nsid=2,host=a,host=b --namespace \
             path=/a,readonly=true",
            json!([{"edit": "subsystem_add", "nqn": "nqn.x"},
                {"edit": "namespace_add", "subsystem": "nqn.x", "path": "ram:1M", "nsid": 2,
                    "hosts": ["a", "b"]},
                {"edit": "namespace_add", "subsystem": "nqn.x", "path": "/a",
                    "readonly": true}]),
        ),
        (
            "subsystem remove nqn.x",
            json!([{"edit": "subsystem_remove", "nqn": "nqn.x"}]),
        ),
        (
            "ana set 1 inaccessible --port 2",
            json!([{"edit": "ana_set", "address": "2", "group": 1, "state": "inaccessible"}]),
        ),
        (
            "referral add 10.0.0.9:8009 --port-id 1",
            json!([{"edit": "referral_add", "address": "10.0.0.9:8009", "port_id": 1}]),
        ),
        (
            "referral remove 10.0.0.9:8009",
            json!([{"edit": "referral_remove", "address": "10.0.0.9:8009"}]),
        ),
    ] {
        assert_eq!(edits(line), expected, "{line}");
    }
}

#[test]
fn status_shows_unusual_properties_of_namespaces() {
    let namespace = |nsid: u32, state: &str, hosts: Value| {
        let ana_state = if nsid == 3 {
            json!(null)
        } else {
            json!("optimized")
        };
        json!({"nsid": nsid, "path": "/srv/a.img", "bytes": 4096, "block_size": 512,
            "readonly": nsid == 2, "state": state, "ana_group": nsid, "ana_state": ana_state,
            "hosts": hosts})
    };
    let namespaces = [
        namespace(1, "ready", Value::Null),
        namespace(2, "faulted", json!(["nqn.a", "nqn.b"])),
        namespace(3, "disabled", json!([])),
    ];
    let status = json!({"version": "1", "serving": "", "drained": false, "file": "f",
        "applied": null, "edits": 0, "deferred": 0, "state": "s", "saved": true, "ports": [],
        "controllers": [], "subsystems": [
            {"nqn": "nqn.s", "allowed_hosts": null, "namespaces": namespaces}]});
    let text = print::status(&serde_json::from_value(status).unwrap());
    let (_, shown) = text.split_once("every host may connect\n").unwrap();
    let expected = "  namespace 1: /srv/a.img, 4K, blocks of 512
  namespace 2: /srv/a.img, 4K, blocks of 512, read-only, ANA group 2
    (optimized), FAULTED
    only for nqn.a
    only for nqn.b
  namespace 3: /srv/a.img, ANA group 3 (state by port), DISABLED
    for no host
";
    assert_eq!(shown, expected);
}
