//! Keys of hosts and authentications, as text.

use nvmeof_target_api::{AuthenticationOut, ControllerOut, HostKeysOut, StatusOut};
use nvmeof_wire::text::Escaped;

use super::print::Lines;
use crate::remedy::of_outcome;

/// How the host of a controller authenticated, as the end of a line. Empty if no host needs to.
pub(super) fn authenticated(one: &ControllerOut, status: &StatusOut) -> String {
    let Some(AuthenticationOut {
        key,
        hash,
        group,
        two_way,
    }) = &one.authentication
    else {
        let is_used = !status.host_keys.is_empty();
        return if is_used { ", authenticated: no" } else { "" }.to_owned();
    };
    let two_way = if *two_way { ", two-way" } else { "" };
    format!(", authenticated: {key} key, {hash}, {group}{two_way}")
}

/// Adds warnings about keys, the hosts that have keys, and how their authentications ended.
pub(super) fn add(lines: &mut Lines, status: &StatusOut) {
    for warning in &status.key_warnings {
        lines.add(0, &format!("WARNING: {warning}"));
    }
    for host in &status.host_keys {
        lines.add(
            0,
            &format!("keys of host {}: {}", Escaped(&host.host), keys(host)),
        );
        let counts = host.authentications.iter();
        for one in counts.filter(|one| one.count > 0) {
            add_outcome(lines, &one.outcome, one.count);
        }
    }
    let counts = status
        .host_keys
        .iter()
        .flat_map(|host| &host.authentications);
    let others = status.authentications.iter().map(|all| {
        let of_hosts = counts.clone().filter(|one| one.outcome == all.outcome);
        let of_hosts: u64 = of_hosts.map(|one| one.count).sum();
        (&all.outcome, all.count.saturating_sub(of_hosts))
    });
    let mut others = others.filter(|(_, count)| *count > 0).peekable();
    if others.peek().is_some() {
        lines.add(0, "other hosts");
    }
    others.for_each(|(outcome, count)| add_outcome(lines, outcome, count));
}

fn keys(host: &HostKeysOut) -> String {
    let old = match (&host.old_key_until, host.old_key) {
        (Some(until), true) => format!(", old key until {until}"),
        (None, true) => ", old key".to_owned(),
        (_, false) => String::new(),
    };
    let controller = if host.controller_key {
        ", controller key"
    } else {
        ""
    };
    format!("key{old}{controller}")
}

fn add_outcome(lines: &mut Lines, outcome: &str, count: u64) {
    let remedy = of_outcome(outcome).map(|remedy| format!(": {remedy}"));
    let remedy = remedy.unwrap_or_default();
    lines.add(
        2,
        &format!("authentications {}: {count}{remedy}", Escaped(outcome)),
    );
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::{Value, json};

    use super::super::print;
    use super::*;

    fn counts(counts: &[(&str, u64)]) -> Value {
        let counts = counts.iter();
        counts
            .map(|(outcome, count)| json!({"outcome": outcome, "count": count}))
            .collect()
    }

    fn status() -> StatusOut {
        let controller = |id: u16, key: Option<&str>| {
            let authentication = key.map(|key| {
                json!({"key": key, "hash": "SHA-256", "group": "ffdhe2048", "two_way": id == 1})
            });
            json!({"controller": id, "host": "nqn.h", "subsystem": "nqn.s", "io_queues": 2,
                "authentication": authentication})
        };
        let status = json!({"version": "1", "serving": "", "drained": false, "file": "f",
            "applied": null, "edits": 0, "deferred": 0, "state": "s", "saved": true, "ports": [],
            "controllers": [controller(1, Some("current")), controller(2, Some("old")),
                controller(3, None)],
            "subsystems": [{"nqn": "nqn.s", "allowed_hosts": null, "namespaces": [],
                "require_authentication": true}],
            "host_keys": [{"host": "nqn.h", "old_key": true,
                "old_key_until": "2027-01-01T00:00:00Z", "controller_key": true,
                "authentications": counts(&[("success", 3), ("wrong_key", 1), ("timeout", 0)])}],
            "authentications": counts(&[("success", 3), ("wrong_key", 1), ("no_key", 2)]),
            "key_warnings": ["controller 2 uses the old key"]});
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn status_has_keys_of_controllers_and_outcomes_of_hosts() {
        let text = print::status(&status());
        let (_, shown) = text.split_once("subsystem nqn.s\n").unwrap();
        let unwrapped = shown.replace("\n    ", " ");
        let lines: Vec<&str> = unwrapped.lines().collect();
        let expected = [
            "  every host with a key may connect",
            "  controller 1 of nqn.h: 2 I/O queues, authenticated: current key, SHA-256, \
             ffdhe2048, two-way",
            "  controller 2 of nqn.h: 2 I/O queues, authenticated: old key, SHA-256, ffdhe2048",
            "  controller 3 of nqn.h: 2 I/O queues, authenticated: no",
            "WARNING: controller 2 uses the old key",
            "keys of host nqn.h: key, old key until 2027-01-01T00:00:00Z, controller key",
            "  authentications success: 3",
        ];
        assert_eq!(lines[..7], expected, "{shown}");
        assert!(
            lines[7].starts_with("  authentications wrong_key: 1: "),
            "{shown}"
        );
        assert_eq!(lines[8], "other hosts");
        assert!(
            lines[9].starts_with("  authentications no_key: 2: "),
            "{shown}"
        );
        assert_eq!(lines.len(), 10, "{shown}");
    }

    #[test]
    fn target_without_keys_prints_nothing_about_them() {
        let mut status = status();
        status.host_keys.clear();
        status.authentications.clear();
        status.key_warnings.clear();
        status
            .controllers
            .retain(|one| one.authentication.is_none());
        let text = print::status(&status);
        assert!(
            text.ends_with("controller 3 of nqn.h: 2 I/O queues\n"),
            "{text}"
        );
    }
}
