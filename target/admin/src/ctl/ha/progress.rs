//! How far an order of `ctl ha` is, from one state to the next.

use std::collections::BTreeMap;
use std::time::Duration;

use nvmeof_target_api::{HaGroupOut, HaOut};
use nvmeof_wire::text::Escaped;

/// The order whose effect is awaited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// The gateway serves the group.
    Move { group: u32, gateway: String },
    /// The gateway owns no group.
    Drain { gateway: String },
}

/// What has become of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Done(String),
    /// It fails, or an error has occurred meanwhile.
    Failed(String),
    /// The state has changed.
    Changed(String),
    Same,
}

/// The state of an order.
#[derive(Debug)]
pub(super) struct Progress<'a> {
    awaited: &'a Awaited,
    /// The groups concerned, with the messages that are known already.
    groups: BTreeMap<u32, Messages>,
    /// The last text.
    text: String,
}

/// Note and error of a group.
type Messages = [Option<String>; 2];

fn messages(group: &HaGroupOut) -> Messages {
    [group.note.clone(), group.error.clone()]
}

impl Awaited {
    /// What was ordered.
    pub(super) fn ordered(&self) -> String {
        match self {
            Self::Move { group, gateway } => {
                format!(
                    "ordered: move group {group} to gateway {}",
                    Escaped(gateway)
                )
            }
            Self::Drain { gateway } => format!("ordered: drain gateway {}", Escaped(gateway)),
        }
    }

    fn concerns(&self, one: &HaGroupOut) -> bool {
        match self {
            Self::Move { group, .. } => one.group == *group,
            Self::Drain { gateway } => one.owner.as_ref() == Some(gateway),
        }
    }
}

impl<'a> Progress<'a> {
    /// From the state before the order.
    pub(super) fn new(awaited: &'a Awaited, before: &HaOut) -> Self {
        let concerned = before.groups.iter().filter(|one| awaited.concerns(one));
        Self {
            awaited,
            groups: concerned.map(|one| (one.group, messages(one))).collect(),
            text: String::new(),
        }
    }

    /// Compares the next state with the last one.
    pub(super) fn step(&mut self, state: &HaOut) -> Step {
        let done = match self.awaited {
            Awaited::Move { group, gateway } => moved(state, *group, gateway),
            Awaited::Drain { gateway } => self.drained(state, gateway),
        };
        if let Some(text) = done {
            return Step::Done(text);
        }
        if let "refused" | "stopped" = state.standing.as_str() {
            let why = state.error.as_deref().unwrap_or("its log has the reason");
            let text = format!(
                "gateway {}: {}, so that it cannot follow the order: {why}",
                Escaped(&state.gateway),
                state.standing
            );
            return Step::Failed(text);
        }
        for one in &state.groups {
            if let Some(text) = self.news(one) {
                return Step::Failed(format!(
                    "group {}: {text}; it may still move: see `ctl ha why {}`",
                    one.group, one.group
                ));
            }
        }
        let text = self.text_of(state);
        if text == self.text {
            return Step::Same;
        }
        self.text.clone_from(&text);
        Step::Changed(text)
    }

    /// The result of a drain, if the state shows that it is done.
    fn drained(&self, state: &HaOut, gateway: &str) -> Option<String> {
        let mut entries = state.gateways.iter();
        let entry = entries.find(|one| one.gateway == gateway);
        let is_drained = entry.is_none_or(|one| !["alive", "unknown"].contains(&&*one.state));
        if !is_drained || state.groups.iter().any(|one| self.awaited.concerns(one)) {
            return None;
        }
        let name = Escaped(gateway);
        let done =
            format!("done: gateway {name} owns no group; `ctl ha resume {name}` ends the drain");
        let its = state.groups.iter();
        let its = its.filter(|one| self.groups.contains_key(&one.group) && one.phase != "serving");
        let its = its.map(|one| format!("group {} is not served yet: {}", one.group, place(one)));
        Some(its.fold(done, |done, one| done + "\n" + &one))
    }

