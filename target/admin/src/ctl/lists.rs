//! `ctl namespace list` and the other lists: parts of the status, as tables or as JSON.

use nvmeof_target_api::{ControllerOut, NamespaceOut, PortOut, StatusOut, SubsystemOut};
use nvmeof_wire::text::Escaped;
use serde_json::{Value, json};

use super::edits::{Host, Namespace, Port, Subsystem};
use super::keys;
use super::print::{Lines, size};
use super::{Failed, What};

/// A list. Namespaces and hosts are those of one subsystem, or of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List<'a> {
    Namespaces(Option<&'a str>),
    Hosts(Option<&'a str>),
    Ports,
    Subsystems,
}

impl<'a> List<'a> {
    /// The list that a command requests, if any.
    ///
    /// # Errors
    /// The option `--plan`.
    pub(super) fn of(what: &'a What) -> Result<Option<Self>, Failed> {
        let (list, plan) = match what {
            What::Namespace(it) => match &it.what {
                Namespace::List(of) => (Self::Namespaces(of.subsystem.as_deref()), it.plan),
                _ => return Ok(None),
            },
            What::Host(it) => match &it.what {
                Host::List(of) => (Self::Hosts(of.subsystem.as_deref()), it.plan),
                _ => return Ok(None),
            },
            What::Port(it) if matches!(it.what, Port::List) => (Self::Ports, it.plan),
            What::Subsystem(it) if matches!(it.what, Subsystem::List) => {
                (Self::Subsystems, it.plan)
            }
            _ => return Ok(None),
        };
        if plan {
            return Err(Failed::Usage(
                "--plan: not available for list, which changes nothing".to_owned(),
            ));
        }
        Ok(Some(list))
    }

    /// The listed subsystems.
    ///
    /// # Errors
    /// No subsystem has this NQN.
    pub(super) fn subsystems<'s>(
        &self,
        status: &'s StatusOut,
    ) -> Result<Vec<&'s SubsystemOut>, Failed> {
        let (Self::Namespaces(wanted) | Self::Hosts(wanted)) = self else {
            return Ok(status.subsystems.iter().collect());
        };
        let is_wanted = |one: &&SubsystemOut| wanted.is_none_or(|nqn| nqn == one.nqn);
        let found: Vec<_> = status.subsystems.iter().filter(is_wanted).collect();
        match wanted {
            Some(nqn) if found.is_empty() => Err(Failed::Usage(format!(
                "--subsystem {}: no such subsystem; see `ctl subsystem list`",
                Escaped(nqn)
            ))),
            _ => Ok(found),
        }
    }

    /// An array with an object for each entry.
    pub(super) fn json(&self, subsystems: &[&SubsystemOut], status: &StatusOut) -> Value {
        match self {
            Self::Ports => json!(status.ports),
            Self::Subsystems => json!(
                subsystems
                    .iter()
                    .map(|one| {
                        json!({
                            "nqn": one.nqn,
                            "namespaces": one.namespaces.len(),
                            "controllers": controllers(one, status).count(),
                            "allowed_hosts": one.allowed_hosts,
                            "require_authentication": one.require_authentication,
                        })
                    })
                    .collect::<Vec<_>>()
            ),
            Self::Namespaces(_) => {
                let all = subsystems.iter().flat_map(|one| {
                    let its = one.namespaces.iter();
                    its.map(|namespace| with_subsystem(json!(namespace), &one.nqn))
                });
                all.collect()
            }
            Self::Hosts(_) => {
                let all = subsystems.iter().flat_map(|one| {
                    let its = hosts(one, status).into_iter();
                    its.map(|host| {
                        let object = json!({
                            "host": host.name,
                            "allowed": host.is_allowed,
                            "controllers": host.controllers.iter().map(|one| one.controller)
                                .collect::<Vec<_>>(),
                            "keys": status.host_keys.iter()
                                .find(|one| Some(&one.host) == host.name.as_ref()),
                        });
                        with_subsystem(object, &one.nqn)
                    })
                });
                all.collect()
            }
        }
    }

    /// Lines of 80 columns.
    pub(super) fn text(&self, subsystems: &[&SubsystemOut], status: &StatusOut) -> String {
        let mut lines = Lines::default();
        match self {
            Self::Ports => add_ports(&mut lines, &status.ports),
            Self::Subsystems => subsystems
                .iter()
                .for_each(|one| add_subsystem(&mut lines, one, status)),
            Self::Namespaces(_) => {
                for one in subsystems {
                    lines.add(0, &format!("subsystem {}", Escaped(&one.nqn)));
                    add_namespaces(&mut lines, &one.namespaces);
                }
            }
            Self::Hosts(_) => {
                for one in subsystems {
                    lines.add(0, &format!("subsystem {}", Escaped(&one.nqn)));
                    add_hosts(&mut lines, one, status);
                }
                keys::add(&mut lines, status);
            }
        }
        lines.text
    }
}

