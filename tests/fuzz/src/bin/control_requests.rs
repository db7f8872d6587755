//! Requests over the control socket, and the state file: any bytes are parsed or refused.
//! Accepted changes give a configuration that can be saved and parsed again. A change that
//! does not fit does not affect the others.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvmeof_fuzz::Script;
use nvmeof_target_control::fuzzing;

const DOCUMENT: &str = r#"# An administrator's remark.
[[port]]
id = 3
traddr = "127.0.0.1"
[[port.ana_group]]
id = 2
state = "inaccessible"
[[port]]
traddr = "::1"
trsvcid = 4421
subsystems = ["nqn.2026-11.org.example:disk"]
[[subsystem]]
nqn = "nqn.2026-11.org.example:disk"
allow_any_host = true
[[subsystem.namespace]]
nsid = 1
path = "null:1M"
ana_group = 2
[[subsystem]]
nqn = "nqn.2026-11.org.example:closed"
allowed_hosts = ["nqn.2026-11.org.example:host"]
[[referral]]
traddr = "192.0.2.9"
"#;

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    match script.byte() % 4 {
        0 => {
            let _ = fuzzing::control_body(script.rest());
        }
        1 => {
            let _ = fuzzing::state(DOCUMENT, script.rest());
        }
        2 => {
            let _ = fuzzing::edits(DOCUMENT, script.rest());
        }
        // Changes of changed configurations, all of them plausible.
        _ => {
            let mut document = DOCUMENT.to_owned();
            for _ in 0..4 {
                let body = likely(&mut script);
                if let Some(changed) = fuzzing::edits(&document, body.as_bytes()) {
                    document = changed;
                }
            }
        }
    }
});

/// One to four changes of few objects, so that they conflict.
fn likely(script: &mut Script<'_>) -> String {
    let edits: Vec<_> = (0..=script.byte() % 4).map(|_| edit(script)).collect();
    format!(r#"{{"edits": [{}]}}"#, edits.join(", "))
}

fn edit(script: &mut Script<'_>) -> String {
    let mut one_of = |of: &[&'static str]| of[script.index(of.len())];
    let subsystem = one_of(&[
        "nqn.2026-11.org.example:disk",
        "nqn.2026-11.org.example:closed",
        "nqn.2026-11.org.example:new",
        "no name",
    ]);
    let host = one_of(&[
        "any",
        "nqn.2026-11.org.example:host",
        "nqn.2026-11.org.example:other",
        "",
    ]);
    let address = one_of(&[
        "127.0.0.1:4420",
        "[::1]:4421",
        "192.0.2.1:4420",
        "unix:/x",
        "192.0.2.9:8009",
        "nowhere",
    ]);
    let nsid = one_of(&["1", "2", "0", "4294967295"]);
    let group = one_of(&["1", "2", "128", "129"]);
    let state = one_of(&["optimized", "inaccessible", "change", "gone"]);
    let path = one_of(&["null:1M", "ram:1M", r"/srv/\u0000x", "disk.img", ""]);
    let rest = match one_of(&[
        "subsystem_add",
        "subsystem_remove",
        "namespace_add",
        "namespace_remove",
        "namespace_enable",
        "namespace_disable",
        "host_allow",
        "host_deny",
        "port_add",
        "port_remove",
        "ana_set",
        "ana_set_all",
        "referral_add",
        "referral_remove",
    ]) {
        "subsystem_add" => format!(r#""subsystem_add", "nqn": "{subsystem}", "hosts": ["{host}"]"#),
        "subsystem_remove" => format!(r#""subsystem_remove", "nqn": "{subsystem}""#),
        "namespace_add" => format!(
            r#""namespace_add", "subsystem": "{subsystem}", "nsid": {nsid}, "path": "{path}",
            "ana_group": {group}, "hosts": ["{host}"]"#
        ),
        "namespace_remove" => {
            format!(r#""namespace_remove", "subsystem": "{subsystem}", "nsid": {nsid}"#)
        }
        "namespace_enable" => format!(
            r#""namespace_enable", "subsystem": "{subsystem}", "nsid": {nsid}, "enabled": true"#
        ),
        "namespace_disable" => format!(
            r#""namespace_enable", "subsystem": "{subsystem}", "nsid": {nsid}, "enabled": false"#
        ),
        "host_allow" => format!(r#""host_allow", "subsystem": "{subsystem}", "host": "{host}""#),
        "host_deny" => format!(r#""host_deny", "subsystem": "{subsystem}", "host": "{host}""#),
        "port_add" => format!(r#""port_add", "address": "{address}", "id": {group}"#),
        "port_remove" => format!(r#""port_remove", "address": "{address}""#),
        "ana_set" => {
            format!(r#""ana_set", "address": "{address}", "group": {group}, "state": "{state}""#)
        }
        "ana_set_all" => format!(r#""ana_set", "group": {group}, "state": "{state}""#),
        "referral_add" => format!(r#""referral_add", "address": "{address}", "port_id": {group}"#),
        _ => format!(r#""referral_remove", "address": "{address}""#),
    };
    format!(r#"{{"edit": {rest}}}"#)
}
