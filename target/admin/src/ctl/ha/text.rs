//! The state of high availability as text of 80 columns.

use nvmeof_target_api::{HaCandidateOut, HaGroupOut, HaOut, HaTakeoverOut};
use nvmeof_wire::text::Escaped;

use crate::ctl::lists::table;
use crate::ctl::print::Lines;

/// Gateways and groups, and below them what needs attention.
pub(super) fn show(all: &HaOut) -> String {
    let mut lines = Lines::default();
    add_this(&mut lines, all);
    let header = ["GATEWAY", "STATE", "CONTROLLER IDS"];
    let gateways = all.gateways.iter().map(|one| {
        [
            Escaped(&one.gateway).to_string(),
            Escaped(&one.state).to_string(),
            format!("{}-{}", one.first_controller_id, one.last_controller_id),
        ]
    });
    // Rows with long names are wrapped.
    let rows = table(header, gateways);
    rows.iter().for_each(|row| lines.add(0, row));
    let header = ["GROUP", "PHASE", "SINCE", "OWNER", "MOVES TO"];
    let groups = all.groups.iter().map(|one| {
        let or_none = |name: Option<&String>| {
            name.map_or_else(|| "-".to_owned(), |name| Escaped(name).to_string())
        };
        [
            one.group.to_string(),
            Escaped(&one.phase).to_string(),
            or_none(one.since.as_ref()),
            or_none(one.owner.as_ref()),
            or_none(one.moves_to.as_ref().map(|it| &it.gateway)),
        ]
    });
    let rows = table(header, groups);
    rows.iter().for_each(|row| lines.add(0, row));
    all.groups
        .iter()
        .for_each(|one| add_problems(&mut lines, one));
    lines.text
}

/// This gateway, and why it does not take part.
fn add_this(lines: &mut Lines, all: &HaOut) {
    let standing = match all.standing.as_str() {
        "starting" => "starting, serves no group yet",
        "refused" => "REFUSED, serves no group",
        "stopped" => "stopped, serves no group",
        other => other,
    };
    let text = format!(
        "gateway {} (this one): {}, record {}",
        Escaped(&all.gateway),
        Escaped(standing),
        Escaped(&all.record)
    );
    lines.add(0, &text);
    if let Some(error) = &all.error {
        lines.add(2, &format!("ERROR: {error}"));
    }
}

fn add_problems(lines: &mut Lines, one: &HaGroupOut) {
    let id = one.group;
    match one.to_fence.len() {
        0 => {}
        1 => lines.add(0, &format!("group {id}: 1 client is not fenced yet")),
        clients => lines.add(
            0,
            &format!("group {id}: {clients} clients are not fenced yet"),
        ),
    }
    for (kind, text) in [("note", &one.note), ("ERROR", &one.error)] {
        if let Some(text) = text {
            lines.add(0, &format!("group {id}: {kind}: {text}"));
        }
    }
    let has_none = one.candidates.iter().all(|it| it.rank.is_none());
    if has_none && one.phase != "serving" && !one.candidates.is_empty() {
        let text = format!("group {id}: no gateway can take it: see `ctl ha why {id}`");
        lines.add(0, &text);
    }
}

/// Why each group is where it is.
pub(super) fn why(all: &HaOut) -> String {
    let mut lines = Lines::default();
    if all.standing != "member" || all.error.is_some() {
        add_this(&mut lines, all);
    }
    if all.groups.is_empty() {
        lines.add(0, "no groups are configured");
    }
    all.groups.iter().for_each(|one| add_group(&mut lines, one));
    lines.text
}

fn add_group(lines: &mut Lines, one: &HaGroupOut) {
    let owner = match &one.owner {
        Some(owner) => format!("owner {}", Escaped(owner)),
        None => "no owner".to_owned(),
    };
    let since = one.since.as_ref();
    let since = since.map_or_else(String::new, |at| format!(" since {}", Escaped(at)));
    let served = match one.served_here {
        true => ", served by this gateway",
        false => "",
    };
    let text = format!(
        "group {}: {owner}, {}{since}{served}, epoch {}",
        one.group,
        Escaped(&one.phase),
        one.epoch
    );
    lines.add(0, &text);
    if let Some(last) = &one.last_takeover {
        add_takeover(lines, last);
    }
    add_clients(lines, "clients of the owner", &one.clients);
    add_clients(lines, "NOT FENCED YET", &one.to_fence);
    if let Some(to) = &one.moves_to {
        let text = format!("moves to {}: {}", Escaped(&to.gateway), Escaped(&to.why));
        lines.add(2, &text);
    }
    for (kind, text) in [("note", &one.note), ("ERROR", &one.error)] {
        if let Some(text) = text {
            lines.add(2, &format!("{kind}: {text}"));
        }
    }
    if one.candidates.is_empty() {
        lines.add(2, "no gateways");
    }
    one.candidates
        .iter()
        .for_each(|it| add_candidate(lines, it));
}

fn add_takeover(lines: &mut Lines, last: &HaTakeoverOut) {
    let from = match &last.from {
        Some(from) => format!("from {}", Escaped(from)),
        None => "of a group without owner".to_owned(),
    };
    lines.add(2, &format!("last takeover {from}: {}", last.why));
    let fenced = last.fenced.iter().map(|one| Escaped(one).to_string());
    let fenced: Vec<_> = fenced.collect();
    match &last.fenced_at {
        Some(at) if !fenced.is_empty() => {
            lines.add(4, &format!("fenced {}: {}", Escaped(at), fenced.join(" ")));
        }
        _ => lines.add(4, "fenced no client"),
    }
}

fn add_clients(lines: &mut Lines, what: &str, clients: &[String]) {
    let clients: Vec<_> = clients.iter().map(|one| Escaped(one).to_string()).collect();
    if !clients.is_empty() {
        lines.add(2, &format!("{what}: {}", clients.join(" ")));
    }
}

fn add_candidate(lines: &mut Lines, it: &HaCandidateOut) {
    let rank = match it.rank {
        Some(rank) => format!("candidate {}", rank.saturating_add(1)),
        None => "cannot take it".to_owned(),
    };
    let reason = it.reason.as_ref();
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    lines.add(
        2,
        &format!("gateway {}: {rank}{reason}", Escaped(&it.gateway)),
    );
}