fn with_subsystem(mut object: Value, nqn: &str) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.insert("subsystem".to_owned(), json!(nqn));
    }
    object
}

fn controllers<'s>(
    subsystem: &'s SubsystemOut,
    status: &'s StatusOut,
) -> impl Iterator<Item = &'s ControllerOut> {
    let all = status.controllers.iter();
    all.filter(|one| one.subsystem == subsystem.nqn)
}

fn add_ports(lines: &mut Lines, ports: &[PortOut]) {
    let header = ["PORT", "ADDRESS", "PROVIDERS"];
    let rows = ports.iter().map(|port| {
        [
            port.id.to_string(),
            port.address.clone(),
            port.providers.clone(),
        ]
    });
    let rows = table(header, rows);
    // The header row has no port.
    let ports = std::iter::once(None).chain(ports.iter().map(Some));
    for (row, port) in rows.iter().zip(ports) {
        lines.add_row(0, row);
        let Some(port) = port else { continue };
        for one in &port.ana_groups {
            lines.add(6, &format!("ANA group {}: {}", one.group, one.state));
        }
        for nqn in port.subsystems.iter().flatten() {
            lines.add(6, &format!("only subsystem {}", Escaped(nqn)));
        }
    }
}

fn add_subsystem(lines: &mut Lines, one: &SubsystemOut, status: &StatusOut) {
    lines.add(0, &Escaped(&one.nqn).to_string());
    let allowed = match &one.allowed_hosts {
        None => "any".to_owned(),
        Some(hosts) => hosts.len().to_string(),
    };
    let text = format!(
        "namespaces {}, controllers {}, allowed hosts {allowed}",
        one.namespaces.len(),
        controllers(one, status).count()
    );
    lines.add(2, &text);
}

fn add_namespaces(lines: &mut Lines, namespaces: &[NamespaceOut]) {
    let header = ["NSID", "SIZE", "BLOCK", "ANA GROUP", "STATE", "PATH"];
    let rows = namespaces.iter().map(|one| {
        let ana_state = one.ana_state.as_deref().unwrap_or("by port");
        let readonly = if one.readonly { ", read-only" } else { "" };
        let unlinked = if one.unlinked.is_some() {
            ", unlinked"
        } else {
            ""
        };
        [
            one.nsid.to_string(),
            size(one.bytes),
            one.block_size.to_string(),
            format!("{} {ana_state}", one.ana_group),
            format!("{}{readonly}{unlinked}", one.state),
            Escaped(&one.path).to_string(),
        ]
    });
    for row in table(header, rows) {
        lines.add_row(2, &row);
    }
}

/// A host that may connect to a subsystem, or is connected.
struct HostRow<'s> {
    /// `None`: any host.
    name: Option<String>,
    is_allowed: bool,
    controllers: Vec<&'s ControllerOut>,
}

fn hosts<'s>(subsystem: &'s SubsystemOut, status: &'s StatusOut) -> Vec<HostRow<'s>> {
    let row = |name: Option<&String>, is_allowed| HostRow {
        name: name.cloned(),
        is_allowed,
        controllers: controllers(subsystem, status)
            .filter(|one| Some(&one.host) == name)
            .collect(),
    };
    let mut rows: Vec<_> = match &subsystem.allowed_hosts {
        None => vec![row(None, true)],
        Some(hosts) => hosts.iter().map(|host| row(Some(host), true)).collect(),
    };
    let is_any = subsystem.allowed_hosts.is_none();
    for one in controllers(subsystem, status) {
        if !rows.iter().any(|row| row.name.as_ref() == Some(&one.host)) {
            rows.push(row(Some(&one.host), is_any));
        }
    }
    rows
}

fn add_hosts(lines: &mut Lines, subsystem: &SubsystemOut, status: &StatusOut) {
    let rows = hosts(subsystem, status);
    if rows.is_empty() {
        lines.add(2, "no host is allowed");
    }
    for host in rows {
        let name = host.name.as_deref().unwrap_or("any host");
        let allowed = if host.is_allowed {
            "allowed"
        } else {
            "no longer allowed"
        };
        let ids: Vec<_> = host.controllers.iter().map(|one| with_key(one)).collect();
        let connected = match ids.len() {
            0 => String::new(),
            1 => format!(", controller {}", ids.join("")),
            _ => format!(", controllers {}", ids.join(", ")),
        };
        lines.add(2, &format!("{}: {allowed}{connected}", Escaped(name)));
    }
}

/// The controller ID, and the key with which its host authenticated.
fn with_key(one: &ControllerOut) -> String {
    match &one.authentication {
        None => one.controller.to_string(),
        Some(authentication) => format!("{} ({} key)", one.controller, authentication.key),
    }
}