    /// A note or an error that was not there before, or has disappeared and returned.
    fn news(&mut self, one: &HaGroupOut) -> Option<String> {
        let known = self.groups.get_mut(&one.group)?;
        let [note, error] = std::mem::replace(known, messages(one));
        let note = one.note.as_ref().filter(|now| note.as_ref() != Some(*now));
        // The text of an error changes with each attempt.
        let error = one.error.as_ref().filter(|_| error.is_none());
        let news: Vec<&str> = note.into_iter().chain(error).map(String::as_str).collect();
        (!news.is_empty()).then(|| news.join("; "))
    }

    fn text_of(&self, state: &HaOut) -> String {
        let concerned = state.groups.iter().filter(|one| self.awaited.concerns(one));
        let place = |one: &HaGroupOut| format!("group {}: {}", one.group, place(one));
        let mut lines: Vec<_> = concerned.map(place).collect();
        if lines.is_empty() {
            lines.push("waiting for the record".to_owned());
        }
        if let Some(error) = &state.error {
            lines.push(format!("the record: {error}"));
        }
        lines.join("\n")
    }

    /// The error if it takes too long.
    pub(super) fn too_late(&self, state: &HaOut, waited: Duration) -> String {
        let seconds = waited.as_secs();
        let concerned = state.groups.iter().filter(|one| self.awaited.concerns(one));
        let concerned: Vec<_> = concerned.collect();
        let record = state.error.as_ref();
        let record = record.map_or_else(String::new, |error| format!("; the record: {error}"));
        match self.awaited {
            Awaited::Move { group, gateway } => {
                let place = concerned.first().map(|one| place(one));
                let place = place.unwrap_or_else(|| "not configured any more".to_owned());
                format!(
                    "group {group}: gateway {} does not serve it after {seconds} s: {place}\
                     {record}; it may still move: see `ctl ha why {group}`",
                    Escaped(gateway)
                )
            }
            Awaited::Drain { gateway } => {
                let name = Escaped(gateway);
                let groups = concerned.iter().map(|one| stays(one, gateway));
                let groups: Vec<_> = groups.collect();
                let groups = match groups.is_empty() {
                    true => "the record does not show the drain".to_owned(),
                    false => groups.join("; "),
                };
                format!(
                    "gateway {name}: not drained after {seconds} s: {groups}{record}; start \
                     another gateway, or cancel with `ctl ha resume {name}`"
                )
            }
        }
    }
}

/// The result of a move, if the state shows that it is done.
fn moved(state: &HaOut, group: u32, gateway: &str) -> Option<String> {
    let one = state.groups.iter().find(|one| one.group == group)?;
    let next = one.moves_to.as_ref();
    let is_done = one.owner.as_deref() == Some(gateway)
        && one.phase == "serving"
        && next.is_none_or(|to| to.gateway == gateway);
    is_done.then(|| format!("done: gateway {} serves group {group}", Escaped(gateway)))
}

/// Where a group is, without what changes all the time.
fn place(one: &HaGroupOut) -> String {
    let owner = one.owner.as_ref();
    let owner = owner.map_or_else(String::new, |owner| format!(" at {}", Escaped(owner)));
    let fencing = match one.to_fence.len() {
        0 => String::new(),
        1 => ", 1 client to fence".to_owned(),
        clients => format!(", {clients} clients to fence"),
    };
    format!("{}{owner}{fencing}", Escaped(&one.phase))
}

/// Where a group is, and why no other gateway can take it.
fn stays(one: &HaGroupOut, gateway: &str) -> String {
    let place = format!("group {} is {}", one.group, place(one));
    let others = one.candidates.iter().filter(|it| it.gateway != gateway);
    let others: Vec<_> = others.collect();
    if others.iter().any(|it| it.rank.is_some()) {
        return place;
    }
    let reasons = others.iter().map(|it| {
        let reason = it.reason.as_deref().unwrap_or("no candidate");
        format!("{}: {reason}", Escaped(&it.gateway))
    });
    let reasons: Vec<_> = reasons.collect();
    let reasons = match reasons.is_empty() {
        true => "it has no other gateway".to_owned(),
        false => reasons.join(", "),
    };
    format!("{place}, and no other gateway can take it ({reasons})")
}
