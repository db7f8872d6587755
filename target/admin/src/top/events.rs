//! Events: differences between two snapshots of a target.

use std::collections::{BTreeMap, VecDeque};

use nvmeof_target_api::{NamespaceState, Snapshot};

/// The latest events.
#[derive(Clone, Debug, Default)]
pub(super) struct Events {
    lines: VecDeque<String>,
}

/// Number of events kept.
const KEPT: usize = 100;

impl Events {
    /// Newest first.
    pub(super) fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().rev().map(String::as_str)
    }

    /// Adds the events between two snapshots.
    pub(super) fn add(&mut self, before: &Snapshot, now: &Snapshot) {
        let at = clock(now);
        for what in between(before, now) {
            if self.lines.len() >= KEPT {
                self.lines.pop_front();
            }
            self.lines.push_back(format!("{at} {what}"));
        }
    }
}

/// The outcome of an authentication that did not fail.
const SUCCESS: &str = "success";

/// Hours, minutes and seconds, UTC.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "seconds that a program runs"
)]
fn clock(now: &Snapshot) -> String {
    let seconds = (now.started + now.uptime).max(0.0) as u64;
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}", seconds % 60)
}

fn between(before: &Snapshot, now: &Snapshot) -> Vec<String> {
    if !now.is_same_run_as(before) {
        return vec!["the target was restarted".to_owned()];
    }
    let mut all = Vec::new();
    let connected = |all: &Snapshot, host: &str, subsystem: &str| {
        let mut hosts = all.hosts.iter();
        hosts.any(|one| one.host == host && one.subsystem == subsystem && one.connected)
    };
    for one in now.hosts.iter().filter(|one| one.connected) {
        if !connected(before, &one.host, &one.subsystem) {
            all.push(format!("{} connected to {}", one.host, one.subsystem));
        }
    }
    for one in before.hosts.iter().filter(|one| one.connected) {
        if !connected(now, &one.host, &one.subsystem) {
            all.push(format!("{} disconnected from {}", one.host, one.subsystem));
        }
    }
    let names = |all: &Snapshot| {
        let served = all.namespaces.iter().filter(|one| one.nsid > 0);
        let names = served.map(|one| format!("{} namespace {}", one.subsystem, one.nsid));
        names.collect::<Vec<_>>()
    };
    let (old, new) = (names(before), names(now));
    all.extend(
        new.iter()
            .filter(|one| !old.contains(one))
            .map(|one| format!("{one} is served")),
    );
    all.extend(
        old.iter()
            .filter(|one| !new.contains(one))
            .map(|one| format!("{one} is no longer served")),
    );
    for one in now.namespaces.iter().filter(|one| one.nsid > 0) {
        let same = |it: &&NamespaceState| it.subsystem == one.subsystem && it.nsid == one.nsid;
        let earlier = before.namespaces.iter().find(same);
        if earlier.is_some_and(|earlier| earlier.state != one.state) {
            let (subsystem, nsid, state) = (&one.subsystem, one.nsid, &one.state);
            all.push(format!("{subsystem} namespace {nsid} is {state}"));
        }
    }
    for (one, earlier) in now.reactors.iter().zip(&before.reactors) {
        match (earlier.answered, one.answered) {
            (true, false) => all.push(format!("reactor {} does not respond", one.reactor)),
            (false, true) => all.push(format!("reactor {} responds again", one.reactor)),
            _ => {}
        }
        for (kind, count) in &one.rdma_errors {
            let more = count.saturating_sub(earlier.rdma_errors.get(kind).copied().unwrap_or(0));
            if more > 0 {
                all.push(format!("{more} connections lost: {kind}"));
            }
        }
        let refused = one.rejected.saturating_sub(earlier.rejected);
        if refused > 0 {
            all.push(format!(
                "{refused} connections rejected; see the log of the target"
            ));
        }
    }
    let failed = more(&before.authentications, &now.authentications);
    let failed = failed.filter(|(outcome, _)| *outcome != SUCCESS);
    all.extend(failed.map(|(outcome, more)| format!("{more} authentications failed: {outcome}")));
    let reached = more(&before.limits, &now.limits);
    all.extend(reached.map(|(key, more)| format!("{key} was reached {more} times")));
    all
}

/// The counters that increased, and by how much.
fn more<'a>(
    before: &'a BTreeMap<String, u64>,
    now: &'a BTreeMap<String, u64>,
) -> impl Iterator<Item = (&'a str, u64)> {
    let all = now.iter().map(move |(key, count)| {
        let earlier = before.get(key).copied().unwrap_or(0);
        (key.as_str(), count.saturating_sub(earlier))
    });
    all.filter(|(_, more)| *more > 0)
}