/// Rows below a header, each column but the last as wide as its widest cell.
pub(super) fn table<const N: usize>(
    header: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> Vec<String> {
    let rows: Vec<_> = std::iter::once(header.map(str::to_owned))
        .chain(rows)
        .collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths);
        let text: String = cells
            .map(|(cell, width)| format!("{cell:width$}  "))
            .collect();
        text.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn status() -> StatusOut {
        let namespace = |nsid: u32, state: &str, path: &str| {
            json!({"nsid": nsid, "path": path, "bytes": 4096, "block_size": 512,
                "readonly": nsid == 2, "state": state, "ana_group": 1,
                "ana_state": if nsid == 2 { json!(null) } else { json!("optimized") },
                "hosts": null})
        };
        let status = json!({"version": "1", "serving": "", "drained": false, "file": "f",
            "applied": null, "edits": 0, "deferred": 0, "state": "s", "saved": true,
            "ports": [{"id": 1, "address": "10.0.0.1:4420", "providers": "iwarp, shm",
                "ana_groups": [{"group": 2, "state": "inaccessible"}], "subsystems": ["nqn.s"]}],
            "controllers": [
                {"controller": 3, "host": "nqn.a", "subsystem": "nqn.s", "io_queues": 2,
                    "authentication": {"key": "old", "hash": "SHA-256", "group": "NULL",
                        "two_way": false}},
                {"controller": 4, "host": "nqn.old", "subsystem": "nqn.s", "io_queues": 2}],
            "subsystems": [
                {"nqn": "nqn.s", "allowed_hosts": ["nqn.a", "nqn.b"], "namespaces": [
                    namespace(1, "ready", "/srv/a.img"), namespace(2, "faulted", "ram:4K")]},
                {"nqn": "nqn.t", "allowed_hosts": null, "namespaces": []}]});
        serde_json::from_value(status).unwrap()
    }

    fn text(list: List<'_>) -> String {
        let status = status();
        list.text(&list.subsystems(&status).unwrap(), &status)
    }

    #[test]
    fn namespaces_have_path_size_ana_and_state() {
        let expected = "\
subsystem nqn.s
  NSID  SIZE  BLOCK  ANA GROUP    STATE               PATH
  1     4K    512    1 optimized  ready               /srv/a.img
  2     4K    512    1 by port    faulted, read-only  ram:4K
subsystem nqn.t
  NSID  SIZE  BLOCK  ANA GROUP  STATE  PATH
";
        assert_eq!(text(List::Namespaces(None)), expected);
        let one = text(List::Namespaces(Some("nqn.t")));
        assert!(!one.contains("nqn.s"), "{one}");
    }

    #[test]
    fn ports_have_id_providers_ana_states_and_subsystems() {
        let expected = "\
PORT  ADDRESS        PROVIDERS
1     10.0.0.1:4420  iwarp, shm
      ANA group 2: inaccessible
      only subsystem nqn.s
";
        assert_eq!(text(List::Ports), expected);
    }

    #[test]
    fn hosts_are_allowed_or_connected_or_both() {
        let expected = "\
subsystem nqn.s
  nqn.a: allowed, controller 3 (old key)
  nqn.b: allowed
  nqn.old: no longer allowed, controller 4
subsystem nqn.t
  any host: allowed
";
        assert_eq!(text(List::Hosts(None)), expected);
    }

    #[test]
    fn subsystems_are_counted() {
        let expected = "\
nqn.s
  namespaces 2, controllers 2, allowed hosts 2
nqn.t
  namespaces 0, controllers 0, allowed hosts any
";
        assert_eq!(text(List::Subsystems), expected);
    }

    #[test]
    fn json_is_an_array_with_the_subsystem_in_each_object() {
        let status = status();
        let list = List::Namespaces(Some("nqn.s"));
        let json = list.json(&list.subsystems(&status).unwrap(), &status);
        assert_eq!(json[1]["subsystem"], "nqn.s");
        assert_eq!(json[1]["path"], "ram:4K");
        let list = List::Hosts(None);
        let json = list.json(&list.subsystems(&status).unwrap(), &status);
        let last = json!({"subsystem": "nqn.t", "host": null, "allowed": true,
            "controllers": [], "keys": null});
        assert_eq!(json[3], last);
        assert_eq!(json[0]["controllers"], json!([3]));
    }

    #[test]
    fn unknown_subsystem_is_wrong_usage() {
        let error = List::Hosts(Some("nqn.x"))
            .subsystems(&status())
            .unwrap_err();
        let expected = "--subsystem nqn.x: no such subsystem; see `ctl subsystem list`";
        assert_eq!(
            (error.status(), error.to_string()),
            (2, expected.to_owned())
        );
    }
}
