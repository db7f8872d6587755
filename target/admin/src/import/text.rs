//! The configuration that is written.

use std::fmt::Write as _;

use nvmeof_wire::text::{Escaped, is_hidden};
use toml::Value;

use super::Carried;
use super::ports::{AnaState, IN_CAPSULE, Port};
use super::subsystems::{Namespace, Subsystem};

/// What a configuration file of ours says about `carried`.
pub(super) fn of(carried: &Carried) -> String {
    let mut out = String::from("# Made by nvmeof-target import from what nvmetcli saved.\n");
    let mut line = |text: &str| {
        out.push_str(text);
        out.push('\n');
    };
    let limits = [
        ("queue_depth", carried.queue_depth().map(u32::from)),
        ("io_queues", carried.io_queues().map(u32::from)),
        ("in_capsule", carried.long_capsules()),
        ("max_transfer", carried.max_transfer()),
        // Linux hosts 5.4 to 5.12 corrupt long in-capsule data otherwise.
        ("max_descriptors", carried.long_capsules().map(|_| 1)),
    ];
    if limits.iter().any(|(_, value)| value.is_some()) {
        line("\n[limits]");
        for (key, value) in limits {
            if let Some(value) = value {
                line(&format!("{key} = {value}"));
            }
        }
    }
    if let Some(nqn) = &carried.discovery {
        line("\n[discovery]");
        line(&format!("nqn = {}", quoted(nqn.as_str())));
    }
    let has_ana = carried.has_ana();
    for port in &carried.ports {
        line("");
        out_port(port, carried, &mut line);
    }
    for referral in &carried.referrals {
        line("\n[[referral]]");
        line(&format!("traddr = \"{}\"", referral.traddr));
        line(&format!("trsvcid = {}", referral.trsvcid));
        if let Some(id) = referral.port_id {
            line(&format!("port_id = {id}"));
        }
    }
    for subsystem in &carried.subsystems {
        line("");
        out_subsystem(subsystem, carried, has_ana, &mut line);
    }
    out
}

fn out_port(port: &Port, carried: &Carried, line: &mut impl FnMut(&str)) {
    // It has to be said where another port has more.
    let usual = carried.long_capsules().map(|_| IN_CAPSULE);
    let mut all = carried.subsystems.iter();
    let leads_to_all = all.all(|it| port.subsystems.contains(&it.nqn));
    line("[[port]]");
    line(&format!("id = {}", port.id));
    line(&format!("traddr = {}", quoted(&port.traddr)));
    line(&format!("trsvcid = {}", port.trsvcid));
    if let Some(bytes) = port.in_capsule.or(usual) {
        line(&format!("in_capsule = {bytes}"));
    }
    if let Some(entries) = carried.queue_depth_of(port) {
        line(&format!("queue_depth = {entries}"));
    }
    if !leads_to_all {
        let names = Value::from(port.subsystems.clone());
        line(&format!("subsystems = {names}"));
    }
    for (group, state) in states(port, &carried.groups()) {
        line("\n[[port.ana_group]]");
        line(&format!("id = {group}"));
        line(&format!("state = \"{}\"", state.name()));
    }
}

/// The groups whose state has to be said, because it is not `optimized`.
pub(super) fn states(port: &Port, groups: &[u32]) -> Vec<(u32, AnaState)> {
    let mut all = port.ana.clone();
    for group in groups {
        let state = || AnaState::unnamed(*group);
        all.entry(*group).or_insert_with(state);
    }
    all.into_iter()
        .filter(|(_, state)| *state != AnaState::Optimized)
        .collect()
}

fn out_subsystem(
    subsystem: &Subsystem,
    carried: &Carried,
    has_ana: bool,
    line: &mut impl FnMut(&str),
) {
    line("[[subsystem]]");
    line(&format!("nqn = {}", quoted(&subsystem.nqn)));
    let texts = [
        ("serial", &subsystem.serial),
        ("model", &subsystem.model),
        ("firmware_revision", &subsystem.firmware_revision),
        ("ieee_oui", &subsystem.ieee_oui),
    ];
    for (key, value) in texts {
        if let Some(value) = value {
            line(&format!("{key} = {}", quoted(value)));
        }
    }
    let numbers = [
        ("cntlid_min", subsystem.cntlid_min),
        ("cntlid_max", subsystem.cntlid_max),
        ("io_queues", carried.io_queues_of(subsystem)),
    ];
    for (key, value) in numbers {
        if let Some(value) = value {
            line(&format!("{key} = {value}"));
        }
    }
    if subsystem.allow_any_host {
        line("allow_any_host = true");
    } else {
        line(&format!(
            "allowed_hosts = {}",
            list(&subsystem.allowed_hosts)
        ));
    }
    for namespace in &subsystem.namespaces {
        line("");
        out_namespace(namespace, has_ana, line);
    }
}

fn out_namespace(namespace: &Namespace, has_ana: bool, line: &mut impl FnMut(&str)) {
    line("[[subsystem.namespace]]");
    line(&format!("nsid = {}", namespace.nsid));
    line(&format!("path = {}", quoted(&namespace.path)));
    if let Some(bytes) = namespace.block_size {
        line(&format!("block_size = {bytes}"));
    }
    if let Some(uuid) = namespace.uuid {
        line(&format!("uuid = \"{uuid}\""));
    }
    // The kernel tells none where nobody gave one.
    line(&format!(
        "nguid = \"{}\"",
        namespace.nguid.unwrap_or_default()
    ));
    if has_ana && namespace.ana_group > 0 {
        line(&format!("ana_group = {}", namespace.ana_group));
    }
    if !namespace.hosts.is_empty() {
        line(&format!("hosts = {}", list(&namespace.hosts)));
    }
    if !namespace.enabled {
        line("enabled = false");
    }
}

/// A text as TOML has it.
fn quoted(text: &str) -> String {
    if text.contains(is_hidden) {
        return format!("\"{}\"", Escaped(text).to_string().replace('"', "\\\""));
    }
    Value::from(text).to_string()
}

/// A list of texts, one a line.
fn list(texts: &[String]) -> String {
    let mut out = String::from("[");
    for text in texts {
        // Writing to a text does not fail.
        let _ = write!(out, "\n    {},", quoted(text));
    }
    out.push_str(if texts.is_empty() { "]" } else { "\n]" });
    out
}
